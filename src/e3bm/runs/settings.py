"""Every setting there is, frozen and validated; the same classes serve the command line, JSON files and Python.

This module imports nothing heavy: `e3bm --help` reads it.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializeAsAny, ValidationError, field_validator, model_validator

from e3bm.errors import SettingsError
from e3bm.settings import InnerLoopSettings, MethodSettings, Settings, settings_error, with_e3bm

Split = Literal["train", "val", "test"]
Setting = Literal["inductive", "transductive"]
HYPERPRIOR_RATES = ("psi_rate", "psi_weight", "base_rate", "base_weight")  # learning rates that only E3BM has


class DataSettings(Settings):
    """Which images, and what happens to them."""

    dataset: str = "glyphs"
    """Name of a data set (`e3bm datasets` lists them); 'glyphs' comes with the package."""
    folder: Path | None = None
    """Folder of prepared data sets; unset: the variable E3BM_DATA, then the user's cache folder."""
    image_size: int | None = Field(default=None, ge=8, le=512)
    """Pixels of a side after resizing; unset: the data set's own size."""
    recipe: str = "grey"
    """How images are treated: grey, cifar, mtl, sib, can, egnn, maml, omniglot, or a registered one."""
    normalisation: Literal["gidaris", "mtl", "cifar", "imagenet", "lite", "grey", "none"] | None = None
    """Mean and standard deviation by which pixels are normalised; unset: those of the recipe."""
    augment: bool = False
    """Whether training images go through the recipe's augmentation (validation and test images never do)."""
    rotations: bool = False
    """Add training classes rotated by 90, 180 and 270 degrees as new classes (customary for Omniglot)."""


class EpisodeSettings(Settings):
    """The shape of an episode."""

    ways: int = Field(default=5, ge=2)
    """Classes in an episode."""
    shots: int | tuple[int, int] = 1
    """Labelled examples per class, or a range (low, high) from which every class draws its own number."""
    queries: int = Field(default=15, ge=1)
    """Examples per class to be predicted."""


class BackboneSettings(Settings):
    """The network from image to features."""

    name: str = "conv4"
    """conv4, conv4_64, conv4_stride, conv4_egnn, resnet12, resnet12_flat, resnet12_can, resnet12_tadam, resnet18,
    resnet25, wrn28_10, wrn28_10_sib or others."""
    width: float = Field(default=1.0, gt=0, le=4)
    """Factor on all numbers of channels."""
    whitened: bool = False
    """Features are averaged over mirrored and moved views, centred, and partially whitened by the training classes: in
    a pre-training this is the last stage; elsewhere it is for backbones that were pre-trained with it."""
    pretrained: Path | None = None
    """Run folder of `e3bm pretrain`, or a .safetensors file of `e3bm import-weights`, to take the weights from."""
    adapt: Literal["frozen", "scale_shift", "full"] = "frozen"
    """Which part the outer loop trains: nothing (features are computed once), scale and shift, or everything."""
    batchnorm: Literal["batch", "running", "batch_then_running", "per_step"] = "running"
    """Which statistics normalise: those of each pass; frozen running averages; those of each pass in training and their
    running averages at test (MTL as published); or running averages of each inner step (MAML)."""

    @property
    def title(self) -> str:
        """As tables name it: resnet12 x0.5."""
        return f"{self.name} x{self.width:g}" + " whitened" * self.whitened


class HyperpriorSettings(Settings):
    """Psi: where the rates alpha_m and the weights v_m come from."""

    rate: Literal["constant", "learned", "frozen", "generated"] = "constant"
    """alpha: a constant, learned per epoch, taken from another run and frozen, or generated for each task."""
    weight: Literal["last", "equal", "learned", "frozen", "generated"] = "last"
    """v: only the last epoch, all equal, learned, taken from another run and frozen, or generated for each task."""
    frozen_from: Path | None = None
    """Run folder whose learned values 'frozen' uses."""
    start_from: Path | None = None
    """Run folder whose trained hyperprior this one begins with; at learning rates of zero it stays as it was there."""
    weight_start: Literal["last", "equal"] = "equal"
    """v' before training, if it is learned or generated: (0,..,0,1) or 1/M."""
    generator: Literal["fc", "lstm"] = "lstm"
    """A separate layer for each epoch, or an LSTM over epochs."""
    setting: Setting = "inductive"
    """Whether the generator also sees the unlabelled queries."""
    summary: Literal["stats", "class_mean", "flat", "rms"] = "stats"
    """Which summary of the gradient the generator sees."""
    embedding: bool = False
    """Whether the generator also sees the mean embedding (not with 'stats', which replaces it)."""
    mixing: Literal["scaled", "shifted", "residual", "convex", "literal"] = "scaled"
    """How base value and generated difference combine; with 'shifted' votes may start at zero."""
    mixing_fraction: float = Field(default=1e-4, gt=0, lt=1)
    """lambda of the residual, convex and literal rules."""
    hidden: int = Field(default=8, ge=1)
    """LSTM state size."""
    readout: bool = True
    """A linear layer after the LSTM, starting at zero; without it the hidden state is the difference."""
    separate: bool = False
    """Two LSTMs, for alpha and for v, instead of one for both."""
    constrained: bool = False
    """Keep trained alpha and v inside (0, 1)."""
    detach: bool = False
    """Stop gradients at the generator's inputs."""
    familiar: bool = False
    """Return to the fixed alpha and v from before training on tasks unlike those of training (with 'stats')."""
    kl: float = Field(default=0.0, ge=0)
    """Coefficient of the KL term between generated and base values."""

    @property
    def generated(self) -> bool:
        return "generated" in (self.rate, self.weight)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "frozen" in (self.rate, self.weight) and self.frozen_from is None:
            raise ValueError("a frozen schedule needs frozen_from, the run folder that learned the values")
        if self.summary == "stats" and self.embedding:
            raise ValueError("the 'stats' summary replaces the embedding; set embedding off or choose another summary")
        if self.mixing == "scaled" and self.weight == "generated" and self.weight_start == "last":
            raise ValueError("a zero cannot be scaled: use weight_start 'equal', or mixing 'shifted'")
        if self.familiar and not (self.generated and self.summary == "stats"):
            raise ValueError("familiar needs generated alpha or v and the summary 'stats', which says how a task looks")
        if self.start_from is not None and not (self.generated and self.summary == "stats"):
            raise ValueError("start_from needs generated alpha or v and the summary 'stats', which fits any network")
        return self


class OptimiserSettings(Settings):
    """The outer loop's steps."""

    kind: Literal["adam", "sgd"] = "adam"
    """SGD has momentum 0.9."""
    nesterov: bool = True
    """SGD: Nesterov's momentum; off: the plain one, as in published TADAM."""
    steps: int = Field(default=1000, ge=1)
    """Total number of meta-steps."""
    tasks: int = Field(default=4, ge=1)
    """Tasks in a meta-batch, over all processes."""
    theta: float = Field(default=1e-3, ge=0)
    """Learning rate of everything but the encoder: where learners start, or all weights of an adapted network."""
    encoder: float = Field(default=1e-4, ge=0)
    """Learning rate of scale, shift and BatchNorm, or of a fully trained backbone."""
    psi_rate: float = Field(default=1e-3, ge=0)
    """Learning rate of the generator of alpha, or of both alpha and v."""
    psi_weight: float = Field(default=1e-3, ge=0)
    """Learning rate of the generator of v, if it is separate."""
    base_rate: float = Field(default=1e-3, ge=0)
    """Learning rate of alpha'."""
    base_weight: float = Field(default=1e-3, ge=0)
    """Learning rate of v'."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 decay on everything that is trained."""
    schedule: Literal["constant", "step", "milestones", "cosine"] = "constant"
    """How learning rates decrease."""
    step_every: int = Field(default=1000, ge=1)
    """Meta-steps between decreases in the 'step' schedule."""
    milestones: tuple[int, ...] = ()
    """Meta-steps at which learning rates decrease in the 'milestones' schedule."""
    step_factor: float = Field(default=0.5, gt=0, le=1)
    """Factor of each decrease."""
    factors: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()
    """One factor for each milestone, if they differ; unset: step_factor for all."""
    clip: float | None = Field(default=10.0, gt=0)
    """Upper bound on the norm of all gradients together; unset: none."""
    clip_each: float | None = Field(default=None, gt=0)
    """Upper bound on the norm of each tensor's gradient, as in published TADAM; unset: none."""
    clip_elements: float | None = Field(default=None, gt=0)
    """Upper bound on every element of the gradient, as in published MAML; unset: none."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.schedule == "milestones") != bool(self.milestones):
            raise ValueError("the schedule 'milestones' and the milestones themselves belong together; set both")
        if len(self.factors) not in (0, len(self.milestones)):
            raise ValueError(f"{len(self.milestones)} milestones need as many factors, found {len(self.factors)}")
        return self


class ValidationSettings(Settings):
    """How the best checkpoint is found."""

    split: Split = "val"
    """Classes on which the best is chosen: val, or train for data without validation classes; test is refused."""
    every: int = Field(default=250, ge=1)
    """Meta-steps between validations."""
    episodes: int = Field(default=200, ge=1)
    """Number of episodes, the same ones at every validation."""
    ways: int | None = Field(default=None, ge=2)
    """Classes in a validation episode; unset: as in training."""
    shots: int | None = Field(default=None, ge=1)
    """Labelled examples per class in a validation episode; unset: as in training."""

    def episode(self, trained: EpisodeSettings) -> EpisodeSettings:
        """The shape of validation episodes, given that of training."""
        return trained.but(ways=self.ways or trained.ways, shots=self.shots or trained.shots)


class MachineSettings(Settings):
    """Where it runs; results do not depend on these settings, up to rounding."""

    device: Literal["cpu", "cuda", "mps"] = "cpu"
    """cuda (with nccl between processes) and mps are untested."""
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    """bfloat16 means autocast around a backbone that is being trained (not in MAML); untested on cuda and mps."""
    threads: int = Field(default=1, ge=1)
    """Threads per process; for small tasks two processes beat two threads."""
    engine: Literal["torch", "fabric"] = "torch"
    """What connects processes: torch, started by torchrun, or Lightning Fabric, which also supports SLURM."""


class TrainSettings(Settings):
    """Meta-training: Algorithm 1."""

    data: DataSettings = DataSettings()
    episode: EpisodeSettings = EpisodeSettings()
    tasks: Literal["all", "cross-fitted"] = "all"
    """Classes of training episodes: all training classes, or for each task only classes that its backbone was not
    pre-trained on (`e3bm pretrain --folds K`), just as test classes are new to it."""
    related: float = Field(default=0.0, ge=0, le=1)
    """Share of cross-fitted training episodes whose classes are all of one family (FC100: a super-class), which are
    harder to tell apart."""
    query_shares: int | None = Field(default=None, ge=1)
    """Uneven queries in training: in every episode classes have shares of all its queries that are drawn from
    Dirichlet(this). Unset: every class has the same number."""
    backbone: BackboneSettings = BackboneSettings()
    method: SerializeAsAny[MethodSettings] = Field(default_factory=lambda: _method_of({}))
    """Which method, and its own options."""
    hyperprior: HyperpriorSettings = HyperpriorSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    validation: ValidationSettings = ValidationSettings()
    machine: MachineSettings = MachineSettings()
    seed: int = Field(default=0, ge=0)
    """Initial values and training episodes."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Meta-steps between checkpoints (also at every validation)."""
    name: str = ""
    """What tables call this run; unset: from the method and its hyperprior."""

    @field_validator("method", mode="before")
    @classmethod
    def _chosen_by_name(cls, value: Any) -> Any:
        """The settings class is the method's own, found by its name."""
        return _method_of(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        plain = self.hyperprior.rate == "constant" and self.hyperprior.weight == "last"
        title, inner = self.method.title, self.inner
        if inner is None and self.hyperprior != HyperpriorSettings():
            raise ValueError(f"{title} has no inner epochs, so there is no alpha and no v to set; leave out hyperprior")
        if inner is not None and inner.test_epochs not in (None, inner.epochs) and not plain:
            raise ValueError("method.test_epochs is for plain methods: learned alpha and v have exactly M values")
        if inner is not None and inner.without_votes and self.hyperprior.weight in ("learned", "generated"):
            raise ValueError(inner.without_votes)
        needs = self.method.needs
        for setting, found, possible in (
            ("backbone.adapt", self.backbone.adapt, needs.backbone),
            ("backbone.batchnorm", self.backbone.batchnorm, needs.batchnorm),
            ("machine.precision", self.machine.precision, needs.precision),
        ):
            if found not in possible:
                reason = needs.reasons.get(setting, f"{title} does not work with {setting} '{found}'")
                raise ValueError(f"{reason}; set {setting} to {' or '.join(possible)}")
        if self.related and self.tasks != "cross-fitted":
            raise ValueError("related classes are for cross-fitted tasks; set tasks to cross-fitted or related to 0")
        if self.backbone.adapt == "frozen" and self.backbone.batchnorm != "running":
            raise ValueError("a frozen backbone has running statistics; set backbone.batchnorm to running")
        if self.backbone.adapt == "frozen" and self.data.augment:
            raise ValueError("features of a frozen backbone are computed once; set data.augment off or adapt it")
        return self

    @property
    def inner(self) -> InnerLoopSettings | None:
        """The method's settings if it has an inner loop."""
        return self.method if isinstance(self.method, InnerLoopSettings) else None

    @property
    def test_epochs(self) -> int | None:
        """Number of inner updates at test where it is not that of training."""
        return None if self.inner is None else self.inner.test_epochs

    @property
    def title(self) -> str:
        """What tables call this run."""
        if self.name:
            return self.name
        return with_e3bm(self.method.label) if self.hyperprior.generated else self.method.label


def _method_of(values: dict[str, Any]) -> MethodSettings:
    """Settings of the method that the values name, ours or a plug-in's; its file is imported now, and torch with it."""
    from e3bm.methods import DEFAULT_METHOD, METHODS

    name = values.get("name", DEFAULT_METHOD)
    kind: type[MethodSettings] | None = getattr(METHODS[name], "settings", None)
    if kind is None:
        raise SettingsError(f"The method '{name}' has no settings class; docs/how_to/own_method.md shows one.")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise settings_error(error, "method") from None


class PretrainSettings(Settings):
    """Many-shot classification of the meta-training classes."""

    data: DataSettings = DataSettings(augment=True)
    backbone: BackboneSettings = BackboneSettings(adapt="full")
    machine: MachineSettings = MachineSettings()
    classifier: Literal["linear", "cosine"] = "linear"
    """Head over the training classes; the cosine head has a learned scale."""
    epochs: int = Field(default=10, ge=1)
    """Passes over the training images."""
    batch: int = Field(default=128, ge=2)
    """Images per step."""
    rate: float = Field(default=0.1, gt=0)
    """(Peak) learning rate of SGD with Nesterov momentum 0.9."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """L2 decay."""
    schedule: Literal["one_cycle", "step", "warmup_step"] = "one_cycle"
    """One cycle up and down; decreases by step_factor every step_every epochs; or the latter after a linear warm-up."""
    warmup: int = Field(default=0, ge=0)
    """Warm-up steps of the schedule 'warmup_step'."""
    step_every: int = Field(default=30, ge=1)
    """Epochs between decreases."""
    step_factor: float = Field(default=0.2, gt=0, le=1)
    """Factor of each decrease."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target spread over all classes."""
    episode: EpisodeSettings = EpisodeSettings()
    """Validation episodes: nearest class mean by cosine."""
    validation: ValidationSettings = ValidationSettings(every=1, episodes=200)
    """Here ``every`` counts epochs."""
    checkpoint_every: int = Field(default=100, ge=1)
    """Steps between checkpoints."""
    seed: int = Field(default=0, ge=0)
    """Initial values, order and augmentation."""
    left_out: tuple[int, int] | None = None
    """Train without part I of K of the training classes (whole super-classes, if the data set has them); `--folds K`
    makes one such run for every part."""
    teacher: Path | None = None
    """Run of `e3bm pretrain` whose features this backbone learns to predict, next to the classes: a larger network
    that was trained on the same classes teaches a smaller one."""
    teacher_weight: float = Field(default=5.0, gt=0)
    """Weight of the teacher in the loss: of one minus the cosine between its features and their prediction."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.left_out is not None and not 1 <= self.left_out[0] <= self.left_out[1]:
            raise ValueError(f"left_out is a part I of K, with I from 1 to K; found {self.left_out}")
        return self


class TestSettings(Settings):
    """Accuracy on a fixed, hashed list of episodes."""

    __test__ = False  # not a test class

    dataset: str | None = None
    """Data set to test on; unset: that of training."""
    folder: Path | None = None
    """Folder of prepared data sets; unset: the variable E3BM_DATA, then the user's cache folder."""
    recipe: str | None = None
    """How images are treated; unset: as in training."""
    split: Split = "test"
    """Which classes."""
    ways: int | None = Field(default=None, ge=2)
    """Classes in an episode; unset: as in training."""
    shots: int | tuple[int, int] | None = None
    """Labelled examples per class; unset: as in training."""
    queries: int | None = Field(default=None, ge=1)
    """Examples per class to be predicted; unset: as in training (the original MAML has as many as shots)."""
    query_shares: int | None = Field(default=None, ge=1)
    """Uneven queries: the classes of an episode get shares of its queries drawn from Dirichlet(this); 2 is usual.
    Unset: every class gets the same number."""
    episodes: int | None = Field(default=None, ge=2)
    """How many episodes; unset: 600, or 1,000 with uneven queries."""
    seed: int = Field(default=1234, ge=0)
    """Which episodes; the same seed gives the same list for every model."""
    calibrate: int = Field(default=0, ge=0)
    """Validation episodes on which one factor on all scores is fitted; NLL and ECE are then also reported with it.
    0: no factor. The test classes are never used for it."""
    checkpoint: Literal["best", "last"] = "best"
    """Which weights: the best on the validation classes (a run that was never validated has only the last), or the
    last."""
    batch: int = Field(default=16, ge=1)
    """Tasks at a time; no influence on results."""
    allow_seen: bool = False
    """Test on another data set even if some of its classes have the names of training classes; the result says so."""
    device: Literal["cpu", "cuda", "mps"] | None = None
    """Where the model runs; unset: where it was trained."""
    threads: int | None = Field(default=None, ge=1)
    """Threads per process; unset: as in training."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.calibrate and self.split == "val" and self.dataset is None:
            raise ValueError(
                "the factor of calibrate is fitted on the validation classes, so they cannot show what it does; set "
                "split to test or calibrate to 0"
            )
        return self

    @property
    def count(self) -> int:
        """How many episodes there are."""
        return self.episodes or (600 if self.query_shares is None else 1000)

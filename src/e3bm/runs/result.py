"""One result: a model, or several seeds of one, on a fixed list of episodes, with every label that makes it comparable.

The same record is what `e3bm test` prints with --json, what a run folder keeps, and what reports and tables read.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from e3bm.errors import CheckpointError
from e3bm.settings import with_e3bm

FORMAT = 1
Protocol = tuple[str, str, str]
ALONE = "alpha constant, v last"
RIGHT_ANSWERS = "right_answers"
"""Beside a result in a run folder: how many queries of each episode were answered rightly, as one text."""


class Bins(BaseModel):
    """How often answers of some confidence were right, in bins of equal width."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    confidence: tuple[float, ...]
    """Mean confidence of the answers in a bin, from 0 to 1."""
    accuracy: tuple[float, ...]
    """Share of them that was right."""
    count: tuple[float, ...]
    """How many there were."""

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        if not len(self.confidence) == len(self.accuracy) == len(self.count):
            raise ValueError("confidence, accuracy and count of the bins must be of one length")
        return self

    @classmethod
    def pooled(cls, parts: "list[Bins]") -> "Bins":
        """The bins of all answers together."""
        counts = [sum(each) for each in zip(*(part.count for part in parts), strict=True)]

        def mean(values: list[tuple[float, ...]]) -> tuple[float, ...]:
            sums = [0.0] * len(counts)
            for part, own in zip(parts, values, strict=True):
                sums = [total + value * n for total, value, n in zip(sums, own, part.count, strict=True)]
            return tuple(total / max(n, 1) for total, n in zip(sums, counts, strict=True))

        return cls(
            confidence=mean([part.confidence for part in parts]),
            accuracy=mean([part.accuracy for part in parts]),
            count=tuple(counts),
        )


class Result(BaseModel):
    """What a model reached, on what, and how; frozen, complete and checked when it is made or read.

    A result without its labels is refused: what is not stated cannot be compared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    format: Literal[1] = 1
    method: str = Field(min_length=1)
    setting: Literal["inductive", "transductive"]
    """Whether the model saw the unlabelled queries together."""
    hyperprior: str
    """Generator and setting, such as 'lstm inductive', or 'none'."""
    schedules: str
    """Where alpha and v come from, or 'none' for a method without an inner loop."""
    batchnorm: str = Field(min_length=1)
    transductive_batchnorm: bool
    """Whether queries share their BatchNorm statistics, which makes a result transductive in fact."""
    order: str = Field(min_length=1)
    epochs: int = Field(ge=0)
    """M at test; 0 for a method without an inner loop."""
    backbone: str
    trained_on: str
    parameters: int = Field(ge=0)
    dataset: str
    split: str
    accuracy: float = Field(ge=0, le=100, allow_inf_nan=False)
    """Percent of right answers."""
    ci: float = Field(ge=0, allow_inf_nan=False)
    """Half-width of the 95 % interval of the accuracy over episodes."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Everything else that is measured in every episode, by name, as a mean over episodes; in JSON each is a key of
    the result itself."""
    ece: float
    """Expected calibration error in percent; over several seeds the mean of each model's own."""
    episodes: int = Field(ge=1)
    episodes_hash: str = Field(min_length=1)
    episodes_seed: int
    data_digest: str
    settings_digest: str
    paired_with: str | None = None
    paired_difference: float | None = None
    paired_ci: float | None = None
    ways: int = Field(ge=2)
    shots: int | tuple[int, int]
    queries: int = Field(ge=1)
    """Of each class; the mean over the classes of an episode where they share queries unevenly."""
    query_shares: int | None = None
    """The a of Dirichlet(a), by which the classes of an episode share its queries; None: evenly."""
    seen_classes: int = 0
    seed: int | Literal["mean"]
    seeds: tuple[int, ...] | None = None
    """The seeds that were taken together."""
    seed_std: float | None = None
    """Standard deviation of the accuracy between them."""
    commit: str = Field(min_length=1)
    seconds: float
    """Of the test; over several seeds the mean, as of the training."""
    train_seconds: float
    """Of all steps of the training, without validations; of all members where several runs answer together."""
    epoch_accuracy: tuple[float, ...] = ()
    """Of each epoch's learner alone; empty without an inner loop, as are the next two."""
    reliability: Bins | None = None
    rates: tuple[float, ...] = ()
    """Mean alpha of each epoch over the test tasks."""
    weights: tuple[float, ...] = ()
    """Mean v of each epoch."""
    run: str
    checkpoint: str
    system: str = Field(default="", exclude=True, repr=False)
    """The same for runs that differ in their seed only; worked out from the run's settings, not part of the record."""
    baseline: str = Field(default="", exclude=True, repr=False)
    """The system that this one is compared with; its own where it is a method alone."""
    apart: str = Field(default="", exclude=True, repr=False)
    """What tells it from others of the same name in one table: the settings that differ, in words."""

    @model_validator(mode="before")
    @classmethod
    def _gather_metrics(cls, values: Any) -> Any:
        """In JSON a metric is a key like any other: numbers under unknown names are metrics."""
        if not isinstance(values, dict):
            return values
        foreign = {name for name in values if name not in cls.model_fields}
        measured = {name for name in foreign if _is_number(values[name])}
        rest = {name: value for name, value in values.items() if name not in measured}
        return rest | {"metrics": values.get("metrics", {}) | {name: values[name] for name in measured}}

    @field_validator("method")
    @classmethod
    def _named_as_today(cls, method: str) -> str:
        """Results that were kept before may be called MAML+++E3BM."""
        return with_e3bm(method.removesuffix("+E3BM")) if method.endswith("+E3BM") else method

    @property
    def protocol(self) -> Protocol:
        """Data, split and list of episodes: results with the same protocol may be compared one by one."""
        return self.dataset, self.split, self.episodes_hash

    @property
    def uneven(self) -> bool:
        """Whether the classes of an episode share its queries unevenly."""
        return self.query_shares is not None

    @property
    def answered_together(self) -> bool:
        """Whether an answer may depend on the other queries: by the setting, or by batch statistics that they share."""
        return self.setting == "transductive" or self.transductive_batchnorm

    @property
    def task(self) -> str:
        """The shape of its tasks in words: 5-way 1-shot."""
        shots = self.shots if isinstance(self.shots, int) else "–".join(map(str, self.shots))
        return f"{self.ways}-way {shots}-shot" + f", Dirichlet({self.query_shares}) queries" * self.uneven

    @property
    def nll(self) -> float:
        """Mean -log p of the right class."""
        return self.metrics["nll"]

    @property
    def excludes_zero(self) -> bool:
        """Whether the 95 % interval of the paired difference leaves zero out."""
        if self.paired_difference is None or self.paired_ci is None:
            return False
        return abs(self.paired_difference) > self.paired_ci

    def but(self, **changes: Any) -> "Result":
        """A checked copy with some fields changed."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate(values | changes)

    def as_json(self) -> dict[str, Any]:
        """Plain values, each metric under its own name."""
        values = self.model_dump(mode="json")
        values |= values.pop("metrics")
        return values


def read_result(values: Mapping[str, Any], where: str) -> Result:
    """A result from plain values; ``where`` names the place for the sentence about what is wrong with them."""
    if values.get("format", FORMAT) != FORMAT:
        raise CheckpointError(
            f"{where} has a result of format {values.get('format')!r}; this e3bm reads format {FORMAT}. Use the e3bm "
            "that wrote it, or test the run again."
        )
    try:
        return Result.model_validate({key: value for key, value in values.items() if key != RIGHT_ANSWERS})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        reason = "is missing" if first["type"] == "missing" else f"cannot be {first.get('input')!r:.80}"
        raise CheckpointError(
            f"{where}: the result of {values.get('method', 'a run')!s:.80} is not whole: {place} {reason}. "
            "Test that run again."
        ) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

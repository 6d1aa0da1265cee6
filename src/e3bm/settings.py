"""What all settings share, and what a method says of itself in its own: `e3bm.runs.settings` has those of a run.

This module imports nothing heavy: `e3bm --help` reads it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from e3bm.errors import SettingsError

AnySettings = TypeVar("AnySettings", bound="Settings")


class Settings(BaseModel):
    """What all groups of settings share: no unknown names, no changes after creation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """A group that is given in part has the rest from this class's own default, as on the command line."""
        if not isinstance(values, dict):
            return values
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {
            name: {**default.model_dump(), **value}
            if isinstance(value, dict) and isinstance(default := defaults.get(name), Settings)
            else value
            for name, value in values.items()
        }

    def digest(self) -> str:
        """A short name for exactly these settings."""
        return digest_of(self.model_dump(mode="json"))

    def but(self, **changes: Any) -> Self:
        """A validated copy with some fields changed; nested fields as ``group__field``."""
        values = self.model_dump()
        for path, value in changes.items():
            *groups, field = path.split("__")
            place = values
            for group in groups:
                place = place[group]
            if field not in place:
                raise SettingsError(f"There is no setting '{path.replace('__', '.')}'.")
            place[field] = value.model_dump() if isinstance(value, BaseModel) else value
        return read_settings(type(self), values)


@dataclass(frozen=True)
class Needs:
    """What a method must be given, and what it cannot work with."""

    takes: Literal["features", "maps", "images"] = "features"
    """One vector for each example, feature maps, or images for a network that the method adapts itself."""
    last_pooling: bool = True
    """Whether maps are those after the network's last pooling."""
    backbone: tuple[str, ...] = ("frozen", "scale_shift", "full")
    """What may be trained of the backbone."""
    batchnorm: tuple[str, ...] = ("batch", "running", "batch_then_running")
    """Whose BatchNorm statistics it can use."""
    precision: tuple[str, ...] = ("float32", "float64", "bfloat16")
    """In which precision it can be trained."""
    class_numbers: bool = False
    """Whether its training loss needs the numbers that classes have in the training set."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a setting is bound, by its name: shown where somebody sets it otherwise."""


class MethodSettings(Settings):
    """What every method's own settings have: a name. A method adds its options and says what it needs."""

    model_config = ConfigDict(title="MethodSettings")  # what is wrong with any of them is wrong with `method`

    title: ClassVar[str] = "a method"
    """What tables call it."""
    named_by: ClassVar[tuple[str, ...]] = ()
    """Options that make another system of it, so that tables name them too."""
    needs: ClassVar[Needs] = Needs()
    transductive: ClassVar[bool] = False
    """Whether a prediction uses the other queries."""
    any_features: ClassVar[bool] = False
    """Whether what it trains, beside a backbone, means the same on the features of any backbone."""

    name: str
    """Which method."""

    @model_validator(mode="before")
    @classmethod
    def _own_options_only(cls, values: Any) -> Any:
        """Say which options there are, instead of that one is too many."""
        foreign = [name for name in values if name not in cls.model_fields] if isinstance(values, dict) else []
        if foreign:
            own = [name for name in cls.model_fields if name != "name"]
            raise ValueError(f"{cls.title} has no option '{foreign[0]}'; it has {', '.join(own) if own else 'none'}")
        return values

    @property
    def label(self) -> str:
        """What tables call it with these options: its title, and the options that make another system of it."""
        options = ", ".join(str(getattr(self, name)) for name in self.named_by)
        return f"{self.title} ({options})" if options else self.title

    @property
    def tied_to_features(self) -> str | None:
        """Why what is trained fits one backbone's features only; None where it means the same on any backbone."""
        if self.any_features:
            return None
        advice = "set backbone.pretrained to one fold, or tasks to all"
        return f"{self.title} trains weights that belong to the features of one backbone; {advice}"

    def learning_rates(self) -> dict[str, float]:
        """Learning rates of the kinds of parameters that only this method has."""
        return {}


def with_e3bm(title: str) -> str:
    """What a method is called with E3BM: MAML+E3BM, and MAML++ + E3BM."""
    return f"{title} + E3BM" if title.endswith("+") else f"{title}+E3BM"


class InnerLoopSettings(MethodSettings):
    """A method with an inner loop: M epochs, each with a learning rate and a vote."""

    epochs: int = Field(default=20, ge=1, le=1000)
    """M: inner updates, and so members of the ensemble, in training and test."""
    test_epochs: int | None = Field(default=None, ge=1, le=1000)
    """Other number of updates at test; only for a plain method (constant alpha, last vote)."""
    rate: float = Field(default=0.01, gt=0)
    """alpha' of every epoch before training."""
    order: Literal["first", "second"] = "second"
    """Whether meta-gradients run through the inner gradients."""

    @property
    def without_votes(self) -> str | None:
        """Why v cannot be learned or generated with these options; None where the training loss depends on it."""
        return None


def digest_of(values: dict[str, Any]) -> str:
    """A short name for exactly these plain values, whatever their order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def read_settings(kind: type[AnySettings], values: dict[str, Any]) -> AnySettings:
    """Settings from plain values, with one clear sentence where they are wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise settings_error(error, "") from None


def settings_error(error: ValidationError, where: str) -> SettingsError:
    """The first thing that is wrong, as a sentence; ``where`` names the group of settings that complains."""
    first = error.errors()[0]
    place = ".".join([*([where] if where else []), *map(str, first["loc"])])
    found = "" if isinstance(first.get("input"), BaseModel | dict) else f" (found {first.get('input')!r})"
    reason = first["msg"].removeprefix("Value error, ").replace("Input should be ", "it must be ")
    reason = reason.replace("Extra inputs are not permitted", "there is no such setting")
    return SettingsError(f"{f'Setting {place}' if place else 'Settings'}: {reason}{found}.")

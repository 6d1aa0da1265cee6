"""What methods share: the registry and the encoder they are given."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from e3bm.core.learner import Method
from e3bm.errors import DataError, SettingsError
from e3bm.registry import Registry
from e3bm.runs.settings import TrainSettings


@runtime_checkable
class Encoder(Protocol):
    """From images of T tasks to features, one task independent of the others; masked examples are padding."""

    feature_size: int

    def __call__(
        self, examples: Float[Tensor, "T N *shape"], mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N D"]: ...


@dataclass(frozen=True)
class Parts:
    """What a method is built from: an encoder, and the network inside it where there is one."""

    encoder: Encoder
    backbone: nn.Module | None
    feature_size: int
    feature_positions: int = 1  # features are channels x positions


class MethodFactory(Protocol):
    """A method's class, as the registry holds it."""

    @classmethod
    def from_settings(cls, settings: TrainSettings, parts: Parts) -> Method:
        """The method that the settings describe."""
        ...


METHODS: Registry[type[MethodFactory]] = Registry("methods")


class ReadyFeatures(nn.Module):
    """The encoder of examples that are features already: frozen backbones whose features were computed once."""

    def __init__(self, feature_size: int) -> None:
        super().__init__()
        self.feature_size = feature_size

    def forward(
        self, examples: Float[Tensor, "T N *shape"], mask: Bool[Tensor, "T N"] | None = None
    ) -> Float[Tensor, "T N D"]:
        if examples.ndim != 3 or examples.shape[-1] != self.feature_size:
            raise DataError(
                f"This model takes features [tasks, examples, {self.feature_size}]; found {tuple(examples.shape)}."
            )
        return examples


def check_ways(expected: int, found: int, why: str) -> None:
    """Refuse tasks with another number of classes than a model's parameters are made for."""
    if expected != found:
        raise SettingsError(f"This model is made for {expected} ways because of its {why}; the tasks have {found}.")


__all__ = ["METHODS", "Encoder", "Method", "Parts", "ReadyFeatures", "check_ways"]

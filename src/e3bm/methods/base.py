"""What methods share: the registry and the encoder they are given."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from e3bm.core.learner import Method
from e3bm.errors import DataError, SettingsError
from e3bm.registry import Registry

METHODS: Registry[type[nn.Module]] = Registry("methods")


@runtime_checkable
class Encoder(Protocol):
    """From images of T tasks to features, one task independent of the others."""

    feature_size: int

    def __call__(self, examples: Float[Tensor, "T N *shape"]) -> Float[Tensor, "T N D"]: ...


class ReadyFeatures(nn.Module):
    """The encoder of examples that are features already: frozen backbones whose features were computed once."""

    def __init__(self, feature_size: int) -> None:
        super().__init__()
        self.feature_size = feature_size

    def forward(self, examples: Float[Tensor, "T N *shape"]) -> Float[Tensor, "T N D"]:
        if examples.ndim != 3 or examples.shape[-1] != self.feature_size:
            raise DataError(
                f"This model takes features [tasks, examples, {self.feature_size}]; found shape {tuple(examples.shape)}."
            )
        return examples


def check_ways(expected: int, found: int, why: str) -> None:
    """Refuse tasks with another number of classes than a model's parameters are made for."""
    if expected != found:
        raise SettingsError(f"This model is made for {expected} ways because of its {why}; the tasks have {found}.")


__all__ = ["METHODS", "Encoder", "Method", "ReadyFeatures", "check_ways"]

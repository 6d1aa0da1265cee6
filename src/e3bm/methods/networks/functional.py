"""A network as a function of its parameters and BatchNorm statistics, so that every task can have its own."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from e3bm.errors import SettingsError


@runtime_checkable
class ImageBackbone(Protocol):
    """A network from images to features of channels x positions, channel-major."""

    feature_size: int
    feature_positions: int


@runtime_checkable
class FunctionalPass(Protocol):
    """Features under handed-in parameters, by name.

    Every BatchNorm layer normalises by its ``statistics`` (mean and variance, in the order of the layers), or without
    them by the images' own; with ``observe`` the images' own are handed out as well, the variance unbiased.
    """

    def __call__(
        self,
        parameters: Mapping[str, Tensor],
        images: Float[Tensor, "N C H W"],
        statistics: Sequence[Float[Tensor, "2 _"]] | None = None,
        observe: bool = False,
    ) -> tuple[Float[Tensor, "N D"], tuple[Float[Tensor, "2 _"], ...]]: ...


@runtime_checkable
class OffersFunctionalPass(Protocol):
    """A backbone with a faster pass of its own, or None while it has none."""

    def functional_pass(self) -> FunctionalPass | None: ...


@runtime_checkable
class TaskNormalisation(Protocol):
    """A BatchNorm layer that is told whose statistics to use, and sets statistics aside to be applied later."""

    mode: str
    pending: list[Tensor]
    running_mean: Tensor
    running_var: Tensor


@runtime_checkable
class _ToldWhoseStatistics(Protocol):
    """What can be asked of a layer at run time: its buffers cannot."""

    mode: str
    pending: list[Tensor]


class ModulePass:
    """The pass of any network whose BatchNorm layers are told whose statistics to use."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers = normalisations(module)

    def __call__(
        self,
        parameters: Mapping[str, Tensor],
        images: Float[Tensor, "N C H W"],
        statistics: Sequence[Float[Tensor, "2 _"]] | None = None,
        observe: bool = False,
    ) -> tuple[Float[Tensor, "N D"], tuple[Float[Tensor, "2 _"], ...]]:
        values = dict(parameters)
        if statistics is not None:
            for name, given in zip(self.layers, statistics, strict=True):
                values[f"{name}.running_mean"], values[f"{name}.running_var"] = given.unbind(0)
        with self._normalising("batch" if statistics is None else "running"), self._watching(observe) as seen:
            features = functional_call(self.module, values, (images,))
        return features, tuple(seen)

    @contextmanager
    def _normalising(self, mode: str) -> Iterator[None]:
        before = [layer.mode for layer in self.layers.values()]
        for layer in self.layers.values():
            layer.mode = mode
        try:
            yield
        finally:
            for layer, its_mode in zip(self.layers.values(), before, strict=True):
                layer.mode = its_mode

    @contextmanager
    def _watching(self, observe: bool) -> Iterator[list[Tensor]]:
        seen: list[Tensor] = []

        def watch(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            variance, mean = torch.var_mean(inputs[0].detach(), (0, 2, 3))
            seen.append(torch.stack([mean, variance]))

        hooks = [self.module.get_submodule(name).register_forward_pre_hook(watch) for name in self.layers if observe]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()


def functional_pass(backbone: nn.Module, *, fast: bool = True) -> FunctionalPass:
    """The backbone's own functional pass where it offers one and ``fast`` allows it, else the general one."""
    offered = backbone.functional_pass() if fast and isinstance(backbone, OffersFunctionalPass) else None
    return ModulePass(backbone) if offered is None else offered


def normalisations(module: nn.Module) -> dict[str, TaskNormalisation]:
    """The BatchNorm layers of a network by name, all of which must keep tasks apart."""
    found: dict[str, TaskNormalisation] = {}
    for name, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm):
            continue
        if not isinstance(layer, _ToldWhoseStatistics):
            raise SettingsError(
                f"The network's layer '{name}' is a {type(layer).__name__}, which cannot be told whose statistics to "
                "use; wrap the network with e3bm.backbones.wrap."
            )
        found[name] = cast(TaskNormalisation, layer)
    return found

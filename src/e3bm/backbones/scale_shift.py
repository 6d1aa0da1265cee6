"""MTL's scaling and shifting: a frozen backbone whose kernels learn one factor each (Sun et al. 2019)."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.base import Backbone
from e3bm.backbones.normalisation import TaskBatchNorm2d


class ScaleShiftConv2d(nn.Conv2d):
    """A frozen convolution whose kernels are multiplied by a learned scale and whose bias has a learned shift added.

    ``weight`` and ``bias`` keep their names, so the state of the plain network loads as it is: scale 1 and shift 0.
    """

    def __init__(self, plain: nn.Conv2d, shift_without_bias: bool = False) -> None:
        # Built on the meta device: everything it would initialise is replaced by the plain convolution's own.
        super().__init__(
            plain.in_channels,
            plain.out_channels,
            plain.kernel_size,  # type: ignore[arg-type]  # torch declares its own attribute more loosely
            plain.stride,  # type: ignore[arg-type]
            plain.padding,  # type: ignore[arg-type]
            plain.dilation,  # type: ignore[arg-type]
            plain.groups,
            plain.bias is not None,
            plain.padding_mode,
            device="meta",
        )
        self.weight = nn.Parameter(plain.weight.detach(), requires_grad=False)
        if plain.bias is not None:
            self.bias = nn.Parameter(plain.bias.detach(), requires_grad=False)
        self.scale = nn.Parameter(torch.ones_like(self.weight[:, :, :1, :1]))
        shifted = plain.bias is not None or shift_without_bias
        self.shift = nn.Parameter(torch.zeros_like(self.weight[:, 0, 0, 0])) if shifted else None
        self.train(plain.training)

    def effective(self) -> tuple[Float[Tensor, "out in kernel kernel"], Float[Tensor, " out"] | None]:
        """The kernels and bias after scaling and shifting."""
        bias = self.bias if self.shift is None else self.shift if self.bias is None else self.bias + self.shift
        return self.weight * self.scale, bias

    def forward(self, input: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C2 H2 W2"]:
        output: Tensor = self._conv_forward(input, *self.effective())
        return output

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """The state of a plain convolution means: not yet scaled, not yet shifted."""
        neutral: Mapping[str, Tensor | None] = {
            "scale": torch.ones_like(self.scale),
            "shift": None if self.shift is None else torch.zeros_like(self.shift),
        }
        if prefix + "scale" not in state_dict:
            state_dict.update({prefix + name: value for name, value in neutral.items() if value is not None})
        super()._load_from_state_dict(state_dict, prefix, *rest)


@dataclass(frozen=True)
class ScaleShiftParameters:
    """What MTL learns of a backbone, in the two groups that optimisers treat apart."""

    scale_shift: list[nn.Parameter]
    normalisation: list[nn.Parameter]

    @property
    def count(self) -> int:
        """How many numbers are learned."""
        return sum(parameter.numel() for parameter in [*self.scale_shift, *self.normalisation])


def scale_and_shift(backbone: Backbone, *, shift_all: bool = False) -> Backbone:
    """A copy of a backbone that learns scales, shifts and BatchNorm's gamma and beta, and nothing else.

    Shifts exist where a convolution has a bias; ``shift_all`` gives one to every convolution.
    """
    scaled = deepcopy(backbone).requires_grad_(False)
    for name, module in list(scaled.named_modules()):
        if isinstance(module, nn.Conv2d) and not isinstance(module, ScaleShiftConv2d):
            scaled.set_submodule(name, ScaleShiftConv2d(module, shift_all))
    parameters = learnable_parameters(scaled)
    for parameter in [*parameters.scale_shift, *parameters.normalisation]:
        parameter.requires_grad_(True)
    return scaled


def learnable_parameters(backbone: Backbone) -> ScaleShiftParameters:
    """The scales and shifts of a backbone, and the gammas and betas of its BatchNorm layers."""
    scale_shift: list[nn.Parameter] = []
    normalisation: list[nn.Parameter] = []
    for module in backbone.modules():
        if isinstance(module, ScaleShiftConv2d):
            scale_shift += [module.scale] if module.shift is None else [module.scale, module.shift]
        elif isinstance(module, TaskBatchNorm2d) and module.affine:
            normalisation += [module.weight, module.bias]
    return ScaleShiftParameters(scale_shift, normalisation)

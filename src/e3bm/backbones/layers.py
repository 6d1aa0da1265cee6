"""The pieces that several backbones are built from."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.normalisation import TaskBatchNorm2d
from e3bm.errors import SettingsError


def scaled(width: float, channel: int) -> int:
    """The number of channels at a width factor: multiples of 8, at least 8."""
    return max(8, round(width * channel / 8) * 8)


def channels_last(images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
    """The same images with the channels innermost in memory, which convolutions on a CPU run faster on."""
    if images.shape[1] == 1:  # one channel counts as either layout: only its stride tells the convolution which to use
        return images.contiguous().squeeze(1).unsqueeze(-1).permute(0, 3, 1, 2)
    return images.contiguous(memory_format=torch.channels_last)


class ConvNorm(nn.Module):
    """A convolution that keeps the size at stride 1 if padded, its BatchNorm, and with a slope a (leaky) ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        bias: bool = False,
        slope: float | None = None,
        padded: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2 if padded else 0, bias=bias)
        self.norm: nn.Module = TaskBatchNorm2d(outputs)
        self.slope = slope

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C2 H2 W2"]:
        normalised: Tensor = self.norm(self.conv(images))
        return normalised if self.slope is None else activate(normalised, self.slope)


def activate(values: Tensor, slope: float = 0.0) -> Tensor:
    """ReLU, or leaky ReLU with a slope, in place: no layer before it needs its output for a gradient."""
    return F.leaky_relu_(values, slope) if slope else F.relu_(values)


class DropBlock(nn.Module):
    """Dropout of whole squares of a feature map, at the expected share ``rate`` (Ghiasi et al. 2018)."""

    def __init__(self, rate: float, block_size: int) -> None:
        super().__init__()
        self.rate = rate
        self.block_size = block_size

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        if not self.training or not self.rate:
            return maps
        height, width = maps.shape[2:]
        block = min(self.block_size, height, width)
        corners = (height - block + 1, width - block + 1)
        seed_rate = self.rate * height * width / (block**2 * corners[0] * corners[1])
        seeds = torch.rand(*maps.shape[:2], *corners, dtype=maps.dtype, device=maps.device).lt(seed_rate).to(maps.dtype)
        dropped = F.max_pool2d(F.pad(seeds, [block - 1] * 4), block, stride=1)
        kept = 1.0 - dropped
        return maps * (kept * (kept.numel() / kept.sum().clamp_min(1.0)))


def check_rate(name: str, rate: float) -> float:
    """A share of activations to drop, 0 (off) or more and below 1."""
    if not 0.0 <= rate < 1.0:
        raise SettingsError(f"The {name} rate must be at least 0 and below 1, found {rate}.")
    return rate


def initialise_residual(network: nn.Module) -> None:
    """Kaiming-normal convolutions by fan-out (standard deviation sqrt(2 / (k k out))), zero biases."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

"""ResNet-12 as it is usually written: plain layers in torch's default memory layout, BatchNorm a layer of its own.

Layers carry the names of ours, so that weights can be copied; a test holds the features equal.
"""

from torch import Tensor, nn

WIDTHS = (64, 160, 320, 640)
LEAKY = 0.1


class ConvNorm(nn.Module):
    """A convolution and its BatchNorm."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, maps: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(maps))
        return out


class Block(nn.Module):
    """Three convolutions beside a 1x1 shortcut, then pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.residual = nn.ModuleList(
            ConvNorm(inputs if first else outputs, outputs, 3) for first in (True, False, False)
        )
        self.shortcut = ConvNorm(inputs, outputs, 1)
        self.activation, self.pool = nn.LeakyReLU(LEAKY, inplace=True), nn.MaxPool2d(2)

    def forward(self, maps: Tensor) -> Tensor:
        first, second, third = self.residual
        found = third(self.activation(second(self.activation(first(maps)))))
        found += self.shortcut(maps)
        out: Tensor = self.pool(self.activation(found))
        return out


class PlainResNet12(nn.Module):
    """Features of 640 numbers."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS, channels: int = 3) -> None:
        super().__init__()
        inputs = (channels, *widths[:-1])
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in zip(inputs, widths, strict=True)))

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.blocks(images)
        return maps.mean((2, 3))

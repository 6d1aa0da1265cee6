"""WRN-28-10 in its two published few-shot forms: FEAT's, with biases, and SIB's, without."""

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.base import BACKBONES, Backbone
from e3bm.backbones.layers import activate, channels_last, check_rate, initialise_residual, scaled
from e3bm.backbones.normalisation import TaskBatchNorm2d
from e3bm.errors import SettingsError

BLOCKS_PER_GROUP = 4


class PreActivationBlock(nn.Module):
    """BatchNorm and ReLU before each of two convolutions, beside a shortcut (1x1 where the shape changes).

    SIB's form has its stride on the first convolution and feeds the 1x1 shortcut with the activated input; the biased
    form has its stride on the second and feeds it with the input as it came.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, biased: bool, dropout: float) -> None:
        super().__init__()
        first, second = (1, stride) if biased else (stride, 1)
        self.norm1: nn.Module = TaskBatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, first, 1, bias=biased)
        self.norm2: nn.Module = TaskBatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, second, 1, bias=biased)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=biased)
        self.shortcut_from_input = biased
        self.dropout = dropout

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C2 H2 W2"]:
        activated = activate(self.norm1(maps))
        hidden = F.dropout(self.conv1(activated), self.dropout, self.training)
        total: Tensor = self.conv2(activate(self.norm2(hidden)))
        if self.shortcut is None:
            return total.add_(maps)
        return total.add_(self.shortcut(maps if self.shortcut_from_input else activated))


class WideResNet(Backbone):
    """A stem convolution, three groups of pre-activation blocks, a last BatchNorm and ReLU, the mean over positions."""

    def __init__(
        self, widths: Sequence[int], strides: Sequence[int], *, channels: int, biased: bool, dropout: float
    ) -> None:
        super().__init__(channels=channels, feature_size=widths[-1])
        self.stem = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=biased)
        blocks = []
        for inputs, outputs, stride in zip(widths[:-1], widths[1:], strides, strict=True):
            for index in range(BLOCKS_PER_GROUP):
                shape = (inputs, outputs, stride) if index == 0 else (outputs, outputs, 1)
                blocks.append(PreActivationBlock(*shape, biased=biased, dropout=dropout))
        self.blocks = nn.Sequential(*blocks)
        self.norm = TaskBatchNorm2d(widths[-1], momentum=0.9 if biased else 0.1)
        initialise_residual(self)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        return self.maps(images).mean((2, 3))

    def maps(self, images: Float[Tensor, "N C H W"], *, last_pooling: bool = True) -> Float[Tensor, "N C2 H2 W2"]:
        """The last feature map; there is no pooling in this network."""
        return activate(self.norm(self.blocks(self.stem(channels_last(images)))))

    def conv_norm_pairs(self) -> list[tuple[str, str]]:
        """Inside each block the first convolution and the second BatchNorm; where nothing else reads it, the stem."""
        pairs = []
        for index, block in enumerate(self.blocks):
            assert isinstance(block, PreActivationBlock)
            stem_is_read_once = index == 0 and block.shortcut is not None and not block.shortcut_from_input
            if stem_is_read_once and isinstance(block.norm1, TaskBatchNorm2d):
                pairs.append(("stem", "blocks.0.norm1"))
            if isinstance(block.norm2, TaskBatchNorm2d):
                pairs.append((f"blocks.{index}.conv1", f"blocks.{index}.norm2"))
        return pairs


@BACKBONES.register("wrn28_10")
def wrn28_10(
    *,
    width: float = 1.0,
    channels: int = 3,
    image_size: int = 84,
    strides: Sequence[int] = (1, 2, 2),
    dropout: float = 0.0,
) -> Backbone:
    """FEAT's WRN-28-10: biased convolutions, dropout between them if wanted."""
    return _wide_resnet(width, channels, strides, biased=True, dropout=check_rate("dropout", dropout))


@BACKBONES.register("wrn28_10_sib")
def wrn28_10_sib(
    *, width: float = 1.0, channels: int = 3, image_size: int = 84, strides: Sequence[int] = (2, 2, 2)
) -> Backbone:
    """SIB's WRN-28-10 without biases; its strides for CIFAR are 1, 2, 2."""
    return _wide_resnet(width, channels, strides, biased=False, dropout=0.0)


def _wide_resnet(width: float, channels: int, strides: Sequence[int], *, biased: bool, dropout: float) -> WideResNet:
    if len(strides) != 3 or any(stride < 1 for stride in strides):
        raise SettingsError(f"WRN-28-10 has three groups and needs three strides of 1 or more, found {tuple(strides)}.")
    widths = [scaled(width, channel) for channel in (16, 160, 320, 640)]
    return WideResNet(widths, strides, channels=channels, biased=biased, dropout=dropout)

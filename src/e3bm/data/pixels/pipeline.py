"""Pipelines: what happens to images between the packed bytes and the model, written as one line of text.

Whole batches go through torch, which is imported when the first one comes. Single photos go through Pillow
(``Pipeline.photo``), so that a program that only predicts never imports torch.
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from e3bm.array_types import Float, Float32, Float64, Shaped, UInt8
from e3bm.data.read.decode import image_pixels
from e3bm.errors import DataError, SettingsError
from e3bm.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Images = Shaped[Tensor, "N C H W"]

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
Picture = UInt8[np.ndarray, "H W C"] | Image.Image
"""One photo: bytes with channels last, or an image of Pillow's in RGB or grey, whose pixels are not copied."""


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
        self, images: "Shaped[Tensor, 'N channels H W']", dtype: "torch.dtype | None" = None
    ) -> "Float[Tensor, 'N channels H W']":
        """Bytes (or floats of 0..255) to normalised floats, stored channels last."""
        import torch

        dtype = dtype or torch.float32
        count, channels, height, width = images.shape
        self._check(channels)
        mean, std = (torch.tensor(part, dtype=torch.float64).expand(channels) for part in (self.mean, self.std))
        # Whole rows of pixels against repeated constants: many times faster than broadcasting over three channels.
        scale, shift = ((part).repeat(width).to(images.device, dtype) for part in (1 / std, -mean / std))
        rows = images.permute(0, 2, 3, 1).reshape(count * height, width * channels).to(dtype, copy=True)
        return rows.mul_(scale).add_(shift).view(count, height, width, channels).permute(0, 3, 1, 2)

    def photo(self, pixels: UInt8[np.ndarray, "H W channels"]) -> Float32[np.ndarray, "1 channels H W"]:
        """The same for the bytes of one photo, channels last."""
        self._check(pixels.shape[2])
        mean, std = np.array(self.mean).reshape(-1, 1, 1), np.array(self.std).reshape(-1, 1, 1)
        # Channels first while they are bytes: many times faster than broadcasting over three channels.
        values = np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32)
        values *= (1 / std).astype(np.float32)
        values += (-mean / std).astype(np.float32)
        return values[None]

    def _check(self, channels: int) -> None:
        if len(self.mean) not in (1, channels):
            raise DataError(
                f"Normalisation '{self.name}' is for {len(self.mean)} channels, but the images have {channels}; "
                "use 'grey' or 'none'."
            )


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


@runtime_checkable
class Step(Protocol):
    """One operation with its settings; ``draws`` is how many random numbers it needs per image."""

    @property
    def draws(self) -> int: ...

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Shaped[Tensor, 'N c h w']": ...


@runtime_checkable
class PhotoStep(Protocol):
    """A step without chance, which a single photo can go through."""

    def photo(self, pixels: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "h w c"]: ...


STEPS: Registry[type[Step]] = Registry("augmentation")


@STEPS.register("resize")
@dataclass(frozen=True)
class Resize:
    """The shorter side to ``size`` pixels."""

    size: int
    filter: str = "bilinear"
    draws = 0

    def __post_init__(self) -> None:
        _at_least(self, "size", 1)
        if self.filter not in FILTERS:
            raise SettingsError(f"The resize filters are bilinear and bicubic, found '{self.filter}'.")

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Shaped[Tensor, 'N C h w']":
        from e3bm.data.pixels import augment

        return augment.resize(images, self.size, self.filter)

    def photo(self, pixels: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "h w C"]:
        """The same for one photo, by Pillow."""
        (height, width, channels), (high, wide) = pixels.shape, self._new_size(*pixels.shape[:2])
        if (high, wide) == (height, width):
            return pixels
        return np.asarray(_image(pixels).resize((wide, high), FILTERS[self.filter])).reshape(high, wide, channels)

    def photo_middle(self, photo: "Picture", crop: "CentreCrop") -> UInt8[np.ndarray, "h w C"]:
        """The same, and then its middle, of which alone it computes the pixels.

        Across first, then down, as Pillow does it unless it has to shorten a photo far more than to narrow it: both
        orders round, and not alike.
        """
        image, side, kind = _image(photo), crop.size, FILTERS[self.filter]
        high, wide = self._new_size(image.height, image.width)
        top, left = crop.corner(high, wide)
        if (wide, high) == image.size:
            return _pixels(image.crop((left, top, left + side, top + side)))
        down, across = image.height / high, image.width / wide
        first, last = left * across, min((left + side) * across, image.width)
        upper, lower = top * down, min((top + side) * down, image.height)
        if image.height - side <= 2 * (image.width - side):
            return _pixels(image.resize((side, side), kind, (first, upper, last, lower)))
        narrow = image.resize((side, image.height), kind, (first, 0, last, image.height))
        return _pixels(narrow.resize((side, side), kind, (0, upper, side, lower)))

    def _new_size(self, height: int, width: int) -> tuple[int, int]:
        short = min(height, width)
        return self.size * height // short, self.size * width // short


@STEPS.register("centre_crop")
@dataclass(frozen=True)
class CentreCrop:
    """The middle ``size`` x ``size`` pixels."""

    size: int
    draws = 0

    def __post_init__(self) -> None:
        _at_least(self, "size", 1)

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Shaped[Tensor, 'N C h w']":
        from e3bm.data.pixels import augment

        return augment.centre_crop(images, self.size)

    def photo(self, pixels: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "h w C"]:
        """The same for one photo."""
        top, left = self.corner(*pixels.shape[:2])
        return pixels[top : top + self.size, left : left + self.size]

    def corner(self, height: int, width: int) -> tuple[int, int]:
        """The row and the column at which the middle of a photo of this size begins."""
        if self.size > min(height, width):
            square = f"{self.size} x {self.size}"
            raise DataError(f"A crop of {square} does not fit into images of {height} x {width}; resize them first.")
        return round((height - self.size) / 2), round((width - self.size) / 2)


@STEPS.register("padded_crop")
@dataclass(frozen=True)
class PaddedCrop:
    """``size`` x ``size`` pixels at a random place of the image with a black border of ``padding``."""

    size: int
    padding: int
    draws = 2

    def __post_init__(self) -> None:
        _at_least(self, "size", 1)
        _at_least(self, "padding", 0)

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Shaped[Tensor, 'N C h w']":
        from e3bm.data.pixels import augment

        return augment.padded_crop(images, self.size, self.padding, draws)


@STEPS.register("random_resized_crop")
@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part, of random area (as a share of the image) and proportions, resized to ``size`` x ``size``."""

    size: int
    smallest: float = 0.08
    largest: float = 1.0
    narrowest: float = 3 / 4
    widest: float = 4 / 3

    def __post_init__(self) -> None:
        _at_least(self, "size", 1)
        if not (0 < self.smallest <= self.largest <= 1 and 0 < self.narrowest <= self.widest):
            raise SettingsError(
                "A random resized crop needs 0 < smallest <= largest <= 1 and 0 < narrowest <= widest; found "
                f"{self.smallest}, {self.largest}, {self.narrowest}, {self.widest}."
            )

    @property
    def draws(self) -> int:
        from e3bm.data.pixels import augment

        return augment.RESIZED_CROP_DRAWS

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Shaped[Tensor, 'N C h w']":
        from e3bm.data.pixels import augment

        scale, ratio = (self.smallest, self.largest), (self.narrowest, self.widest)
        return augment.random_resized_crop(images, self.size, scale, ratio, draws)


@STEPS.register("flip")
@dataclass(frozen=True)
class Flip:
    """Mirror left and right with this probability."""

    probability: float = 0.5
    draws = 1

    def __post_init__(self) -> None:
        _at_least(self, "probability", 0)

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Images":
        from e3bm.data.pixels import augment

        return augment.horizontal_flip(images, draws, self.probability)


@STEPS.register("colour_jitter")
@dataclass(frozen=True)
class ColourJitter:
    """Brightness, contrast and saturation by factors up to 1 +- strength, in random order."""

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self) -> None:
        for field in fields(self):
            _at_least(self, field.name, 0)

    @property
    def draws(self) -> int:
        from e3bm.data.pixels import colour

        return colour.JITTER_DRAWS

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Images":
        from e3bm.data.pixels import colour

        return colour.colour_jitter(images, self.brightness, self.contrast, self.saturation, draws)


@STEPS.register("invert")
@dataclass(frozen=True)
class Invert:
    """Ink becomes light: for drawings stored as black on white."""

    draws = 0

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Images":
        from e3bm.data.pixels import augment

        return augment.invert(images)

    def photo(self, pixels: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W C"]:
        """The same for one photo."""
        return 255 - pixels


@STEPS.register("channels")
@dataclass(frozen=True)
class Channels:
    """Grey images for a network that wants three channels (repeated), coloured ones for one that wants grey (mean)."""

    count: int
    draws = 0

    def __post_init__(self) -> None:
        _at_least(self, "count", 1)

    def __call__(self, images: "Images", draws: "Float64[Tensor, 'N draws']") -> "Shaped[Tensor, 'N c h w']":
        from e3bm.data.pixels import augment

        return augment.to_channels(images, self.count)

    def photo(self, pixels: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W c"]:
        """The same for one photo."""
        channels = pixels.shape[2]
        if channels == self.count:
            return pixels
        grey = pixels if channels == 1 else np.rint(pixels.astype(np.float32).mean(2, keepdims=True)).astype(np.uint8)
        return np.repeat(grey, self.count, axis=2)


@dataclass(frozen=True)
class Pipeline:
    """Steps in order, then a normalisation; equal texts mean equal results, so the text can key a cache."""

    steps: tuple[Step, ...]
    normalisation: Normalisation

    @classmethod
    def parse(cls, text: str) -> "Pipeline":
        """For example ``resize 92, centre_crop 80, normalise mtl``; the normalisation comes last."""
        *steps, last = (part.split() for part in text.split(","))
        if len(last) != 2 or last[0] != "normalise":
            raise SettingsError(f"A pipeline ends with 'normalise NAME'; found '{text}'.")
        return cls(tuple(_parse_step(words, text) for words in steps), NORMALISATIONS[last[1]])

    def __str__(self) -> str:
        names = {STEPS[name]: name for name in STEPS}
        texts = [" ".join([names[type(step)], *map(str, vars(step).values())]) for step in self.steps]
        return ", ".join([*texts, f"normalise {self.normalisation.name}"])

    @property
    def draws(self) -> int:
        """How many random numbers one image needs; 0 for a pipeline without chance."""
        return sum(step.draws for step in self.steps)

    def __call__(
        self,
        images: "Images",
        draws: "Float64[Tensor, 'N draws'] | None" = None,
        dtype: "torch.dtype | None" = None,
    ) -> "Float[Tensor, 'N c h w']":
        """Bytes to model input; row n of ``draws`` (numbers in [0, 1)) decides all that is random about image n."""
        import torch

        if draws is None:
            if self.draws:
                raise SettingsError(f"The pipeline '{self}' is random; give it {self.draws} numbers per image.")
            draws = torch.empty((len(images), 0), dtype=torch.float64)
        for step, part in zip(self.steps, draws.split([step.draws for step in self.steps], dim=1), strict=True):
            images = step(images, part)
        return self.normalisation(images, dtype)

    def photo(self, photo: Picture) -> Float32[np.ndarray, "1 c h w"]:
        """One photo to model input, by Pillow and NumPy; a pipeline with chance has no such form."""
        return self.normalisation.photo(self.photo_steps(photo))

    def photo_steps(self, photo: Picture) -> UInt8[np.ndarray, "h w c"]:
        """The same up to the normalisation."""
        steps = list(self.steps)
        while steps:
            match steps:
                case [Resize() as resize, CentreCrop() as crop, *steps]:
                    photo = resize.photo_middle(photo, crop)
                case [PhotoStep() as step, *steps]:
                    photo = step.photo(_pixels(photo))
                case _:
                    raise SettingsError(f"The preprocessing of photos must not be random; '{self}' is.")
        return _pixels(photo)

    def output_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Channels, height and width of the output, for packed images of this height, width and channels."""
        import torch

        height, width, channels = image_shape
        blank = torch.zeros((1, channels, height, width), dtype=torch.uint8)
        _, channels, height, width = self(blank, torch.zeros((1, self.draws), dtype=torch.float64)).shape
        return channels, height, width


def _image(photo: Picture) -> Image.Image:
    if isinstance(photo, Image.Image):
        return photo
    return Image.fromarray(photo[..., 0] if photo.shape[2] == 1 else photo)


def _pixels(photo: Picture) -> UInt8[np.ndarray, "H W C"]:
    return image_pixels(photo) if isinstance(photo, Image.Image) else photo


def _parse_step(words: Sequence[str], text: str) -> Step:
    if not words:
        raise SettingsError(f"A pipeline is steps separated by single commas; found '{text}'.")
    name, *values = words
    kind = STEPS[name]
    known = fields(kind)  # type: ignore[arg-type]  # every registered step is a dataclass
    needed = sum(field.default is MISSING for field in known)
    if not needed <= len(values) <= len(known):
        settings = ", ".join(field.name for field in known) or "no settings"
        raise SettingsError(f"The step '{name}' takes {settings}; found '{' '.join(words)}'.")
    try:
        return kind(*(field.type(value) for field, value in zip(known, values, strict=False)))  # type: ignore[operator]
    except ValueError as error:
        raise SettingsError(f"The step '{name}' takes numbers; found '{' '.join(words)}'.") from error


def _at_least(step: Step, name: str, smallest: int) -> None:
    found = vars(step)[name]
    if not found >= smallest:
        raise SettingsError(f"The {name} of {type(step).__name__} must be {smallest} or more, found {found}.")

"""The published ways of treating images, by name: one pipeline with augmentation, one without, for any image size."""

from collections.abc import Callable
from dataclasses import dataclass

from e3bm.data.pixels.pipeline import Pipeline
from e3bm.registry import Registry


@dataclass(frozen=True)
class Recipe:
    """``train`` augments, for many-shot training; ``evaluate`` does not, for episodes and tests."""

    train: Pipeline
    evaluate: Pipeline


RECIPES: Registry[Callable[[int], Recipe]] = Registry("recipe")


def _recipe(train: str, evaluate: str) -> Recipe:
    return Recipe(Pipeline.parse(train), Pipeline.parse(evaluate))


@RECIPES.register("maml")
def maml(size: int) -> Recipe:
    """No augmentation, no normalisation beyond pixel / 255."""
    plain = f"resize {size}, centre_crop {size}, normalise none"
    return _recipe(plain, plain)


@RECIPES.register("mtl")
def mtl(size: int) -> Recipe:
    """MTL and the code of the paper: images of 92, crops of 88, the middle 80 or 84; other sizes in proportion."""
    image, crop = (92, 88) if size in (80, 84) else (round(size * 92 / 84), round(size * 88 / 84))
    return _recipe(
        f"resize {image}, random_resized_crop {crop}, centre_crop {size}, flip, normalise mtl",
        f"resize {image}, centre_crop {size}, normalise mtl",
    )


@RECIPES.register("sib")
def sib(size: int) -> Recipe:
    """SIB on miniImageNet: crops of 80 from a border of 8, colour jitter, flip; other sizes in proportion."""
    return _recipe(
        f"resize {size}, centre_crop {size}, padded_crop {size} {round(size / 10)}, "
        "colour_jitter 0.4 0.4 0.4, flip, normalise gidaris",
        f"resize {size}, centre_crop {size}, normalise gidaris",
    )


@RECIPES.register("can")
def can(size: int) -> Recipe:
    """CAN without its random erasing: crops from a border of a tenth (8 of 84 pixels), flip."""
    return _recipe(
        f"resize {size}, centre_crop {size}, padded_crop {size} {round(size / 10)}, flip, normalise gidaris",
        f"resize {size}, centre_crop {size}, normalise gidaris",
    )


@RECIPES.register("egnn")
def egnn(size: int) -> Recipe:
    """EGNN: crops from a border of 4, no mirror images."""
    return _recipe(
        f"resize {size}, centre_crop {size}, padded_crop {size} 4, normalise gidaris",
        f"resize {size}, centre_crop {size}, normalise gidaris",
    )


@RECIPES.register("cifar")
def cifar(size: int) -> Recipe:
    """CIFAR-FS and FC100: crops of 32 from a border of 4, flip; other sizes in proportion."""
    return _recipe(
        f"resize {size}, centre_crop {size}, padded_crop {size} {round(size / 8)}, flip, normalise cifar",
        f"resize {size}, centre_crop {size}, normalise cifar",
    )


@RECIPES.register("omniglot")
def omniglot(size: int) -> Recipe:
    """Drawings stored as black on white: ink is 1, paper is 0 (turned classes are a view of the data set)."""
    plain = f"resize {size}, centre_crop {size}, invert, normalise none"
    return _recipe(plain, plain)


@RECIPES.register("grey")
def grey(size: int) -> Recipe:
    """Grey images such as glyphs: moved by up to a fourteenth of their size, no mirror images, pixels in -1..1."""
    return _recipe(
        f"resize {size}, centre_crop {size}, padded_crop {size} {round(size / 14)}, normalise grey",
        f"resize {size}, centre_crop {size}, normalise grey",
    )

"""A pipeline is its text: parsed, printed and equal; every image's chance is its own row of numbers."""

import numpy as np
import pytest
import torch
from torch import Tensor

from e3bm.data.episodes.randomness import uniform_numbers
from e3bm.data.pixels import augment
from e3bm.data.pixels.pipeline import NORMALISATIONS, STEPS, Pipeline, Resize
from e3bm.data.pixels.recipes import RECIPES
from e3bm.errors import SettingsError

MTL_TRAIN = "resize 92, random_resized_crop 88, centre_crop 80, flip, normalise mtl"


def noise(count: int, size: int, channels: int = 3) -> Tensor:
    pixels = np.random.default_rng(size).integers(0, 256, (count, size, size, channels), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def numbers(count: int, pipeline: Pipeline) -> Tensor:
    return torch.from_numpy(uniform_numbers(0, "test", range(count), pipeline.draws))


def test_a_pipeline_is_its_text() -> None:
    pipeline = Pipeline.parse(MTL_TRAIN)
    assert str(pipeline) == (
        "resize 92 bilinear, random_resized_crop 88 0.08 1.0 0.75 1.3333333333333333, centre_crop 80, flip 0.5, "
        "normalise mtl"
    )
    assert Pipeline.parse(str(pipeline)) == pipeline
    assert hash(Pipeline.parse(str(pipeline))) == hash(pipeline)
    assert pipeline.steps[0] == Resize(92)
    assert pipeline != Pipeline.parse(MTL_TRAIN.replace("80", "84"))
    assert pipeline.draws == 22 + 1


def test_a_pipeline_does_its_steps_in_order() -> None:
    images, pipeline = noise(5, 84), Pipeline.parse(MTL_TRAIN)
    chance = numbers(5, pipeline)
    expected = augment.resize(images, 92)
    expected = augment.random_resized_crop(expected, 88, (0.08, 1.0), (3 / 4, 4 / 3), chance[:, :22])
    expected = augment.horizontal_flip(augment.centre_crop(expected, 80), chance[:, 22:])
    assert torch.equal(pipeline(images, chance), NORMALISATIONS["mtl"](expected))


@pytest.mark.parametrize("recipe", list(RECIPES))
@pytest.mark.parametrize("size", [28, 32, 80, 84])
def test_an_image_does_not_depend_on_its_neighbours(recipe: str, size: int) -> None:
    channels = 1 if recipe in ("omniglot", "grey") else 3
    images = noise(6, 36, channels)
    pipelines = RECIPES[recipe](size)
    for pipeline in (pipelines.train, pipelines.evaluate):
        chance = numbers(6, pipeline)
        together = pipeline(images, chance)
        assert together.shape[1:] == (channels, size, size) == pipeline.output_shape((36, 36, channels))
        for n in (0, 3, 5):
            assert torch.equal(pipeline(images[n : n + 1], chance[n : n + 1])[0], together[n])
        assert Pipeline.parse(str(pipeline)) == pipeline
    assert pipelines.evaluate.draws == 0


def test_the_recipes_say_what_was_published() -> None:
    assert str(RECIPES["mtl"](80).evaluate) == "resize 92 bilinear, centre_crop 80, normalise mtl"
    assert str(RECIPES["mtl"](84).evaluate) == "resize 92 bilinear, centre_crop 84, normalise mtl"
    assert RECIPES["mtl"](80).train == Pipeline.parse(MTL_TRAIN)
    assert "padded_crop 80 8, colour_jitter 0.4 0.4 0.4, flip 0.5, normalise gidaris" in str(RECIPES["sib"](80).train)
    assert "padded_crop 32 4, flip 0.5, normalise cifar" in str(RECIPES["cifar"](32).train)
    assert RECIPES["maml"](84).train == RECIPES["maml"](84).evaluate
    assert str(RECIPES["maml"](84).train).endswith("normalise none")


def test_pixels_are_not_touched_where_nothing_is_to_be_done() -> None:
    images = noise(2, 84)
    kept = images.clone()
    for recipe in ("maml", "sib", "mtl"):
        pipeline = RECIPES[recipe](84).train
        pipeline(images, numbers(2, pipeline))
    assert torch.equal(images, kept)
    assert torch.equal(RECIPES["maml"](84).evaluate(images), images.float().mul(1 / 255))


def test_ink_is_one_and_paper_is_zero_in_omniglot() -> None:
    paper = torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)
    paper[0, 0, 14, 14] = 0
    drawing = RECIPES["omniglot"](28).evaluate(paper)
    assert drawing[0, 0, 14, 14] == 1
    assert drawing.sum() == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resize 92", "ends with 'normalise NAME'; found 'resize 92'"),
        ("", "ends with 'normalise NAME'; found ''"),
        ("normalise", "ends with 'normalise NAME'"),
        ("normalise sepia", "no normalisation named 'sepia'; known: cifar, gidaris"),
        ("reisze 92, normalise mtl", "no augmentation named 'reisze'.*Did you mean 'resize'"),
        ("resize, normalise mtl", "The step 'resize' takes size, filter; found 'resize'"),
        ("flip 0.5 0.5, normalise mtl", "The step 'flip' takes probability; found 'flip 0.5 0.5'"),
        ("invert 3, normalise mtl", "The step 'invert' takes no settings"),
        ("resize big, normalise mtl", "The step 'resize' takes numbers; found 'resize big'"),
        ("resize 0, normalise mtl", "The size of Resize must be 1 or more, found 0"),
        ("resize 92 lanczos, normalise mtl", "bilinear and bicubic, found 'lanczos'"),
        ("padded_crop 32 -1, normalise mtl", "The padding of PaddedCrop must be 0 or more, found -1"),
        ("random_resized_crop 32 0.5 0.2, normalise mtl", "0 < smallest <= largest <= 1"),
        ("colour_jitter 0.4 -0.4, normalise mtl", "The contrast of ColourJitter must be 0 or more, found -0.4"),
        ("flip,, normalise mtl", "separated by single commas"),
    ],
)
def test_wrong_texts_are_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Pipeline.parse(text)


def test_a_random_pipeline_asks_for_its_numbers() -> None:
    with pytest.raises(SettingsError, match="is random; give it 23 numbers per image"):
        Pipeline.parse(MTL_TRAIN)(noise(2, 84))


def test_every_step_is_known_by_name() -> None:
    crops = ["centre_crop", "padded_crop", "random_resized_crop", "resize"]
    assert list(STEPS) == sorted([*crops, "channels", "colour_jitter", "flip", "invert"])


def test_grey_images_serve_a_model_of_three_channels_and_the_other_way() -> None:
    grey, coloured = noise(4, 12, channels=1), noise(4, 12)
    rest = "padded_crop 12 2, colour_jitter, flip, normalise none"
    widened = Pipeline.parse(f"channels 3, {rest}")
    chance = numbers(4, widened)
    three, one = widened(grey, chance), Pipeline.parse(rest)(grey, chance)
    assert three.shape == (4, 3, 12, 12) == (4, *widened.output_shape((12, 12, 1)))
    assert (three - one).abs().max() <= 1.01 / 255  # saturation is a change for three channels, by rounding only
    narrowed = Pipeline.parse("channels 1, normalise none")(coloured)
    expected = coloured.double().mean(1, keepdim=True).round() / 255
    torch.testing.assert_close(narrowed.double(), expected, rtol=0, atol=1e-7)
    unchanged = Pipeline.parse("channels 3, normalise none")(coloured)
    assert torch.equal(unchanged, Pipeline.parse("normalise none")(coloured))

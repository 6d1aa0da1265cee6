"""Features of data sets in several views, computed once: what a prior of few-shot classifiers is trained on.

One pass of EfficientNet-Lite0 gives three views, from its middle to its end, and the reduced picture is a fourth: a
prior for any features should have seen good and bad, wide and narrow ones.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.source import data_folder, open_dataset
from e3bm.data.store.features import FeatureCache, embed_images, feature_key
from e3bm.data.store.image_set import ImageSet
from e3bm.errors import DataError
from e3bm.fewshot.meta.pools import FeaturePool
from e3bm.fewshot.meta.settings import PriorSettings
from e3bm.progress import Progress, stage
from e3bm.runs.settings import Split

LITE0_WIDTHS = {"last": 1280, "early": 40, "middle": 112}
EARLY_BLOCK, MIDDLE_BLOCK = 4, 10
SMALL = 16
VALIDATION_CLASSES, VALIDATION_IMAGES = 100, 100
TRUST_CLASSES, TRUST_IMAGES = 100, 40
GREY_SIDE, LARGEST_SIDE, ENLARGED = 96, 160, 4


@dataclass(frozen=True, eq=False)
class ViewedClasses:
    """Images of one split, class by class, and the digest of where they come from."""

    name: str
    images: ImageSet
    positions: np.ndarray
    labels: np.ndarray


def open_trust_classes(name: str, settings: PriorSettings) -> ViewedClasses:
    """What confidence is learned from: the validation classes and every second training class, in order of names.

    The other training classes stay untouched: what is said of confidence can be measured on them.
    """
    images = open_dataset(name, settings.folder)
    training = sorted(images.splits["train"], key=lambda number: images.class_names[number])
    usable = [number for number in [*images.splits["val"], *training[::2]] if number not in _left_out(images, settings)]
    members = [images.indices_of(number)[:TRUST_IMAGES] for number in usable[: min(TRUST_CLASSES, settings.classes)]]
    labels = np.repeat(np.arange(len(members)), [len(part) for part in members])
    return ViewedClasses(f"{name} trust", images, np.concatenate(members), labels)


def open_trust_pools(settings: PriorSettings, progress: Progress) -> list[FeaturePool]:
    """A pool for every data set, of the features that people use: the last of a network, or pixels without one."""
    pools = []
    for name in settings.trust_datasets or settings.datasets:
        classes = open_trust_classes(name, settings)
        views = views_of(classes, settings, progress, as_fitted=True)
        view = next(iter(views))
        pools.append(FeaturePool(f"{classes.name} {view}", views[view], classes.labels))
    return pools


def _left_out(images: ImageSet, settings: PriorSettings) -> set[int]:
    return {number for number, name in enumerate(images.class_names) if name in settings.left_out}


def open_classes(name: str, split: Split, settings: PriorSettings) -> ViewedClasses:
    """The first classes of a split and the first images of each, without the classes that are left out."""
    images = open_dataset(name, settings.folder)
    training = split == "train"
    most_classes = settings.classes if training else min(VALIDATION_CLASSES, settings.classes)
    most_images = settings.images if training else max(VALIDATION_IMAGES, settings.images)
    known = [number for number in images.splits[split] if number not in _left_out(images, settings)]
    members = [images.indices_of(number)[:most_images] for number in known[:most_classes]]
    if len(members) < 2:
        raise DataError(f"The data set {name} has fewer than 2 classes in its split '{split}'; leave it out.")
    labels = np.repeat(np.arange(len(members)), [len(part) for part in members])
    return ViewedClasses(f"{name} {split}", images, np.concatenate(members), labels)


def open_pools(split: Split, settings: PriorSettings, progress: Progress) -> list[FeaturePool]:
    """A pool for every data set and view."""
    data_sets = [open_classes(name, split, settings) for name in settings.datasets]
    return [
        FeaturePool(f"{classes.name} {view}", features, classes.labels)
        for classes in data_sets
        for view, features in views_of(classes, settings, progress).items()
    ]


def views_of(
    classes: ViewedClasses, settings: PriorSettings, progress: Progress, *, as_fitted: bool = False
) -> dict[str, np.ndarray]:
    """The features of the images by the name of the view; ``as_fitted``: photos as large as `e3bm fit` sees them."""
    height, _, channels = classes.images.image_shape
    found: dict[str, np.ndarray] = {}
    if not settings.pixels_only:
        colours = "" if channels == 3 else "channels 3, "
        # Drawings need fewer pixels; small photos are enlarged to what the network can read.
        side = GREY_SIDE if channels == 1 else min(LARGEST_SIDE, ENLARGED * height)
        reduced = f"{colours}resize {side} bicubic, centre_crop {side}, normalise lite"
        pipeline = Pipeline.parse(_fitted_pipeline() if as_fitted and channels == 3 else reduced)
        table = _lite0_table(classes, pipeline, data_folder(settings.folder), progress)
        cuts = np.cumsum(list(LITE0_WIDTHS.values()))[:-1]
        found = dict(zip(LITE0_WIDTHS, np.split(table, cuts, axis=1), strict=True))
    small = Pipeline.parse(f"resize {SMALL}, centre_crop {SMALL}, normalise none")
    flat = lambda pixels: small(torch.from_numpy(pixels).permute(0, 3, 1, 2)).flatten(1)
    return {**found, "pixels": embed_images(classes.images, classes.positions, flat)}


def _fitted_pipeline() -> str:
    from e3bm.fewshot.networks.packaged import LITE0

    return LITE0.pipeline


def _lite0_table(classes: ViewedClasses, pipeline: Pipeline, folder: Path, progress: Progress) -> np.ndarray:
    from e3bm.fewshot.networks.packaged import LITE0

    cache = FeatureCache(folder / "features")
    key = feature_key(f"views {LITE0.digest()}", classes.images.digest, str(pipeline), classes.positions)
    table = cache.read(key)
    if table is None:
        with stage(progress, f"features of {classes.name}", len(classes.positions)):
            table = embed_images(classes.images, classes.positions, lite0_views(pipeline), progress.advance)
        cache.keep(key, table)
    return table


def lite0_views(pipeline: Pipeline) -> Callable[[np.ndarray], Tensor]:
    """Pixels to the three views, side by side."""
    from e3bm.fewshot.networks.packaged import LITE0, PackagedNetwork

    network = deepcopy(PackagedNetwork(LITE0, LITE0.digest()).module())  # which others use too
    blocks = network.get_submodule("blocks")
    assert isinstance(blocks, nn.ModuleList)
    seen: dict[int, Tensor] = {}
    for number in (EARLY_BLOCK, MIDDLE_BLOCK):
        keep = lambda module, inputs, maps, number=number: seen.update({number: maps.mean((2, 3))})
        blocks[number].register_forward_hook(keep)

    def embed(pixels: np.ndarray) -> Tensor:
        parts = []
        with torch.inference_mode():
            for piece in pipeline(torch.from_numpy(pixels).permute(0, 3, 1, 2)).split(64):
                last = network(piece)
                parts.append(torch.cat([last, seen[EARLY_BLOCK], seen[MIDDLE_BLOCK]], 1))
        return torch.cat(parts)

    return embed

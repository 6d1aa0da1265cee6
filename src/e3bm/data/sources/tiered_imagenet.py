"""tieredImageNet: 608 classes of ImageNet at 84 px, split by super-class."""

from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.folders import ClassFolders, CsvImages, SplitFolders
from e3bm.data.layouts.pickles import NpzImages, PngPickles, SplitPickles
from e3bm.data.source import SOURCES, SourceCard, SplitCount, class_list, family_of_each, split_of_each


@SOURCES.register("tieredimagenet")
class TieredImageNet:
    """351, 97 and 160 classes from 20, 6 and 8 super-classes."""

    card = SourceCard(
        title="tieredImageNet",
        image_size=84,
        accepted_sizes=(84,),
        licence="ImageNet's terms (non-commercial research); no licence to hand the images on",
        citation="Ren et al., Meta-Learning for Semi-Supervised Few-Shot Classification, ICLR 2018",
        published={"train": SplitCount(351, 448_695), "val": SplitCount(97, 124_261), "test": SplitCount(160, 206_209)},
        total_images=779_165,
        pixel_mean=(120.39586422, 115.59361427, 104.54012653),
        pixel_std=(70.68188272, 68.27635443, 72.54505529),
        homepage="https://github.com/renmengye/few-shot-ssl-public",
        archive_patterns=("*tiered*imagenet*",),
    )
    layouts = (PngPickles(), NpzImages(), CsvImages(), SplitFolders(), SplitPickles(), ClassFolders())

    def known_classes(self) -> KnownClasses:
        """The WordNet numbers of the classes."""
        groups = class_list("tieredimagenet")
        families = {name: group for split in groups.values() for name, group in family_of_each(split).items()}
        return KnownClasses(split_of_each(groups), family_of=families)

"""miniImageNet: 100 classes of ImageNet at 84 px, in the class split of Ravi and Larochelle."""

from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.folders import ClassFolders, CsvImages, SplitFolders
from e3bm.data.layouts.pickles import SplitPickles
from e3bm.data.source import SOURCES, SourceCard, SplitCount, class_list, split_of_each


@SOURCES.register("miniimagenet")
class MiniImageNet:
    """64, 16 and 20 classes of 600 images."""

    card = SourceCard(
        title="miniImageNet",
        image_size=84,
        accepted_sizes=(84,),
        licence="ImageNet's terms (non-commercial research); no licence to hand the images on",
        citation="Vinyals et al., Matching Networks for One Shot Learning, NeurIPS 2016; "
        "split: Ravi and Larochelle, Optimization as a Model for Few-Shot Learning, ICLR 2017",
        published={"train": SplitCount(64, 38_400), "val": SplitCount(16, 9_600), "test": SplitCount(20, 12_000)},
        images_per_class=600,
        total_images=60_000,
        pixel_mean=(120.39586422, 115.59361427, 104.54012653),
        pixel_std=(70.68188272, 68.27635443, 72.54505529),
        homepage="https://github.com/twitter-research/meta-learning-lstm",
        archive_patterns=("*mini*imagenet*",),
    )
    layouts = (CsvImages(), SplitFolders(), SplitPickles(), ClassFolders())

    def known_classes(self) -> KnownClasses:
        """The WordNet numbers of the classes; pickles number them in no agreed order."""
        return KnownClasses(split_of_each(class_list("miniimagenet")))

"""FC100 and CIFAR-FS: CIFAR-100's images, train and test together, in two different class splits."""

from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.folders import ClassFolders, CsvImages, SplitFolders
from e3bm.data.layouts.pickles import CifarArchive, SplitPickles
from e3bm.data.source import SOURCES, Download, SourceCard, SplitCount, class_list, family_of_each, split_of_each

PIXEL_MEAN = (129.37731888, 124.10583864, 112.47758569)
PIXEL_STD = (68.20947949, 65.43124043, 70.45866994)
ORIGINAL = "images: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
LICENCE = "none stated by the publisher; research use is customary"
HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
ARCHIVE = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "cifar-100-python.tar.gz",
    "md5:eb9058c3a382ffc7106e4002c42a8d85",
    "torchvision's loader",
)
LAYOUTS = (CifarArchive(), CsvImages(), SplitFolders(), SplitPickles(), ClassFolders())


def _fine_names() -> tuple[str, ...]:
    """CIFAR-100's hundred classes in the order of their numbers, which is the alphabet's."""
    return tuple(sorted(name for names in class_list("cifar100").values() for name in names.split()))


@SOURCES.register("fc100")
class FC100:
    """CIFAR-100 split by super-class: 60, 20 and 20 classes of 600 images."""

    card = SourceCard(
        title="FC100",
        image_size=32,
        accepted_sizes=(32,),
        licence=LICENCE,
        citation="Oreshkin et al., TADAM: Task dependent adaptive metric for improved few-shot learning, NeurIPS 2018; "
        + ORIGINAL,
        published={"train": SplitCount(60, 36_000), "val": SplitCount(20, 12_000), "test": SplitCount(20, 12_000)},
        images_per_class=600,
        total_images=60_000,
        pixel_mean=PIXEL_MEAN,
        pixel_std=PIXEL_STD,
        downloads=(ARCHIVE,),
        homepage=HOMEPAGE,
        archive_patterns=("*fc100*", "cifar-100-python*", "cifar100*"),
    )
    layouts = LAYOUTS

    def known_classes(self) -> KnownClasses:
        """Fine classes, each in the split of its super-class."""
        members, splits = class_list("cifar100"), split_of_each(class_list("fc100"))
        split_of = {name: splits[group] for group, names in members.items() for name in names.split()}
        return KnownClasses(split_of, _fine_names(), family_of_each(members))


@SOURCES.register("cifar-fs")
class CifarFS:
    """CIFAR-100 split by chance: 64, 16 and 20 classes of 600 images."""

    card = SourceCard(
        title="CIFAR-FS",
        image_size=32,
        accepted_sizes=(32,),
        licence=LICENCE,
        citation="Bertinetto et al., Meta-learning with differentiable closed-form solvers, ICLR 2019; " + ORIGINAL,
        published={"train": SplitCount(64, 38_400), "val": SplitCount(16, 9_600), "test": SplitCount(20, 12_000)},
        images_per_class=600,
        total_images=60_000,
        pixel_mean=PIXEL_MEAN,
        pixel_std=PIXEL_STD,
        downloads=(ARCHIVE,),
        homepage=HOMEPAGE,
        archive_patterns=("*cifar*fs*", "cifar-100-python*", "cifar100*"),
    )
    layouts = LAYOUTS

    def known_classes(self) -> KnownClasses:
        """Fine classes as Bertinetto's lists have them."""
        families = family_of_each(class_list("cifar100"))
        return KnownClasses(split_of_each(class_list("cifar_fs")), _fine_names(), families)

"""CUB-200-2011: photographs of 200 bird species."""

from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.folders import ClassFolders, CsvImages, SplitFolders
from e3bm.data.source import SOURCES, Download, SourceCard, SplitCount, class_list, split_of_each


@SOURCES.register("cub")
class CUB:
    """140, 30 and 30 species; photographs of all sizes, packed at 84 px."""

    card = SourceCard(
        title="CUB-200-2011",
        image_size=84,
        licence="none to hand the photographs on; non-commercial research and education",
        citation="Wah et al., The Caltech-UCSD Birds-200-2011 Dataset, Caltech CNS-TR-2011-001, 2011",
        published={"train": SplitCount(140, None), "val": SplitCount(30, None), "test": SplitCount(30, None)},
        total_images=11_788,
        downloads=(
            Download(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "CUB_200_2011.tgz",
                "md5:97eceeb196236b17998738112f37df78",
                "Avalanche's loader",
            ),
        ),
        homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        archive_patterns=("*cub_200*", "cub*"),
    )
    layouts = (CsvImages(), SplitFolders(), ClassFolders())

    def known_classes(self) -> KnownClasses:
        """Species as the archive's folders name them."""
        return KnownClasses(split_of_each(class_list("cub")))

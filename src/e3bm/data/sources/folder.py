"""Any folder of images: one subfolder for each class."""

from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.folders import ClassFolders, CsvImages, SplitFolders
from e3bm.data.source import OWN_FOLDER, SOURCES, SourceCard


@SOURCES.register(OWN_FOLDER)
class OwnFolder:
    """Images of any size and format; splits from folders or tables, else by seed."""

    card = SourceCard(
        title="a folder of your own",
        image_size=84,
        licence="yours",
        citation="",
    )
    layouts = (CsvImages(), SplitFolders(), ClassFolders())

    def known_classes(self) -> KnownClasses:
        """None: every folder is a class."""
        return KnownClasses()

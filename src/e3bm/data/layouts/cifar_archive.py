"""CIFAR-100's own archive: two pickles, train and test, whose images few-shot data sets regroup by class."""

from e3bm.data.file_tree import FileTree
from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.pickled_labels import label_numbers, names_in
from e3bm.data.layouts.split_pickles import Part
from e3bm.data.listing import Listing, arrays_listing
from e3bm.data.pickle_file import PickleFile
from e3bm.data.records import array_records
from e3bm.errors import DataError


class CifarArchive:
    """cifar-100-python: rows of 3072 bytes with fine labels; train and test together are the data set."""

    name, example = "CIFAR-100 archive", "cifar-100-python/train|test|meta (or cifar-100-python.tar.gz)"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Look for the two files without an ending in one folder."""
        present = set(tree.names)
        folders = [name[: -len("train")] for name in tree.names if name.split("/")[-1] == "train"]
        folder = next((one for one in folders if one + "test" in present), None)
        if folder is None:
            return None
        names = list(known.by_number)
        if folder + "meta" in present:
            meta = PickleFile(tree, folder + "meta")
            names = names_in(meta, meta.keys().get("fine_label_names")) or names
        parts = [self._part(PickleFile(tree, folder + part), names, known) for part in ("train", "test")]
        return arrays_listing(self.name, parts)

    def _part(self, file: PickleFile, names: list[str], known: KnownClasses) -> Part:
        keys = file.keys()
        if "data" not in keys or "fine_labels" not in keys:
            found = ", ".join(sorted(keys)[:6]) or f"a {type(file.content).__name__}"
            raise DataError(f"{file.shown} holds {found}; expected CIFAR-100's keys data and fine_labels.")
        records = array_records(file, keys["data"])
        labels = label_numbers(file, keys["fine_labels"], len(records))
        if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(names):
            raise DataError(f"{file.shown} holds labels up to {labels.max()}; expected 0 to {len(names) - 1}.")
        unknown = sorted({names[label] for label in set(labels.tolist())} - set(known.split_of))
        if unknown:
            raise DataError(f"{file.shown} holds the class '{unknown[0]}', which is none of CIFAR-100's.")
        return [(known.split_of[names[label]], names[label]) for label in labels.tolist()], records

"""A pickle for each split with all its pixels: the two kinds that are handed round."""

from e3bm.data.file_tree import FileTree
from e3bm.data.layouts.base import KnownClasses, split_in_file_name
from e3bm.data.layouts.pickled_labels import index_lists, label_numbers, named_labels
from e3bm.data.listing import Listing, arrays_listing
from e3bm.data.pickle_file import PickleFile
from e3bm.data.pickled_values import as_text
from e3bm.data.records import Records, array_records
from e3bm.errors import DataError

Part = tuple[list[tuple[str, str]], Records]
PICKLE_SUFFIXES = (".pickle", ".pkl", ".p")


def split_files(tree: FileTree, endings: tuple[str, ...], what: str) -> dict[str, str]:
    """For each split the one file of a kind that names it."""
    found: dict[str, str] = {}
    for name in tree.names:
        split = split_in_file_name(name)
        if split is None or not name.lower().endswith(endings):
            continue
        if split in found:
            raise DataError(f"{tree.where} has two {what} files for {split}, '{found[split]}' and '{name}'; keep one.")
        found[split] = name
    return found


class SplitPickles:
    """Pickles with data and labels (MetaOptNet's form), or with image_data and class_dict (the cache form)."""

    name, example = "split pickles", "*_train|val|test.pickle with data+labels or image_data+class_dict"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Read the structure of each split's pickle; the pixels stay where they are."""
        others = ("_labels.pkl", "_images_png.pkl", "_images.pkl")
        if any(name.lower().endswith(others) for name in tree.names):
            return None
        files = split_files(tree, PICKLE_SUFFIXES, "pickle")
        if not files:
            return None
        parts: list[Part] = []
        kinds: set[str] = set()
        all_named = True
        for split in sorted(files, key=["train", "val", "test"].index):
            kind, part, named = _read(PickleFile(tree, files[split]), split, known)
            parts.append(part)
            kinds.add(kind)
            all_named = all_named and named
        return arrays_listing(" and ".join(sorted(kinds)), parts, names_known=all_named, red_first=False)


def _read(file: PickleFile, split: str, known: KnownClasses) -> tuple[str, Part, bool]:
    keys = file.keys()
    if "data" in keys and "labels" in keys:
        records = array_records(file, keys["data"])
        labels = label_numbers(file, keys["labels"], len(records))
        names = _category_names(keys.get("label2catname"))
        members, named = named_labels(split, labels, names, known)
        return "pickles with data and labels", (members, records), named
    if "image_data" in keys and "class_dict" in keys:
        records = array_records(file, keys["image_data"])
        members = [("", "")] * len(records)
        for name, places in index_lists(file, keys["class_dict"], len(records)).items():
            for place in places:
                members[place] = (split, name)
        return "pickles with image_data and class_dict", (members, records), True
    found = ", ".join(sorted(keys)[:6]) or f"a {type(file.content).__name__}"
    raise DataError(f"{file.shown} holds {found}; expected the keys data and labels, or image_data and class_dict.")


def _category_names(value: object) -> dict[int, str]:
    if not isinstance(value, dict):
        return {}
    return {key: as_text(name) for key, name in value.items() if isinstance(key, int) and isinstance(name, bytes | str)}

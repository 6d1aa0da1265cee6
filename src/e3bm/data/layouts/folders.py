"""Images in folders named after their classes, with or without folders for the splits."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from e3bm.data.decode import is_image_name
from e3bm.data.file_tree import FileTree
from e3bm.data.layouts.base import KnownClasses, split_word
from e3bm.data.listing import NO_SPLIT, Listing, files_listing
from e3bm.errors import DataError

FilesByClass = dict[tuple[str, str], list[str]]
Place = tuple[str, ...]
LARGEST_LIST = 1 << 20


class SplitFolders:
    """One folder for each split, in it one for each class."""

    name, example = "split folders", "train|val|test/<class>/<image>"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Look for the split folders at any depth, but in one place only."""
        places: dict[str, FilesByClass] = defaultdict(lambda: defaultdict(list))
        loose: dict[str, str] = {}
        for name in filter(is_image_name, tree.names):
            parts = name.split("/")
            at = next((i for i, part in enumerate(parts[:-1]) if split_word(part)), None)
            if at is None:
                continue
            prefix = "/".join(parts[:at])
            if at == len(parts) - 2:
                loose.setdefault(prefix, name)
            else:
                places[prefix][split_word(parts[at]) or "", parts[at + 1]].append(name)
        inside = sum(len(names) for files in places.values() for names in files.values())
        if not places or 2 * inside < sum(map(is_image_name, tree.names)):
            # A class that happens to be called "test" is no split.
            return None
        if len(places) > 1:
            found = " and ".join(sorted(f"'{place or '.'}'" for place in places)[:2])
            raise DataError(f"{tree.where} has split folders in {found}; point at one data set only.")
        ((prefix, files),) = places.items()
        if prefix in loose:
            raise DataError(f"'{loose[prefix]}' in {tree.where} lies in no class folder; move it into one.")
        place = tuple(prefix.split("/")) if prefix else ()
        named = {parts[: len(place) + 2] for parts in _below(tree, place, 2) if split_word(parts[len(place)])}
        _refuse_empty(tree, named, {tuple(names[0].split("/")[: len(place) + 2]) for names in files.values()})
        return files_listing(self.name, tree, files, _left_out(tree, files))


class ClassFolders:
    """One folder for each class; the splits come from the standard class lists, or from elsewhere."""

    name, example = "class folders", "<class>/<image>"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Look for folders with the names of known classes, or take every folder for a class if none are known."""
        images = [name for name in tree.names if is_image_name(name)]
        if not images:
            return None
        place = _known_place(images, known.split_of) if known.split_of else _shared_place(tree, images)
        if place is None:
            return None
        split_of = {**known.split_of, **_listed_splits(tree, known.split_of)}
        files: FilesByClass = defaultdict(list)
        for name in images:
            parts = tuple(name.split("/"))
            if parts[: len(place)] == place and len(parts) > len(place) + 1:
                folder = parts[len(place)]
                files[split_of.get(folder, NO_SPLIT), folder].append(name)
        unknown = sorted(name for split, name in files if split == NO_SPLIT)
        if known.split_of and unknown:
            if 2 * len(unknown) > len(files):
                return None
            stranger = "/".join((*place, unknown[0]))
            raise DataError(
                f"'{stranger}' in {tree.where} is none of the data set's {len(split_of)} classes; "
                "remove the folder, or prepare the data under a name of your own."
            )
        named = {parts[: len(place) + 1] for parts in _below(tree, place, 1)}
        expected = {parts for parts in named if not split_of or parts[-1] in split_of}
        _refuse_empty(tree, expected, {(*place, name) for _, name in files})
        return files_listing(self.name, tree, files, _left_out(tree, files))


def _known_place(images: Iterable[str], classes: Mapping[str, str]) -> Place | None:
    """The folder in which most known class names appear."""
    seen: Counter[Place] = Counter()
    for name in images:
        parts = tuple(name.split("/"))
        at = next((i for i, part in enumerate(parts[:-1]) if part in classes), None)
        if at is not None:
            seen[parts[:at]] += 1
    return seen.most_common(1)[0][0] if seen else None


def _shared_place(tree: FileTree, images: list[str]) -> Place:
    """The deepest folder that holds all images."""
    folders = {tuple(name.split("/")[:-1]) for name in images}
    if len(folders) == 1:
        raise DataError(
            f"All {len(images)} images of {tree.where} lie in one folder ('{'/'.join(next(iter(folders))) or '.'}'); "
            "expected a subfolder for each class, two or more."
        )
    first, last = min(folders), max(folders)
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    for name in images:
        if name.count("/") == shared:
            raise DataError(f"'{name}' in {tree.where} lies in no class folder; move it into one or remove it.")
    return first[:shared]


def _listed_splits(tree: FileTree, classes: Mapping[str, str]) -> dict[str, str]:
    """The splits that text files beside the images state, one class a line, as CIFAR-FS is handed round."""
    lists = [name for name in tree.names if name.lower().endswith(".txt") and split_word(name.split("/")[-1][:-4])]
    folders = {name.rpartition("/")[0] for name in lists}
    if len(folders) != 1:
        return {}
    stated: dict[str, str] = {}
    for name in lists:
        split = split_word(name.split("/")[-1][:-4]) or NO_SPLIT
        lines = tree.read(name, LARGEST_LIST).decode("utf-8", "replace").split()
        if not all(line in classes for line in lines):
            return {}
        for line in lines:
            if stated.setdefault(line, split) != split:
                raise DataError(f"'{name}' in {tree.where} lists class '{line}', which {stated[line]} has already.")
    return stated


def _below(tree: FileTree, place: Place, levels: int) -> Iterator[Place]:
    """Every folder at least so many levels below a place, whether it holds files or is only named."""
    depth = len(place) + levels
    for name in tree.names:
        parts = tuple(name.split("/"))
        if len(parts) > depth and parts[: len(place)] == place:
            yield parts
    for folder in tree.folders:
        parts = tuple(folder.split("/"))
        if len(parts) >= depth and parts[: len(place)] == place:
            yield parts


def _refuse_empty(tree: FileTree, named: set[Place], with_images: set[Place]) -> None:
    for folder in sorted(named - with_images):
        raise DataError(f"The class folder '{'/'.join(folder)}' in {tree.where} holds no image; add some or remove it.")


def _left_out(tree: FileTree, files: FilesByClass) -> list[str]:
    used = sum(len(names) for names in files.values())
    rest = sum(1 for name in tree.names if is_image_name(name)) - used
    return [f"{rest:,} images outside of these folders were left out."] if rest else []

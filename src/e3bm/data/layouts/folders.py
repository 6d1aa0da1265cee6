"""Image files whose folders or tables say their classes, with or without splits."""

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from e3bm.data.layouts.base import NO_SPLIT, KnownClasses, Listing, files_listing, split_word
from e3bm.data.read.decode import is_image_name
from e3bm.data.read.file_tree import FileTree
from e3bm.errors import DataError

FilesByClass = dict[tuple[str, str], list[str]]
Place = tuple[str, ...]
LARGEST_LIST = 1 << 20
LARGEST_TABLE = 256 << 20
COLUMNS = ("filename", "label")
# The parts named small1 and small2 repeat some characters of the others.
DRAWING = re.compile(r"(?:^|.*/)([^/]+)/(character\d+)/[^/]+\.png$", re.IGNORECASE)
REPEATED_PART = re.compile(r"_small\d?/", re.IGNORECASE)


class SplitFolders:
    """One folder for each split, and in it one folder for each class.

    Where all split folders hold the same classes they divide the images of each class, as a copy for ordinary
    classification does. Of a data set whose standard split is known, the folders of a class are then put together.
    """

    name, example = "split folders", "train|val|test/<class>/<image>"
    shared_name = "split folders that share their classes"

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
            raise DataError(f"'{loose[prefix]}' in {tree.where} is not in a class folder; move it into one.")
        place = tuple(prefix.split("/")) if prefix else ()
        named = {parts[: len(place) + 2] for parts in _below(tree, place, 2) if split_word(parts[len(place)])}
        _refuse_empty(tree, named, {tuple(names[0].split("/")[: len(place) + 2]) for names in files.values()})
        notes = _left_out(tree, files)
        if _share_their_classes(files) and _mostly_known(files, known.split_of):
            folders = " and ".join(sorted({name.split("/")[len(place)] for names in files.values() for name in names}))
            warning = (
                f"Warning: the folders {folders} hold the same classes, so they are not a few-shot split: training "
                f"would see the test classes. The images of each class were merged, and the classes were split by the "
                f"standard list."
            )
            return files_listing(self.shared_name, tree, _put_together(files, known.split_of), [*notes, warning])
        return files_listing(self.name, tree, files, notes)


def _share_their_classes(files: FilesByClass) -> bool:
    """Whether there are two or more splits, and every class is in all of them."""
    splits, classes = {split for split, _ in files}, {name for _, name in files}
    return len(splits) > 1 and len(files) == len(splits) * len(classes)


def _mostly_known(files: FilesByClass, split_of: Mapping[str, str]) -> bool:
    """Whether most of the classes are on the data set's own list."""
    classes = {name for _, name in files}
    return 2 * len(classes & split_of.keys()) > len(classes)


def _put_together(files: FilesByClass, split_of: Mapping[str, str]) -> FilesByClass:
    """The images of each class from all splits, in the split that the standard list names."""
    together: FilesByClass = defaultdict(list)
    for (_, name), members in files.items():
        together[split_of.get(name, NO_SPLIT), name] += members
    return together


class ClassFolders:
    """One folder for each class; the splits come from the standard class lists, or from elsewhere."""

    name, example = "class folders", "<class>/<image>"

    def __init__(self, *, empty_folders: bool = False, loose_images: bool = False, one_class: bool = False) -> None:
        """Folders without an image are errors unless ``empty_folders`` passes over them, images beside the folders
        unless ``loose_images`` does, and so is a single folder of images unless ``one_class`` takes it for a class.
        """
        self.empty_folders, self.loose_images, self.one_class = empty_folders, loose_images, one_class

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Look for folders with the names of known classes, or take every folder for a class if none are known."""
        images = [name for name in tree.names if is_image_name(name)]
        if not images:
            return None
        if known.split_of:
            place = _known_place(images, known.split_of)
        else:
            place = _shared_place(tree, images, self.one_class, self.loose_images)
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
                f"'{stranger}' in {tree.where} is not one of the data set's {len(split_of)} classes; "
                "remove the folder, or prepare the data under a name of your own."
            )
        named = {parts[: len(place) + 1] for parts in _below(tree, place, 1)}
        expected = {parts for parts in named if not split_of or parts[-1] in split_of}
        if not self.empty_folders:
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


def _shared_place(tree: FileTree, images: list[str], one_class: bool, loose_images: bool) -> Place:
    """The deepest folder that holds the folders of all classes."""
    folders = {tuple(name.split("/")[:-1]) for name in images}
    if len(folders) == 1:
        (only,) = folders
        if only and one_class:
            return only[:-1]
        which = f" ('{'/'.join(only)}')" if only else ""
        advice = (
            "put the photos of each class into a subfolder of its own, even if there is only one class"
            if one_class
            else "at least two classes are needed, with the photos of each in a subfolder of its own"
        )
        raise DataError(f"All {len(images)} images of {tree.where} lie in one folder{which}; {advice}.")
    first, last = min(folders), max(folders)
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    loose = [name for name in images if name.count("/") == shared]
    rest = [name for name in images if name.count("/") > shared]
    if loose and loose_images and len({name.rpartition("/")[0] for name in rest}) > 1:
        return _shared_place(tree, rest, one_class, loose_images)
    if len(loose) == 1:
        raise DataError(f"'{loose[0]}' in {tree.where} is not in a class folder; move it into one or remove it.")
    if loose:
        raise DataError(
            f"{len(loose)} photos in {tree.where} are not in a class folder ('{loose[0]}', '{loose[1]}'"
            f"{', ...' if len(loose) > 2 else ''}); move them into one or remove them."
        )
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
                raise DataError(
                    f"'{name}' in {tree.where} lists class '{line}', which {stated[line]} lists already; "
                    f"keep it in one of them."
                )
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
        raise DataError(f"The class folder '{'/'.join(folder)}' in {tree.where} has no images; add some or remove it.")


def _left_out(tree: FileTree, files: FilesByClass) -> list[str]:
    used = sum(len(names) for names in files.values())
    rest = sum(1 for name in tree.names if is_image_name(name)) - used
    return [f"{rest:,} images outside these folders were left out."] if rest else []


class AlphabetFolders:
    """images_background and images_evaluation, unpacked or as zips; a class is a character of an alphabet."""

    name, example = "alphabet folders", "images_background|images_evaluation/<alphabet>/characterNN/<image>.png"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Look for character folders at any depth."""
        files: dict[tuple[str, str], list[str]] = defaultdict(list)
        for name in tree.names:
            found = DRAWING.match(name)
            if found and not REPEATED_PART.search(name):
                character = f"{found.group(1)}/{found.group(2).lower()}"
                files[known.split_of.get(character, NO_SPLIT), character].append(name)
        if not files:
            return None
        for (_, character), names in files.items():
            if len({name.rpartition("/")[0] for name in names}) > 1:
                raise DataError(f"Character '{character}' is in {tree.where} twice, in different folders; keep one.")
        unknown = sorted(character for split, character in files if split == NO_SPLIT)
        if known.split_of and unknown:
            raise DataError(f"'{unknown[0]}' in {tree.where} is not one of Omniglot's characters; remove it.")
        drawn = {name.rpartition("/")[0] for names in files.values() for name in names}
        for folder in sorted(tree.folders):
            if re.search(r"/character\d+$", "/" + folder) and folder not in drawn and not REPEATED_PART.search(folder):
                raise DataError(f"The character folder '{folder}' in {tree.where} has no images; fetch it again.")
        return files_listing(self.name, tree, files)


class CsvImages:
    """train.csv, val.csv and test.csv with the columns filename and label, and the images in a folder beside them."""

    name, example = "csv + images", "train|val|test.csv (filename,label) and images/<image>"

    def find(self, tree: FileTree, known: KnownClasses) -> Listing | None:
        """Look for the tables in one folder, at any depth, and for their images by name."""
        named = [name for name in tree.names if name.lower().endswith(".csv") and _split(name)]
        rows_of = {name: _rows(tree, name) for name in named}
        tables = {name: rows for name, rows in rows_of.items() if rows is not None}
        if not tables:
            return None
        folders = sorted({name.rpartition("/")[0] for name in tables})
        if len(folders) > 1:
            raise DataError(f"{tree.where} has split tables in '{folders[0]}' and '{folders[1]}'; keep one of them.")
        by_file_name: dict[str, list[str]] = defaultdict(list)
        for image in filter(is_image_name, tree.names):
            by_file_name[image.split("/")[-1]].append(image)
        files: dict[tuple[str, str], list[str]] = defaultdict(list)
        listed: dict[str, str] = {}
        missing: list[str] = []
        for table, rows in tables.items():
            for row, (file_name, label) in enumerate(rows, 2):
                name = _locate(tree, by_file_name, file_name, label)
                if not name:
                    missing.append(file_name)
                    continue
                if name in listed:
                    raise DataError(
                        f"Line {row} of '{table}' in {tree.where} lists '{file_name}', which '{listed[name]}' has "
                        "already; keep one of the lines."
                    )
                listed[name] = table
                files[_split(table) or "", label].append(name)
        if missing:
            raise DataError(
                f"{len(missing):,} of the files listed in {', '.join(tables)} are not in {tree.where}, the first is "
                f"'{missing[0]}'; add the images or remove the lines."
            )
        rest = sum(len(names) for names in by_file_name.values()) - len(listed)
        notes = [f"{rest:,} images that no table lists were left out."] if rest else []
        return files_listing(self.name, tree, files, notes)


def _split(table: str) -> str | None:
    return split_word(table.rsplit("/", maxsplit=1)[-1].rpartition(".")[0])


def _rows(tree: FileTree, table: str) -> list[tuple[str, str]] | None:
    """File names and labels, None if the table is about something else."""
    try:
        text = tree.read(table, LARGEST_TABLE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"'{table}' in {tree.where} is not UTF-8 text; save it as UTF-8.") from error
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = [column.strip().lower() for column in next(reader, [])]
        if not set(COLUMNS) & set(header):
            return None
        if not set(COLUMNS) <= set(header):
            raise DataError(f"'{table}' in {tree.where} has the columns {', '.join(header)}; expected filename,label.")
        file_at, label_at = (header.index(column) for column in COLUMNS)
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise DataError(f"'{table}' in {tree.where} is not a csv table ({error}); save it again.") from error
    if not rows:
        raise DataError(f"'{table}' in {tree.where} lists no images; fetch it again or remove it.")
    for line, row in enumerate(rows, 2):
        if not all(field.isprintable() for field in row):
            raise DataError(f"Line {line} of '{table}' in {tree.where} has control characters; save it as plain text.")
        if len(row) != len(header) or not row[file_at].strip() or not row[label_at].strip():
            raise DataError(f"Line {line} of '{table}' in {tree.where} is not complete: {','.join(row)[:80]!r}.")
    return [(row[file_at].strip(), row[label_at].strip()) for row in rows]


def _locate(tree: FileTree, by_file_name: dict[str, list[str]], file_name: str, label: str) -> str:
    """The image that a table means: by its path if it gives one, else by its name, in its class's folder if need be."""
    found = by_file_name.get(file_name.replace("\\", "/").split("/")[-1], [])
    if len(found) > 1:
        found = [name for name in found if name.endswith(f"/{label}/{file_name}") or name.endswith("/" + file_name)]
        in_class = [name for name in found if f"/{label}/" in "/" + name]
        found = in_class if len(in_class) == 1 else found
    if len(found) > 1:
        raise DataError(f"'{file_name}' is in {tree.where} {len(found)} times, as '{found[0]}' and '{found[1]}'.")
    return found[0] if found else ""

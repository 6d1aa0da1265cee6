"""Tables of file names and labels, one for each split, beside a folder of images."""

import csv
import io
from collections import defaultdict

from e3bm.data.decode import is_image_name
from e3bm.data.file_tree import FileTree
from e3bm.data.layouts.base import KnownClasses, split_word
from e3bm.data.listing import Listing, files_listing
from e3bm.errors import DataError

LARGEST_TABLE = 256 << 20
COLUMNS = ("filename", "label")


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

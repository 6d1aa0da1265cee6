"""Omniglot's own form: a folder for each alphabet, in it one for each character."""

import re
from collections import defaultdict

from e3bm.data.file_tree import FileTree
from e3bm.data.layouts.base import KnownClasses
from e3bm.data.listing import NO_SPLIT, Listing, files_listing
from e3bm.errors import DataError

# The parts named small1 and small2 repeat some characters of the others.
DRAWING = re.compile(r"(?:^|.*/)([^/]+)/(character\d+)/[^/]+\.png$", re.IGNORECASE)
REPEATED_PART = re.compile(r"_small\d?/", re.IGNORECASE)


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
            raise DataError(f"'{unknown[0]}' in {tree.where} is none of Omniglot's {len(known.split_of):,} characters.")
        drawn = {name.rpartition("/")[0] for names in files.values() for name in names}
        for folder in sorted(tree.folders):
            if re.search(r"/character\d+$", "/" + folder) and folder not in drawn and not REPEATED_PART.search(folder):
                raise DataError(f"The character folder '{folder}' in {tree.where} holds no image; fetch it again.")
        return files_listing(self.name, tree, files)

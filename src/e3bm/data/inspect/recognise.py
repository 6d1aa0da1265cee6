"""Finds out which data set a folder or archive holds, and in which form, by trying every known one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from e3bm.data.layouts.base import NO_SPLIT, KnownClasses, Listing, split_word
from e3bm.data.layouts.folders import ClassFolders
from e3bm.data.read.archives import open_tree
from e3bm.data.read.decode import image_size
from e3bm.data.read.file_tree import ARCHIVE_SUFFIXES, FileTree
from e3bm.data.read.records import Payload
from e3bm.data.source import EMBEDDED, OWN_FOLDER, DataSource, SourceCard, registered_sources
from e3bm.errors import DataError, some_of

LEAST_KNOWN, LEAST_COVERED = 0.9, 0.5
"""A known data set has nearly only classes of its own, and at least half of those in the splits that are there."""
SIZES_LOOKED_AT = 16
"""How many images are asked for their size where classes have no known names."""


@dataclass(frozen=True, eq=False)
class Recognised:
    """A data set found in a tree."""

    names: tuple[str, ...]
    """The registered names it can go under, the best first; ``folder`` for images of one's own."""
    source: DataSource
    listing: Listing
    tree: FileTree
    rejected: tuple[str, ...] = ()
    """Why it is not one of the others, where that needs saying."""


def recognise(paths: Sequence[Path]) -> Recognised:
    """The data set at these paths that fits best; the caller closes its tree."""
    tree = open_tree(paths)
    try:
        found = _best(tree)
        if found is None and tree.kind == "folder":
            found = _best_with_archives(paths, tree)
    except BaseException:
        tree.close()
        raise
    if found is None:
        tree.close()
        raise DataError(
            f"{paths[0]} holds {len(tree.names):,} files but no known data set; expected a folder with a "
            "subfolder of images for each class, or one of the layouts that docs/data_sets.md lists."
        )
    return found


def _best(tree: FileTree) -> Recognised | None:
    scored: list[tuple[float, str, DataSource, Listing]] = []
    errors: list[DataError] = []
    for name, source in _known_sources():
        try:
            found = _first_listing(source, tree)
            scored += [(_score(listing, name, source), name, source, listing) for listing in found]
        except DataError as error:
            errors.append(error)
    best = max((score for score, *_ in scored), default=0.0)
    names = tuple(name for score, name, *_ in scored if score == best)
    if best > 0:
        source, listing = next((source, listing) for score, _, source, listing in scored if score == best)
        return Recognised(names, source, listing, tree)
    own = registered_sources()[OWN_FOLDER]()
    reasons = tuple(dict.fromkeys(str(error) for error in errors))
    for listing in _own_listing(own, tree, errors):
        said = tuple(dict.fromkeys(str(error) for error in errors))  # the folder's own faults too
        return Recognised((OWN_FOLDER,), own, listing, tree, said)
    for _, _, source, listing in scored:
        # Arrays whose counts are those of no data set: still worth a look.
        return Recognised((OWN_FOLDER,), source, listing, tree, reasons)
    if errors:
        raise errors[0]
    return None


def _best_with_archives(paths: Sequence[Path], tree: FileTree) -> Recognised | None:
    """The best fit among the archives in a folder, for a data set that was never unpacked."""
    archives = [name for name in tree.names if name.lower().endswith(ARCHIVE_SUFFIXES)]
    if len(archives) == 1:
        return _best(open_tree(tree.where / archives[0]))
    found: list[Recognised] = []
    for _, source in _known_sources():
        inner = open_tree(paths, source.card.archive_patterns)
        candidate = _best(inner) if inner.kind != "folder" else None
        if candidate is None or candidate.names == (OWN_FOLDER,):
            inner.close()
        elif not any(other.names == candidate.names for other in found):
            found.append(candidate)
    if len(found) > 1 or (archives and not found):
        for candidate in found:
            candidate.tree.close()
        raise DataError(f"{tree.where} holds several archives ({some_of(archives)}); point at one of them.")
    return found[0] if found else None


def _known_sources() -> Iterator[tuple[str, DataSource]]:
    sources = registered_sources()
    for name in sources:
        if name not in (OWN_FOLDER, EMBEDDED):
            yield name, sources[name]()


def _first_listing(source: DataSource, tree: FileTree) -> Iterator[Listing]:
    known = source.known_classes()
    for layout in source.layouts:
        listing = layout.find(tree, known)
        if listing is not None:
            yield listing
            return


def _own_listing(own: DataSource, tree: FileTree, errors: list[DataError]) -> Iterator[Listing]:
    # Folders without images and images beside the folders do not keep anyone from looking at the rest.
    for layout in (*own.layouts, ClassFolders(empty_folders=True, loose_images=True)):
        try:
            listing = layout.find(tree, KnownClasses())
        except DataError as error:
            errors.append(error)
            continue
        # Folders named train and val are parts of a data set, even where what is in them cannot be used.
        if listing is not None and not all(map(split_word, listing.class_names)):
            yield listing
            return


def _score(listing: Listing, name: str, source: DataSource) -> float:
    """How well a listing fits a data set, 0 if it does not."""
    split_of = source.known_classes().split_of
    known = [place for place, one in enumerate(listing.class_names) if one in split_of]
    if not listing.names_known or not known:
        return 0.0 if _named_by_another(listing, name) else _score_counts(listing, source.card)
    # Of a copy with one split only, no more than that split's classes can be expected.
    there = set(listing.class_splits) - {NO_SPLIT}
    expected = sum(split in there for split in split_of.values()) or len(split_of)
    share, covered = len(known) / len(listing.class_names), min(len(known) / expected, 1.0)
    telling = len(source.layouts) == 1
    if share < LEAST_KNOWN or (covered < LEAST_COVERED and not telling):
        return 0.0
    stated = [place for place in known if listing.class_splits[place] != NO_SPLIT]
    agreeing = sum(listing.class_splits[place] == split_of[listing.class_names[place]] for place in stated)
    return 1.0 + share * covered + (agreeing / len(stated) if stated else 1.0)


def _named_by_another(listing: Listing, name: str) -> bool:
    """Whether the classes are those of another data set, so that equal numbers of them prove nothing."""
    if not listing.names_known:
        return False
    for other, source in _known_sources():
        split_of = source.known_classes().split_of if other != name else {}
        if sum(one in split_of for one in listing.class_names) >= LEAST_KNOWN * len(listing.class_names):
            return True
    return False


def _score_counts(listing: Listing, card: SourceCard) -> float:
    """For classes without known names: the size of the images and the numbers of classes must be the published ones."""
    found = listing.split_counts()
    if NO_SPLIT in found or not card.published:
        return 0.0
    if not all(found[split][0] == card.published[split].classes for split in found) or not _size_fits(listing, card):
        return 0.0
    return 1.0 if all(found[split][1] == card.published[split].images for split in found) else 0.5


def _size_fits(listing: Listing, card: SourceCard) -> bool:
    """Whether the images have one of the sizes in which the data set is handed round."""
    if not card.accepted_sizes:
        return True
    shape = listing.records.pixel_shape
    if shape is not None:
        return shape[0] in card.accepted_sizes
    places = np.unique(np.linspace(0, len(listing.records) - 1, SIZES_LOOKED_AT).astype(int)).tolist()
    sizes = [_size_of(payload) for payload in listing.records.pick(places)]
    return all(width == height and width in card.accepted_sizes for width, height in filter(None, sizes))


def _size_of(payload: Payload) -> tuple[int, int] | None:
    """Width and height of an encoded image by its header, None if it cannot be read."""
    try:
        return image_size(payload) if isinstance(payload, bytes) else None
    except DataError:
        return None

"""From a tree of files to everything that is known before the first image is packed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from e3bm.data.counts import check_counts, check_splits
from e3bm.data.decode import DecodeSettings
from e3bm.data.file_tree import FileTree
from e3bm.data.listing import NO_SPLIT, Listing
from e3bm.data.packed_format import SPLIT_NAMES
from e3bm.data.pixel_check import ChannelOrder, needs_inversion, needs_reversal
from e3bm.data.source import DataSource
from e3bm.data.splits import DEFAULT_FRACTIONS, divide_by_seed
from e3bm.errors import DataError


@dataclass(frozen=True)
class PlanSettings:
    """What a user can ask of a preparation."""

    image_size: int | None = None
    seed: int = 0
    fractions: Sequence[float] = DEFAULT_FRACTIONS
    channel_order: ChannelOrder = "check"
    allow_other_counts: bool = False


@dataclass(frozen=True)
class Plan:
    """Which images become which pixels."""

    listing: Listing
    decode: DecodeSettings

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.decode.size, self.decode.size, self.decode.channels

    def splits(self) -> dict[str, tuple[int, ...]]:
        """For each split the class numbers in it."""
        homes = self.listing.class_splits
        return {split: tuple(n for n, home in enumerate(homes) if home == split) for split in SPLIT_NAMES}

    def preprocessing(self) -> str:
        """What is done to the pixels, in words."""
        size, settings = self.decode.size, self.decode
        steps = [f"short side scaled to {size} (bilinear, antialiased), middle {size} x {size} kept"]
        if settings.accepted_sizes == (size,):
            steps = [f"stored at {size} x {size}, not scaled"]
        steps += ["channels reversed"] * settings.reverse_channels + ["inverted to light ink"] * settings.invert
        return "; ".join(steps)


def find_listing(source: DataSource, tree: FileTree) -> Listing:
    """The images in the first layout that fits."""
    known = source.known_classes()
    for layout in source.layouts:
        listing = layout.find(tree, known)
        if listing is not None:
            return listing
    endings = Counter("." + name.rpartition(".")[2] if "." in name else "without ending" for name in tree.names)
    found = ", ".join(f"{count:,} files {ending}" for ending, count in endings.most_common(3)) or "no files"
    forms = "; ".join(layout.example for layout in source.layouts)
    raise DataError(f"{tree.where} holds {found} and nothing that looks like {source.card.title}; expected {forms}.")


def make_plan(source: DataSource, tree: FileTree, settings: PlanSettings) -> Plan:
    """Find the images, settle the splits, check names, counts and channels."""
    listing, card = find_listing(source, tree), source.card
    check_splits(listing, source)
    notes = check_counts(listing, card, settings.allow_other_counts)
    if not source.known_classes().split_of and NO_SPLIT in listing.class_splits:
        listing = _by_seed(listing, settings)
        notes.append(f"Classes were divided into train, val and test by seed {settings.seed}.")
    if not listing.names_known:
        notes.append("The source only numbers its classes, so their names are made up.")
    reverse, remarks = needs_reversal(listing, card, settings.channel_order)
    size = settings.image_size or card.image_size
    accepted = () if settings.image_size else card.accepted_sizes
    _check_stored_size(listing, accepted)
    decode = DecodeSettings(size, card.channels, accepted, reverse, needs_inversion(listing, card))
    order = {split: place for place, split in enumerate(SPLIT_NAMES)}
    return Plan(_renumbered(listing, order).with_notes(*notes, *remarks), decode)


def _by_seed(listing: Listing, settings: PlanSettings) -> Listing:
    return listing.with_splits(divide_by_seed(listing.class_names, settings.seed, settings.fractions))


def _renumbered(listing: Listing, order: dict[str, int]) -> Listing:
    """Classes numbered by split and name, whatever the layout found first."""
    pairs = list(zip(listing.class_splits, listing.class_names, strict=True))
    ranked = sorted(range(len(pairs)), key=lambda n: (order.get(pairs[n][0], len(order)), pairs[n][1]))
    new_number = np.empty(len(ranked), np.int64)
    new_number[ranked] = np.arange(len(ranked))
    return replace(
        listing,
        class_names=tuple(pairs[n][1] for n in ranked),
        class_splits=tuple(pairs[n][0] for n in ranked),
        labels=new_number[listing.labels],
    )


def _check_stored_size(listing: Listing, accepted: tuple[int, ...]) -> None:
    shape = listing.records.pixel_shape
    if shape is not None and accepted and (shape[0] != shape[1] or shape[0] not in accepted):
        expected = " or ".join(f"{side} x {side}" for side in accepted)
        raise DataError(
            f"{listing.records.shown(0)} is {shape[1]} x {shape[0]} pixels, expected {expected}; "
            "--image-size scales everything to one size."
        )

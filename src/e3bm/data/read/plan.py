"""From a tree of files to everything that is known before the first image is packed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float64

from e3bm.data.layouts.base import NO_SPLIT, Listing
from e3bm.data.read.decode import DecodeSettings
from e3bm.data.read.decode_pool import pixels_of
from e3bm.data.read.file_tree import FileTree
from e3bm.data.read.records import Records
from e3bm.data.source import DEFAULT_FRACTIONS, DataSource, SourceCard, divide_by_seed
from e3bm.data.store.format import SPLIT_NAMES
from e3bm.errors import DataError

ChannelOrder = Literal["check", "rgb", "bgr"]
OWN_NAME_HINT = "prepare it under a name of your own to keep the source's split"
LOOKED_AT = 1_024
FEWEST_IMAGES, FEWEST_CLASSES = 200, 10
CLEARLY_NEARER = 4.0
"""How many times nearer to the published means, in squared distance, the reversed channels must be."""


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


def make_plan(source: DataSource, tree: FileTree, settings: PlanSettings) -> Plan:
    """Find the images, settle the splits, check names, counts and channels."""
    listing, card = find_listing(source, tree), source.card
    _check_splits(listing, source)
    notes = _check_counts(listing, card, settings.allow_other_counts)
    if not source.known_classes().split_of and NO_SPLIT in listing.class_splits:
        listing = _by_seed(listing, settings)
        notes.append(f"Classes were divided into train, val and test by seed {settings.seed}.")
    if not listing.names_known:
        notes.append("The source only numbers its classes, so their names are made up.")
    reverse, remarks = _needs_reversal(listing, card, settings.channel_order)
    size = settings.image_size or card.image_size
    accepted = () if settings.image_size else card.accepted_sizes
    _check_stored_size(listing, accepted)
    decode = DecodeSettings(size, card.channels, accepted, reverse, _needs_inversion(listing, card))
    order = {split: place for place, split in enumerate(SPLIT_NAMES)}
    return Plan(_renumbered(listing, order).with_notes(*notes, *remarks), decode)


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
            f"{listing.records.name_of(0)} is {shape[1]} x {shape[0]} pixels, expected {expected}; "
            "--image-size scales everything to one size."
        )


def _check_splits(listing: Listing, source: DataSource) -> None:
    """Raise if a class is unknown, or in another split than the standard one."""
    split_of = source.known_classes().split_of
    if not split_of or not listing.names_known:
        return
    known = [name in split_of for name in listing.class_names]
    if not any(known):
        # Some copies name the classes in words instead of WordNet numbers; counts are then all there is to check.
        return
    for name, split in zip(listing.class_names, listing.class_splits, strict=True):
        if name not in split_of:
            raise DataError(
                f"Class '{name}' is none of {source.card.title}'s {len(split_of):,} classes; "
                "remove it, or prepare the data under a name of your own."
            )
        if split != split_of[name]:
            raise DataError(
                f"Class '{name}' is in {split}, but {source.card.title}'s standard split has it in {split_of[name]}; "
                f"{OWN_NAME_HINT}."
            )


def compare_counts(listing: Listing, card: SourceCard) -> tuple[list[str], list[str]]:
    """What differs from the published counts: acceptable parts of the data set, and faults."""
    notes: list[str] = []
    faults: list[str] = []
    found = listing.split_counts()
    if not card.published:
        return notes, faults
    if NO_SPLIT in found:
        faults.append(f"{found[NO_SPLIT][0]} classes belong to no split")
    for split in SPLIT_NAMES:
        expected = card.published[split]
        if split not in found:
            notes.append(f"The {split} split is not in the source.")
            continue
        classes, images = found[split]
        if classes != expected.classes:
            faults.append(f"{split} has {classes:,} classes instead of the published {expected.classes:,}")
        elif expected.images is not None and images != expected.images:
            uneven = _uneven(listing, split)
            if uneven or images > expected.images:
                detail = f" ({uneven})" if uneven else ""
                faults.append(f"{split} has {images:,} images instead of the published {expected.images:,}{detail}")
            else:
                notes.append(f"{split} has {images:,} of {expected.images:,} images, the same number of every class.")
    total = sum(images for _, images in found.values())
    unpublished = any(count.images is None for count in card.published.values())
    if unpublished and card.total_images and len(found) == len(SPLIT_NAMES) and total != card.total_images:
        faults.append(f"there are {total:,} images instead of the published {card.total_images:,}")
    return notes, faults


def _check_counts(listing: Listing, card: SourceCard, allow_other_counts: bool) -> list[str]:
    """Notes on a part of the data set; anything else that differs is an error unless it is allowed."""
    notes, faults = compare_counts(listing, card)
    if faults and not allow_other_counts:
        raise DataError(
            f"This is not {card.title} as published: {'; '.join(faults)}; fetch it again, or accept it with "
            "--allow-other-counts."
        )
    return [*notes, *(f"Not as published: {fault}." for fault in faults)]


def _uneven(listing: Listing, split: str) -> str:
    """The class that differs most from the others of its split, empty if all have the same number of images."""
    counts = listing.class_counts
    members = [n for n, home in enumerate(listing.class_splits) if home == split]
    usual = sorted(int(counts[n]) for n in members)[len(members) // 2]
    odd = max(members, key=lambda n: abs(int(counts[n]) - usual))
    if int(counts[odd]) == usual:
        return ""
    return f"'{listing.class_names[odd]}' has {int(counts[odd]):,}, most have {usual:,}"


def _needs_reversal(listing: Listing, card: SourceCard, order: ChannelOrder) -> tuple[bool, list[str]]:
    """Whether blue comes first, and what to tell the user about it.

    A file format fixes the order of an encoded image. Bare arrays do not: theirs is told by their mean colours.
    """
    if card.channels != 3 or order == "rgb" or (order == "check" and listing.red_first):
        return False, []
    if order == "bgr":
        return True, ["Channels were reversed from blue-green-red, as asked."]
    means, images = _channel_means(listing.records)
    if not card.pixel_mean or len(means) != 3 or images < FEWEST_IMAGES or len(listing.class_names) < FEWEST_CLASSES:
        return False, [
            "There are too few images to tell the channel order from their colours; it is taken as red-green-blue."
        ]
    published = np.array(card.pixel_mean)
    as_stored, reversed_ = (float(((means - target) ** 2).sum()) for target in (published, published[::-1]))
    shown = ", ".join(f"{mean:.1f}" for mean in means)
    if reversed_ * CLEARLY_NEARER < as_stored:
        return True, [f"Stored blue first (channel means {shown}), so the channels were reversed to red-green-blue."]
    if as_stored * CLEARLY_NEARER < reversed_:
        return False, [f"Channel order checked: red first (channel means {shown})."]
    return False, [f"Channel means {shown} fit neither order clearly; taken as red-green-blue."]


def _needs_inversion(listing: Listing, card: SourceCard) -> bool:
    """Whether drawings that should have light ink are stored with dark ink on light paper."""
    if not card.ink_is_light:
        return False
    means = [float(image.mean()) for image in _sampled_images(listing.records, 64)]
    return bool(means) and float(np.median(means)) > 127.5


def _channel_means(records: Records) -> tuple[Float64[np.ndarray, " C"], int]:
    """Mean of each channel from 0 to 255 over a sample, and the size of the sample."""
    means = [image.reshape(-1, image.shape[-1]).mean(axis=0) for image in _sampled_images(records)]
    return (np.mean(means, axis=0), len(means)) if means else (np.zeros(0), 0)


def _sampled_images(records: Records, count: int = LOOKED_AT) -> Iterator[np.ndarray]:
    """Evenly spaced images, decoded, the unreadable left out."""
    places = sorted({int(place) for place in np.linspace(0, len(records) - 1, min(count, len(records)))})
    for payload in records.pick(places):
        try:
            yield pixels_of(payload, 3)
        except DataError:
            continue

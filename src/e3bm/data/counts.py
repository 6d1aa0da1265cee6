"""What was found against what is published: classes, splits and numbers of images."""

from e3bm.data.listing import NO_SPLIT, Listing
from e3bm.data.packed_format import SPLIT_NAMES
from e3bm.data.source import DataSource, SourceCard
from e3bm.errors import DataError

OWN_NAME_HINT = "prepare it under a name of your own to keep the source's split"


def check_splits(listing: Listing, source: DataSource) -> None:
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
            faults.append(f"{split} has {classes:,} classes, published are {expected.classes:,}")
        elif expected.images is not None and images != expected.images:
            uneven = _uneven(listing, split)
            if uneven or images > expected.images:
                detail = f" ({uneven})" if uneven else ""
                faults.append(f"{split} has {images:,} images, published are {expected.images:,}{detail}")
            else:
                notes.append(f"{split} has {images:,} of {expected.images:,} images, the same number of every class.")
    total = sum(images for _, images in found.values())
    unpublished = any(count.images is None for count in card.published.values())
    if unpublished and card.total_images and len(found) == len(SPLIT_NAMES) and total != card.total_images:
        faults.append(f"there are {total:,} images, published are {card.total_images:,}")
    return notes, faults


def check_counts(listing: Listing, card: SourceCard, allow_other_counts: bool) -> list[str]:
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

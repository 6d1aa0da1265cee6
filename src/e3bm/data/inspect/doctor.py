"""`e3bm doctor`: what lies at a path, whether it is whole, and what to do with it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from e3bm.data.inspect.recognise import Recognised, recognise
from e3bm.data.inspect.survey import PixelStatistics, Survey, survey
from e3bm.data.layouts.base import NO_SPLIT, Listing
from e3bm.data.layouts.folders import ClassFolders, SplitFolders
from e3bm.data.read.decode_pool import BrokenImage
from e3bm.data.read.plan import compare_counts
from e3bm.data.read.records import MemoryRecords
from e3bm.data.source import OWN_FOLDER, SourceCard, SplitCount, registered_sources
from e3bm.data.store.format import CLASSES_FILE
from e3bm.data.store.packed import PackedImages
from e3bm.progress import Progress, Silent

CLEARLY_OFF = 0.02
"""A difference in mean or deviation, from 0 to 1, that another sample of the same data would not show."""
GROUPS_NAMED = 100


@dataclass(frozen=True)
class DoctorReport:
    """The state of a data set."""

    path: Path
    name: str
    """The registered name, or ``folder``."""
    variant: str
    splits: dict[str, SplitCount]
    published: dict[str, SplitCount]
    smallest_class: tuple[str, int]
    largest_class: tuple[str, int]
    findings: tuple[str, ...]
    """What differs from the published data set, and what else is worth knowing."""
    duplicate_groups: int
    duplicate_groups_across_splits: int
    duplicates: tuple[tuple[str, ...], ...]
    """The first groups by the names of their images, those across splits before the others."""
    unreadable: tuple[BrokenImage, ...]
    sizes: dict[str, int]
    """How many images have which size, the commonest first."""
    statistics: dict[str, PixelStatistics]
    known_mean: tuple[float, ...]
    known_std: tuple[float, ...]
    advice: str

    def as_json(self) -> dict[str, Any]:
        """The stable, machine-readable part."""
        return {
            "variant": self.variant,
            "splits": {
                split: {"classes": count.classes, "images": count.images} for split, count in self.splits.items()
            },
            "duplicate_groups": self.duplicate_groups,
            "duplicate_groups_across_splits": self.duplicate_groups_across_splits,
            "unreadable": [broken.path for broken in self.unreadable],
            "advice": self.advice,
        }


def doctor(path: Path | Sequence[Path], *, workers: int = 2, progress: Progress | None = None) -> DoctorReport:
    """Look at every image of a data set, packed or not, and report."""
    progress = progress or Silent()
    given = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
    if len(given) == 1 and (given[0] / CLASSES_FILE).is_file():
        return _prepared(given[0], progress)
    found = recognise(given)
    try:
        card, listing = found.source.card, found.listing
        seen = survey(listing, card.channels, workers, progress)
        notes, faults = compare_counts(listing, card) if found.names != (OWN_FOLDER,) else ([], [])
        findings = [*listing.notes, *found.rejected, *notes, *(f"Not as published: {fault}." for fault in faults)]
        findings += _split_faults(found) + _pixel_findings(card, seen)
        title = "folder of images" if found.names == (OWN_FOLDER,) else " or ".join(found.names)
        variant = f"{title}: {listing.layout} ({found.tree.kind})"
        published = {} if found.names == (OWN_FOLDER,) else dict(card.published)
        advice = _advice(found, given, seen, bool(faults))
        return _report(given[0], found.names[0], variant, listing, seen, findings, published, card, advice)
    finally:
        found.tree.close()


def _prepared(path: Path, progress: Progress) -> DoctorReport:
    packed = PackedImages.open(path, verify=True)
    split_of = {number: split for split, members in packed.splits.items() for number in members}
    homes = tuple(split_of[number] for number in range(len(packed.class_names)))
    records = MemoryRecords(packed.images, packed.name)
    listing = Listing("prepared", packed.class_names, homes, packed.labels, records)
    seen = survey(listing, packed.image_shape[2], 1, progress)
    sources = registered_sources()
    card = sources[packed.name]().card if packed.name in sources else SourceCard(packed.name, 0, "", "")
    notes, faults = compare_counts(listing, card)
    findings = [*notes, *(f"Not as published: {fault}." for fault in faults)]
    advice = f"It is prepared and complete: use it by its name, {packed.name}."
    published = dict(card.published)
    return _report(path, packed.name, f"prepared {packed.name}", listing, seen, findings, published, card, advice)


def _report(
    path: Path,
    name: str,
    variant: str,
    listing: Listing,
    seen: Survey,
    findings: list[str],
    published: dict[str, SplitCount],
    card: SourceCard,
    advice: str,
) -> DoctorReport:
    counts = listing.class_counts
    homes = [listing.class_splits[label] for label in listing.labels.tolist()]
    same = _find_duplicates(seen.readable, seen.digests, homes)
    inside = [group for group in same.groups if group not in set(same.across_splits)]
    named = [*same.across_splits, *inside][:GROUPS_NAMED]
    small, large = int(counts.argmin()), int(counts.argmax())
    sizes = sorted(seen.sizes.items(), key=lambda item: -item[1])
    return DoctorReport(
        path=path,
        name=name,
        variant=variant,
        splits={split: SplitCount(*count) for split, count in listing.split_counts().items()},
        published=published,
        smallest_class=(listing.class_names[small], int(counts[small])),
        largest_class=(listing.class_names[large], int(counts[large])),
        findings=tuple(findings),
        duplicate_groups=len(same.groups),
        duplicate_groups_across_splits=len(same.across_splits),
        duplicates=tuple(tuple(listing.records.name_of(place) for place in group) for group in named),
        unreadable=seen.unreadable,
        sizes={f"{width} x {height}": count for (width, height), count in sizes},
        statistics=seen.statistics,
        known_mean=tuple(value / 255 for value in card.pixel_mean),
        known_std=tuple(value / 255 for value in card.pixel_std),
        advice=advice,
    )


def _split_faults(found: Recognised) -> list[str]:
    split_of, listing = found.source.known_classes().split_of, found.listing
    if found.names == (OWN_FOLDER,) or not listing.names_known:
        return []
    moved = [
        (name, split)
        for name, split in zip(listing.class_names, listing.class_splits, strict=True)
        if name in split_of and split not in (split_of[name], NO_SPLIT)
    ]
    if not moved:
        return []
    name, split = moved[0]
    return [f"{len(moved)} classes are not in their standard split: '{name}' is in {split}, not {split_of[name]}."]


def _pixel_findings(card: SourceCard, seen: Survey) -> list[str]:
    findings: list[str] = []
    if card.accepted_sizes:
        odd = {size: n for size, n in seen.sizes.items() if size[0] != size[1] or size[0] not in card.accepted_sizes}
        if odd:
            (width, height), count = max(odd.items(), key=lambda item: item[1])
            total = sum(odd.values())
            findings.append(f"{total:,} images are not of the expected size; {count:,} are {width} x {height}.")
    everything = seen.statistics.get("all")
    if everything and card.pixel_mean and len(everything.mean) == len(card.pixel_mean):
        known = [value / 255 for value in (*card.pixel_mean, *card.pixel_std)]
        worst = max(abs(a - b) for a, b in zip((*everything.mean, *everything.std), known, strict=True))
        verdict = "as published" if worst < CLEARLY_OFF else "not as published: check channel order and completeness"
        findings.append(f"Channel means and deviations differ from the known ones by at most {worst:.4f}: {verdict}.")
    return findings


def _advice(found: Recognised, given: list[Path], seen: Survey, other_counts: bool) -> str:
    where = " ".join(shlex.quote(str(path)) for path in given)
    own = found.names == (OWN_FOLDER,)
    name = _own_name(given[0]) if own else found.names[0]
    command = f"e3bm prepare {name} --source {where}"
    if seen.unreadable:
        command += " --on-broken skip"
    if other_counts:
        command += " --allow-other-counts"
    others = f" (or prepare {' or '.join(found.names[1:])})" if len(found.names) > 1 else ""
    mend = f"Repair or remove {len(seen.unreadable):,} unreadable images, or skip them. " if seen.unreadable else ""
    if own and len(given) == 1 and found.listing.layout == ClassFolders.name:
        skip = " --skip-unreadable" if seen.unreadable else ""
        fit = f"e3bm fit {where} --out {name}.e3bm{skip}"
        return f"{mend}Run '{fit}' for a classifier of such photos, or '{command}' for meta-training."
    if found.listing.layout == SplitFolders.shared_name:
        merged = "it merges the folders, which share their classes, and splits the classes by the standard list"
        return f"{mend}These folders are no few-shot split. Run '{command}'{others}: {merged}."
    return f"{mend}Run '{command}'{others}."


def _own_name(path: Path) -> str:
    stem = path.name.split(".")[0] or path.resolve().name
    return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in stem).strip("-") or "photos"


@dataclass(frozen=True)
class _Duplicates:
    """Groups of places at which the same image lies."""

    groups: tuple[tuple[int, ...], ...]
    across_splits: tuple[tuple[int, ...], ...]
    """Those whose members are not all in one split."""


def _find_duplicates(
    places: Int64[np.ndarray, " n"], digests: UInt8[np.ndarray, "n bytes"], splits: Sequence[str]
) -> _Duplicates:
    """Groups of two or more places with the same digest; ``splits`` gives the split of every place."""
    keys = np.ascontiguousarray(digests).view(f"V{digests.shape[1]}").reshape(-1)
    order = np.argsort(keys, kind="stable")
    ends = np.flatnonzero(keys[order][1:] != keys[order][:-1]) + 1
    runs = [run for run in np.split(order, ends) if len(run) > 1] if len(order) else []
    groups = sorted(tuple(sorted(places[run].tolist())) for run in runs)
    across = tuple(group for group in groups if len({splits[place] for place in group}) > 1)
    return _Duplicates(tuple(groups), across)

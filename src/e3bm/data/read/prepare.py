"""`e3bm prepare`: any known form of a data set, or a folder of images, into one packed folder."""

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np

from e3bm.data.read.archives import open_tree
from e3bm.data.read.decode_pool import BrokenImage, decode_records
from e3bm.data.read.download import download_all
from e3bm.data.read.file_tree import FileTree
from e3bm.data.read.plan import ChannelOrder, Plan, PlanSettings, make_plan
from e3bm.data.source import (
    DEFAULT_FRACTIONS,
    EMBEDDED,
    OWN_FOLDER,
    DataSource,
    check_own_name,
    data_folder,
    registered_name,
    registered_sources,
)
from e3bm.data.store.format import CLASSES_FILE, partial_of, read_record, recover, write_json
from e3bm.data.store.packed import Origin, PackedImages, PackedWriter
from e3bm.errors import DataError, E3BMError, SettingsError
from e3bm.progress import Progress, Silent, stage

OnBroken = Literal["stop", "skip"]
PREPARATION = 1
"""Raised whenever the same source would give other pixels, so that old packed folders are made anew."""
REPORT_FILE = "prepared.json"
BROKEN_SHOWN = 5


@dataclass(frozen=True)
class PreparedDataset:
    """What a preparation made, or found already made."""

    name: str
    path: Path
    layout: str
    splits: dict[str, dict[str, int]]
    """Classes and images of each split."""
    image_shape: tuple[int, int, int]
    notes: tuple[str, ...]
    skipped: tuple[BrokenImage, ...]
    unchanged: bool
    """True where the same source had been prepared before and nothing was done."""
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        return {**asdict(self), "path": str(self.path)}


def prepare(
    name: str,
    source: Path | Sequence[Path] | None = None,
    out: Path | None = None,
    *,
    folder: Path | None = None,
    download: bool = False,
    workers: int = 2,
    on_broken: OnBroken = "stop",
    image_size: int | None = None,
    seed: int = 0,
    fractions: Sequence[float] = DEFAULT_FRACTIONS,
    channel_order: ChannelOrder = "check",
    allow_other_counts: bool = False,
    progress: Progress | None = None,
) -> PreparedDataset:
    """Pack a data set into ``out``, by default its own folder among the prepared ones (``folder``, E3BM_DATA, cache).

    A name that is not registered is taken for a folder of images of the user's own. An interrupted run goes on where
    it stopped, and a finished one is not repeated unless the source or a setting has changed.
    """
    begun, progress = time.monotonic(), progress or Silent()
    settings = PlanSettings(image_size, seed, tuple(fractions), channel_order, allow_other_counts)
    _check_settings(settings, on_broken, workers)
    known, kind = _source_named(name)
    target = Path(out) if out is not None else data_folder(folder) / known
    if source is not None:
        given = [Path(source)] if isinstance(source, str | Path) else [Path(one) for one in source]
    else:
        given = _downloaded(known, kind, download, data_folder(folder), progress)
    with ExitStack() as until_packed:
        with stage(progress, "looking through the source", 0):
            tree = open_tree(given, kind.card.archive_patterns)
            until_packed.callback(tree.close)
            recover(target)
            _check_target_outside_source(target, given)
            fingerprint = _fingerprint(known, tree, settings, on_broken)
            existing = _existing(target, fingerprint, begun)
            if existing is not None:
                return existing
            plan = make_plan(kind, tree, settings)
        report = {"layout": f"{plan.listing.layout} ({tree.kind})", "notes": plan.listing.notes}
        where = ", ".join(path.name for path in given)
        origin = Origin(
            f"{kind.card.title}: {report['layout']}, {where}",
            plan.preprocessing(),
            fingerprint,
            kind.card.licence,
            kind.card.citation,
        )
        packed, _ = _pack(
            plan, target, known, origin, on_broken=on_broken, workers=workers, report=report, progress=progress
        )
        return _result(packed, unchanged=False, begun=begun)


def _source_named(name: str) -> tuple[str, DataSource]:
    """The registered data set of this name, or a folder of one's own under it."""
    sources, known = registered_sources(), registered_name(name)
    if known == EMBEDDED:
        raise SettingsError(f"{EMBEDDED} comes with the package and needs no preparation.")
    if known in sources:
        return known, sources[known]()
    near = get_close_matches(name.lower(), list(sources), n=1, cutoff=0.75)
    if near:
        raise SettingsError(
            f"There is no data set '{name}'; did you mean '{near[0]}'? For images of your own choose another name."
        )
    return check_own_name(name), sources[OWN_FOLDER]()


def _check_settings(settings: PlanSettings, on_broken: OnBroken, workers: int) -> None:
    if settings.image_size is not None and not 4 <= settings.image_size <= 1024:
        raise SettingsError(f"The image size must be from 4 to 1024 pixels, found {settings.image_size}.")
    if on_broken not in ("stop", "skip"):
        raise SettingsError(f"Broken images can 'stop' the run or be 'skip'ped, found '{on_broken}'.")
    if settings.channel_order not in ("check", "rgb", "bgr"):
        raise SettingsError(f"The channel order is 'check', 'rgb' or 'bgr', found '{settings.channel_order}'.")
    if not 1 <= workers <= 256:
        raise SettingsError(f"The number of workers must be from 1 to 256, found {workers}.")


def _downloaded(known: str, kind: DataSource, download: bool, folder: Path, progress: Progress) -> list[Path]:
    if not download:
        raise SettingsError(f"No source was given; run 'e3bm prepare {known} --source PATH'.")
    if not kind.card.downloads:
        raise SettingsError(
            f"{kind.card.title} has no official public address to download from; "
            f"get a copy (see {kind.card.homepage or 'its authors'}) and give it as the source."
        )
    return download_all(kind.card.downloads, folder / "downloads" / known, progress)


def check_target(target: Path) -> None:
    """Refuse to replace anything but a packed data set."""
    if target.is_dir() and ((target / CLASSES_FILE).is_file() or not any(target.iterdir())):
        return
    if target.exists():
        raise DataError(f"{target} exists but is not a packed data set; choose another folder for the result.")


def _check_target_outside_source(target: Path, given: list[Path]) -> None:
    check_target(target)
    for path in given:
        if path.is_dir() and path.resolve() in (target.resolve(), *target.resolve().parents):
            raise DataError(f"The result would lie in {target}, inside the source {path}; choose another folder.")


def _fingerprint(name: str, tree: FileTree, settings: PlanSettings, on_broken: OnBroken) -> str:
    parts = [PREPARATION, name, tree.fingerprint(), asdict(settings), on_broken]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _existing(target: Path, fingerprint: str, begun: float) -> PreparedDataset | None:
    """The packed folder, if it was made from the same files with the same settings and is whole."""
    if not (target / CLASSES_FILE).is_file():
        return None
    try:
        packed = PackedImages.open(target, verify=True)  # "nothing to do" is said of a whole one only
        return _result(packed, unchanged=True, begun=begun) if packed.origin.fingerprint == fingerprint else None
    except (DataError, OSError, ValueError, KeyError, TypeError):
        return None


def _pack(
    plan: Plan,
    target: Path,
    name: str,
    origin: Origin,
    *,
    on_broken: OnBroken,
    workers: int,
    report: Mapping[str, Any],
    progress: Progress,
) -> tuple[PackedImages, tuple[BrokenImage, ...]]:
    """Write the packed folder; bad input leaves nothing behind, an interruption what the next run continues."""
    check_target(target)
    _check_space(target, plan)
    try:
        with PackedWriter(target, plan.image_shape, name, origin=origin, resume=True, replace=True) as writer:
            try:
                return _write(plan, writer, on_broken, workers, report, progress)
            except E3BMError:
                writer.abort()
                raise
    except OSError as error:
        raise DataError(
            f"{target} cannot be written: {error.strerror}; free some space or choose another folder and run the same "
            f"command again, which continues where it stopped."
        ) from error


def _write(
    plan: Plan,
    writer: PackedWriter,
    on_broken: OnBroken,
    workers: int,
    report: Mapping[str, Any],
    progress: Progress,
) -> tuple[PackedImages, tuple[BrokenImage, ...]]:
    listing = plan.listing
    skipped = [BrokenImage(**one) for one in writer.state.get("skipped", [])]
    start = int(writer.state.get("next", 0))
    batches = decode_records(listing.records, plan.decode, start, workers)
    with closing(batches), stage(progress, "packing images", len(listing.records), start):
        for first, batch in batches:
            broken = [BrokenImage(listing.records.name_of(first + place), reason) for place, reason in batch.broken]
            if broken and on_broken == "stop":
                raise _broken_images_error(broken)
            skipped += broken
            following = first + len(batch.kept) + len(batch.broken)
            labels = listing.labels[first + np.array(batch.kept, np.int64)]
            writer.append(batch.images, labels, {"next": following, "skipped": [asdict(one) for one in skipped]})
            progress.advance(following)
    write_json(writer.partial / REPORT_FILE, {**report, "skipped": [asdict(one) for one in skipped]})
    return writer.finish(listing.class_names, plan.splits()), tuple(skipped)


def _broken_images_error(broken: list[BrokenImage]) -> DataError:
    """The error that lists images which cannot be read."""
    shown = "; ".join(f"{one.path}: {one.reason}" for one in broken[:BROKEN_SHOWN])
    more = f" and {len(broken) - BROKEN_SHOWN} more nearby" if len(broken) > BROKEN_SHOWN else ""
    return DataError(
        f"Some images cannot be used: {shown}{more}. Repair or remove them, or leave them out with --on-broken skip; "
        "'e3bm doctor' lists all of them."
    )


def _check_space(target: Path, plan: Plan) -> None:
    home = next(folder for folder in (target.absolute(), *target.absolute().parents) if folder.exists())
    needed, free = len(plan.listing.labels) * int(np.prod(plan.image_shape)), shutil.disk_usage(home).free
    partial = partial_of(target)
    done = sum(file.stat().st_size for file in partial.iterdir()) if partial.is_dir() else 0
    if needed - done > free:
        raise DataError(
            f"{home} has {free >> 20:,} MB free, but the data set needs {needed >> 20:,} MB; free some space."
        )


def _result(packed: PackedImages, *, unchanged: bool, begun: float) -> PreparedDataset:
    assert packed.path is not None
    report = read_record(packed.path / REPORT_FILE)
    counts = packed.class_counts
    splits = {
        split: {"classes": len(members), "images": int(counts[list(members)].sum())}
        for split, members in packed.splits.items()
        if members
    }
    return PreparedDataset(
        packed.name,
        packed.path,
        report["layout"],
        splits,
        packed.image_shape,
        tuple(report["notes"]),
        tuple(BrokenImage(**one) for one in report["skipped"]),
        unchanged,
        time.monotonic() - begun,
    )

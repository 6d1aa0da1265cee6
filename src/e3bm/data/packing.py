"""A plan carried out: batches decoded, written and remembered, so that an interruption costs one batch."""

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from e3bm.data.decode_pool import Broken, decode_records
from e3bm.data.packed import Origin, PackedImages, PackedWriter
from e3bm.data.packed_format import CLASSES_FILE, write_json
from e3bm.data.plan import Plan
from e3bm.data.progress import ProgressCallback, Reporter
from e3bm.errors import DataError, E3BMError

OnBroken = Literal["stop", "skip"]
REPORT_FILE = "prepared.json"
BROKEN_SHOWN = 5


def pack(
    plan: Plan,
    target: Path,
    name: str,
    origin: Origin,
    *,
    on_broken: OnBroken,
    workers: int,
    report: Mapping[str, Any],
    progress: ProgressCallback | None,
) -> tuple[PackedImages, tuple[Broken, ...]]:
    """Write the packed folder; bad input leaves nothing behind, an interruption leaves what the next run takes up."""
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
            "command again, it goes on where it stopped."
        ) from error


def _write(
    plan: Plan,
    writer: PackedWriter,
    on_broken: OnBroken,
    workers: int,
    report: Mapping[str, Any],
    progress: ProgressCallback | None,
) -> tuple[PackedImages, tuple[Broken, ...]]:
    listing = plan.listing
    skipped = [Broken(**one) for one in writer.state.get("skipped", [])]
    start = int(writer.state.get("next", 0))
    reporter = Reporter(progress, "packing", len(listing.records))
    reporter.begin_at(start)
    reporter.at(start)
    with closing(decode_records(listing.records, plan.decode, start, workers)) as batches:
        for first, batch in batches:
            broken = [Broken(listing.records.shown(first + place), reason) for place, reason in batch.broken]
            if broken and on_broken == "stop":
                raise broken_images(broken)
            skipped += broken
            following = first + len(batch.kept) + len(batch.broken)
            labels = listing.labels[first + np.array(batch.kept, np.int64)]
            writer.append(batch.images, labels, {"next": following, "skipped": [asdict(one) for one in skipped]})
            reporter.at(following)
    write_json(writer.partial / REPORT_FILE, {**report, "skipped": [asdict(one) for one in skipped]})
    return writer.finish(listing.class_names, plan.splits()), tuple(skipped)


def broken_images(broken: list[Broken]) -> DataError:
    """The error that lists images which cannot be read."""
    shown = "; ".join(f"{one.path}: {one.reason}" for one in broken[:BROKEN_SHOWN])
    more = f" and {len(broken) - BROKEN_SHOWN} more nearby" if len(broken) > BROKEN_SHOWN else ""
    return DataError(
        f"Images cannot be used: {shown}{more}. Mend or remove them, or leave them out with --on-broken skip; "
        "'e3bm doctor' lists all of them."
    )


def check_target(target: Path) -> None:
    """Refuse to replace anything but a packed data set."""
    if target.is_dir() and ((target / CLASSES_FILE).is_file() or not any(target.iterdir())):
        return
    if target.exists():
        raise DataError(f"{target} exists and is no packed data set; choose another folder for the result.")


def _check_space(target: Path, plan: Plan) -> None:
    home = next(folder for folder in (target.absolute(), *target.absolute().parents) if folder.exists())
    needed, free = len(plan.listing.labels) * int(np.prod(plan.image_shape)), shutil.disk_usage(home).free
    partial = target.with_name(target.name + ".partial")
    done = sum(file.stat().st_size for file in partial.iterdir()) if partial.is_dir() else 0
    if needed - done > free:
        raise DataError(f"{home} has {free >> 20:,} MB free, the data set needs {needed >> 20:,} MB; free some space.")

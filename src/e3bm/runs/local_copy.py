"""A data set read once for each machine: its processes copy a share of the packed file each to a disk of their own.

Without it every process maps the file where it lies. On shared storage that is every image, again and again, from
every machine; with the variable E3BM_SCRATCH, each byte is read from there once for each machine.
"""

import os
from pathlib import Path

from e3bm.data.source import open_dataset
from e3bm.data.store.format import CLASSES_FILE
from e3bm.data.store.packed import PackedImages
from e3bm.errors import DataError
from e3bm.runs.engine import Engine
from e3bm.runs.settings import DataSettings

VARIABLE = "E3BM_SCRATCH"
PIECE = 8 << 20


def on_local_disk(data: DataSettings, engine: Engine) -> DataSettings:
    """The settings of a copy on this machine's own disk; the same settings where none is asked for or needed."""
    scratch = os.environ.get(VARIABLE)
    images = open_dataset(data.dataset, data.folder) if scratch else None
    if not scratch or images is None or images.path is None:
        return data
    rank, count = engine.local
    target = Path(scratch).expanduser() / f"{images.path.name}-{images.digest[:16]}"
    # One name for all who copy this content: they write the same bytes to the same places, and what a killed run left
    # is gone on with.
    partial = target.with_name(f".{target.name}.partial")
    there = _is_whole(target)
    engine.wait()  # all have looked before anybody writes
    try:
        if not there:
            partial.mkdir(parents=True, exist_ok=True)
            copy_share(images.path, partial, rank, count)
        engine.wait()
        if not there and rank == 0:
            PackedImages.open(partial, verify=True)
            partial.rename(target)
    except (OSError, DataError) as error:
        if not _is_whole(target):  # else another run was quicker
            raise DataError(
                f"The data set cannot be copied to {target} ({error}); make room there, or unset {VARIABLE}."
            ) from None
    engine.wait()
    return data.but(dataset=str(target))


def _is_whole(folder: Path) -> bool:
    return (folder / CLASSES_FILE).is_file()


def copy_share(source: Path, target: Path, rank: int, count: int) -> int:
    """Copy this process's part of every file of a folder, and give the number of bytes."""
    copied = 0
    for path in sorted(source.iterdir()):
        if not path.is_file():
            continue
        size = path.stat().st_size
        place, end = size * rank // count, size * (rank + 1) // count
        descriptor = os.open(target / path.name, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            with path.open("rb") as file:
                file.seek(place)
                while place < end:
                    piece = file.read(min(PIECE, end - place))
                    if not piece:
                        raise DataError(f"{path} became shorter while it was copied; prepare the data set again.")
                    place += os.pwrite(descriptor, piece, place)
                    file.seek(place)
                    copied += len(piece)
        finally:
            os.close(descriptor)
    return copied

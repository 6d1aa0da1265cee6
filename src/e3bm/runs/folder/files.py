"""A run's files, whole or absent whatever happens in between; what goes wrong is a sentence."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e3bm.errors import CheckpointError
from e3bm.json_files import json_bytes, lines_bytes, read_json_file, read_json_lines
from e3bm.storage import lock, release, write_whole


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """A full disk or an unwritable folder becomes a sentence."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"Cannot write in {folder}: {error.strerror or error}. What was saved before is intact; "
            "make room or choose another --run folder, then run the same command again."
        ) from error


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """A file that is not there, cannot be read or is not what was written becomes a sentence."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(f"There is no file {path}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {str(error).removesuffix('.')}. Restore it from a copy.") from None


def write_bytes(path: Path, content: bytes) -> None:
    """A file with this content, whole or absent; its folder is made."""
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def write_named(path: Path, content: bytes) -> None:
    """A file outside of any run, under the name that the user gave it."""
    try:
        write_bytes(path, content)
    except CheckpointError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else None
        raise CheckpointError(f"{path} cannot be written: {reason or error}. Choose another place for it.") from error


def check_replaceable(path: Path, option: str, *, replace: bool) -> None:
    """Refuse early what cannot be written, and a file that holds something, unless it may be replaced.

    ``option`` names the file.
    """
    folder = next(place for place in path.absolute().parents if place.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        reason = "you may not write there" if folder.is_dir() else "it is not a folder"
        raise CheckpointError(f"{path} cannot be written into {folder}: {reason}; choose another place with {option}.")
    if not replace and path.is_file() and path.stat().st_size:
        raise CheckpointError(f"{path} exists already; give another name with {option}, or --force to replace it.")


def write_json(path: Path, value: Any) -> None:
    """A JSON file with its digest, whole or absent."""
    write_bytes(path, json_bytes(value))


def read_json(path: Path) -> Any:
    """What a JSON file holds; a damaged one is named."""
    with reading_errors(path):
        return read_json_file(path)


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """A JSON lines file, whole or absent; every line has its digest."""
    write_bytes(path, lines_bytes(records))


def read_lines(path: Path) -> list[Any]:
    """The values of a JSON lines file; a damaged one is named, a line that a crash cut short is passed over."""
    with reading_errors(path):
        return list(read_json_lines(path))


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a folder to this process: two trainings in one folder would tear each other's checkpoints apart."""
    with _locked(folder, wait=False) as free:
        if not free:
            raise CheckpointError(
                f"Another process is training in {folder}; wait for it to end, or choose another --run folder."
            )
        yield


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait for other processes that are here with the same file: for reading, changing and writing in one piece."""
    with _locked(path, wait=True):
        yield


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Whether the lock was to be had; true where the system or its file system has none."""
    with storage_errors(path):
        descriptor = lock(path, wait=wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            release(descriptor)

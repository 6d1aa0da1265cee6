"""PackedImages: a whole data set as one file of uint8 pixels, its labels, and a description in JSON."""

import hashlib
import io
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from e3bm.data.store.blocks import PixelBlocks, block_digests, write_blocks
from e3bm.data.store.format import (
    BLOCKS_FILE,
    CLASSES_FILE,
    FORMAT_VERSION,
    GROWING_LABELS_FILE,
    IMAGES_FILE,
    LABELS_FILE,
    PROGRESS_FILE,
    Origin,
    checked_labels,
    checked_pixels,
    checked_splits,
    damaged,
    file_hash,
    joint_digest,
    label_bytes,
    lock_folder,
    open_at,
    partial_of,
    publish,
    read_description,
    read_record,
    write_json,
)
from e3bm.errors import DataError
from e3bm.json_files import digest_of_json
from e3bm.storage import write_whole

__all__ = ["Origin", "PackedImages", "PackedWriter"]

LABELS_HEADER = 4096  # bytes: more than NumPy writes before the numbers


@dataclass(frozen=True, eq=False)
class PackedImages:
    """N images of one size, each with a class, each class in exactly one split."""

    name: str
    images: UInt8[np.ndarray, "N H W C"]
    labels: Int64[np.ndarray, " N"]
    class_names: tuple[str, ...]
    splits: dict[str, tuple[int, ...]]
    """For train, val and test the class numbers in it; never overlapping."""
    origin: Origin = field(default_factory=Origin)
    path: Path | None = None
    """The folder on disk, or None for a data set that lives in memory."""
    written_digest: str = ""
    written_pixels: str = ""
    """The sha256 of the images file, as the folder states it."""

    @classmethod
    def from_arrays(
        cls,
        images: np.ndarray,
        labels: np.ndarray,
        class_names: Sequence[str],
        splits: Mapping[str, Sequence[int]],
        *,
        name: str = "arrays",
        origin: Origin | None = None,
    ) -> "PackedImages":
        """A data set in memory from uint8 [N, H, W, C] and N labels; shared with the caller, read-only from here."""
        images = checked_pixels(images, None).view()
        labels = checked_labels(labels, len(images), len(class_names)).view()
        images.flags.writeable = labels.flags.writeable = False
        return cls(name, images, labels, tuple(class_names), checked_splits(splits, class_names), origin or Origin())

    @classmethod
    def open(cls, path: str | os.PathLike[str], verify: bool = False) -> "PackedImages":
        """Open a packed folder; sizes, labels and classes are checked now, pixels when they are read or if asked."""
        folder = Path(path).resolve()
        about = read_description(folder)
        try:
            names, written, count = about["class_names"], about["sha256"], int(about["count"])
            shape = (count, *map(int, about["image_shape"]))
            origin, splits = Origin(**about["origin"]), checked_splits(about["splits"], names)
            pixels, label_digest, name = str(written["images"]), written["labels"], str(about["name"])
            if len(shape) != 4 or min(shape) < 1:
                raise ValueError(shape)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(folder / CLASSES_FILE) from error
        images_path, labels_path = folder / IMAGES_FILE, folder / LABELS_FILE
        found, expected = images_path.stat().st_size if images_path.is_file() else 0, math.prod(shape)
        if found != expected:
            raise DataError(
                f"{images_path} has {found} bytes, expected {expected} for {count} images of shape {shape[1:]}; "
                "prepare the data set again."
            )
        labels = _read_labels(labels_path, count)
        if hashlib.sha256(label_bytes(labels)).hexdigest() != label_digest:
            raise damaged(labels_path)
        if verify and file_hash(images_path).hexdigest() != pixels:
            raise damaged(images_path)
        labels = checked_labels(labels, count, len(names))
        labels.flags.writeable = False
        images = np.memmap(images_path, dtype=np.uint8, mode="r", shape=shape)
        digest = joint_digest(pixels, label_digest, shape[1:])
        return cls(name, images, labels, tuple(names), splits, origin, folder, digest, pixels)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the same file instead of receiving the pixels.
        if self.path is not None:
            return _reopen, (str(self.path), self.digest)
        arrays = (np.asarray(self.images), self.labels, self.class_names, self.splits)
        return _rebuild, (*arrays, self.name, self.origin)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    @cached_property
    def digest(self) -> str:
        """One sha256 for pixels and labels: the same for the same content, on disk or in memory."""
        if self.written_digest:
            return self.written_digest
        pixels = hashlib.sha256(np.ascontiguousarray(self.images).data).hexdigest()
        return joint_digest(pixels, hashlib.sha256(label_bytes(self.labels)).hexdigest(), self.image_shape)

    @cached_property
    def class_counts(self) -> Int64[np.ndarray, " classes"]:
        """How many images each class has."""
        return np.bincount(self.labels, minlength=len(self.class_names)).astype(np.int64)

    @cached_property
    def _positions_by_class(self) -> list[Int64[np.ndarray, " _"]]:
        order = np.argsort(self.labels, kind="stable").astype(np.int64)
        return np.split(order, np.cumsum(self.class_counts)[:-1])

    def indices_of(self, class_number: int) -> Int64[np.ndarray, " n"]:
        """The positions of all images of one class, in ascending order."""
        return self._positions_by_class[class_number]

    @cached_property
    def _blocks(self) -> PixelBlocks | None:
        return None if self.path is None else PixelBlocks.of_folder(self.path, self.images, self.written_pixels)

    def gather(self, positions: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n H W C"]:
        """The images at these positions, as a copy of their own; pixels that are not what was written are an error."""
        if self._blocks is not None:
            self._blocks.check(positions)
        return np.asarray(np.take(self.images, positions, axis=0))


class PackedWriter:
    """Writes a packed folder batch by batch; the folder gets its name only when it is complete.

    Pixels go to a sibling folder ``<name>.partial``. With ``resume`` an interrupted writer leaves that folder behind,
    and a later writer of the same source continues after its last whole batch; otherwise an error removes it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        image_shape: tuple[int, int, int],
        name: str,
        *,
        origin: Origin | None = None,
        resume: bool = False,
        replace: bool = False,
    ) -> None:
        self.path, self.image_shape, self.name = Path(path).resolve(), tuple(image_shape), name
        self.origin, self.resume = origin or Origin(), resume
        self.partial = partial_of(self.path)
        if self.path.exists() and not replace:
            raise DataError(f"{self.path} already exists; remove it or choose another folder.")
        self.partial.mkdir(parents=True, exist_ok=True)
        self._lock, self._open = lock_folder(self.partial), True
        self.count = 0
        """Images written so far, those of an earlier interrupted writer included."""
        self.state: dict[str, Any] = {}
        """What the last append was told to remember: where to go on in the source."""
        self._pixels_hash, self._labels_hash = hashlib.sha256(), hashlib.sha256()
        if resume:
            self._continue()
        for old in (CLASSES_FILE, BLOCKS_FILE, LABELS_FILE):  # of a writer that was killed at its very end
            (self.partial / old).unlink(missing_ok=True)
        self._pixels = open_at(self.partial / IMAGES_FILE, self.count * int(np.prod(self.image_shape)))
        self._labels = open_at(self.partial / GROWING_LABELS_FILE, self.count * 8)

    def _identity(self) -> dict[str, Any]:
        shape = list(self.image_shape)
        return {"version": FORMAT_VERSION, "name": self.name, "image_shape": shape, "origin": asdict(self.origin)}

    def _continue(self) -> None:
        """Take over the partial folder if it is of the same source and undamaged, else start again."""
        try:
            progress = read_record(self.partial / PROGRESS_FILE)
            if progress["of"] != self._identity():
                return
            count, state = int(progress["count"]), dict(progress["state"])
            pixels_hash = file_hash(self.partial / IMAGES_FILE, count * int(np.prod(self.image_shape)))
            labels_hash = file_hash(self.partial / GROWING_LABELS_FILE, count * 8)
            if [pixels_hash.hexdigest(), labels_hash.hexdigest()] != progress["sha256"]:
                return
        except (DataError, OSError, EOFError, ValueError, KeyError, TypeError):
            return
        self.count, self.state, self._pixels_hash, self._labels_hash = count, state, pixels_hash, labels_hash

    def append(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a batch; ``state`` (plain JSON) is what a writer that continues from here finds in ``self.state``."""
        pixels = np.ascontiguousarray(checked_pixels(images, self.image_shape)).data
        numbers = label_bytes(checked_labels(labels, len(images), None))
        growing = ((self._pixels, self._pixels_hash, pixels), (self._labels, self._labels_hash, numbers))
        for file, digest, content in growing:
            file.write(content)
            file.flush()
            digest.update(content)
        self.count += len(images)
        self.state = dict(state or {})
        digests = [self._pixels_hash.hexdigest(), self._labels_hash.hexdigest()]
        progress = {"of": self._identity(), "count": self.count, "state": self.state, "sha256": digests}
        write_json(self.partial / PROGRESS_FILE, progress)

    def finish(self, class_names: Sequence[str], splits: Mapping[str, Sequence[int]]) -> PackedImages:
        """Write labels and description, and give the folder its name in one rename."""
        if self.count == 0:
            raise DataError(f"No images were found for '{self.name}'; a data set needs at least one.")
        checked = checked_splits(splits, class_names)
        raw = np.fromfile(self.partial / GROWING_LABELS_FILE, dtype="<i8").astype(np.int64)
        labels = checked_labels(raw, self.count, len(class_names))
        counts = np.bincount(labels, minlength=len(class_names))
        if (counts == 0).any():
            empty = class_names[int(counts.argmin())]
            raise DataError(f"Class '{empty}' has no images; every class needs at least one.")
        content = io.BytesIO()
        np.save(content, labels)
        write_whole(self.partial / LABELS_FILE, content.getvalue())
        about = {
            **self._identity(),
            "count": self.count,
            "class_names": list(class_names),
            "class_counts": counts.tolist(),
            "splits": {name: list(members) for name, members in checked.items()},
        }
        digests = {"images": self._pixels_hash.hexdigest(), "labels": self._labels_hash.hexdigest()}
        self._close_files()
        whole, blocks = block_digests(self.partial / IMAGES_FILE)
        if whole != digests["images"]:
            raise DataError(
                f"{self.partial / IMAGES_FILE} does not hold what was written to it; check the disk, then run the "
                f"same command again."
            )
        write_blocks(self.partial, whole, blocks)
        write_json(self.partial / CLASSES_FILE, {**about, "sha256": {**digests, "classes": digest_of_json(about)}})
        (self.partial / GROWING_LABELS_FILE).unlink()
        (self.partial / PROGRESS_FILE).unlink()
        publish(self.path)
        self._release()
        return PackedImages.open(self.path)

    def abort(self) -> None:
        """Give up: nothing is left on disk."""
        self._close_files()
        shutil.rmtree(self.partial, ignore_errors=True)
        self._release()

    def pause(self) -> None:
        """Stop here and leave the partial folder for a later writer to continue."""
        self._close_files()
        self._release()

    def _close_files(self) -> None:
        for file in (self._pixels, self._labels):
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
                file.close()

    def _release(self) -> None:
        if self._open and self._lock >= 0:
            os.close(self._lock)
        self._open = False

    def __enter__(self) -> "PackedWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._open:
            return
        if self.resume and self.count:
            self.pause()
        else:
            self.abort()


def _read_labels(path: Path, count: int) -> Int64[np.ndarray, " N"]:
    try:
        if path.stat().st_size > 8 * count + LABELS_HEADER:
            raise ValueError("more labels than images")
        labels: np.ndarray = np.load(path, allow_pickle=False)
        return labels.astype(np.int64, copy=False)
    except Exception as error:  # NumPy reads the header as Python; there is hardly an error that it cannot raise
        raise damaged(path) from error


def _rebuild(*arrays: Any) -> PackedImages:
    *content, name, origin = arrays
    return PackedImages.from_arrays(*content, name=name, origin=origin)


def _reopen(path: str, digest: str) -> PackedImages:
    packed = PackedImages.open(path)
    if packed.digest != digest:
        raise DataError(f"{path} was replaced by other data while it was in use; start the run again.")
    return packed

"""Digests of packed pixels block by block: pixels are compared with what was written when they are first read.

A whole data set has one digest, which would take minutes to check for a large one; of its blocks only those are checked
that somebody looks at, once in every process. Folders of former versions get their blocks when they are first used,
after the whole was compared.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from e3bm.data.store.format import BLOCKS_FILE, IMAGES_FILE, damaged, read_record, write_json
from e3bm.errors import DataError

BLOCK_BYTES = 1 << 20
DIGITS = 32


class PixelBlocks:
    """The blocks of one images file, and which of them were found to be as they were written."""

    def __init__(self, path: Path, images: UInt8[np.ndarray, "N H W C"], digests: list[str]) -> None:
        self.path, self._digests = path, digests
        self._pixels = images.reshape(-1)
        self._image_bytes = int(np.prod(images.shape[1:]))
        self._unread = np.ones(len(digests), dtype=bool)

    @classmethod
    def of_folder(cls, folder: Path, images: UInt8[np.ndarray, "N H W C"], whole: str) -> "PixelBlocks":
        """The blocks that were written with a data set; made now, and kept if possible, where there are none."""
        path = folder / IMAGES_FILE
        digests = _written(folder, whole, -(-images.nbytes // BLOCK_BYTES))
        if digests is None:
            found, digests = block_digests(path)
            if found != whole:
                raise damaged(path)
            with suppress(OSError):
                write_blocks(folder, whole, digests)
        return cls(path, images, digests)

    def check(self, positions: Int64[np.ndarray, " n"]) -> None:
        """Compare the blocks that hold these images with what was written, unless that was done before."""
        if not self._unread.any():
            return
        first = positions * self._image_bytes // BLOCK_BYTES
        last = ((positions + 1) * self._image_bytes - 1) // BLOCK_BYTES
        spans = [np.minimum(first + place, last) for place in range(int((last - first).max(initial=-1)) + 1)]
        blocks = np.unique(np.concatenate(spans)) if spans else first
        for block in blocks[self._unread[blocks]].tolist():
            content = self._pixels[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            if _digest(content.data) != self._digests[block]:
                one, other = (place // self._image_bytes for place in self._range(block))
                raise DataError(
                    f"{self.path} is damaged: the pixels of images {one} to {other} are not what was written; "
                    "prepare the data set again."
                )
            self._unread[block] = False

    def _range(self, block: int) -> tuple[int, int]:
        return block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, len(self._pixels)) - 1


def block_digests(path: Path) -> tuple[str, list[str]]:
    """The sha256 of a file, and of each of its blocks the first digits."""
    whole, digests = hashlib.sha256(), []
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                whole.update(block)
                digests.append(_digest(block))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    return whole.hexdigest(), digests


def write_blocks(folder: Path, whole: str, digests: list[str]) -> None:
    """Keep the digests beside the pixels."""
    write_json(folder / BLOCKS_FILE, {"images": whole, "block_bytes": BLOCK_BYTES, "blocks": digests})


def _written(folder: Path, whole: str, count: int) -> list[str] | None:
    """The digests beside the pixels; None if there are none, or none that are whole and of these pixels."""
    try:
        found = read_record(folder / BLOCKS_FILE)
    except DataError:
        return None
    digests = found.get("blocks")
    same = found.get("images") == whole and found.get("block_bytes") == BLOCK_BYTES
    return digests if same and isinstance(digests, list) and len(digests) == count else None


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]

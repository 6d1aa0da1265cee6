"""Decodes every image of a source once: which are unreadable, and the digests, sizes and brightness of the others."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from e3bm.data.layouts.base import Listing
from e3bm.data.read.decode import KEPT_PIXELS, image_size
from e3bm.data.read.decode_pool import BrokenImage, map_records, pixels_of
from e3bm.data.read.records import Payload
from e3bm.errors import DataError
from e3bm.progress import Progress, stage

DIGEST_BYTES = 16
SMALLEST_REDUCED = KEPT_PIXELS // 9
"""Pixels; no image that was reduced has fewer."""


@dataclass(frozen=True)
class PixelStatistics:
    """Mean and standard deviation of each channel, from 0 to 1, over all pixels of some images."""

    images: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Survey:
    """What was found by decoding every image once."""

    readable: Int64[np.ndarray, " n"]
    """Places of the images that can be decoded."""
    digests: UInt8[np.ndarray, "n 16"]
    unreadable: tuple[BrokenImage, ...]
    sizes: dict[tuple[int, int], int]
    """How many images have which width and height."""
    statistics: dict[str, PixelStatistics]
    """For each split, and for all images."""


@dataclass(frozen=True)
class _Measured:
    digests: bytes
    kept: tuple[int, ...]
    broken: tuple[tuple[int, str], ...]
    sizes: tuple[tuple[int, int], ...]
    sums: Float64[np.ndarray, "n C"]
    squares: Float64[np.ndarray, "n C"]


def _measure(channels: int, payloads: Sequence[Payload]) -> _Measured:
    """Digest, size and sums of some images."""
    digests: list[bytes] = []
    kept: list[int] = []
    broken: list[tuple[int, str]] = []
    sizes: list[tuple[int, int]] = []
    sums: list[np.ndarray] = []
    squares: list[np.ndarray] = []
    for place, payload in enumerate(payloads):
        try:
            pixels = np.ascontiguousarray(pixels_of(payload, channels))
        except DataError as error:
            broken.append((place, str(error)))
            continue
        shape = f"{pixels.shape}".encode()
        digests.append(hashlib.blake2b(pixels.data, digest_size=DIGEST_BYTES, key=shape[:64]).digest())
        values = pixels.reshape(-1, pixels.shape[2]).astype(np.float64)
        kept.append(place)
        sizes.append(_stored_size(payload, pixels))
        sums.append(values.sum(axis=0))
        squares.append((values * values).sum(axis=0))
    empty = np.zeros((0, channels))
    return _Measured(
        b"".join(digests),
        tuple(kept),
        tuple(broken),
        tuple(sizes),
        np.stack(sums) if sums else empty,
        np.stack(squares) if squares else empty,
    )


def _stored_size(payload: Payload, pixels: UInt8[np.ndarray, "H W C"]) -> tuple[int, int]:
    """Width and height; of a very large image, which is decoded smaller than it is, those that its file states."""
    if isinstance(payload, bytes) and pixels.shape[0] * pixels.shape[1] > SMALLEST_REDUCED:
        return image_size(payload)
    return pixels.shape[1], pixels.shape[0]


def survey(listing: Listing, channels: int, workers: int, progress: Progress) -> Survey:
    """Decode every image once; of each, only a digest of 16 bytes, its size and its sums are kept."""
    records = listing.records
    home = np.array(listing.class_splits)[listing.labels]
    digests: list[bytes] = []
    readable: list[np.ndarray] = []
    unreadable: list[BrokenImage] = []
    sizes: Counter[tuple[int, int]] = Counter()
    totals: dict[str, np.ndarray] = {}
    batches = map_records(partial(_measure, channels), records, 0, workers)
    with closing(batches), stage(progress, "looking at every image", len(records)):
        for first, batch in batches:
            places = first + np.array(batch.kept, np.int64)
            digests.append(batch.digests)
            readable.append(places)
            unreadable += [BrokenImage(records.name_of(first + place), reason) for place, reason in batch.broken]
            sizes.update(batch.sizes)
            pixels = np.array([width * height for width, height in batch.sizes], np.float64)
            for split in np.unique(home[places]) if len(places) else ():
                chosen = home[places] == split
                counts = [chosen.sum(), pixels[chosen].sum()]
                grown = np.concatenate([counts, batch.sums[chosen].sum(0), batch.squares[chosen].sum(0)])
                totals[str(split)] = totals.get(str(split), 0) + grown
            progress.advance(first + len(batch.kept) + len(batch.broken))
    if totals:
        totals["all"] = np.sum(list(totals.values()), axis=0)
    packed = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
    places = np.concatenate(readable) if readable else np.zeros(0, np.int64)
    return Survey(places, packed, tuple(unreadable), dict(sizes), {name: _statistics(t) for name, t in totals.items()})


def _statistics(totals: Float64[np.ndarray, " n"]) -> PixelStatistics:
    count, pixels, sums, squares = int(totals[0]), totals[1], *np.split(totals[2:], 2)
    mean = sums / pixels
    deviation = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    return PixelStatistics(count, tuple((mean / 255).tolist()), tuple((deviation / 255).tolist()))

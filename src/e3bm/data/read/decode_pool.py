"""Decoding in parallel, in order, with a bounded number of images in memory."""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8

from e3bm.data.read.decode import DecodeSettings, decode, fit_to_size
from e3bm.data.read.records import Payload, Records
from e3bm.errors import DataError
from e3bm.interruption import end_with

BATCH_IMAGES, BATCH_BYTES = 256, 16 << 20
# Starting processes takes longer than decoding this many images.
FEWEST_FOR_PROCESSES = 2_000
Result = TypeVar("Result")


@dataclass(frozen=True)
class BrokenImage:
    """An image that could not be used, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class DecodedBatch:
    """Some images in a row: the good ones as pixels, the others with a reason."""

    images: UInt8[np.ndarray, "n H W C"]
    kept: tuple[int, ...]
    """Where in the batch the good ones were."""
    broken: tuple[tuple[int, str], ...]


def decode_batch(settings: DecodeSettings, payloads: Sequence[Payload]) -> DecodedBatch:
    """Decode and fit some images; one that cannot be read does not stop the others."""
    images: list[np.ndarray] = []
    kept: list[int] = []
    broken: list[tuple[int, str]] = []
    for place, payload in enumerate(payloads):
        try:
            images.append(fit_to_size(pixels_of(payload, settings.channels), settings))
            kept.append(place)
        except DataError as error:
            broken.append((place, str(error)))
    shape = (len(images), settings.size, settings.size, settings.channels)
    stacked = np.stack(images) if images else np.zeros(shape, np.uint8)
    return DecodedBatch(stacked, tuple(kept), tuple(broken))


def pixels_of(payload: Payload, channels: int) -> UInt8[np.ndarray, "H W C"]:
    """The pixels of a record, or the error that it holds."""
    if isinstance(payload, DataError):
        raise payload
    return payload if isinstance(payload, np.ndarray) else decode(payload, channels)


def decode_records(
    records: Records, settings: DecodeSettings, start: int = 0, workers: int = 1
) -> Generator[tuple[int, DecodedBatch], None, None]:
    """The records from ``start`` on, decoded; each batch comes with the place of its first record."""
    return map_records(partial(decode_batch, settings), records, start, workers)


def map_records(
    function: Callable[[Sequence[Payload]], Result], records: Records, start: int = 0, workers: int = 1
) -> Generator[tuple[int, Result], None, None]:
    """Apply a function to batches of records in other processes, results in the records' order."""
    batches = _batches(records, start)
    # Pixels that are stored as such need no decoding: sending them to another process would cost more than it saves.
    if workers <= 1 or records.pixel_shape is not None or len(records) - start < FEWEST_FOR_PROCESSES:
        for first, payloads in batches:
            yield first, function(payloads)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_serve_parent, initargs=(os.getpid(),)
    )
    waiting: deque[tuple[int, Future[Result]]] = deque()
    try:
        for first, payloads in batches:
            waiting.append((first, pool.submit(function, payloads)))
            if len(waiting) > 2 * workers:
                yield _next_result(waiting)
        while waiting:
            yield _next_result(waiting)
    except BrokenProcessPool as error:
        raise DataError(
            "A decoding process ended unexpectedly, perhaps for lack of memory; try again with one worker "
            "(and, in a script of your own, call this under if __name__ == '__main__')."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _next_result(waiting: deque[tuple[int, Future[Result]]]) -> tuple[int, Result]:
    first, future = waiting.popleft()
    return first, future.result()


def _batches(records: Records, start: int) -> Iterator[tuple[int, list[Payload]]]:
    batch: list[Payload] = []
    first, size = start, 0
    for payload in records.read(start):
        batch.append(payload)
        size += _bytes_in(payload)
        if len(batch) >= BATCH_IMAGES or size >= BATCH_BYTES:
            yield first, batch
            first, batch, size = first + len(batch), [], 0
    if batch:
        yield first, batch


def _bytes_in(payload: Payload) -> int:
    if isinstance(payload, np.ndarray):
        return payload.nbytes
    return len(payload) if isinstance(payload, bytes) else 0


def _serve_parent(parent: int) -> None:
    """Leave interrupts to the parent, and end when it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)

"""Addressed random numbers: what is drawn depends on (seed, stream, address) and on nothing that happened before."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64, UInt, UInt64
from numpy.random import Philox

WORDS_PER_BLOCK = 4  # Philox turns one counter value into four words
LOW_HALF = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def random_words(
    seed: int, stream: str, addresses: Sequence[int], width: int
) -> UInt64[np.ndarray, "{len(addresses)} {width}"]:
    """``width`` random 64-bit words for every address; neighbouring addresses are cheapest."""
    # Words come from a counter-based generator whose output numpy keeps stable between versions and platforms.
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    blocks = -(-width // WORDS_PER_BLOCK)
    rows = [
        Philox(key=key, counter=start * blocks).random_raw(count * blocks * WORDS_PER_BLOCK).reshape(count, -1)
        for start, count in _runs(addresses)
        if blocks
    ]
    return np.concatenate(rows)[:, :width] if rows else np.empty((len(addresses), width), np.uint64)


def uniform_numbers(
    seed: int, stream: str, addresses: Sequence[int], width: int
) -> Float64[np.ndarray, "{len(addresses)} {width}"]:
    """``width`` numbers in [0, 1) for every address."""
    return (random_words(seed, stream, addresses, width) >> np.uint64(11)) * 2.0**-53


def integers_below(words: UInt64[np.ndarray, "*shape"], bound: np.ndarray | int) -> UInt64[np.ndarray, "*shape"]:
    """Whole numbers in 0..bound-1; the bias is below bound / 2^32."""
    return ((words >> HALF) * np.asarray(bound, np.uint64)) >> HALF


def shuffled(values: UInt[np.ndarray, "R n"], words: UInt64[np.ndarray, "R n"]) -> UInt64[np.ndarray, "R n"]:
    """Every row of ``values`` (below 2^32) in random order: sorted by the upper halves of the words."""
    return np.sort((words & ~LOW_HALF) | values, axis=1) & LOW_HALF


def _runs(addresses: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The addresses as (start, length) of consecutive stretches."""
    if isinstance(addresses, range) and addresses.step == 1:
        if len(addresses):
            yield addresses[0], len(addresses)
        return
    start = count = 0
    for address in addresses:
        if count and address == start + count:
            count += 1
            continue
        if count:
            yield start, count
        start, count = int(address), 1
    if count:
        yield start, count

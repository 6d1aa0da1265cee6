"""Ratios that survive a busy machine: CPU time, interleaved repeats, medians."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Comparison:
    """How many times faster one side is than the other, per unit of work."""

    ratio: float
    spread: float  # half the distance between the quartiles of the repeats' ratios, as a share of the ratio
    slow_ms: float
    fast_ms: float


def cpu_seconds(work: Work) -> float:
    """CPU time of this process, all its threads together, for one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def wall_seconds(work: Work) -> float:
    """Time on the clock for one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare(
    slow: Work, fast: Work, *, slow_units: int = 1, fast_units: int = 1, repeats: int = 7, fast_calls: int = 3
) -> Comparison:
    """Time both sides alternately; ``units`` say how many tasks a call does.

    A short fast side is called ``fast_calls`` times beside one slow call, and the median is taken.
    """
    slow(), fast()
    with _no_collections():
        pairs = [(cpu_seconds(slow) / slow_units, _steady(fast, fast_calls) / fast_units) for _ in range(repeats)]
    slows, fasts = zip(*pairs, strict=True)
    ratio = statistics.median(slows) / statistics.median(fasts)
    spread = relative_spread([a / b for a, b in pairs], ratio)
    return Comparison(ratio, spread, 1e3 * statistics.median(slows), 1e3 * statistics.median(fasts))


def taking_turns(works: Mapping[str, Work], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of several works, one call of each in every round."""
    for work in works.values():
        work()
    with _no_collections():
        rounds = [[cpu_seconds(work) for work in works.values()] for _ in range(repeats)]
    return {name: list(column) for name, column in zip(works, zip(*rounds, strict=True), strict=True)}


def relative_spread(ratios: list[float], ratio: float) -> float:
    """Half the distance between the quartiles, as a share of the ratio."""
    if len(ratios) < 2:
        return 0.0
    low, _, high = statistics.quantiles(sorted(ratios), n=4, method="inclusive")
    return (high - low) / 2 / ratio


@contextmanager
def _no_collections() -> Iterator[None]:
    """A garbage collection would land on one side by chance."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _steady(work: Work, calls: int) -> float:
    return statistics.median(cpu_seconds(work) for _ in range(calls))

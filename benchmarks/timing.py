"""Ratios that survive a busy machine: CPU time, interleaved repeats, medians."""

import gc
import statistics
import time
from collections.abc import Callable
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
    """CPU time of this process for one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def compare(slow: Work, fast: Work, *, slow_units: int = 1, fast_units: int = 1, repeats: int = 7) -> Comparison:
    """Time both sides alternately; ``units`` say how many tasks a call does."""
    slow(), fast()
    gc.collect()
    gc.disable()  # a collection would land on one side by chance
    try:
        pairs = [(cpu_seconds(slow) / slow_units, _steady(fast) / fast_units) for _ in range(repeats)]
    finally:
        gc.enable()
    slows, fasts = zip(*pairs, strict=True)
    ratios = sorted(a / b for a, b in pairs)
    ratio = statistics.median(slows) / statistics.median(fasts)
    low, _, high = statistics.quantiles(ratios, n=4) if repeats > 1 else (ratio, ratio, ratio)
    return Comparison(ratio, (high - low) / 2 / ratio, 1e3 * statistics.median(slows), 1e3 * statistics.median(fasts))


def _steady(work: Work) -> float:
    # The fast side is short: three calls beside one slow call, their median.
    return statistics.median(cpu_seconds(work) for _ in range(3))

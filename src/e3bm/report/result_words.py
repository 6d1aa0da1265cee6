"""Results in words: the protocol, the seeds, and what a difference is against."""

from collections.abc import Sequence
from typing import Any

from e3bm.runs.result import Protocol, Result

NONE = "–"


def by_protocol(results: Sequence[Result]) -> dict[Protocol, list[Result]]:
    """Results that may be compared, in order of appearance."""
    groups: dict[Protocol, list[Result]] = {}
    for result in results:
        groups.setdefault(result.protocol, []).append(result)
    return groups


def data_words(result: Result) -> str:
    """Data set and split, and what the model was trained on where that was something else."""
    elsewhere = f" (trained on {result.trained_on})" if result.trained_on != result.dataset else ""
    return f"{result.dataset} {result.split}{elsewhere}"


def task_words(ways: Any, shots: Any) -> str:
    """What a run was trained on: 5-way 1-shot."""
    if ways is None and shots is None:
        return NONE
    if isinstance(shots, list | tuple):
        shots = "–".join(map(str, shots))
    return f"{ways}-way {shots}-shot"


def method_words(result: Result) -> str:
    """The method, with its hyperprior where it has one, and what tells it from others that are called the same."""
    hyperprior = "" if result.hyperprior == "none" else f" ({result.hyperprior})"
    return result.method + hyperprior + (f", {result.apart}" if result.apart else "")


def asked_words(result: Result) -> str:
    """The tasks of a result: 5-way 1-shot, Q=15."""
    return f"{result.task}, Q={result.queries}"


def episodes_words(result: Result) -> str:
    """Number of episodes and the hash of their list."""
    return f"{result.episodes} episodes (hash {result.episodes_hash[:12]})"


def seed_words(result: Result) -> str:
    """One seed or several, with the spread of accuracy between them."""
    if not result.seeds:
        return str(result.seed)
    spread = "" if result.seed_std is None else f" (std {result.seed_std:.2f})"
    return ", ".join(map(str, result.seeds)) + spread


def partner_words(result: Result, results: Sequence[Result]) -> str:
    """What a difference is against: the method alone where that says enough, else what the result says."""
    partner = str(result.paired_with)
    known = [
        other
        for other in results
        if partner in (other.run, f"{other.method} ({other.run})") and other.protocol == result.protocol
    ]
    method = known[0].method if known else partner
    called_so = {other.run for other in results if other.method == method}
    return method if len(called_so) == 1 else partner

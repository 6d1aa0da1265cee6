"""Results in words: the protocol, the seeds, what a difference is against, and what tells systems of one name apart."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from e3bm.runs.result import Protocol, Result
from e3bm.runs.settings import TrainSettings

NONE = "–"
# What can make another system of the same method on the same backbone; a seed, a machine or a folder cannot.
KINDS_OF_SETTINGS = (
    "backbone.adapt", "backbone.pretrained", "backbone.batchnorm", "tasks", "method.", "related", "query_shares",
    "hyperprior.", "episode.", "data.rotations", "data.augment", "optimiser.",
)  # fmt: skip


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


def told_apart(trained: Sequence[TrainSettings | None], names: Sequence[str]) -> list[str]:
    """For systems that are called the same: the fewest settings by which they differ, in words; else nothing."""
    words = [""] * len(names)
    for name in {name for name in names if names.count(name) > 1}:
        alike = [place for place, other in enumerate(names) if other == name]
        for place, own in zip(alike, _differences([_settings(trained[place]) for place in alike]), strict=True):
            words[place] = own
    return words


def tasks_words(trained: TrainSettings) -> list[str]:
    """Of what kind the training tasks were, where they were not simply drawn from all classes."""
    settings = _settings(trained)
    unusual = {"tasks": trained.tasks != "all", "related": trained.related, "query_shares": trained.query_shares}
    return [settings[name].words for name, told in unusual.items() if told]


@dataclass(frozen=True)
class _Setting:
    """A setting in words, and whether it is a choice by name of what the method does, not a number or a switch."""

    words: str
    choice: bool


def _settings(trained: TrainSettings | None) -> dict[str, _Setting]:
    """Settings that tell systems apart, by their dotted names, those that a reader knows best first; numbers last."""
    values = {
        path: value
        for path, value in _flat(trained.model_dump(mode="json") if trained else {})
        if path.startswith(KINDS_OF_SETTINGS)
    }
    kind = lambda path: next(place for place, kind in enumerate(KINDS_OF_SETTINGS) if path.startswith(kind))
    number = lambda value: isinstance(value, float | int) and not isinstance(value, bool)
    return {
        path: _Setting(_setting_words(path, values[path]), path.startswith("method.") and isinstance(values[path], str))
        for path in sorted(values, key=lambda path: (kind(path), number(values[path])))
    }


def _flat(values: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", value


def _setting_words(path: str, value: Any) -> str:
    if path == "backbone.pretrained":
        return "from scratch" if value is None else "pre-trained"
    word = path.rsplit(".", maxsplit=1)[-1].replace("_", " ")
    if value is None:
        return ""  # what is not set needs no word beside what is
    return ("" if value else "no ") + word if isinstance(value, bool) else f"{word} {value}"


def _differences(settings: Sequence[dict[str, _Setting]]) -> list[str]:
    """One text each, all different where the settings are: always the setting next that tells most of them apart.

    What a method does otherwise by choice is told as well.
    """
    paths = list(dict.fromkeys(path for own in settings for path in own))
    words = lambda path: [own[path].words if path in own else "" for own in settings]
    told: list[str] = []
    groups = lambda told: len(set(zip(*map(words, told), strict=True))) if told else 1
    while groups(told) < len(settings) and paths:
        best = max(paths, key=lambda path: groups([*told, path]))
        if groups([*told, best]) == groups(told):
            break
        told.append(best)
    chosen = [path for path in paths if any(path in own and own[path].choice for own in settings)]
    told += [path for path in chosen if path not in told and len(set(words(path))) > 1]
    return [", ".join(filter(None, text)) for text in zip(*map(words, told), strict=True)] or [""] * len(settings)

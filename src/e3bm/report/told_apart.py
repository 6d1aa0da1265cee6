"""Systems that are called the same, told apart by the settings in which they differ, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from e3bm.runs.settings import TrainSettings

# What can make another system of the same method on the same backbone; a seed, a machine or a folder cannot.
KINDS_OF_SETTINGS = (
    "backbone.adapt", "backbone.pretrained", "backbone.batchnorm", "tasks", "method.", "related", "query_shares",
    "hyperprior.", "episode.", "data.rotations", "data.augment", "optimiser.",
)  # fmt: skip


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
    return ("" if value else "not ") + word if isinstance(value, bool) else f"{word} {value}"


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

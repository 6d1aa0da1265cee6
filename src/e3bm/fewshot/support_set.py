"""The labelled examples of a classifier: features and names by class and, where asked for, small pictures."""

import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace

import numpy as np

from e3bm.array_types import Float, Float32, Int64
from e3bm.errors import DataError, some_of
from e3bm.fewshot.prior.canonical import canonical_array

LONGEST_NAME = 200
PICTURE_SIDE = 192
"""The longer side of a small picture."""
MOST_SHOWN = 3
REFUSED_KINDS = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of pairs, line and paragraph separators


@dataclass(frozen=True, eq=False)
class Shots:
    """The examples of one class."""

    features: Float32[np.ndarray, "K D"]
    names: tuple[str, ...]
    """What people call each example: the path of its photo, or the class and a number."""
    pictures: tuple[bytes, ...] = ()
    """A small JPEG of each, empty where there is none; only the page of `e3bm serve` shows them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", canonical_array(self.features, np.float32))
        object.__setattr__(self, "pictures", self.pictures or (b"",) * len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def joined(self, more: "Shots") -> "Shots":
        """These and more of the same class."""
        features = np.concatenate([self.features, more.features])
        return Shots(features, (*self.names, *more.names), (*self.pictures, *more.pictures))

    def at(self, places: Sequence[int]) -> "Shots":
        """Those at some places."""
        names, pictures = self.names, self.pictures
        return Shots(
            self.features[places], tuple(names[place] for place in places), tuple(pictures[place] for place in places)
        )


@dataclass(frozen=True, eq=False)
class SupportSet:
    """Classes in the order of their names, each with its examples."""

    shots: Mapping[str, Shots]
    noun: str = "photo"
    """What one example is called in sentences; its plural ends in s."""

    @classmethod
    def of(cls, shots: Mapping[str, Shots], noun: str = "photo") -> "SupportSet":
        """A support set with classes in order; DataError where names, examples or classes cannot be used."""
        for name in shots:
            check_class_name(name)
        _refuse_lookalike_names(shots)
        for name, some in shots.items():
            check_not_empty(name, some, noun)
        check_number_of_classes(shots, noun)
        support = cls({name: shots[name] for name in sorted(shots)}, noun)
        support._refuse_shared()
        return support

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.shots)

    @property
    def features(self) -> Float32[np.ndarray, "S D"]:
        return np.concatenate([some.features for some in self.shots.values()])

    @property
    def labels(self) -> Int64[np.ndarray, " S"]:
        return np.repeat(np.arange(len(self.shots)), [len(some) for some in self.shots.values()])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for some in self.shots.values() for name in some.names)

    @property
    def pictures(self) -> tuple[bytes, ...]:
        return tuple(picture for some in self.shots.values() for picture in some.pictures)

    def with_pictures(self, pictures: Sequence[bytes]) -> "SupportSet":
        """The same examples with other small pictures, or with none."""
        rest = iter(pictures)
        shots = {
            name: replace(some, pictures=tuple(next(rest, b"") for _ in some.names))
            for name, some in self.shots.items()
        }
        return replace(self, shots=shots)

    def renamed(self, names: Mapping[str, str]) -> "SupportSet":
        """The same examples with other names for some classes, whose examples are numbered."""
        shots = {}
        for former, some in self.shots.items():
            name = names.get(former, former)
            shots[name] = some if name == former else replace(some, names=numbered_names(name, len(some)))
        return SupportSet.of(shots, self.noun)

    def notes(self) -> tuple[str, ...]:
        """Sentences about what works but may not be meant: single examples, the same one twice, `Crow` and `crow`."""
        found, noun = [], self.noun
        single = [name for name, some in self.shots.items() if len(some) == 1]
        if single:
            which = f"{'Class' if len(single) == 1 else 'Classes'} {_quoted(single)} {_have(single)} a single {noun}"
            found.append(f"{which}: this works, but more {noun}s make predictions surer.")
        found += [
            f"The classes {_quoted(names)} differ only in upper and lower case; if they are one class, merge their "
            f"folders."
            for names in _equal_but_for_case(self.shots)
        ]
        for name, some in self.shots.items():
            twice = [group for group in _equal_rows(some.features) if len(group) > 1]
            if twice:
                first = " and ".join(some.names[row] for row in twice[0][:2])
                others = f" (and {len(twice) - 1} more like that)" if len(twice) > 1 else ""
                found.append(
                    f"Class '{name}' has the same {noun} more than once: {first}{others}; it counts each time."
                )
        return tuple(found)

    def _refuse_shared(self) -> None:
        labels, names = self.labels, self.names
        pairs = [
            (group[0], row)
            for group in _equal_rows(self.features)
            for row in group[1:]
            if labels[row] != labels[group[0]]
        ]
        if not pairs:
            return
        first, second = pairs[0]
        classes = self.classes
        more = f" {len(pairs)} {self.noun}s are shared like that." if len(pairs) > 1 else ""
        raise DataError(
            f"The same {self.noun} is in class '{classes[labels[first]]}' ({names[first]}) and in class "
            f"'{classes[labels[second]]}' ({names[second]}); remove it from one of them.{more}"
        )


def moved_shots(shots: Mapping[str, Shots], name: str, more: Shots) -> dict[str, Shots]:
    """Examples with some more for a class, which other classes lose if they had the same; emptied classes go."""
    new = {row.tobytes() for row in more.features}
    found: dict[str, Shots] = {}
    for other, some in shots.items():
        kept = [place for place, row in enumerate(some.features) if row.tobytes() not in new]
        if kept:
            found[other] = some.at(kept)
    found[name] = found[name].joined(more) if name in found else more
    return found


def is_only_in(shots: Mapping[str, Shots], name: str, some: Shots) -> bool:
    """Whether all of these are examples of this class already, and of no other."""
    had = {other: {row.tobytes() for row in found.features} for other, found in shots.items()}
    return all(row.tobytes() in had.get(name, ()) for row in some.features) and not any(
        row.tobytes() in rows for other, rows in had.items() if other != name for row in some.features
    )


def check_class_name(name: str) -> None:
    """Refuse a name that cannot be shown on one line."""
    if not isinstance(name, str) or not name.strip():
        raise DataError(f"A class needs a name with at least one visible character; found {name!r}.")
    if any(unicodedata.category(letter) in REFUSED_KINDS for letter in name):
        raise DataError(f"The class name {name!r} has line breaks or control characters; rename it.")
    if len(name) > LONGEST_NAME:
        raise DataError(f"The class name '{name[:40]}...' has {len(name)} characters; {LONGEST_NAME} at most.")


def check_not_empty(name: str, examples: Sized, noun: str = "photo") -> None:
    """Refuse a class without an example."""
    if not len(examples):
        raise DataError(f"Class '{name}' has no {noun}; add one or more, or leave the class out.")


def check_number_of_classes(names: Collection[str], noun: str = "photo") -> None:
    """Refuse fewer than two classes."""
    if len(names) < 2:
        found = "".join(f"only '{name}'" for name in names) or "none"
        raise DataError(f"A classifier needs {noun}s of two or more classes; found {found}.")


def numbered_names(name: str, count: int) -> tuple[str, ...]:
    """Names for examples of a class that have none of their own: `crow #1`, `crow #2` and so on."""
    return tuple(f"{name} #{number}" for number in range(1, count + 1))


def feature_table(features: Float[np.ndarray, "N D"], size: int | None = None) -> Float32[np.ndarray, "N D"]:
    """Features as the classifier keeps them: finite, in single precision, with so many columns if that is known."""
    found = np.asarray(features, dtype=np.float32)
    if found.ndim != 2 or size not in (None, found.shape[1]):
        columns = "" if size is None else f" and {size} columns"
        raise DataError(f"Features are a table with a row for each photo{columns}; found shape {found.shape}.")
    if not np.isfinite(found).all():
        raise DataError("The features hold NaN or infinite numbers; they must be finite.")
    return found


def feature_shots(name: str, rows: Float[np.ndarray, "K D"]) -> Shots:
    """The examples of a class from features that were computed before; they get numbers for names."""
    found = feature_table(rows)
    return Shots(found, numbered_names(name, len(found)))


def _refuse_lookalike_names(names: Mapping[str, object]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        normal = unicodedata.normalize("NFC", name).strip()
        if normal in seen:
            raise DataError(f"The class names {seen[normal]!r} and {name!r} look the same; rename one of them.")
        seen[normal] = name


def _equal_but_for_case(names: Iterable[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[unicodedata.normalize("NFC", name).casefold()].append(name)
    return [group for group in groups.values() if len(group) > 1]


def _equal_rows(features: Float32[np.ndarray, "N D"]) -> list[list[int]]:
    """Rows with exactly the same numbers: the same photo has the same features, to the last bit."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, values in enumerate(features):
        groups[values.tobytes()].append(row)
    return list(groups.values())


def _quoted(names: Sequence[str]) -> str:
    return some_of([f"'{name}'" for name in names], MOST_SHOWN)


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"

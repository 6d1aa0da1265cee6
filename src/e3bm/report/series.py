"""Which runs are drawn together, what each is called, and its colour and dash in every figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from e3bm.report.drawing import SERIES, legible
from e3bm.report.result_words import task_words
from e3bm.runs.folder.run import Run
from e3bm.runs.result import Result

APART: tuple[Callable[[Run], str], ...] = (
    lambda run: str(run.setting("data.dataset", "")),
    lambda run: task_words(run.setting("episode.ways"), run.setting("episode.shots")),
    lambda run: str(run.setting("backbone.name", "")),
    lambda run: f"{run.setting('hyperprior.generator', '')} {run.setting('hyperprior.setting', '')}",
    lambda run: f"{run.setting('hyperprior.rate', '')}/{run.setting('hyperprior.weight', '')}",
    lambda run: f"M={run.setting('method.epochs', '?')}",
    lambda run: f"seed {run.setting('seed', '?')}",
    lambda run: run.name,
)


@dataclass(frozen=True)
class Look:
    """Colour and dash of a series; a method alone is dashed, its E3BM version is not."""

    colour: str
    dash: str


BASELINE = Look(SERIES[-1], "--")  # where one baseline stands beside its own E3BM versions


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed only."""

    label: str
    runs: tuple[Run, ...]
    look: Look

    @property
    def first(self) -> Run:
        return self.runs[0]


def arms_of(runs: Sequence[Run]) -> list[Arm]:
    """Runs gathered over seeds, each arm with a name and a look of its own."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.system, []).append(run)
    members = [tuple(group) for group in groups.values()]
    labels = _labels([group[0] for group in members])
    looks = _looks([(group[0].family, group[0].alone) for group in members])
    return [Arm(*parts) for parts in zip(labels, members, looks, strict=True)]


def task_of(run: Run) -> tuple[str, str]:
    """Data and shape of episodes: curves of different tasks do not belong in one figure."""
    return str(run.setting("data.dataset", "unknown data")), APART[1](run)


def arm_of(result: Result, arms: Sequence[Arm]) -> Arm | None:
    """The arm whose run a result names; a result over several seeds names several."""
    named = result.run.split(", ")
    return next((arm for arm in arms if any(run.name in named for run in arm.runs)), None)


Drawn = list[tuple[str, Look, Result]]


def result_series(results: Sequence[Result], arms: Sequence[Arm]) -> Drawn:
    """Results with name and look; several of one arm are told apart by seed or number."""
    named: Drawn = []
    for number, result in enumerate(results):
        arm = arm_of(result, arms)
        label = arm.label if arm else legible(result.method)
        look = arm.look if arm else Look(SERIES[number % len(SERIES)], "-")
        for ending in (f", seed {result.seed}", f", row {number + 1}"):
            if any(known == label for known, _, _ in named):
                label = legible(label + ending)
        named.append((label, look, result))
    return named


def first_of_each_arm(results: Sequence[Result], arms: Sequence[Arm]) -> list[Result]:
    """One result per arm, so that seeds do not draw the same thing several times."""
    seen: list[Arm] = []
    kept = []
    for result in results:
        arm = arm_of(result, arms)
        if arm is None or arm not in seen:
            kept.append(result)
        seen += [arm] if arm else []
    return kept


def _labels(runs: Sequence[Run]) -> list[str]:
    """Titles, with what tells them apart where several are called the same."""
    labels = [run.title for run in runs]
    for words in APART:
        if len(set(labels)) == len(labels):
            break
        for label in {label for label in labels if labels.count(label) > 1}:
            alike = [i for i, other in enumerate(labels) if other == label]
            if len({words(runs[i]) for i in alike}) > 1:
                for i in alike:
                    labels[i] = f"{label}, {words(runs[i])}"
    return [legible(label) for label in labels]


def _looks(members: Sequence[tuple[str, bool]]) -> list[Look]:
    """Colours in order; where methods are compared, the first two arms of a method, plain and not, share one."""
    several = len({family for family, _ in members}) > 1 or len(members) == 2
    places: dict[object, int] = {}
    looks = []
    for number, (family, plain) in enumerate(members):
        repeated = (family, plain) in members[:number]
        place = places.setdefault(family if several and not repeated else number, len(places))
        dash = "--" if plain else "-" if place < len(SERIES) else "-."
        looks.append(Look(SERIES[place % len(SERIES)], dash))
    return looks

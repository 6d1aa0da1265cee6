"""What the numbers say about E3BM in words: does it help here, by how much, and is that certain."""

from collections.abc import Sequence
from dataclasses import dataclass

from e3bm.report.result_words import by_protocol, data_words
from e3bm.report.series import Arm, result_series
from e3bm.runs.folder.run import finite
from e3bm.runs.result import ALONE, Result
from e3bm.runs.system import baseline_of

GENERATED = "alpha generated, v generated"
MOST_NAMED = 6  # beyond it methods are counted, not named
NO_PAIR = (
    "No method was tested both alone and with E3BM on the same tasks, so these results do not show what E3BM adds."
)
CERTAIN = "A difference is called certain where the 95 % interval of the paired difference excludes zero."
ONE_SEED = "Each model was trained once; training with another seed can shift these numbers by more than the interval."


@dataclass(frozen=True)
class Change:
    """A paired difference with its interval; the sign says which way is better."""

    value: float
    interval: float | None
    digits: int
    higher_is_better: bool

    @property
    def direction(self) -> int | None:
        """1 for certainly better, -1 for certainly worse, 0 where the interval holds zero, None without an interval."""
        if self.interval is None:
            return None
        if abs(self.value) <= self.interval:
            return 0
        return 1 if (self.value > 0) == self.higher_is_better else -1

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" ± {self.interval:.{self.digits}f}"
        return f"{self.value:+.{self.digits}f}{interval}"


@dataclass(frozen=True)
class Effect:
    """What E3BM changes about one method, measured on the same tasks."""

    label: str
    result: Result
    baseline: Result

    @property
    def accuracy(self) -> Change:
        """In points."""
        difference, interval = self.result.paired_difference, self.result.paired_ci
        if difference is None:
            difference, interval = self.result.accuracy - self.baseline.accuracy, None
        return Change(difference, interval, 2, higher_is_better=True)

    @property
    def nll(self) -> Change | None:
        """None where a result does not have it."""
        measured = self.result.metrics
        if finite(measured.get("nll_difference"), measured.get("nll_difference_ci")):
            return Change(measured["nll_difference"], measured["nll_difference_ci"], 3, higher_is_better=False)
        if finite(measured.get("nll"), self.baseline.metrics.get("nll")):
            return Change(measured["nll"] - self.baseline.nll, None, 3, higher_is_better=False)
        return None

    @property
    def trust(self) -> str:
        """NLL and ECE in words."""
        ece = f"ECE {self.baseline.ece:.1f} → {self.result.ece:.1f} %"
        return ece if self.nll is None else f"NLL {self.nll}, {ece}"


@dataclass(frozen=True)
class Verdict:
    """One answer, the sentences that support it, and what to keep in mind."""

    answer: str
    sentences: tuple[str, ...]
    caution: str


def verdicts(results: Sequence[Result], arms: Sequence[Arm]) -> list[Verdict]:
    """One for each list of tasks on which a method was tested alone and with E3BM."""
    groups = by_protocol(results)
    found = [(group[0], effects(group, arms)) for group in groups.values()]
    return [_verdict(first, known, named=len(groups) > 1) for first, known in found if known]


def effects(results: Sequence[Result], arms: Sequence[Arm]) -> list[Effect]:
    """Every method that has a result alone and one with E3BM; seeds taken together stand for the single ones."""
    pooled = {result.system for result in results if result.seeds}
    found = []
    for label, _, result in result_series(results, arms):
        baseline = baseline_of(result, results) if result.schedules == GENERATED else None
        single = result.system in pooled and not result.seeds
        if baseline is not None and baseline.schedules == ALONE and not single:
            found.append(Effect(label, result, baseline))
    return found


def _verdict(first: Result, known: Sequence[Effect], *, named: bool) -> Verdict:
    accuracy = [(effect.accuracy.direction, f"{effect.label} ({effect.accuracy} points)") for effect in known]
    trust = [(effect.nll.direction if effect.nll else None, f"{effect.label} ({effect.trust})") for effect in known]
    both = list(zip((own for own, _ in accuracy), (own for own, _ in trust), strict=True))
    place = f"on {data_words(first)}, {first.task}" if named else "here"
    sentences = (
        f"Accuracy on the same {first.episodes:,} tasks {_clauses(accuracy, ('rises', 'falls'))}.",
        f"Trust in the probabilities {_clauses(trust, ('grows', 'shrinks'))}.",
    )
    caution = CERTAIN + ("" if any(effect.result.seeds for effect in known) else f" {ONE_SEED}")
    answer = _answer(sum(1 in own for own in both), sum(-1 in own for own in both), len(both), place)
    return Verdict(answer, sentences, caution)


def _answer(helped: int, hurt: int, methods: int, place: str) -> str:
    """Whether E3BM helps, in one sentence; a method that it both helps and hurts counts twice."""
    if not helped and not hurt:
        return f"E3BM makes no certain difference {place}."
    if methods == 1 and helped and hurt:
        return f"E3BM helps in one respect {place} and hurts in the other."
    if methods == 1:
        return f"E3BM {'helps' if helped else 'hurts'} {place}."
    of = f"of {methods} methods {place}"
    if not helped:
        return f"E3BM hurts {hurt} {of} and helps none."
    return f"E3BM helps {helped} {of} and hurts {hurt or 'none'}."


def _clauses(parts: Sequence[tuple[int | None, str]], verbs: tuple[str, str]) -> str:
    """'rises for A and B, falls for C, and shows no certain change for D'."""
    unknown = "changes (without an interval)"
    words = {1: verbs[0], -1: verbs[1], 0: "shows no certain change", None: unknown}
    found = []
    for direction, verb in words.items():
        names = [name for own, name in parts if own == direction]
        if names:
            few = len(parts) <= MOST_NAMED
            found.append(f"{verb} for {_listed(names) if few else f'{len(names)} of {len(parts)} methods'}")
    return _listed(found, comma=True)


def _listed(words: Sequence[str], *, comma: bool = False) -> str:
    """'a, b and c'; with a comma before the last where the parts are long."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])}{',' * comma} and {words[-1]}"

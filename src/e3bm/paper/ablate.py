"""`e3bm ablate`: a list of settings through the same train and test, and one report."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from e3bm.errors import SettingsError
from e3bm.paper.presets import (
    ABLATIONS,
    KINDS,
    LEARNED_BY,
    PAPER_PSI_RATE,
    Kind,
    ablation_settings,
    hyperprior_settings,
)
from e3bm.progress import Progress, Silent
from e3bm.report.page import report
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.kept.pack import add_runs
from e3bm.runs.result import Result
from e3bm.runs.settings import HYPERPRIOR_RATES, HyperpriorSettings, TestSettings, TrainSettings
from e3bm.runs.training.train_many import Job, train_many

# Studies as lists of settings: the paper's ablations (alpha, v, hyperprior), and the choices that it leaves open.


Study = Literal["rate", "weight", "hyperprior", "tuning", "choices"]
STUDIES: tuple[Study, ...] = get_args(Study)
WORDS = {
    "v1": "E3BM", "v2": "learnable", "v3": "optimal", "v4": "equal",
    "a1": "E3BM", "a2": "learnable", "a3": "optimal",
}  # fmt: skip
SPEEDS = (PAPER_PSI_RATE, 1e-5, 1e-4, 1e-3, 1e-2)
# One thing changed at a time: name, words for tables, settings.
CHOICES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("chosen", "as chosen", {}),
    *((f"speed-{rate:g}", f"Ψ, α', v' at {rate:g}",
       dict.fromkeys((f"optimiser__{name}" for name in HYPERPRIOR_RATES), rate))
      for rate in SPEEDS),
    ("start-last", "residual, v' last", {"hyperprior__mixing": "residual", "hyperprior__weight_start": "last"}),
    ("start-equal", "residual, v' equal", {"hyperprior__mixing": "residual", "hyperprior__weight_start": "equal"}),
    ("convex", "convex mixing", {"hyperprior__mixing": "convex"}),
    ("literal", "literal mixing", {"hyperprior__mixing": "literal"}),
    *((f"summary-{word}", f"{word} and embedding", {"hyperprior__summary": word, "hyperprior__embedding": True})
      for word in ("class_mean", "flat", "rms")),
    ("hidden-1", "hidden 1", {"hyperprior__hidden": 1}),
    ("hidden-32", "hidden 32", {"hyperprior__hidden": 32}),
    ("separate", "two LSTMs", {"hyperprior__separate": True}),
)  # fmt: skip
# What a method alone is tuned by: the setting that it is most sensitive to, and values of it.
TUNED: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "mtl": (("method__rate",), (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)),
    "sib": (("optimiser__theta", "method__gradient_net_rate"), (1e-3, 3e-3, 1e-2, 3e-2)),
    "maml": (("method__rate",), (0.01, 0.02, 0.05)),
}
EPOCHS = {"mtl": (10, 100), "sib": (1, 8), "maml": (3, 10)}


@dataclass(frozen=True)
class Arm:
    """One line of a study: its run's name, what tables call it, and the settings it makes of the study's own."""

    name: str
    title: str
    settings: Callable[[TrainSettings, Path | None], TrainSettings]
    learned_by: str | None = None
    """The arm whose learned values this one freezes; it is trained first."""


def study_arms(study: Study, method: str = "mtl") -> tuple[Arm, ...]:
    """The arms in the order in which they can be trained; the method alone, (a4) and (v5) in one, belongs to all."""
    if study == "tuning":
        names, values = TUNED[method]
        pairs = (_pair(f"rate-{value:g}", f"rate {value:g}", **dict.fromkeys(names, value)) for value in values)
        return tuple(arm for pair in pairs for arm in pair)
    if study == "choices":
        return (PLAIN, *(_choice_arm(*choice) for choice in CHOICES), _paper_arm(method), *_epoch_arms(method))
    if study == "hyperprior":
        return (PLAIN, *(_kind_arm(kind) for kind in KINDS if kind != "plain"))
    letter, last = ("a", "a4") if study == "rate" else ("v", "v5")
    return (*(_schedule_arm(name) for name in ABLATIONS if name.startswith(letter) and name != last), PLAIN)


PLAIN = Arm("plain", "{method} (a4, v5)", lambda base, learned: base.but(hyperprior=HyperpriorSettings()))


def _schedule_arm(name: str) -> Arm:
    change = lambda base, learned: ablation_settings(base, name, learned)
    return Arm(name, arm_title(name, "{method}"), change, LEARNED_BY.get(name))


def arm_title(name: str, method: str) -> str:
    """What tables and figures call an arm: MTL (v2) learnable."""
    return f"{method} ({name}) {WORDS[name]}"


def _kind_arm(kind: Kind) -> Arm:
    generator, setting = kind.split("-")
    change = lambda base, learned: base.but(
        hyperprior=base.hyperprior.but(rate="generated", weight="generated", generator=generator, setting=setting)
    )
    return Arm(kind, f"{{method}}+E3BM ({generator.upper()}, {setting})", change)


def _choice_arm(name: str, words: str, changes: dict[str, Any]) -> Arm:
    return Arm(name, f"{{method}}+E3BM, {words}", lambda base, learned: base.but(**changes))


def _paper_arm(method: str) -> Arm:
    """Psi as published, in the inner loop of the study."""

    def change(base: TrainSettings, learned: Path | None) -> TrainSettings:
        kind: Kind = "lstm-transductive" if base.hyperprior.setting == "transductive" else "lstm-inductive"
        rates = dict.fromkeys((f"optimiser__{name}" for name in HYPERPRIOR_RATES), PAPER_PSI_RATE)
        return base.but(hyperprior=hyperprior_settings(method, "paper", kind), **rates)

    return Arm("paper", "{method}+E3BM, Ψ as published", change)


def _epoch_arms(method: str) -> Iterator[Arm]:
    for count in EPOCHS[method]:
        yield from _pair(f"epochs-{count}", f"M = {count}", method__epochs=count)


def _pair(name: str, words: str, **changes: Any) -> Iterator[Arm]:
    """Another inner loop, for the method alone and with E3BM."""
    alone = lambda base, learned: base.but(hyperprior=HyperpriorSettings(), **changes)
    yield Arm(f"plain-{name}", f"{{method}}, {words}", alone)
    yield _choice_arm(name, words, changes)


def arm_of(settings: TrainSettings) -> str | None:
    """Which of the paper's ablations a run is, by its schedules; the method alone is 'plain'."""
    pair = (settings.hyperprior.rate, settings.hyperprior.weight)
    if pair == ("constant", "last"):
        return PLAIN.name
    return next((name for name, schedules in ABLATIONS.items() if schedules == pair), None)


TITLES: dict[Study, str] = {"rate": "Where α comes from", "weight": "Where v comes from", "hyperprior": "Hyperpriors",
                            "tuning": "Rates",
                            "choices": "Choices"}  # fmt: skip


@dataclass(frozen=True)
class Ablation:
    """What came out, and the page that shows it."""

    results: list[Result]
    page: Path


def ablate(
    study: Study,
    settings: TrainSettings,
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    test: TestSettings | None = None,
    seconds: float | None = None,
    workers: int = 1,
    keep: Path | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Train every arm with every seed, test all on the same episodes, report; re-running continues.

    All arms have the same steps, tasks and seeds. ``settings`` are those of the method with E3BM; runs lie in
    ``folder/<arm>-s<seed>``, so that studies of the same method in one folder share the method alone. What must last
    of them goes to ``keep``, a folder in results/study.
    """
    progress = progress or Silent()
    jobs = study_jobs(study, settings, folder, seeds)
    ready = train_many(jobs, seconds=seconds, workers=workers, progress=progress)
    if not ready:
        raise SettingsError(f"No arm in {folder} has been trained yet; give the study more time.")
    results = run_test(ready, test or TestSettings(), progress)
    if keep is not None:
        add_runs(ready, keep.parents[1], group=f"{keep.parent.name}/{keep.name}", compact=True)
    title = f"{TITLES[study]} of {settings.method.name.upper()}"
    page = report(ready, folder / f"report-{study}", title=title, results=one_per_arm(results))
    return Ablation(results, page)


def one_per_arm(results: Sequence[Result]) -> list[Result]:
    """Seeds taken together where there are several, in the order of the arms."""
    means = {name: result for result in results if result.seeds for name in result.run.split(", ")}
    shown: list[Result] = []
    for result in results:
        if not result.seeds:
            best = means.get(result.run, result)
            shown += [best] if best not in shown else []
    return shown


def study_jobs(study: Study, settings: TrainSettings, folder: Path, seeds: Sequence[int]) -> list[Job]:
    """The trainings of a study; an arm with frozen values comes after the one that learns them, seed by seed."""
    if settings.backbone.adapt != "full" and settings.backbone.pretrained is None:
        raise SettingsError(
            f"The backbone of this study is {settings.backbone.adapt.replace('_', '-and-')} and must have been "
            "trained: set --backbone.pretrained to a run of `e3bm pretrain`."
        )
    jobs = []
    for seed in seeds:
        for arm in study_arms(study, settings.method.name):
            learned = folder / f"{arm.learned_by}-s{seed}" if arm.learned_by else None
            name = arm.title.format(method=settings.method.name.upper())
            changed = arm.settings(settings.but(seed=seed, name=name), learned)
            jobs.append(Job(folder / f"{arm.name}-s{seed}", changed, learned))
    return jobs

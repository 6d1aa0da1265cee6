"""All figures of a report, section by section, with a sentence for each that could not be drawn."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from e3bm.report.drawing import Drawing
from e3bm.report.effect_figures import DIFFERENCES, MEASURES, by_partner, difference_figure, level_figure
from e3bm.report.result_figures import epoch_accuracy_figure, epoch_schedule_figure, reliability_figure
from e3bm.report.result_words import by_protocol, data_words
from e3bm.report.series import BASELINE, Arm, Drawn, arm_of, arms_of, first_of_each_arm, result_series, task_of
from e3bm.report.task_picture import task_picture
from e3bm.report.training_figures import (
    loss_figure,
    pretraining_accuracy_figure,
    pretraining_loss_figure,
    schedule_figure,
    validation_figure,
)
from e3bm.runs.folder.run import Run
from e3bm.runs.result import Result

TASK = "The task"
CHANGING = ("learned", "generated", None)  # None: the settings do not say, so show what was logged


@dataclass(frozen=True)
class Section:
    """A heading of the page with its figures and what is missing from it."""

    title: str
    drawings: tuple[Drawing, ...]
    missing: tuple[str, ...] = ()
    columns: int = 2


def figures(runs: Sequence[Run], results: Sequence[Result]) -> list[Section]:
    """Every section that has something to show or to say."""
    trained = [run for run in runs if run.kind == "train"]
    pretrained = [run for run in runs if run.kind == "pretrain"]
    arms = arms_of(trained)
    sections = [_tasks(runs, results), _levels(results, arms), _differences(results, arms)]
    sections += [_over_training(arms), _schedules(arms), *_by_epoch(results, arms)]
    if pretrained:
        quiet = [f"{run.name} has logged nothing yet." for run in pretrained if not run.metrics]
        drawings = [
            pretraining_loss_figure("pretraining-loss", pretrained),
            pretraining_accuracy_figure("pretraining-accuracy", pretrained),
        ]
        sections.append(Section("Pretraining", _drawn(drawings), tuple(quiet)))
    return _distinct(section for section in sections if section.drawings or section.missing)


def _tasks(runs: Sequence[Run], results: Sequence[Result]) -> Section:
    """One picture for each shape of tasks, where the data set is at hand."""
    folders = {str(run.setting("data.dataset")): run.setting("data.folder") for run in runs}
    firsts = {(result.dataset, result.split, result.task): result for result in reversed(results)}
    found = [
        task_picture(_name("task", number), result, folders.get(result.dataset))
        for number, result in enumerate(reversed(firsts.values()))
    ]
    missing = dict.fromkeys(part for part in found if isinstance(part, str))
    return Section(TASK, tuple(part for part in found if isinstance(part, Drawing)), tuple(missing))


def _levels(results: Sequence[Result], arms: Sequence[Arm]) -> Section:
    drawings = [
        level_figure(_name(measure.name, number), measure, result_series(group, arms))
        for number, group in enumerate(by_protocol(results).values())
        for measure in MEASURES
    ]
    return Section("Accuracy and trust", _drawn(drawings), (), 3)


def _differences(results: Sequence[Result], arms: Sequence[Arm]) -> Section:
    """A panel for each baseline, with a scale of its own: a large difference elsewhere hides no small one."""
    groups = [by_partner(result_series(group, arms)) for group in by_protocol(results).values()]
    drawings = [
        difference_figure(_name(measure.name, partner, number), measure, partner, rows)
        for measure in DIFFERENCES
        for number, group in enumerate(groups)
        for partner, rows in group.items()
    ]
    return Section("Paired differences", _drawn(drawings), (), 3)


def _over_training(arms: Sequence[Arm]) -> Section:
    drawings = []
    for data, shape in dict.fromkeys(task_of(arm.first) for arm in arms):
        together = [arm for arm in arms if task_of(arm.first) == (data, shape)]
        drawings.append(validation_figure(_name("validation", data, shape), f"{data}, {shape}", together))
        drawings.append(loss_figure(_name("loss", data, shape), f"{data}, {shape}", together))
    missing = [
        f"{run.name} has no validation yet{_because(run, 'metrics.jsonl')}."
        for arm in arms
        for run in arm.runs
        if not run.curve("val", "accuracy")
    ]
    return Section("Meta-training", _drawn(drawings), tuple(missing))


def _schedules(arms: Sequence[Arm]) -> Section:
    """Constant rates and a last-epoch vote have nothing to show over training."""
    drawings, missing = [], []
    for arm in arms:
        for quantity, setting in (("rates", "hyperprior.rate"), ("weights", "hyperprior.weight")):
            if arm.first.setting(setting) not in CHANGING:
                continue
            drawing = schedule_figure(_name(quantity, arm.label), arm, quantity)
            drawings.append(drawing)
            if drawing is None:
                missing.append(f"{arm.first.name} has logged no {quantity}{_because(arm.first, 'schedules.jsonl')}.")
    return Section("Rates α and weights v over meta-training", _drawn(drawings), tuple(missing), 3)


def _by_epoch(results: Sequence[Result], arms: Sequence[Arm]) -> list[Section]:
    epochs: list[Drawing | None] = []
    rates: list[Drawing | None] = []
    weights: list[Drawing | None] = []
    reliability: list[Drawing | None] = []
    for number, group in enumerate(by_protocol(results).values()):
        for family, series in _families(first_of_each_arm(group, arms), arms).items():
            where, place = _where(group[0]), (family, str(number))
            inside = [part for part in series if part[2].epochs]  # a method without an inner loop has none
            epochs.append(epoch_accuracy_figure(_name("epochs", *place), where, inside))
            rates.append(epoch_schedule_figure(_name("test-rates", *place), where, inside, "rates"))
            weights.append(epoch_schedule_figure(_name("test-weights", *place), where, inside, "weights"))
            reliability.append(reliability_figure(_name("reliability", *place), where, series))
    untold = [result.method for result in results if result.epochs and not result.epoch_accuracy]
    unbinned = [result.method for result in results if not result.reliability]
    inner = _drawn([*epochs, *rates, *weights])  # figures that are read alike stand together
    return [
        Section("Inside an episode, epoch by epoch", inner, _lacking("accuracy of each epoch", untold), 3),
        Section("Calibration", _drawn(reliability), _lacking("reliability bins", unbinned), 3),
    ]


def _families(results: Sequence[Result], arms: Sequence[Arm]) -> dict[str, Drawn]:
    """A baseline and its E3BM version in one figure, other methods in others."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        arm = arm_of(result, arms)
        family = arm.first.family if arm else result.method.split("+")[0].strip().lower()
        groups.setdefault(family, []).append(result)
    return {family: _grey_baseline(result_series(group, arms), arms) for family, group in groups.items()}


def _grey_baseline(series: Drawn, arms: Sequence[Arm]) -> Drawn:
    """Inside a figure of one method its baseline is told from the rest by colour, not by dashes alone."""
    plain = [arm is not None and arm.first.alone for arm in (arm_of(result, arms) for _, _, result in series)]
    if sum(plain) != 1 or len(series) == 1:
        return series
    return [
        (label, BASELINE if is_plain else look, result)
        for (label, look, result), is_plain in zip(series, plain, strict=True)
    ]


def _lacking(what: str, methods: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"The result of {name} carries no {what}." for name in dict.fromkeys(methods))


def _because(run: Run, file: str) -> str:
    reason = next((sentence for sentence in run.missing if sentence.startswith(file)), None)
    return f" ({reason})" if reason else ""


def _where(result: Result) -> str:
    return f"{data_words(result)}, {result.task}"


def _drawn(drawings: Iterable[Drawing | None]) -> tuple[Drawing, ...]:
    return tuple(drawing for drawing in drawings if drawing is not None)


def _distinct(sections: Iterable[Section]) -> list[Section]:
    """A name of its own for each figure: it becomes a file and a prefix of identifiers."""
    taken: set[str] = set()
    named = []
    for section in sections:
        drawings = []
        for drawing in section.drawings:
            name, number = drawing.name, 2
            while name in taken:
                name, number = f"{drawing.name}-{number}", number + 1
            taken.add(name)
            drawings.append(replace(drawing, name=name))
        named.append(replace(section, drawings=tuple(drawings)))
    return named


def _name(*parts: object) -> str:
    """A file name and page identifier; whatever comes from files is reduced to letters and digits."""
    return "-".join(filter(None, (re.sub(r"[^a-z0-9]+", "-", str(part).lower()).strip("-") for part in parts)))

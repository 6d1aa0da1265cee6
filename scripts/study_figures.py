"""Draw the curves of docs/study.md from the runs in results/study: python scripts/study_figures.py [FOLDER]."""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from e3bm.report.drawing import INK, MUTED, SERIES, Drawing, draw, draw_figure
from e3bm.runs.folder.run import Run
from e3bm.runs.kept.entries import Entry
from e3bm.runs.kept.store import KeptResults
from e3bm.runs.result import Result

ROOT = Path(__file__).resolve().parents[1]
RESULTS = KeptResults(ROOT / "results")
RATES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
SPEEDS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
HELPED = (
    # words, and for either number of shots the study, the method alone, and the method with E3BM
    ("MTL", ("related-1shot", "one-fold-5shot"), "mtl-plain", "mtl-lstm-inductive"),
    ("SIB", ("related-1shot", "one-fold-5shot"), "sib-plain", "sib-lstm-transductive"),
    ("SIB, equivariant,\n6 epochs", ("equivariant-1shot", "equivariant-5shot"), "sib-plain", "sib-lstm-transductive"),
    ("the same on\nuneven queries", ("equivariant-1shot", "equivariant-5shot"), "sib-plain", "sib-lstm-transductive"),
    (
        "MAML, its\nhyperprior of a fold",
        ("maml-alternate-1shot", "maml-alternate-5shot"),
        "maml-plain",
        "maml-lstm-inductive",
    ),
)
ARROW = {"arrowstyle": "-", "linewidth": 1.2}
Arms = dict[str, Entry]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    drawings = (
        _helps(), _rates(), _speeds(), _epochs(), _seen_and_new(), _accuracy_over_training(), _loss_over_training()
    )  # fmt: skip
    for drawing in drawings:
        (folder / f"{drawing.name}.png").write_bytes(drawing.png)


def _helps() -> Drawing:
    """What E3BM adds to accuracy, and what it does to calibration, on test classes."""

    def compose(figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        gains, errors = figure.subplots(1, 2, sharey=True)
        places = range(len(HELPED) - 1, -1, -1)
        for at, colour, lift in ((0, SERIES[0], 0.14), (1, SERIES[1], -0.14)):
            for place, (words, studies, alone, helped) in zip(places, HELPED, strict=True):
                arms = _arms(studies[at], uneven="uneven" in words)
                plain, with_e3bm = arms[alone], arms[helped].together(arms[alone])
                gain, interval = with_e3bm.paired_difference, with_e3bm.paired_ci
                gains.errorbar([gain], [place + lift], xerr=[interval], color=colour, fmt="o", markersize=4, capsize=2)
                before, after = plain.together().ece, with_e3bm.ece
                errors.annotate("", (after, place + lift), (before, place + lift), arrowprops=ARROW | {"color": colour})
                errors.plot([before], [place + lift], "o", color=colour, markerfacecolor="white", markersize=4)
                errors.plot([after], [place + lift], "o", color=colour, markersize=4)
        gains.axvline(0, color=MUTED, linewidth=0.8)
        gains.set(xlabel="gain in accuracy (points)", ylim=(-0.6, len(HELPED) - 0.4))
        gains.set_yticks(list(places), labels=[words for words, *_ in HELPED])
        errors.set(xlabel="calibration error (ECE, %)", xlim=(0, None))
        shown = [
            ("1 shot", SERIES[0], SERIES[0]),
            ("5 shots", SERIES[1], SERIES[1]),
            ("method alone", INK, "white"),
            ("with E3BM", INK, INK),
        ]
        handles = [
            Line2D([], [], color=edge, marker="o", linestyle="", markerfacecolor=inside, label=words)
            for words, edge, inside in shown
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))

    return draw_figure("study_helps", "", compose, width=6.5, height=3.4)


def _rates() -> Drawing:
    """What a rate far from the best costs, with and without E3BM."""

    def paint(axes: Axes) -> Sequence[Line2D]:
        handles = []
        for place, words, colour in (
            ("mtl-tuning-5shot", "as they are", SERIES[0]),
            ("mtl-whitened-tuning-5shot", "whitened", SERIES[1]),
        ):
            arms = _arms(place)
            best = max(_accuracy(arms[f"plain-rate-{rate:g}"]) for rate in RATES)
            for prefix, method, line in (("plain-rate", "MTL", "--"), ("rate", "MTL+E3BM", "-")):
                heights = [_accuracy(arms[f"{prefix}-{rate:g}"]) - best for rate in RATES]
                label = f"{method}, features {words}"
                handles += axes.plot(RATES, heights, line, color=colour, marker="o", markersize=3, label=label)
        axes.set(xscale="log", xlabel="rate of all epochs; E3BM starts from it", ylabel="to the best MTL (points)")
        _name_ticks(axes, RATES)
        return handles

    return draw("study_rates", "", paint)


def _speeds() -> Drawing:
    """The gain over the method alone by the learning rate of the hyperprior."""

    def paint(axes: Axes) -> Sequence[Line2D]:
        axes.axhline(0, color=MUTED, linewidth=0.8)
        handles = []
        for place, method, colour in (("mtl-choices-5shot", "MTL", SERIES[0]), ("sib-choices-5shot", "SIB", SERIES[1])):
            arms = _arms(place)
            found = [arms[f"speed-{speed:g}"].together(arms["plain"]) for speed in SPEEDS]
            handles.append(_with_intervals(axes, SPEEDS, found, f"{method}+E3BM, v' starts equal", colour))
            last = arms["paper"].together(arms["plain"])
            axes.errorbar([1e-6], [last.paired_difference], [last.paired_ci], color=colour, fmt="x", capsize=2)
            handles.append(
                Line2D([], [], color=colour, marker="x", linestyle="", label=f"{method}+E3BM, Ψ as published")
            )
        axes.set(xscale="log", xlabel="learning rate of Ψ, α' and v'", ylabel="gain over the method (points)")
        _name_ticks(axes, SPEEDS)
        return handles

    return draw("study_speeds", "", paint)


def _epochs() -> Drawing:
    """Accuracy by the number of inner epochs."""

    def paint(axes: Axes) -> Sequence[Line2D]:
        handles = []
        for place, method, middle, counts, colour in (
            ("mtl-choices-5shot", "MTL", 30, (10, 30, 100), SERIES[0]),
            ("sib-choices-5shot", "SIB", 3, (1, 3, 8), SERIES[1]),
        ):
            arms = _arms(place)
            for prefix, own, words, line in (("plain-", "plain", method, "--"), ("", "chosen", f"{method}+E3BM", "-")):
                names = [own if count == middle else f"{prefix}epochs-{count}" for count in counts]
                heights = [_accuracy(arms[name]) for name in names]
                handles += axes.plot(counts, heights, line, color=colour, marker="o", markersize=3, label=words)
        axes.set(xscale="log", xlabel="inner epochs M", ylabel="validation accuracy (%)")
        _name_ticks(axes, (1, 3, 10, 30, 100))
        return handles

    return draw("study_epochs", "", paint)


def _seen_and_new() -> Drawing:
    """Validation NLL while MTL+E3BM is trained, by whether the backbone has seen the classes of the tasks."""

    def compose(figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        places = ("related-1shot", "one-fold-5shot")
        handles: list[Line2D] = []
        for axes, place, shots in zip(figure.subplots(1, 2), places, (1, 5), strict=True):
            study = f"study/{place}"
            shown = (
                (f"fc100/small-mtl-whitened-fc100-{shots}shot-lstm-inductive", "MTL+E3BM, seen classes", SERIES[1]),
                (f"{study}/mtl-plain", "MTL, classes new to the backbone", INK),
                (f"{study}/mtl-lstm-inductive", "MTL+E3BM, classes new to the backbone", SERIES[0]),
            )
            handles = [_validations(axes, _seeds(path), "loss", label, colour) for path, label, colour in shown]
            axes.set(xlabel="meta-training step", title="one shot" if shots == 1 else "five shots")
            axes.set_ylabel("validation NLL" if shots == 1 else "")
        figure.legend(handles=handles, loc="outside lower center", ncols=1)

    return draw_figure("study_why", "", compose, width=6.5, height=3.6)


def _seeds(path: str) -> list[Run]:
    """All seeds of a kept system, by the name that its folders have."""
    place, _, name = path.rpartition("/")
    return [run for run in RESULTS.runs(place) if run.path.name.rpartition("-s")[0] == name]


def _validations(axes: Axes, runs: Sequence[Run], quantity: str, label: str, colour: str) -> Line2D:
    """Every validation during meta-training: each seed faintly, their mean above them."""
    curves = [{line["step"]: line[quantity] for line in run.metrics if line["split"] == "val"} for run in runs]
    for curve in curves:
        axes.plot(list(curve), list(curve.values()), color=colour, linewidth=0.6, alpha=0.35)
    mean = [fmean(curve[step] for curve in curves) for step in curves[0]]
    (line,) = axes.plot(list(curves[0]), mean, color=colour, marker="o", markersize=3, label=label)
    return line


def _accuracy_over_training() -> Drawing:
    chosen = {
        "plain": "SIB", "paper": "Ψ as published", "start-last": "v' last", "speed-1e-06": "1e-6, v' equal",
        "chosen": "as chosen",
    }  # fmt: skip
    return _over_training("study_sib_training", "sib-choices-5shot", chosen, "accuracy", "validation accuracy (%)")


def _loss_over_training() -> Drawing:
    chosen = {
        "plain": "MTL", "paper": "Ψ as published", "speed-1e-06": "1e-6, v' equal", "speed-0.0001": "1e-4",
        "chosen": "as chosen (1e-3)", "hidden-32": "hidden 32",
    }  # fmt: skip
    return _over_training("study_mtl_training", "mtl-choices-5shot", chosen, "loss", "validation NLL")


def _over_training(name: str, place: str, chosen: dict[str, str], quantity: str, words: str) -> Drawing:
    """Every arm of a study over meta-training."""

    def paint(axes: Axes) -> Sequence[Line2D]:
        arms = _arms(place)
        handles = [
            _validations(axes, arms[arm].runs, quantity, label, colour)
            for (arm, label), colour in zip(chosen.items(), (INK, *SERIES), strict=False)
        ]
        axes.set(xlabel="meta-training step", ylabel=words)
        return handles

    return draw(name, "", paint)


def _arms(place: str, *, uneven: bool = False) -> Arms:
    """All seeds of every arm of a study, by the name of its folders, on even or uneven queries."""
    found: dict[str, list] = {}
    for run in RESULTS.runs(f"study/{place}"):
        found.setdefault(run.path.name.rpartition("-s")[0], []).append(run)
    return {
        name: Entry(tuple(runs), tuple(next(one for one in run.results if one.uneven == uneven) for run in runs))
        for name, runs in found.items()
    }


def _accuracy(entry: Entry) -> float:
    return entry.together().accuracy


def _with_intervals(axes: Axes, x: Sequence[float], found: Sequence[Result], label: str, colour: str) -> Line2D:
    heights, intervals = [each.paired_difference for each in found], [each.paired_ci for each in found]
    axes.errorbar(x, heights, intervals, color=colour, capsize=2, marker="o", markersize=3)
    return Line2D([], [], color=colour, marker="o", markersize=3, label=label)


def _name_ticks(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xticks(values, labels=[f"{value:g}" for value in values])
    axes.minorticks_off()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")

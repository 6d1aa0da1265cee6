"""Figures over training: validation and loss curves, alpha and v of chosen epochs, pretraining."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from e3bm.report.drawing import PAPER, RAMP, SERIES, Drawing, draw, legible
from e3bm.report.series import Arm, Look
from e3bm.runs.folder.run import Run, finite

# Curves for the eye: exponential smoothing as in the paper's figures, and fewer points where there are many.


FACTOR = 0.9
MOST_POINTS = 500


def smooth(values: Sequence[float], factor: float = FACTOR) -> list[float]:
    """Running average that forgets by ``factor``; divided by the weight seen so far, so it does not start at zero."""
    smoothed, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = factor * total + (1 - factor) * value, factor * weight + (1 - factor)
        smoothed.append(total / weight)
    return smoothed


def thin(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Evenly chosen points, the last among them."""
    every = -(-len(points) // most) if points else 1
    return list(points[::-1][::every][::-1])


def chosen_epochs(epochs: int) -> list[int]:
    """Epochs to show, counted from 1: the paper's 1, 25, 50, 75, 100 for M = 100, spread alike for other M."""
    if epochs <= 5:
        return list(range(1, epochs + 1))
    return sorted({1, *(round(epochs * quarter / 4) for quarter in (1, 2, 3, 4))})


Points = list[tuple[float, float]]
SYMBOLS = {"rates": ("α", "rate α"), "weights": ("v", "weight v")}
ROUND_STEPS = [1, 2, 2.5, 5, 10]
FEW = 40  # raw points are marked up to here; beyond, a faint line is enough


def validation_figure(name: str, task: str, arms: Sequence[Arm]) -> Drawing | None:
    """Accuracy on the validation classes, as in the paper's Figure 4 (a) and (b)."""
    caption = (
        f"Validation accuracy over meta-training on {task}: thick lines are smoothed at 0.9, faint ones are the raw "
        "values, a ring marks the checkpoint that was kept; higher is better."
    )
    return _arms_figure(name, caption, arms, "val", "accuracy", "validation accuracy (%)", mark_best=True)


def loss_figure(name: str, task: str, arms: Sequence[Arm]) -> Drawing | None:
    """The meta-loss on training tasks."""
    caption = (
        f"Loss on the queries of training tasks on {task}, smoothed at 0.9 over the faint raw values; lower is better."
    )
    return _arms_figure(name, caption, arms, "train", "loss", "training loss", mark_best=False)


def schedule_figure(name: str, arm: Arm, quantity: str) -> Drawing | None:
    """alpha_m or v_m of chosen epochs over meta-training, as in the paper's Figure 4 (c) and (d)."""
    lines = [line for line in arm.first.schedules if finite(line.get("step")) and isinstance(line.get(quantity), list)]
    if not lines or not lines[-1][quantity]:
        return None
    count = len(lines[-1][quantity])
    lines = [line for line in lines if len(line[quantity]) == count and finite(*line[quantity])]
    symbol, words = SYMBOLS[quantity]
    seed = f" (first of {len(arm.runs)} seeds)" if len(arm.runs) > 1 else ""

    def paint(axes: Axes) -> list[Line2D]:
        handles = []
        epochs = chosen_epochs(count)
        colours = RAMP if len(epochs) == len(RAMP) else RAMP[:: max(1, len(RAMP) // len(epochs))]
        for epoch, colour in zip(epochs, colours, strict=False):
            points = [(line["step"], line[quantity][epoch - 1]) for line in lines]
            handles.append(_curve(axes, points, f"epoch {epoch}", Look(colour, "-")))
        axes.set(title=legible(f"{arm.label}, M = {count}{seed}", 48), xlabel="meta-step", ylabel=words)
        _whole_steps(axes)
        return handles

    caption = (
        f"The {words} of each inner epoch, averaged over training tasks and smoothed at 0.9, from early epochs (dark) "
        f"to late ones (bright); where a line rises, training has made {symbol} of that epoch larger."
    )
    return draw(name, caption, paint) if lines else None


def pretraining_loss_figure(name: str, runs: Sequence[Run]) -> Drawing | None:
    """Loss of many-shot classification."""
    drawn = [(run, look, points) for run, look in _coloured(runs) if (points := run.curve("train", "loss"))]

    def paint(axes: Axes) -> list[Line2D]:
        handles = [_curve(axes, points, legible(run.name), look) for run, look, points in drawn]
        axes.set(xlabel="optimiser step", ylabel="loss")
        _whole_steps(axes)
        return handles if len(runs) > 1 else []

    caption = (
        "Loss of the many-shot classifier over pretraining, smoothed at 0.9 over the faint raw values; lower is better."
    )
    return draw(name, caption, paint) if drawn else None


def pretraining_accuracy_figure(name: str, runs: Sequence[Run]) -> Drawing | None:
    """Many-shot accuracy, and the few-shot accuracy that chooses the checkpoint."""
    logged = [run for run in runs if any(run.curve(split, "accuracy") for split in ("train", "val"))]

    def paint(axes: Axes) -> list[Line2D]:
        handles = []
        for run, look in _coloured(logged):
            prefix = f"{run.name}, " if len(runs) > 1 else ""
            if points := run.curve("train", "accuracy"):
                handles.append(_curve(axes, points, legible(f"{prefix}training images"), look))
            if points := run.curve("val", "accuracy"):
                handles += axes.plot(
                    *zip(*points, strict=True), color=look.colour, ls="--", lw=1.3, marker="o", ms=4, mfc=PAPER,
                    zorder=4, label=legible(f"{prefix}few-shot validation"),
                )  # fmt: skip
        axes.set(xlabel="optimiser step", ylabel="accuracy (%)")
        _whole_steps(axes)
        return handles

    caption = (
        "Solid: accuracy over all training classes, smoothed at 0.9 over the faint raw values; dashed: few-shot "
        "accuracy on validation classes, by which the checkpoint is chosen."
    )
    return draw(name, caption, paint) if logged else None


def _coloured(runs: Sequence[Run]) -> list[tuple[Run, Look]]:
    return [(run, Look(SERIES[number % len(SERIES)], "-")) for number, run in enumerate(runs)]


def _arms_figure(
    name: str, caption: str, arms: Sequence[Arm], split: str, quantity: str, words: str, *, mark_best: bool
) -> Drawing | None:
    drawn = [arm for arm in arms if any(run.curve(split, quantity) for run in arm.runs)]
    if any(len(arm.runs) > 1 for arm in drawn):
        caption = caption.removesuffix(".") + "; lines are means over seeds."

    def paint(axes: Axes) -> list[Line2D]:
        handles = []
        for arm in drawn:
            curves = [points for run in arm.runs if (points := run.curve(split, quantity))]
            for points in curves if len(curves) > 1 else []:
                _raw(axes, points, arm.look)
            label = arm.label if len(curves) == 1 else f"{arm.label} ({len(curves)} seeds)"
            handles.append(_curve(axes, _mean(curves), label, arm.look, raw=len(curves) == 1))
            best = arm.first.best
            if mark_best and len(curves) == 1 and best and finite(best.get("step")):
                axes.plot(
                    [best["step"]], [best["accuracy"]], "o", ms=5.5, mfc="none", mec=arm.look.colour, mew=1.2, zorder=4
                )
        axes.set(xlabel="meta-step", ylabel=words)
        _whole_steps(axes)
        return handles

    return draw(name, caption, paint) if drawn else None


def _curve(axes: Axes, points: Points, label: str, look: Look, *, raw: bool = True) -> Line2D:
    """The smoothed line over its faint raw values."""
    if raw:
        _raw(axes, points, look)
    steps, values = zip(*points, strict=True)
    smoothed = thin(list(zip(steps, smooth(values), strict=True)))
    marker = "o" if len(smoothed) == 1 else ""
    (line,) = axes.plot(
        *zip(*smoothed, strict=True),
        color=look.colour,
        ls=look.dash,
        lw=1.7,
        marker=marker,
        ms=4,
        label=label,
        zorder=3,
    )
    return line


def _raw(axes: Axes, points: Points, look: Look) -> None:
    marker = "." if len(points) <= FEW else ""
    axes.plot(*zip(*thin(points), strict=True), color=look.colour, alpha=0.28, lw=0.8, marker=marker, ms=3.5, zorder=2)


def _mean(curves: list[Points]) -> Points:
    """Mean over seeds at the steps that all of them have; the longest curve where they share none."""
    tables = [dict(points) for points in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    if not shared:
        return max(curves, key=len)
    return [(step, sum(table[step] for table in tables) / len(tables)) for step in shared]


def _whole_steps(axes: Axes) -> None:
    if axes.dataLim.width == 0:  # a single logged step
        axes.set_xlim(0, 2 * max(1.0, axes.dataLim.x0))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=ROUND_STEPS))

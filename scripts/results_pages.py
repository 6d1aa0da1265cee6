"""Fill the tables of README.md and docs/ from results/: every number between two markers comes from a kept run."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from os import chdir
from pathlib import Path
from typing import Any

from classifier_measure import page_tables
from classifier_measure.figure import draw_rivals

from e3bm.errors import SettingsError
from e3bm.methods import NearestMean
from e3bm.paper.printed import BUDGET, cells_of
from e3bm.paper.reproduce import Request, kept_entries, reproduce
from e3bm.paper.side_by_side import Row
from e3bm.report.accuracy_over_time import write_figure
from e3bm.report.compare import SPEED, Question, compare, compared_runs, comparison_table
from e3bm.report.result_words import method_words, told_apart
from e3bm.report.table_format import Cell, Table
from e3bm.runs.folder.run import Run
from e3bm.runs.kept.entries import Entry, baseline_entry, entries
from e3bm.runs.kept.store import open_results
from e3bm.runs.result import Result
from e3bm.runs.settings import TrainSettings
from e3bm.settings import with_e3bm

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("results")
SHOTS = (1, 5)
AGAINST = "nearest class mean resnet12 x0.5 whitened"  # the yardstick of every small row
MARK = re.compile(r"(<!-- (?P<name>[\w ,./-]+) table -->\n).*?(<!-- /(?P=name) table -->)", re.S)
SHORT_FEATURES = ("none", "none whitened", "frozen whitened", "full_pretrained")
SHORT_METHODS = ("nearest class mean", "MAML", "MTL", "SIB")
CROSS_FITTED = {  # where the study has them, with one shot and with five
    "mtl": ("related-1shot", "one-fold-5shot"),
    "sib": ("equivariant-1shot", "equivariant-5shot"),
}
WITH_E3BM = (  # runs that are compared with their method alone; mtl and sib are the places of cross-fitted ones
    "fc100/small-maml-pretrained-fc100-{shots}shot-lstm-inductive",
    "fc100/mamlpp-{shots}shot-lstm-inductive",
    "fc100/bmaml-{shots}shot-lstm-inductive",
    "fc100/leo-{shots}shot-lstm-inductive",
    "fc100/meta_opt_net_descent-{shots}shot-lstm-inductive",
    "fc100/matching_nets_fce-{shots}shot-lstm-inductive",
    "fc100/egnn-inductive-{shots}shot-lstm-inductive",
    "fc100/egnn-{shots}shot-lstm-transductive",
    "fc100/can_t-{shots}shot-lstm-transductive",
    "fc100/small-mtl-whitened-fc100-{shots}shot-lstm-inductive",
    "fc100/small-sib-whitened-fc100-{shots}shot-lstm-transductive",
    "study/{mtl}/mtl-lstm-inductive",
    "study/{sib}/sib-lstm-transductive",
    "fc100/soft_k_means-{shots}shot-lstm-transductive",
    "study/cross-fitted-{shots}shot/map-lstm-transductive",
    "fc100/pt_map-{shots}shot-lstm-transductive",
    "fc100/tim-{shots}shot-lstm-transductive",
)
SHORT_KINDS = {"SIB+E3BM": ("fc-transductive", "lstm-transductive")}


def main(out: Path) -> None:
    """Write the pages that have a table, and the figures of the comparison, to their places under a folder."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text()
        filled = MARK.sub(lambda found: found[1] + _table(found["name"], found[0]) + found[3], text)
        if MARK.search(text) and (out != ROOT or filled != text):
            target = out / page.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(filled)
    for shots in SHOTS:
        write_figure(_compared(shots, uneven=False), out / "docs" / "images" / f"systems_{shots}shot.png")
    rivals = draw_rivals()
    (out / "docs" / "images" / f"{rivals.name}.png").write_bytes(rivals.png)


def _table(name: str, old: str) -> str:
    makers: dict[str, Callable[[], str]] = {
        "fc100": _short_table,
        "fc100 cross-fitted": _cross_fitted_table,
        **{f"{dataset} rows": partial(_long_table, dataset) for dataset in ("fc100", "miniimagenet")},
        "miniimagenet confidence": _confidence_table,
        "fc100 added": _added_table,
        "fc100 figure": lambda: _entries_table(_ablation_entries()),
        "cross-domain": lambda: _cross_table(whitened=False),
        "cross-domain whitened": lambda: _cross_table(whitened=True),
        "whitening": _whitening_table,
        "omniglot": _omniglot_table,
        **{f"systems {shots}-shot": partial(_systems_table, shots, uneven=False) for shots in SHOTS},
        **{f"systems {shots}-shot uneven": partial(_systems_table, shots, uneven=True) for shots in SHOTS},
    }
    if name in makers:
        return makers[name]()
    if name.startswith("classifier "):
        return page_tables.tables()[name.removeprefix("classifier ")]() + "\n"
    if name.startswith("measured "):
        return _measured_table(name.removeprefix("measured "))
    if name.startswith("study "):
        place, _, elsewhere = name.removeprefix("study ").partition(" ")
        kept = entries(open_results(RESULTS).runs(f"study/{place}"))
        found = [each for each in kept if (each.first.dataset != each.first.trained_on) == bool(elsewhere)]
        return _entries_table(found, data=bool(elsewhere) or len({each.first.split for each in found}) > 1)
    return "".join(old.splitlines(keepends=True)[1:-1])  # not ours to fill


@cache
def _compared(shots: int, *, uneven: bool) -> tuple[Result, ...]:
    """What `e3bm compare` finds; nothing where nothing was measured yet."""
    try:
        return tuple(
            compare(compared_runs(open_results(RESULTS)), Question("fc100", shots, against=AGAINST, uneven=uneven))
        )
    except SettingsError:
        return ()


def _added_table() -> str:
    """What every method gains and loses by E3BM: 1- and 5-shot in one line, each paired with the method alone."""
    rows = []
    for pattern in WITH_E3BM:
        names = [
            Path(pattern.format(shots=shots, **{method: places[number] for method, places in CROSS_FITTED.items()}))
            for number, shots in enumerate(SHOTS)
        ]
        both = [_beside_its_method(shots, name) for shots, name in zip(SHOTS, names, strict=True)]
        cells: list[Cell] = []
        for result, alone in both:
            cells += [
                _difference(result),
                Cell(f"{alone.nll:.3f} → {result.nll:.3f}", number=True),
                Cell(f"{alone.ece:.1f} → {result.ece:.1f}", number=True),
            ]
        first, _ = both[0]
        method = f"{first.method} ({first.hyperprior})" + " †" * first.transductive_batchnorm
        tasks = _run(names[0]).setting("tasks", "all")
        seeds = dict.fromkeys(str(len(result.seeds or (0,))) for result, _ in both)
        rows.append((Cell(method), Cell("known classes" if tasks == "all" else tasks), *cells, Cell(", ".join(seeds))))
    columns = [f"{name}, {shots}-shot" for shots in SHOTS for name in ("Difference %", "NLL", "ECE %")]
    note = (
        "Difference: in accuracy, paired; bold where the 95 % interval excludes zero. NLL and ECE: of the method alone"
        " → with E3BM. †: queries share batch statistics."
    )
    return Table(("With E3BM", "Training tasks", *columns, "Seeds"), tuple(rows), "", (note,)).markdown()


def _beside_its_method(shots: int, name: Path) -> tuple[Result, Result]:
    """All seeds of a system, paired with all of its method alone, and that; both of one group of kept runs."""
    run, rows = _run(name), _of_group(name.parent, shots)
    trained = [row for row in rows if row.system == run.baseline]
    # What has nothing to train is alone whatever the training tasks are.
    untrained = [row for row in rows if with_e3bm(row.method) == run.title and not row.train_seconds]
    alone, *_ = trained or untrained
    paired = _of_group(name.parent, shots, f"{method_words(alone)}, {alone.backbone}")
    return next(row for row in paired if row.system == run.system), alone


@cache
def _of_group(group: Path, shots: int, against: str = "") -> list[Result]:
    return compare(open_results(RESULTS).runs(group.as_posix()), Question("fc100", shots, against=against))


def _run(name: Path) -> Run:
    """The first seed of a kept system."""
    runs = open_results(RESULTS).runs(name.parent.as_posix())
    return next(run for run in runs if run.name == f"{name.name}-s0")


def _systems_table(shots: int, *, uneven: bool) -> str:
    """The table of `e3bm compare`, without what is said above it."""
    found = _compared(shots, uneven=uneven)
    if not found:
        return "Not measured yet.\n"
    return comparison_table(found).without("Parameters", "Run").markdown()


def _measured_table(method: str) -> str:
    """What the table of all methods has of one method, one and five shots."""
    rows = []
    for shots in SHOTS:
        named = [found for found in _compared(shots, uneven=False) if _methods()[found.system] == method]
        if named:
            table = comparison_table([*named, _yardstick(shots)]).without("Parameters", "Run")
            rows += [(Cell(str(shots), number=True), *row) for row in table.rows[:-1]]
    if not rows:
        return "Not measured yet.\n"
    columns = ("Shots", *table.columns)
    note = "Differences are to the nearest class mean on whitened features; *: the 95 % interval excludes zero."
    return Table(columns, tuple(rows), "", (note, SPEED)).markdown()


@cache
def _methods() -> dict[str, str]:
    """The method's name of every system; features alone are tested by the nearest class mean."""
    alone = NearestMean.settings.model_fields["name"].default
    return {
        run.system: run.trained.method.name if run.trained else alone for run in compared_runs(open_results(RESULTS))
    }


def _yardstick(shots: int) -> Result:
    return next(found for found in _compared(shots, uneven=False) if found.paired_with is None)


def _rows(target: str, dataset: str = "fc100") -> list[Row]:
    return reproduce(Request(target, dataset=dataset, results=RESULTS))  # type: ignore[arg-type]


def _short_table() -> str:
    """Paper and ours, 1- and 5-shot in one line: of every method the form that validation chose."""
    lines: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in [*_rows("S1"), *_rows("T1"), *_rows("T2")]:
        if row.ours is None or row.method.removesuffix("+E3BM") not in SHORT_METHODS:
            continue
        kind = (row.paper_hyperprior or "") if "+" in row.method else ""
        backbone = row.ours.result.backbone
        features = f"{row.ours.adapted}{' whitened' * backbone.endswith('whitened')}"
        if features in SHORT_FEATURES and kind in SHORT_KINDS.get(row.method, ("", "lstm-inductive")):
            lines.setdefault((row.method, kind, backbone), {}).setdefault(row.shots, row)
    return Table(
        (
            "Method",
            "Paper, 1-shot",
            "Ours, 1-shot",
            "Difference",
            "ECE %",
            "Paper, 5-shot",
            "Ours, 5-shot",
            "Difference",
            "ECE %",
            "Budget",
        ),
        tuple(_short_cells(key, found) for key, found in sorted(lines.items(), key=_order)),
    ).markdown()


def _cross_fitted_table() -> str:
    """Methods alone and with E3BM, on cross-fitted tasks: 1- and 5-shot, even and uneven queries in one line."""
    kept, rows = open_results(RESULTS), []
    for method, places in CROSS_FITTED.items():
        for arm in ("plain", "lstm"):
            cells, first = [], None
            for place in places:
                found = entries(kept.runs(f"study/{place}"))
                mine = [
                    each
                    for each in found
                    if each.runs[0].path.name.startswith(f"{method}-{arm}") and len(each.seeds) > 1
                ]
                even, uneven = (next(each for each in mine if each.first.uneven == wanted) for wanted in (False, True))
                result, other = (each.together(baseline_entry(each, found)) for each in (even, uneven))
                cells += [
                    Cell(f"{result.accuracy:.2f} ± {result.ci:.2f}", number=True),
                    _difference(result),
                    Cell(f"{result.ece:.1f}", number=True),
                    Cell(f"{other.accuracy:.2f}", number=True),
                    _difference(other),
                ]
                first = first or _arm(even)
            rows.append((Cell(first), *cells))
    columns = [
        f"{name}, {shots}-shot"
        for shots in SHOTS
        for name in ("Accuracy %", "Difference", "ECE %", "Uneven queries", "Difference there")
    ]
    return Table(("Method", *columns), tuple(rows)).markdown()


def _order(item: tuple[tuple[Any, ...], dict[int, Row]]) -> tuple[Any, ...]:
    (method, kind, backbone), _ = item
    return SHORT_METHODS.index(method.removesuffix("+E3BM")), backbone, "+" in method, kind


def _short_cells(key: tuple[Any, ...], found: dict[int, Row]) -> tuple[Cell, ...]:
    method, kind, backbone = key
    name = f"{method}{f', {backbone}' * method.startswith('nearest')}" + (
        f" ({kind.replace('lstm', 'LSTM').replace('fc', 'FC').replace('-', ', ')})" if kind else ""
    )
    first = next(our for row in found.values() if (our := row.ours))
    cells = [Cell(name + " †" * first.result.transductive_batchnorm)]
    for shots in (1, 5):
        row = found.get(shots)
        if row is None or row.ours is None:
            cells += [Cell("–", number=True)] * 4
            continue
        ours = row.ours.result
        difference = "–" if ours.paired_difference is None else f"{ours.paired_difference:+.2f} ± {ours.paired_ci:.2f}"
        cells += [
            Cell(f"{row.paper:.1f}" if row.paper else "–", number=True),
            Cell(f"{ours.accuracy:.2f} ± {ours.ci:.2f}", number=True),
            Cell(difference, ours.excludes_zero, number=True),
            Cell(f"{ours.ece:.1f}", number=True),
        ]
    seeds = len(first.seeds)
    return (*cells, Cell(f"{seeds} seed{'s' * (seeds > 1)}, {first.budget}"))


def _long_table(dataset: str) -> str:
    columns = (
        "Method",
        "Paper's backbone",
        "Task",
        "Paper %",
        "Ours %",
        "Difference",
        "Our backbone",
        "Seeds",
        "Budget",
        "Differences from the published recipe",
        "Run",
    )
    places = (0, 1, 3, 4, 6, 7, 8, 9, 11, 12, 13)
    rows = [row for target in ("T1", "T2", "S1", "S2") for row in _rows(target, dataset) if row.ours]
    distinct = {(row.ours and row.ours.runs, row.shots): row for row in reversed(rows)}
    cells = [cells_of(row) for row in reversed(distinct.values())]
    return Table(columns, tuple(tuple(each[place] for place in places) for each in cells), "", (BUDGET,)).markdown()


def _ablation_entries() -> list[Entry]:
    wanted = {row.ours.runs for row in _rows("F4") if row.ours}
    return [each for each in kept_entries(RESULTS) if tuple(str(run.path) for run in each.runs) in wanted]


def _confidence_table() -> str:
    """MTL and SIB on miniImageNet, on tasks of classes that the backbone knows, with and without a fitted factor."""
    return _entries_table(
        [
            each
            for each in kept_entries(RESULTS)
            if each.first.dataset == "miniimagenet" and "calibrated_nll" in each.first.metrics
        ]
    )


def _cross_table(*, whitened: bool) -> str:
    found = [
        each
        for each in entries(open_results(RESULTS).tabled())
        if each.first.trained_on == "fc100" != each.first.dataset
    ]
    return _entries_table([each for each in found if each.first.backbone.endswith("whitened") == whitened], data=True)


def _omniglot_table() -> str:
    return _entries_table([each for each in kept_entries(RESULTS) if each.first.dataset == "omniglot"])


def _whitening_table() -> str:
    """One line per view and power, both numbers of shots in it."""
    words = {None: "as they are", 0: "centred", -0.25: "centred, half whitened", -0.5: "centred, whitened"}
    lines: dict[tuple[str, float | None], list[Cell]] = {}
    for row in json.loads((RESULTS / "study" / "whitening.json").read_text())["rows"]:
        sure = abs(row["paired_difference"]) > row["paired_ci"]
        name = words.get(row["power"], f"centred, variances to the power {1 + 2 * (row['power'] or 0):g}")
        cells = lines.setdefault((row["features"], row["power"]), [Cell(row["features"]), Cell(name)])
        first = row["features"] == "one view" and row["power"] is None
        difference = "–" if first else f"{row['paired_difference']:+.2f} ± {row['paired_ci']:.2f}"
        cells += [
            Cell(f"{row['accuracy']:.2f} ± {row['ci']:.2f}", number=True),
            Cell(difference, sure and not first, number=True),
        ]
    columns = ("Views", "Features", "1-shot %", "Difference", "5-shot %", "Difference")
    return Table(columns, tuple(tuple(cells) for cells in lines.values())).markdown()


def _entries_table(found: Sequence[Entry], *, data: bool = False) -> str:
    """One line per system: accuracy, difference to its own baseline, calibration, seeds."""
    fitted = any("calibrated_nll" in each.first.metrics for each in found)
    columns = ("Arm", *(["Data"] if data else []), "Task", "Accuracy %", "Difference", "NLL", "ECE %")
    columns += ("NLL, fitted", "ECE %, fitted") * fitted + ("Seeds",)
    lines = []
    order = lambda entry: (
        entry.first.dataset,
        entry.first.ways,
        entry.first.shots,
        entry.first.split,
        entry.first.query_shares or 0,
    )
    ordered = sorted(found, key=order)
    named = [f"{_arm(each)}, {each.first.task}, {each.first.dataset} {each.first.split}" for each in ordered]
    settings = [each.runs[0].settings for each in ordered]
    apart = told_apart([each if isinstance(each, TrainSettings) else None for each in settings], named)
    for each, more in zip(ordered, apart, strict=True):
        result, first = each.together(baseline_entry(each, found)), each.first
        lines.append(
            (
                Cell(", ".join(filter(None, (_arm(each), more))) + " †" * first.transductive_batchnorm),
                *([Cell(f"{first.dataset} {first.split}")] if data else []),
                Cell(first.task),
                Cell(f"{result.accuracy:.2f} ± {result.ci:.2f}", number=True),
                _difference(result),
                Cell(f"{result.nll:.3f}", number=True),
                Cell(f"{result.ece:.1f}", number=True),
                *([_metric(result, "calibrated_nll", 3), _metric(result, "calibrated_ece", 1)] if fitted else []),
                Cell(", ".join(map(str, each.seeds))),
            )
        )
    return Table(columns, tuple(lines)).markdown()


def _arm(entry: Entry) -> str:
    first = entry.first
    kind = f" ({first.hyperprior})" if first.hyperprior != "none" and first.method.endswith(("+E3BM", "+ E3BM")) else ""
    return first.method + kind + ", familiar" * bool(entry.runs[0].setting("hyperprior.familiar"))


def _difference(result: Result) -> Cell:
    if result.paired_difference is None:
        return Cell("–", number=True)
    return Cell(f"{result.paired_difference:+.2f} ± {result.paired_ci:.2f}", result.excludes_zero, number=True)


def _metric(result: Result, name: str, digits: int) -> Cell:
    value = result.metrics.get(name)
    return Cell("–" if value is None else f"{value:.{digits}f}", number=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    chdir(ROOT)  # runs are named by their places in the repository
    main(target)

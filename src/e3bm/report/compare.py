"""All methods that have runs on one data set, in one table: the same episodes, sorted, paired with one of them."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from e3bm.errors import SettingsError, some_of
from e3bm.report.result_words import NONE, asked_words, data_words, method_words, tasks_words, told_apart
from e3bm.report.table_format import Cell, Table
from e3bm.report.tables import DAGGER, STAR, plus_minus
from e3bm.runs.evaluation.comparison import mean_accuracy
from e3bm.runs.evaluation.metrics import paired_difference
from e3bm.runs.folder.run import Run, duration
from e3bm.runs.kept.entries import Entry, entries
from e3bm.runs.kept.store import STUDY, KeptResults
from e3bm.runs.result import ALONE, Result

COLUMNS = (
    "Method", "Backbone", "Accuracy %", "Difference %", "NLL", "ECE %", "Setting", "Parameters", "Training",
    "ms a task", "Seeds", "Run",
)  # fmt: skip
TRAINED_ON = "Trained on"
# For narrow terminals.
SHORT = {"transductive": "trans.", "inductive": "ind.", "(std ": "("}
SHORT_NOTE = (
    "Size: parameters in millions (M) or thousands (k); trans.: transductive, ind.: inductive. A wider terminal,"
    " --markdown and --json also name the runs."
)
TIMES = (
    "Training: the steps of one training, the mean over seeds, without validations and without the pre-training of"
    " backbones; runs that answer together are one system, and their times are added. Times were measured once, on"
    " machines that did other work too. Run: its name without the seed."
)
SPEED = (
    "ms a task: the time of the test. Where a network passes an image once, whatever the episode, its features were"
    ' computed before and are not counted; elsewhere they are. So rows cannot be compared by it: the table "Every'
    ' method" of docs/performance.md has CPU times and says which include the network.'
)
POOLED = (
    "Several seeds: answers are averaged over seeds episode by episode, and intervals are over episodes, for these"
    " seeds; std is the standard deviation of the accuracy between seeds."
)
LISTED = 8  # names in a sentence
WHOLE = ("none", ALONE, "alpha generated, v generated")
# Parts of the study that are systems of their own, tested like all others; what is not there yet is no error.
TABLED_STUDIES = (
    "cross-fitted-1shot", "cross-fitted-5shot", "related-1shot", "one-fold-5shot", "equivariant-1shot",
    "equivariant-5shot", "map-balance-1shot", "map-balance-5shot", "maml-alternate-1shot", "maml-alternate-5shot",
    "maml-uneven-1shot", "maml-uneven-5shot",
    "miniimagenet-cross-fitted-1shot", "miniimagenet-cross-fitted-5shot",
)  # fmt: skip
# Methods that the second part has were trained again there, on better tasks: tables leave out those of the first.
TRAINED_AGAIN = {"cross-fitted-1shot": "related-1shot", "cross-fitted-5shot": "one-fold-5shot"}


@dataclass(frozen=True)
class Question:
    """What is compared: which data, which tasks, and with whom everybody is paired."""

    dataset: str
    shots: int
    ways: int = 5
    split: str = "test"
    against: str = ""
    """Name of the row that differences are taken to, or a beginning that no other has; unset: the best one."""
    uneven: bool = False
    """Results on uneven queries instead of those on even ones."""
    ablations: bool = False
    """Also runs whose alpha or v is neither the method's own nor generated."""


def compared_runs(kept: KeptResults) -> list[Run]:
    """Kept runs that are compared."""
    studies: dict[str, list[Run]] = {}
    for run in kept.runs(STUDY):
        studies.setdefault(run.path.parent.name, []).append(run)
    found = kept.tabled()
    for name in TABLED_STUDIES:
        again = {_method(run) for run in studies.get(TRAINED_AGAIN.get(name, ""), [])}
        found += [run for run in studies.get(name, []) if _method(run) not in again]
    return found


def _method(run: Run) -> str | None:
    return run.trained.method.name if run.trained else None


def compare(runs: Sequence[Run], question: Question) -> list[Result]:
    """One result a system, best first; each paired with the chosen one on the list of episodes that most have."""
    tested = entries(runs)
    fitting = [entry for entry in tested if _fits(entry.first, question)]
    known = sorted({entry.first.dataset for entry in tested})
    if known and question.dataset not in known:
        near = get_close_matches(question.dataset, known, n=1)
        told = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}, and --runs adds others."
        raise SettingsError(f"There is no data set {question.dataset} among the results; {told}")
    if not fitting:
        raise SettingsError(
            f"No run was tested on {question.dataset} {question.split}, {question.ways}-way {question.shots}-shot"
            f"{' with uneven queries' * question.uneven}; "
            "`e3bm results list` names those that are kept, and --runs adds others."
        )
    (protocol, _), *_ = Counter(entry.protocol for entry in fitting).most_common(1)
    same = sorted(
        (entry for entry in fitting if entry.protocol == protocol),
        key=lambda entry: -_together(entry).accuracy,
    )
    rows = _named(same)
    partner = same[_chosen(rows, question.against)]
    return [row if entry is partner else _paired(row, entry, partner) for row, entry in zip(rows, same, strict=True)]


def _named(same: Sequence[Entry]) -> list[Result]:
    """One result each, with what tells it from others; training tasks of another kind are always told."""
    rows = [_together(entry) for entry in same]
    trained = [entry.runs[0].trained for entry in same]
    named = []
    for row, own, words in zip(rows, trained, told_apart(trained, [_name(row) for row in rows]), strict=True):
        tasks = tasks_words(own) if own and row.train_seconds else []
        named.append(row.but(apart=", ".join(dict.fromkeys([*tasks, *filter(None, words.split(", "))]))))
    return named


def _name(result: Result) -> str:
    return f"{method_words(result)}, {result.backbone}"


def _together(entry: Entry) -> Result:
    """All seeds as one result; the pre-training of a backbone is the training of no method, also where it is alone."""
    found = entry.together()
    return found.but(train_seconds=0.0) if entry.runs[0].kind == "pretrain" else found


def _paired(row: Result, entry: Entry, partner: Entry) -> Result:
    """All seeds of one system against all seeds of the other, episode by episode."""
    ours, theirs = mean_accuracy(entry.tested), mean_accuracy(partner.tested)
    if ours is None or theirs is None:
        return row
    difference, interval = paired_difference(ours, theirs)
    return row.but(paired_with=partner.first.method, paired_difference=difference, paired_ci=interval)


def _fits(result: Result, question: Question) -> bool:
    asked = (question.dataset, question.split, question.ways, question.shots, question.uneven)
    known = question.ablations or result.schedules in WHOLE
    return (result.dataset, result.split, result.ways, result.shots, result.uneven) == asked and known


def _chosen(rows: Sequence[Result], against: str) -> int:
    """The row of that name, or the only one whose name begins so; the first where none is asked for."""
    if not against.strip():
        return 0
    wanted, names = _plain(against), [[_plain(name) for name in _names(row)] for row in rows]
    exact = [place for place, own in enumerate(names) if wanted in own]
    begun = [place for place, own in enumerate(names) if any(name.startswith(wanted) for name in own)]
    found = exact or begun
    if len(found) == 1:
        return found[0]
    found = found or [place for place, own in enumerate(names) if any(wanted in name for name in own)]
    if not found:
        methods = ", ".join(sorted({row.method for row in rows}))
        raise SettingsError(f"No method's name has '{against}' in it; there are {methods}.")
    listed = some_of([_name(rows[place]) for place in found], LISTED, between="; ")
    raise SettingsError(f"'{against}' is not the name or the beginning of one row alone; name one: {listed}.")


def _names(row: Result) -> list[str]:
    """What a row may be called: by its method alone, or by as much as the table says of it."""
    return [row.method, method_words(row), f"{row.method}, {row.backbone}", _name(row)]


def _plain(name: str) -> str:
    return " ".join(name.replace(",", " ").lower().split())


def comparison_table(results: Sequence[Result]) -> Table:
    """The results as a table; what all share is said once, above."""
    first = results[0]
    partner = next(result for result in results if result.paired_with is None)
    several = len({result.trained_on for result in results}) > 1
    data = f"{first.dataset} {first.split}" if several else data_words(first)
    caption = f"{data}, {asked_words(first)}, {first.episodes} episodes (hash {first.episodes_hash[:12]}); "
    caption += f"differences to {_name(partner)}"
    notes = [
        (STAR, any(result.excludes_zero for result in results)),
        (DAGGER, any(result.transductive_batchnorm for result in results)),
        (POOLED, any(result.seeds for result in results)),
        (TIMES, True),
        (SPEED, True),
    ]
    shown = tuple(note for note, needed in notes if needed)
    if not several:
        return Table(COLUMNS, tuple(map(_cells, results)), caption, shown)
    rows = tuple((*_cells(result), Cell(result.trained_on)) for result in results)
    return Table((*COLUMNS, TRAINED_ON), rows, caption, shown)


def comparison_text(results: Sequence[Result], width: int | None) -> str:
    """The table for a terminal of so many columns, in shorter words where it would not fit; unset: as wide as it is."""
    table = comparison_table(results)
    text = table.text(width)
    if width is None or max(map(len, text.splitlines())) <= width:
        return text
    nets = list(dict.fromkeys(result.backbone for result in results))
    names = {"Backbone": "Net", "Parameters": "Size"}
    rows = tuple(tuple(_short(cell, nets) for cell in row) for row in table.rows)
    columns = tuple(names.get(name, name) for name in table.columns)
    numbered = "; ".join(f"{place}: {net}" for place, net in enumerate(nets, 1))
    notes = (f"Net {numbered}. {SHORT_NOTE}", *table.notes)
    return replace(table, columns=columns, rows=rows, notes=notes).without("Run").text(width)


def _short(cell: Cell, nets: Sequence[str]) -> Cell:
    """Shorter words, the number of a backbone for its name, and counts in thousands or millions."""
    if cell.text in nets:
        return replace(cell, text=str(nets.index(cell.text) + 1))
    text = re.sub("|".join(map(re.escape, SHORT)), lambda word: SHORT[word[0]], cell.text)
    if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        count = int(text.replace(",", ""))
        text = f"{count / 1e6:.2f} M" if count >= 1e6 else f"{count / 1e3:.0f} k"
    return replace(cell, text=text)


def _cells(result: Result) -> tuple[Cell, ...]:
    difference = "–"
    if result.paired_difference is not None:
        difference = f"{result.paired_difference:+.2f} ± {result.paired_ci:.2f}" + " *" * result.excludes_zero
    models = len(result.seeds) if result.seeds else 1
    return (
        Cell(method_words(result)),
        Cell(result.backbone),
        Cell(plus_minus(result.accuracy, result.ci), number=True),
        Cell(difference, number=True),
        Cell(f"{result.nll:.3f}", number=True),
        Cell(f"{result.ece:.1f}", number=True),
        Cell(result.setting + " †" * result.transductive_batchnorm),
        Cell(f"{result.parameters:,}", number=True),
        Cell(duration(result.train_seconds) if result.train_seconds else NONE, number=True),
        Cell(f"{1000 * result.seconds / result.episodes:.1f}", number=True),
        Cell(str(models) + ("" if result.seed_std is None else f" (std {result.seed_std:.2f})"), number=True),
        Cell(re.sub(r"-s\d+$", "", result.run.split(", ")[0])),
    )

"""An evaluation as a page, as a file beside it, and as a few lines of text."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from e3bm.errors import SettingsError, some_of
from e3bm.fewshot.fitted_head import LEAST_RECALL, STRANGEST
from e3bm.fewshot.fitted_model import Influence
from e3bm.fewshot.learning.evaluation import Evaluation, Mistake, ReliabilityBin, Share
from e3bm.json_files import json_bytes
from e3bm.report.drawing import Drawing
from e3bm.report.page import document, figure_html
from e3bm.report.result_figures import (
    ReliabilityPoint,
    coverage_drawing,
    reliability_drawing,
    threshold_drawing,
)
from e3bm.report.table_format import Cell, Table
from e3bm.runs.folder.files import check_replaceable, write_named

MOST_SHOWN, SHOWN_AT_ONCE = 200, 24
MOST_STRANGERS = 5  # classes that a model does not know, by name
LARGEST_MATRIX = 60
"""Classes of which the whole matrix is still readable; with more only the confusions are listed."""
STYLE = """<style>
.big { font-size: 2.2rem; font-weight: 650; line-height: 1.15; margin: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11.5rem, 1fr)); gap: .8rem; }
.tile { border: 1px solid var(--grid); border-radius: 8px; padding: .7rem .9rem; min-width: 0; }
.tile p { margin: 0; font-size: .85rem; color: var(--muted); }
.tile p.big { color: var(--ink); font-size: 1.7rem; }
.matrix td { text-align: center; min-width: 2.2rem; padding: .25rem; }
.matrix table { width: auto; }
.matrix thead th { vertical-align: bottom; text-align: left; padding: .4rem .25rem; }
.matrix thead th span {
  writing-mode: vertical-rl; transform: rotate(180deg); max-height: 18rem; display: inline-block;
}
.matrix thead th:first-child span { writing-mode: horizontal-tb; transform: none; }
.matrix td.right { outline: 1px solid var(--muted); outline-offset: -2px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: .8rem; }
.card { display: flex; gap: .8rem; border: 1px solid var(--grid); border-radius: 8px; padding: .6rem; min-width: 0; }
.card img, .card .nopicture { width: 6.5rem; height: 6.5rem; object-fit: cover; border-radius: 6px; flex: none; }
.card .nopicture { background: var(--soft); }
.card div { min-width: 0; font-size: .85rem; }
.card p { margin: 0 0 .25rem; overflow-wrap: anywhere; }
.card .file { color: var(--muted); font-size: .78rem; }
.withtable > div { min-width: 0; }
@media (max-width: 1100px) { .figures.withtable { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 40rem) {
  tbody th { min-width: 8rem; }
  .matrix tbody th { min-width: 0; max-width: 6.5rem; }
}
</style>"""


def percent(share: Share) -> str:
    """A share with its interval, in words."""
    if share.value is None or share.interval is None:
        return "none there"
    low, high = share.interval
    return f"{100 * share.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def summary(found: Evaluation) -> list[str]:
    """What a terminal shows: the verdict first, then what to look at."""
    right, strange = found.accuracy, found.caught.of
    judged = [one for one in found.by_class if one.recall.of]
    classes = "1 class" if len(judged) == 1 else f"{len(judged)} classes"
    lines = [
        f"accuracy: {percent(right)}, {right.count} of {right.of} {found.noun}s of {classes} right",
        f"confidence: {100 * (found.mean_confidence or 0):.1f} % on average (ECE {100 * (found.ece or 0):.1f} %"
        f"{_by_chance(found)})",
        f"unknown: {percent(found.kept)} of the known {found.noun}s are not called unknown",
    ]
    if strange:
        lines.append(
            f"         {percent(found.caught)} of {strange} {found.noun}s of other classes are called unknown "
            f"({some_of(found.strangers, MOST_STRANGERS)})"
        )
    worst = sorted(judged, key=lambda one: (one.recall.count / one.recall.of, one.name))[:3]
    lines += [
        f"weakest: {one.name}, {one.recall.count} of {one.recall.of} found" for one in worst if _imperfect(one.recall)
    ]
    lines += [
        f"confused: {count} x {true} called {answer}" for count, true, answer in confusions(found)[:3] if count > 1
    ]
    return lines + [f"note: {note}" for note in found.notes]


def confusions(found: Evaluation) -> list[tuple[int, str, str]]:
    """Wrong answers by pair of classes (number, true class, answer), the most frequent first; without strangers."""
    table = found.confusion[: len(found.classes)]
    pairs = [
        (int(table[row, column]), found.classes[row], found.classes[column])
        for row, column in zip(*np.nonzero(table), strict=True)
        if row != column
    ]
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))


def save_evaluation(found: Evaluation, path: Path, title: str) -> None:
    """The page, and the numbers as JSON next to it."""
    _check_page_name(path)
    write_named(path, evaluation_page(found, title).encode("utf-8", errors="replace"))
    write_named(path.with_suffix(".json"), json_bytes(found.as_json()))


def check_page_target(path: Path, labels: Path, *, replace: bool) -> None:
    """Refuse early a page that cannot be written, and one that would take the place of a file or of the labels."""
    _check_page_name(path)
    for target in (path, path.with_suffix(".json")):
        if target.exists() and labels.exists() and target.samefile(labels):
            raise SettingsError(f"The page's numbers would replace {labels}; give another name with --out.")
        check_replaceable(target, "--out", replace=replace)


def _check_page_name(path: Path) -> None:
    """Refuse a name that is not that of a page, so that no other file is replaced."""
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise SettingsError(f"The page is one HTML file, such as evaluation.html; found {path}.")


def evaluation_page(found: Evaluation, title: str) -> str:
    """The whole HTML document."""
    share = found.accuracy
    strangers = f", and {found.caught.of} of classes that it does not know" if found.caught.of else ""
    opening = f"{share.of} {found.noun}s of the model's {len(found.classes)} classes{strangers}."
    parts = [
        ("Verdict", STYLE + _tiles(found) + "".join(f"<p class='missing'>{escape(note)}</p>" for note in found.notes)),
        ("Classes", _class_table(found).html()),
        ("Which are confused", _confusion(found)),
        (f"{found.noun.capitalize()}s to look at", _mistakes(found)),
        ("Can the confidence be trusted", _reliability(found)),
        (f"Unknown {found.noun}s", _thresholds(found)),
        ("Prediction sets", _coverages(found)),
    ]
    return document(title, opening, parts)


def _tiles(found: Evaluation) -> str:
    tiles = [
        ("right", found.accuracy, f"{found.noun}s of its classes"),
        ("kept", found.kept, f"{found.noun}s of its classes are not called unknown"),
    ]
    if found.caught.of:
        tiles.append(("caught", found.caught, f"{found.noun}s of other classes are called unknown"))
    html = ""
    for name, share, words in tiles:
        low, high = share.interval or (0.0, 0.0)
        html += (
            f"<div class='tile'><p class='big'>{100 * (share.value or 0):.1f} %</p>"
            f"<p>{name}: {share.count} of {share.of} {words} "
            f"(95 % interval: {100 * low:.1f} to {100 * high:.1f} %)</p></div>"
        )
    html += (
        f"<div class='tile'><p class='big'>{100 * (found.mean_confidence or 0):.1f} %</p>"
        f"<p>mean confidence; calibration error (ECE) {100 * (found.ece or 0):.1f} %{_by_chance(found)}</p></div>"
    )
    return f"<div class='tiles'>{html}</div>"


def _by_chance(found: Evaluation) -> str:
    """What the ECE has to be compared with."""
    chance = found.ece_if_calibrated
    if chance is None:
        return ""
    return (
        f"; on this number of {found.noun}s, a perfectly calibrated model would by chance show "
        f"{100 * chance.mean:.1f} % on average, and at most {100 * chance.most:.1f} % in 95 of 100 cases"
    )


def _class_table(found: Evaluation) -> Table:
    no_precision = "never answered" if found.only_class is None else "not defined"
    rows = tuple(
        (
            Cell(one.name),
            Cell(str(one.recall.of), number=True),
            Cell(percent(one.recall), number=True),
            Cell(percent(one.precision) if one.precision.of else no_precision, number=True),
            Cell(str(one.flagged), number=True),
        )
        for one in sorted(found.by_class, key=lambda one: (one.recall.value is None, one.recall.value or 0, one.name))
    )
    notes = (
        f"Recall: the share of {found.noun}s of the class that were given its name. Precision: the share of "
        f"{found.noun}s given its name that belong to it, among {found.noun}s of the model's classes. 95 % intervals "
        "are in brackets.",
    )
    return Table(("class, weakest first", f"{found.noun}s", "recall", "precision", "called unknown"), rows, notes=notes)


def _confusion(found: Evaluation) -> str:
    pairs = confusions(found)
    if not pairs and not found.strangers:
        return f"<p>No {found.noun} got the name of another class.</p>"
    rows = tuple((Cell(true), Cell(answer), Cell(str(count), number=True)) for count, true, answer in pairs[:12])
    listed = (
        Table(("true class", "answer", f"{found.noun}s"), rows, caption="Most frequent first").html() if rows else ""
    )
    if len(found.classes) > LARGEST_MATRIX:
        return listed
    return _matrix(found) + listed


def _matrix(found: Evaluation) -> str:
    table, names = found.confusion, (*found.classes, *found.strangers)
    head = "".join(f"<th scope='col'><span>{escape(name)}</span></th>" for name in found.classes)
    body = ""
    for row, name in enumerate(names):
        total = max(int(table[row].sum()), 1)
        cells = ""
        for column in range(len(found.classes)):
            count, right = int(table[row, column]), row == column
            colour = "series3" if right else "series2"
            shade = f" style='background: color-mix(in srgb, var(--{colour}) {70 * count / total:.0f}%, transparent)'"
            cells += f"<td{' class=right' if right else ''}{shade if count else ''}>{count or ''}</td>"
        stranger = " <small>(not a class)</small>" if name in found.strangers else ""
        body += f"<tr><th scope='row'>{escape(name)}{stranger}</th>{cells}</tr>"
    return (
        "<p class='tablecaption'>Rows are the true classes, columns the answers; green is right, orange is wrong.</p>"
        "<div class='scroll matrix' role='region' tabindex='0' aria-label='confusion matrix'><table><thead>"
        f"<tr><th scope='col'><span>true class</span></th>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _mistakes(found: Evaluation) -> str:
    if not found.mistakes:
        return f"<p>Every {found.noun} got its right name.</p>"
    shown = found.mistakes[:MOST_SHOWN]
    more = f" The first {MOST_SHOWN} of {len(found.mistakes)}." if len(found.mistakes) > len(shown) else ""
    opening = (
        f"Wrong answers, the most confident first, with the labelled {found.noun}s that counted most for the "
        f"answer (+) or against it (-). A confident mistake is often a wrong label.{more}"
    )
    cards = [_card(found, one) for one in shown]
    first, rest = "".join(cards[:SHOWN_AT_ONCE]), "".join(cards[SHOWN_AT_ONCE:])
    folded = (
        f"<details><summary>{len(cards) - SHOWN_AT_ONCE} more</summary><div class='cards'>{rest}</div></details>"
        if rest
        else ""
    )
    return f"<p>{opening}</p><div class='cards'>{first}</div>{folded}"


def _card(found: Evaluation, one: Mistake) -> str:
    picture = found.thumbnails.get(one.number)
    image = "<div class='nopicture'></div>" if found.thumbnails else ""
    if picture:
        image = f"<img alt='' src='data:image/jpeg;base64,{b64encode(picture).decode()}'>"
    of = (
        f"{escape(one.label)} had {100 * one.probability:.0f} %"
        if one.label in found.classes
        else f"{escape(one.label)} is not a class of the model; it should be called unknown"
    )
    flag = "<p class='flag'>It was also called unknown.</p>" if one.unknown else ""
    mattered = "".join(
        f"<br>{'+' if part.amount >= 0 else '−'} {escape(_words_for(part, found.noun))}" for part in one.influences
    )
    why = f"<p>What mattered:{mattered}</p>" if mattered else ""
    return (
        f"<div class='card'>{image}<div><p><strong>{escape(one.label)}</strong> was called "
        f"<strong>{escape(one.answer)}</strong> ({100 * one.confidence:.0f} %)</p><p>{of}</p>{flag}{why}"
        f"<p class='file'>{escape(one.name)}</p></div></div>"
    )


def _words_for(part: Influence, noun: str) -> str:
    """A labelled photo by class and file name; one without a file is called by its class and a number already."""
    if part.name.startswith(f"{part.label} #"):
        return part.name
    return f"{part.label}: {Path(part.name).name if noun == 'photo' else part.name}"


def _reliability(found: Evaluation) -> str:
    drawing = reliability_drawing(reliability_points(found.reliability))
    rows = tuple(
        (
            Cell(f"{100 * one.low:.0f} to {100 * one.high:.0f} %"),
            Cell(str(one.right.of), number=True),
            Cell(f"{100 * one.confidence:.1f} %", number=True),
            Cell(percent(one.right), number=True),
        )
        for one in found.reliability
    )
    table = Table(("confidence", f"{found.noun}s", "mean confidence", "right"), rows)
    return _beside(drawing, table)


def reliability_points(bins: Sequence[ReliabilityBin]) -> list[ReliabilityPoint]:
    """The steps of confidence as points of a figure."""
    points = []
    for one in bins:
        value, (low, high) = one.right.value, one.right.interval or (0.0, 0.0)
        points.append(ReliabilityPoint(one.confidence, value or 0.0, low, high, one.right.of))
    return points


def _thresholds(found: Evaluation) -> str:
    noun, strangers = found.noun, bool(found.caught.of)
    rows = tuple(
        (
            Cell(f"{one.recall:g}{' (in use)' if one.in_use else ''}", strong=one.in_use),
            Cell(percent(one.kept), number=True),
            *([Cell(percent(one.caught), number=True)] if strangers else []),
            Cell(percent(one.right), number=True),
        )
        for one in found.thresholds
    )
    caught_name = [f"{noun}s of other classes caught"] if strangers else []
    names = ("recall", f"known {noun}s kept", *caught_name, "right among those kept")
    scores, known = found.unknown_scores, found.truth >= 0
    places = np.unique(
        np.clip(np.concatenate([scores, [LEAST_RECALL, found.recall, STRANGEST]]), LEAST_RECALL, STRANGEST)
    )
    kept = [float((scores[known] < place).mean()) for place in places] if known.any() else []
    caught = [float((scores[~known] >= place).mean()) for place in places] if (~known).any() else []
    drawing = threshold_drawing(places.tolist(), kept, caught, found.recall, noun)
    hint = (
        ""
        if strangers
        else f"<p class='missing'>All {noun}s are of classes that the model knows, so these {noun}s cannot show how "
        f"many others it would catch: add {noun}s of something else.</p>"
    )
    hint += (
        f"<p>A {noun} is called unknown if its <code>unknown_score</code> exceeds the setting <code>recall</code>: the "
        f"share of {noun}s of the classes that should be kept. This is what each setting "
        f"kept{' and caught' if strangers else ''} here.</p>"
    )
    return f"{hint}<div class='figures'>{figure_html(drawing)}</div>{Table(names, rows).html()}"


def _coverages(found: Evaluation) -> str:
    rows = tuple(
        (
            Cell(f"{100 * one.asked:.0f} %"),
            Cell(percent(one.covered), number=True),
            Cell(f"{one.size:.2f}", number=True),
            Cell(percent(one.single), number=True),
        )
        for one in found.coverages
    )
    table = Table(("asked for", "right class inside", "mean size", "sets of one class"), rows)
    drawing = coverage_drawing(
        [one.asked for one in found.coverages],
        [one.covered.value or 0.0 for one in found.coverages],
        [one.size for one in found.coverages],
    )
    return _beside(drawing, table)


def _beside(drawing: Drawing, table: Table) -> str:
    """A figure with its table, below it where the page is too narrow for both."""
    return f"<div class='figures withtable'>{figure_html(drawing)}<div>{table.html()}</div></div>"


def _imperfect(share: Share) -> bool:
    return share.count < share.of

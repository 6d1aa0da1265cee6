"""The tables of docs/classifier.md and docs/classifier_tables.md, from what was measured: results/classifier.

`scripts/results_pages.py` fills them in between the markers ``classifier NAME table``.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from classifier_measure import kept

Row = dict[str, Any]
OURS = "E3BMClassifier"
MOST_ECE, KEPT = 5.0, (92.0, 98.0)
WAYS = ("data", "ways")
RESULTS = Path(__file__).resolve().parents[2] / "results" / "classifier"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    first = list(head)
    show = lambda cells: "| " + " | ".join(cells) + " |"
    return "\n".join([show(first), "|---" * len(first) + "|", *map(show, lines)])


def by_shots(head: Sequence[str], cells: Mapping[tuple[Any, ...], Row], show: Callable[[Row], str]) -> str:
    """A column for each number of shots, which is the end of a key, and a line for each of the other parts."""
    shots = sorted({key[-1] for key in cells})
    lines = (
        [*map(str, first), *(show(cells[*first, each]) if (*first, each) in cells else "" for each in shots)]
        for first in dict.fromkeys(key[:-1] for key in cells)
    )
    return table([*head, *map(shots_words, shots)], lines)


def cells_of(found: dict[str, kept.Part], names: Iterable[str], part: str = "") -> list[tuple[str, kept.Part]]:
    """The cells of some data, by ways and shots; of those only that have a part, if one is named."""
    order = lambda cell: (cell["ways"], cell["shots"])
    every = ((name, cell) for name in names for cell in sorted(found[name]["cells"].values(), key=order))
    return [(name, cell) for name, cell in every if not part or part in cell]


def place(name: str, cell: Row) -> list[str]:
    """Where a line about a cell begins."""
    return [name, str(cell["ways"]), str(cell["shots"])]


def standing(differences: Sequence[Row]) -> tuple[int, int, int]:
    """In how many ours is ahead by more than the interval, level, and behind."""
    ahead, behind = (sum(sign * one["accuracy"] > one["ci"] for one in differences) for sign in (1, -1))
    return ahead, len(differences) - ahead - behind, behind


def shots_words(shots: int) -> str:
    return f"{shots} shot{'s' * (shots > 1)}"


def compared(rows: list[Row], ways: int) -> str:
    """Accuracy, difference and calibration of every classifier in the cells of a number of ways."""
    own = {(row["method"], row["shots"]): row for row in rows if row["ways"] == ways}
    rivals = {key: row for key, row in own.items() if row["method"] != OURS}
    grid = partial(by_shots, ["classifier"])
    difference = lambda row: (
        f"{row['ours_minus_this']['accuracy']:+.2f} ± {row['ours_minus_this']['ci']:.2f}"
        if "ours_minus_this" in row
        else ""
    )
    return "\n\n".join(
        [
            f"{ways} ways, accuracy %:",
            grid(own, lambda row: f"{row['accuracy']:.2f} ± {row['ci']:.2f}"),
            "Ours, each query alone, minus the row:",
            grid(rivals, difference),
            "ECE %, and NLL in brackets:",
            grid(own, lambda row: f"{row['ece']:.1f} ({row['nll']:.3f})"),
        ]
    )


def duels(rows: list[Row]) -> list[tuple[Row, Row | None]]:
    """Ours and the most accurate rival of every cell; None where rivals were not measured."""
    found = []
    for cell in sorted({(row["ways"], row["shots"]) for row in rows}):
        own = [row for row in rows if (row["ways"], row["shots"]) == cell and row["setting"] == "inductive"]
        others = [row for row in own if row["method"] != OURS and "last epoch" not in row["method"]]
        (ours,) = (row for row in own if row["method"] == OURS)
        found.append((ours, max(others, key=lambda row: row["accuracy"], default=None)))
    return found


def short(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """Every cell of ours in one line: accuracy, what it says of itself, ECE, and what is behind the best rival."""
    lines = []
    for name in names:
        for ours, best in duels(found[name]["rows"]):
            line = [
                *place(name, ours), f"{ours['accuracy']:.2f} ± {ours['ci']:.2f}", f"{ours['says']:.1f}",
                f"{ours['ece']:.1f}",
            ]  # fmt: skip
            if best:
                ahead = best["ours_minus_this"]
                line += [best["method"], f"{ahead['accuracy']:+.2f} ± {ahead['ci']:.2f}", f"{best['ece']:.1f}"]
            lines.append(line + [""] * (9 - len(line)))
    head = ["data", "ways", "shots", "accuracy %", "says %", "ECE %", "best rival", "ours minus it", "its ECE %"]
    return table(head, lines)


def against_best(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """In how many cells of each data set ours is ahead of the most accurate rival, level and behind."""
    lines = []
    for name in names:
        ahead = [best["ours_minus_this"] for _, best in duels(found[name]["rows"]) if best]
        lines.append([name, *(f"{met} of {len(ahead)}" for met in standing(ahead))])
    return table(["data", "ahead of the best rival", "level", "behind"], lines)


def by_rival(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """In how many cells of a data set ours is ahead of each rival, level and behind, and the mean difference."""
    lines: dict[str, list[str]] = {}
    for name in names:
        rows = [row for row in found[name]["rows"] if row["setting"] == "inductive" and "ours_minus_this" in row]
        for rival in dict.fromkeys(row["method"] for row in rows):
            own = [row["ours_minus_this"] for row in rows if row["method"] == rival]
            mean = sum(one["accuracy"] for one in own) / len(own)
            lines.setdefault(rival, []).append(f"{' / '.join(map(str, standing(own)))}, {mean:+.2f}")
    return table(["rival", *names], ([rival, *shown] for rival, shown in lines.items()))


def flags(found: dict[str, kept.Part], names: Sequence[str], columns: dict[str, tuple[str, str]]) -> str:
    """A line for each cell, with some of its numbers of trust: the head of a column to (part, number)."""
    lines = []
    for name, cell in cells_of(found, names):
        shown = [_with_interval(_part(cell, part), number) for part, number in columns.values()]
        if any(shown):
            lines.append([*place(name, cell), *shown])
    return table(["data", "ways", "shots", *columns], lines)


def _part(cell: kept.Part, name: str) -> dict[str, float]:
    """A part of a cell, by itself or among what is measured of trust."""
    found: dict[str, float] = cell.get(name) or cell.get("trust", {}).get(name, {})
    return found


def _with_interval(numbers: dict[str, float], name: str) -> str:
    if name not in numbers:
        return ""
    interval = f" ± {numbers[f'{name}_ci']:.1f}" if f"{name}_ci" in numbers else ""
    return f"{numbers[name]:.1f}{interval}"


UNKNOWN = {
    "known kept %": ("unknown", "kept_known"),
    "unknown rejected %": ("unknown", "rejected_unknown"),
    "AUROC %": ("unknown", "auroc"),
    "of the largest probability": ("unknown", "auroc_of_largest_probability"),
}
DOUBTFUL = {
    "wrong label pointed out %": ("doubtful_labels", "found_wrong_label"),
    "named first %": ("doubtful_labels", "named_first"),
    "right labels pointed out %": ("doubtful_labels", "right_labels_pointed_out"),
}
SETS = {
    f"asked {share} %: {what}": ("prediction_sets", f"{key}_at_{share}")
    for share in ("80", "90", "95")
    for what, key in (("covered", "coverage"), ("size", "size"))
}
TOGETHER = {
    f"{text}: {how}": ("used_together", f"accuracy_{kind}_{how}")
    for kind, text in (("even", "all queries"), ("uneven", "40 uneven"), ("one_class", "one class"))
    for how in ("alone", "together")
}


MAP = {"ours": "SIB+E3BM", "map": "MAP", "map_unit_again": "MAP, unit length again"}
BATCHES = {"even": "all queries", "uneven": "uneven", "one_class": "one class"}


def map_tables(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """Queries used together by us and by MAP: accuracy cell by cell, and the means of all that was measured."""
    cells, lines, means = cells_of(found, names, "map"), [], []
    for name, cell in cells:
        line = place(name, cell)
        for kind in BATCHES:
            line.append(f"{cell['map'][kind]['ours']['accuracy']:.1f}")
            for other in ("map", "map_unit_again"):
                difference, interval = cell["map"][kind][other]["minus_ours"]
                line.append(f"{difference:+.1f} ± {interval:.1f}")
        lines.append(line)
    for kind, text in BATCHES.items():
        mean = lambda how, number, kind=kind: sum(cell["map"][kind][how][number] for _, cell in cells) / len(cells)
        show = lambda how, mean=mean: f"{mean(how, 'accuracy'):.1f} / {mean(how, 'nll'):.3f} / {mean(how, 'ece'):.1f}"
        means.append([text, show("alone"), *(show(how) for how in MAP)])
    head = [f"{text}: {how}" for text in BATCHES.values() for how in MAP.values()]
    return "\n\n".join(
        [
            table(["data", "ways", "shots", *head], lines),
            table(["mean of the cells: accuracy % / NLL / ECE %", "alone", *MAP.values()], means),
        ]
    )


def views_table(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """One view of a photo, and how much more accurate the mean with its mirror image is, in the support or in all."""
    lines = []
    for name, cell in cells_of(found, names, "views"):
        one, *others = (cell["views"][kind] for kind in ("one view", "support", "both"))
        lines.append([*place(name, cell), f"{one['accuracy']:.2f} ± {one['ci']:.2f}"])
        for more in others:
            gain = f"{more['accuracy']:+.2f} ± {more['ci']:.2f}"
            lines[-1].append(f"**{gain}**" if abs(more["accuracy"]) > more["ci"] else gain)
        for each in (one, *others):
            lines[-1].append(f"{each['ece']:.1f}")
    gains, eces = ("support only: more", "support and queries: more"), ("ECE %", "support only", "support and queries")
    return table(["data", "ways", "shots", "one view, accuracy %", *gains, *eces], lines)


def sentences_table(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """What the flag rejects and what sets cover, with the numbers of TextClassifier."""
    columns = {"unknown rejected %": "rejected_unknown", "in sets of 90 %": "coverage_at_90"}
    lines = []
    for name, cell in cells_of(found, names, "text"):
        own = cell["text"]["sentences"] | _flag(found[name], KINDS[name], cell)
        lines.append([*place(name, cell), *(_with_interval(own, number) for number in columns.values())])
    return table(["data", "ways", "shots", *columns], lines)


def _flag(part: kept.Part, kind: str, like: kept.Part) -> dict[str, float]:
    """What was measured again of the flag alone in a cell of the same ways and shots, if anything was."""
    same = [cell for cell in part["cells"].values() if all(cell[each] == like[each] for each in ("ways", "shots"))]
    return next((cell[kept.flag_of(kind)] for cell in same if kept.flag_of(kind) in cell), {})


Claims = dict[tuple[str, int, int], dict[str, float]]


def claims_of(found: dict[str, kept.Part], kinds: dict[str, str]) -> Claims:
    """How far claims hold in every (data, ways, shots), with the numbers of trust of each data set's kind."""
    claims: Claims = {}
    for part_of in (kept.claims_of, kept.flag_of):  # the flag alone may have been measured again
        for name, kind in kinds.items():
            for _, cell in cells_of(found, [name], part_of(kind)):
                claims.setdefault((name, cell["ways"], cell["shots"]), {}).update(cell[part_of(kind)])
    return claims


def aims_table(claims: Claims) -> str:
    """In how many cells of each data set the aims are met."""
    lines = []
    for name in dict.fromkeys(cell[0] for cell in claims):
        cells = [one for cell, one in claims.items() if cell[0] == name]
        eces, shares = [one["ece"] for one in cells], [one["kept_known"] for one in cells]
        lines.append(
            [
                name,
                f"{sum(round(ece, 1) <= MOST_ECE for ece in eces)} of {len(cells)}",
                f"{sum(eces) / len(eces):.1f}",
                f"{max(eces):.1f}",
                f"{sum(KEPT[0] <= round(share, 1) <= KEPT[1] for share in shares)} of {len(cells)}",
                f"{min(shares):.1f}",
                f"{max(shares):.1f}",
            ]
        )
    head = ["data", "ECE at most 5 %", "mean ECE %", "largest", "known kept 92 to 98 %", "lowest", "highest"]
    return table(head, lines)


def networks_table(lines: list[Row], show: Callable[[Row], str], *, milliseconds: bool) -> str:
    """A line for each network, a column for each cell of ours."""
    times = next(line for line in lines if line["data"] == "times")["milliseconds_a_photo"]
    own = {(line["network"], _cell(line)): line for line in lines if line.get("classifier") == "E3BM"}
    cells = list(dict.fromkeys(cell for _, cell in own))
    head = ["network", *(["ms a photo"] if milliseconds else []), *cells]
    return table(
        head,
        (
            [f"`{name}`", *([f"{time:.1f}"] if milliseconds else []), *(show(own[name, cell]) for cell in cells)]
            for name, time in times.items()
        ),
    )


def _cell(line: Row) -> str:
    return f"{line['data']} {line['ways']}-way {line['shots']}-shot"


def network_accuracy(line: Row) -> str:
    if line["network"] == "lite0":
        return f"{line['accuracy']:.1f} ± {line['interval']:.1f}"
    return f"{line['accuracy']:.1f} ({line['more_than_lite0']:+.1f} ± {line['more_interval']:.1f})"


def left_out_table(lines: list[Row]) -> str:
    """Left-out, expected and true accuracy."""
    own = {(line["pool"], line["ways"], line["shots"]): line for line in lines}
    return by_shots(
        WAYS, own, lambda line: ", ".join(f"{line[name]:.0f}" for name in ("left_out", "expected", "truth"))
    )


def encoders_table(lines: list[Row]) -> str:
    """Accuracy of ours and of two rivals on sentences, for each encoder."""
    own = {(line["data"], line["encoder"], line["classifier"]): line for line in lines}
    classifiers = list(dict.fromkeys(cell[2] for cell in own))
    rows = []
    for data, encoder in dict.fromkeys(cell[:2] for cell in own):
        each = [own[data, encoder, name] for name in classifiers]
        shown = [f"{line['accuracy']:.1f} ± {line['interval']:.1f}" for line in each]
        shown += [f"{line['ours_minus']:+.2f} ± {line['ours_minus_interval']:.2f}" for line in each[1:]]
        rows.append([data, encoder, *shown])
    return table(["sentences", "encoder", *classifiers, *(f"ours - {name}" for name in classifiers[1:])], rows)


PHOTOS, DIGITS, SENTENCES = ("birds", "all birds", "mini"), ("digits",), ("topics", "untouched docstrings")
WORDS = tuple(f"{name}, words" for name in SENTENCES)
KINDS = {  # of rows, as a user of each would have them
    **dict.fromkeys(PHOTOS, "photos"),
    **dict.fromkeys(DIGITS, "pixels"),
    **dict.fromkeys(SENTENCES, "all-MiniLM-L6-v2"),
    **dict.fromkeys(WORDS, "wordllama l2_supercat 256"),
}
DATA = (*PHOTOS, *DIGITS, *SENTENCES)
TUNING = ("birds tuning", "mini tuning")


@cache
def tables() -> dict[str, Callable[[], str]]:
    """What makes each table, by its name."""
    found = kept.read(RESULTS / "measured.json.xz")
    networks, left_out, encoders = (
        [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
        for name in ("networks", "left_out", "text")
    )
    own, unnamed = (
        claims_of(found, KINDS),
        claims_of(found, dict.fromkeys((*SENTENCES, *WORDS, *DIGITS, *PHOTOS), "any")),
    )
    gap = lambda one: f"{one['gap']:+.1f} ± {one['gap_ci']:.1f}, {one['ece']:.1f}"
    share = lambda one: f"{one['kept_known']:.1f} ± {one['kept_known_ci']:.1f}"
    trusted = lambda line: f"{line['ece']:.1f}, {line['kept_known']:.1f} ± {line['kept_known_ci']:.1f}"
    return {
        "aims": partial(aims_table, own),
        "too sure": partial(by_shots, WAYS, own, gap),
        "known kept": partial(by_shots, WAYS, own, share),
        "any, too sure": partial(by_shots, WAYS, unnamed, gap),
        "any, known kept": partial(by_shots, WAYS, unnamed, share),
        "best rival": partial(against_best, found, DATA),
        "each rival": partial(by_rival, found, DATA),
        "every cell": partial(short, found, DATA),
        "unknown": partial(flags, found, DATA, UNKNOWN),
        "doubtful labels": partial(flags, found, (*DATA, *WORDS), DOUBTFUL),
        "prediction sets": partial(flags, found, DATA, SETS),
        "used together": partial(flags, found, DATA, TOGETHER),
        "sentences": partial(sentences_table, found, (*SENTENCES, *WORDS)),
        "map": partial(map_tables, found, TUNING),
        "views": partial(views_table, found, ("birds tuning", "characters tuning", "mini tuning")),
        "networks": partial(networks_table, networks, network_accuracy, milliseconds=True),
        "networks, trust": partial(networks_table, networks, trusted, milliseconds=False),
        "left out": partial(left_out_table, left_out),
        "encoders": partial(encoders_table, encoders),
        **{
            f"all classifiers, {name} {ways}-way": partial(compared, part["rows"], ways)
            for name, part in found.items()
            for ways in {row["ways"] for row in part["rows"]}
        },
    }

"""Print as Markdown what `measure_classifier.py` found: tables of cells for each data set and question."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from classifier_measure import kept

Row = dict[str, Any]
Cell = tuple[int, int]
OURS = "E3BMClassifier"
MOST_ECE, KEPT = 5.0, (92.0, 98.0)


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    first = list(head)
    show = lambda cells: "| " + " | ".join(cells) + " |"
    return "\n".join([show(first), "|---" * len(first) + "|", *map(show, lines)])


def by_shots(first: str, names: Sequence[str], shots: Sequence[int], show: Callable[[str, int], str]) -> str:
    """A line for each name, a column for each number of shots."""
    head = [first, *(f"{each} shot{'s' * (each > 1)}" for each in shots)]
    return table(head, ([name, *(show(name, each) for each in shots)] for name in names))


def compared(rows: list[Row], ways: int) -> str:
    """Accuracy, difference and calibration of every classifier in the cells of a number of ways."""
    own = {(row["method"], row["shots"]): row for row in rows if row["ways"] == ways}
    names, shots = list(dict.fromkeys(name for name, _ in own)), sorted({shots for _, shots in own})
    cell = lambda show: lambda name, each: show(own[name, each]) if (name, each) in own else ""
    difference = lambda row: (
        f"{row['ours_minus_this']['accuracy']:+.2f} ± {row['ours_minus_this']['ci']:.2f}"
        if "ours_minus_this" in row
        else ""
    )
    return "\n\n".join(
        [
            f"{ways} ways, accuracy %:",
            by_shots("classifier", names, shots, cell(lambda row: f"{row['accuracy']:.2f} ± {row['ci']:.2f}")),
            "Ours, each query alone, minus the row:",
            by_shots("classifier", [name for name in names if name != OURS], shots, cell(difference)),
            "ECE %, and NLL in brackets:",
            by_shots("classifier", names, shots, cell(lambda row: f"{row['ece']:.1f} ({row['nll']:.3f})")),
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
                name, str(ours["ways"]), str(ours["shots"]), f"{ours['accuracy']:.2f} ± {ours['ci']:.2f}",
                f"{ours['says']:.1f}", f"{ours['ece']:.1f}",
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
        counts = (
            sum(one["accuracy"] > one["ci"] for one in ahead),
            sum(abs(one["accuracy"]) <= one["ci"] for one in ahead),
            sum(one["accuracy"] < -one["ci"] for one in ahead),
        )
        lines.append([name, *(f"{met} of {len(ahead)}" for met in counts)])
    return table(["data", "ahead of the best rival", "level", "behind"], lines)


def by_rival(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """In how many cells of a data set ours is ahead of each rival, level and behind, and the mean difference."""
    lines: dict[str, list[str]] = {}
    for name in names:
        rows = [row for row in found[name]["rows"] if row["setting"] == "inductive" and "ours_minus_this" in row]
        for rival in dict.fromkeys(row["method"] for row in rows):
            own = [row["ours_minus_this"] for row in rows if row["method"] == rival]
            ahead, behind = (sum(sign * one["accuracy"] > one["ci"] for one in own) for sign in (1, -1))
            mean = sum(one["accuracy"] for one in own) / len(own)
            shown = f"{ahead} / {len(own) - ahead - behind} / {behind}, {mean:+.2f}"
            lines.setdefault(rival, []).append(shown)
    return table(["rival", *names], ([rival, *shown] for rival, shown in lines.items()))


def flags(found: dict[str, kept.Part], names: Sequence[str], columns: dict[str, tuple[str, str]]) -> str:
    """A line for each cell, with some of its numbers of trust: the head of a column to (part, number)."""
    lines = []
    for name in names:
        cells = sorted(found[name]["cells"].values(), key=lambda cell: (cell["ways"], cell["shots"]))
        for cell in cells:
            shown = [_with_interval(cell.get("trust", {}).get(part, {}), number) for part, number in columns.values()]
            if any(shown):
                lines.append([name, str(cell["ways"]), str(cell["shots"]), *shown])
    return table(["data", "ways", "shots", *columns], lines)


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
    cells = [(name, cell) for name in names for cell in found[name]["cells"].values() if "map" in cell]
    lines, means = [], []
    for name, cell in sorted(cells, key=lambda one: (one[0], one[1]["ways"], one[1]["shots"])):
        line = [name, str(cell["ways"]), str(cell["shots"])]
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
    cells = [(name, cell) for name in names for cell in found[name]["cells"].values() if "views" in cell]
    lines = []
    for name, cell in sorted(cells, key=lambda one: (one[0], one[1]["ways"], one[1]["shots"])):
        one, *others = (cell["views"][kind] for kind in ("one view", "support", "both"))
        lines.append([name, str(cell["ways"]), str(cell["shots"]), f"{one['accuracy']:.2f} ± {one['ci']:.2f}"])
        for more in others:
            gain = f"{more['accuracy']:+.2f} ± {more['ci']:.2f}"
            lines[-1].append(f"**{gain}**" if abs(more["accuracy"]) > more["ci"] else gain)
        for each in (one, *others):
            lines[-1].append(f"{each['ece']:.1f}")
    gains, eces = ("support only: more", "support and queries: more"), ("ECE %", "support only", "support and queries")
    return table(["data", "ways", "shots", "one view, accuracy %", *gains, *eces], lines)


def text_tables(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """Sentences with the numbers of trust of photos and with their own: how many cells meet the aims, and all cells."""
    counts, lines, labels = [], [], []
    for name in names:
        cells = [cell for cell in found[name]["cells"].values() if "text" in cell]
        for kind in ("photos", "sentences"):
            own = [cell["text"][kind] for cell in cells]
            kept_known = [(one["kept_known"], one["kept_known_ci"]) for one in own]
            eces = [one["ece"] for one in own]
            met = (
                sum(round(ece, 1) <= MOST_ECE for ece in eces),
                sum(KEPT[0] <= round(share, 1) <= KEPT[1] for share, _ in kept_known),
                sum(share + ci >= KEPT[0] and share - ci <= KEPT[1] for share, ci in kept_known),
                sum(abs(one["gap"]) <= one["gap_ci"] for one in own),
            )
            spread = [f"{sum(eces) / len(eces):.1f}", f"{max(eces):.1f}"]
            counts.append([name, kind, *(f"{one} of {len(own)}" for one in met), *spread])
        for cell in sorted(cells, key=lambda one: (one["ways"], one["shots"])):
            before, after = cell["text"]["photos"], cell["text"]["sentences"]
            lines.append([name, str(cell["ways"]), str(cell["shots"]), f"{after['accuracy']:.1f} ± {after['ci']:.1f}"])
            for number in ("says", "ece", "kept_known", "rejected_unknown", "coverage_at_90"):
                shown = [f"{before[number]:.1f}", _with_interval(after, number)] if number in after else []
                lines[-1].append(" → ".join(shown))
            lines[-1].insert(5, f"{after['gap']:+.1f} ± {after['gap_ci']:.1f}")
            judged = [_with_interval(after, number) for _, number in DOUBTFUL.values()]
            if any(judged):
                labels.append([name, str(cell["ways"]), str(cell["shots"]), *judged])
    head = ["data", "numbers of", "ECE at most 5 %", "known kept 92 to 98 %", "or within its interval"]
    head += ["says what is true within its interval"]
    columns = ["accuracy %", "says %", "too sure by", "ECE %", "known kept %", "unknown rejected %", "in sets of 90 %"]
    return "\n\n".join(
        [
            table([*head, "mean ECE %", "largest ECE %"], counts),
            "Photos' numbers → sentences' numbers:",
            table(["data", "ways", "shots", *columns], lines),
            "Doubtful labels, with sentences' numbers:",
            table(["data", "ways", "shots", *DOUBTFUL], labels),
        ]
    )


def claims_tables(found: dict[str, kept.Part], names: Sequence[str]) -> str:
    """For each kind of rows: by how much the classifier is too sure, with its ECE; and the share of known ones kept."""
    kinds = {
        part: None for name in names for cell in found[name]["cells"].values() for part in cell if "claims" in part
    }
    return "\n\n".join(f"{kind}, {text}" for kind in kinds for text in _claims(found, names, kind))


def _claims(found: dict[str, kept.Part], names: Sequence[str], part: str) -> Iterator[str]:
    own = {
        (name, str(cell["ways"]), cell["shots"]): cell[part]
        for name in names
        for cell in sorted(found[name]["cells"].values(), key=lambda cell: cell["ways"])
        if part in cell
    }
    shots = sorted({cell[2] for cell in own})
    columns = ["data", "ways", *(f"{each} shot{'s' * (each > 1)}" for each in shots)]
    texts = {
        "too sure by, and ECE %": lambda one: f"{one['gap']:+.1f} ± {one['gap_ci']:.1f}, {one['ece']:.1f}",
        "known kept %": lambda one: f"{one['kept_known']:.1f} ± {one['kept_known_ci']:.1f}",
    }
    rows = list(dict.fromkeys(cell[:2] for cell in own))
    for title, text in texts.items():
        shown = lambda cell, text=text: text(own[cell]) if cell in own else ""
        yield f"{title}:\n\n" + table(columns, [[*row, *(shown((*row, each)) for each in shots)] for row in rows])
    met = {name: [one for cell, one in own.items() if cell[0] == name] for name in names}
    yield "cells that meet the aims:\n\n" + table(
        ["data", "ECE at most 5 %", "mean ECE %", "largest", "known kept 92 to 98 %", "lowest", "highest"],
        [
            [
                name,
                f"{sum(round(one['ece'], 1) <= MOST_ECE for one in cells)} of {len(cells)}",
                f"{sum(one['ece'] for one in cells) / len(cells):.1f}",
                f"{max(one['ece'] for one in cells):.1f}",
                f"{sum(KEPT[0] <= round(one['kept_known'], 1) <= KEPT[1] for one in cells)} of {len(cells)}",
                f"{min(one['kept_known'] for one in cells):.1f}",
                f"{max(one['kept_known'] for one in cells):.1f}",
            ]
            for name, cells in met.items()
            if cells
        ],
    )


ONLY = {"map": map_tables, "views": views_table, "text": text_tables, "claims": claims_tables}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--results", type=Path, default=Path("results/classifier/measured.json.xz"))
    parser.add_argument("--only", choices=ONLY, help="only what this part of the measurement found")
    options = parser.parse_args()
    found = kept.read(options.results)
    if options.only:
        print(ONLY[options.only](found, options.data))
        return
    print(f"Ours and the best rival of each cell:\n\n{against_best(found, options.data)}\n")
    print(f"Ours ahead / level / behind, mean difference:\n\n{by_rival(found, options.data)}\n")
    print(f"Every cell:\n\n{short(found, options.data)}\n")
    for title, columns in {
        "Unknown": UNKNOWN,
        "Doubtful labels": DOUBTFUL,
        "Prediction sets": SETS,
        "Queries used together": TOGETHER,
    }.items():
        print(f"{title}:\n\n{flags(found, options.data, columns)}\n")
    for name in options.data:
        rows = found[name]["rows"]
        for ways in sorted({row["ways"] for row in rows}):
            print(f"{name}, {compared(rows, ways)}\n")


if __name__ == "__main__":
    main()

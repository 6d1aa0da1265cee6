"""Print as Markdown what `measure_classifier.py` found; --long prints every number of every classifier."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from classifier_measure import kept

Row = dict[str, Any]
OURS = "E3BMClassifier"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    first = list(head)
    show = lambda cells: "| " + " | ".join(cells) + " |"
    return "\n".join([show(first), "|---" * len(first) + "|", *map(show, lines)])


def long(rows: list[Row]) -> str:
    """Every number of every classifier."""
    lines = []
    for row in rows:
        line = [
            str(row["shots"]), row["method"], f"{row['accuracy']:.2f} ± {row['ci']:.2f}", f"{row['nll']:.3f}",
            f"{row['ece']:.1f}",
        ]  # fmt: skip
        ours = row.get("ours_minus_this")
        other = [f"{ours['accuracy']:+.2f} ± {ours['ci']:.2f}", f"{ours['nll']:+.3f}"] if ours else ["", ""]
        lines.append(line + other)
    return table(
        [
            "shots",
            "classifier",
            "accuracy %",
            "NLL",
            "ECE %",
            "difference in accuracy",
            "in NLL",
        ],
        lines,
    )


def by_shots(rows: list[Row], show: Any) -> str:
    """A line for each classifier, a column for each number of shots."""
    shots = sorted({row["shots"] for row in rows})
    found = {(row["method"], row["shots"]): show(row) for row in rows}
    names = list(dict.fromkeys(row["method"] for row in rows))
    head = ["classifier", *(f"{each} shot{'s' * (each > 1)}" for each in shots)]
    return table(head, ([name, *(found.get((name, each), "") for each in shots)] for name in names))


def difference(row: Row) -> str:
    """How far ours, each query alone, is ahead on the same episodes."""
    ours = row.get("ours_minus_this")
    return f"{ours['accuracy']:+.2f} ± {ours['ci']:.2f}" if ours else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results/classifier/measured.json.xz"))
    options = parser.parse_args()
    for name in options.data:
        rows = kept.read(options.results)[name]["rows"]
        rows.sort(key=lambda row: row["shots"])
        sets = ", ".join(f"{each['shots']}: {each['episodes']}" for each in rows if each["method"] == OURS)
        print(f"{rows[0]['about']}; support sets by shots {sets}\n")
        if options.long:
            print(long(rows))
            continue
        print("Accuracy %:\n\n" + by_shots(rows, lambda row: f"{row['accuracy']:.2f} ± {row['ci']:.2f}") + "\n")
        print("Ours, each query alone, minus the row:\n\n" + by_shots(rows, difference) + "\n")
        print(
            "NLL, and ECE % in brackets:\n\n"
            + by_shots(rows, lambda row: f"{row['nll']:.3f} ({row['ece']:.1f})")
            + "\n"
        )


if __name__ == "__main__":
    main()

"""Predictions on stdout: for people, for spreadsheets and for programs."""

import csv
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from e3bm.cli.console import print_json

if TYPE_CHECKING:
    from e3bm.fewshot.prediction import Prediction

Rows = Sequence[tuple[str, "Prediction"]]


def write_json(classes: Sequence[str], rows: Rows) -> None:
    """A list of {path, label, probabilities, unknown, disagreement}."""
    print_json([{"path": path, **found.as_json()} for path, found in rows])


def write_csv(classes: Sequence[str], rows: Rows) -> None:
    """A line per photo; a column for each class, named ``p(class)``, after the fixed ones."""
    sets = any(found.prediction_set is not None for _, found in rows)
    table = csv.writer(sys.stdout, lineterminator="\n")
    fixed = ["path", "label", "probability", "unknown", "disagreement", *(["prediction_set"] if sets else [])]
    table.writerow([*fixed, *(f"p({name})" for name in classes)])
    for path, found in rows:
        shares = [f"{found.probabilities[name]:.6f}" for name in classes]
        inside = ["; ".join(found.prediction_set)] if found.prediction_set is not None else []
        unknown = "yes" if found.unknown else "no"
        first = [path, found.label, f"{found.confidence:.6f}", unknown, f"{found.disagreement:.6f}"]
        table.writerow([*first, *inside, *shares])


def write_text(classes: Sequence[str], rows: Rows) -> None:
    """Aligned columns: path, class, probability, and what should give pause."""
    if not rows:
        return
    paths = max(len(path) for path, _ in rows)
    labels = max(len(found.label) for _, found in rows)
    for path, found in rows:
        remarks = []
        if found.unknown:
            remarks.append("looks like none of the classes")
        if found.prediction_set is not None and len(found.prediction_set) > 1:
            remarks.append(f"or {', '.join(name for name in found.prediction_set if name != found.label)}")
        remark = f"  {'; '.join(remarks)}" if remarks else ""
        print(f"{path:<{paths}}  {found.label:<{labels}}  {100 * found.confidence:5.1f} %{remark}")

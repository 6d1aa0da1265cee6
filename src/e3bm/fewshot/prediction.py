"""Prediction: what is said of one photo. Each of its fields also says how it is found and shown.

A field is the one definition of a column: the JSON and CSV of `e3bm predict`, the remarks in its text table, the
answers of the HTTP API and `E3BMClassifier.details` are all made from the fields, so that a new one is added here only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from e3bm.errors import SettingsError
from e3bm.fewshot.fitted_head import PredictionArrays

MOST_BARS = 5
MOST_ROWS = 50
"""Predictions that a notebook shows of a long list."""


@dataclass(frozen=True)
class Column:
    """How one field of a Prediction is found, described and shown."""

    about: str
    """One sentence for the description of the API."""
    array: Callable[[PredictionArrays], Any]
    """The values of N examples as an array, or None where they were not asked for."""
    value: Callable[[Sequence[str], Any], Any]
    """One element of the array as a Python value, given the class names."""
    cells: Callable[["Prediction"], dict[str, str]] | None
    """Its cells in a CSV table, by the name of the column; None for one cell under the field's own name."""
    remark: Callable[["Prediction"], str]
    """What a person should be told of it in the text table; empty for nothing."""
    by_class: bool
    """Whether it has a cell for every class: these come last in a row."""


def column(
    about: str,
    array: Callable[[PredictionArrays], Any],
    *,
    value: Callable[[Sequence[str], Any], Any] = lambda classes, element: element.item(),
    cells: Callable[["Prediction"], dict[str, str]] | None = None,
    remark: Callable[["Prediction"], str] = lambda found: "",
    by_class: bool = False,
) -> dict[Any, Column]:
    """The metadata of a field of Prediction: its Column."""
    return {Column: Column(about, array, value, cells, remark, by_class)}


def ranked_sets(found: PredictionArrays) -> np.ndarray | None:
    """The classes in each example's set by number, the most probable first, and -1 for those outside of it."""
    if found.sets is None:
        return None
    order = np.argsort(-found.probabilities, axis=1, kind="stable")
    return np.where(np.take_along_axis(found.sets, order, axis=1), order, -1)


def _other_members(found: "Prediction") -> str:
    others = [name for name in found.prediction_set or () if name != found.label]
    return f"or {', '.join(others)}" if others else ""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The best class, how sure that is, and whether none of the classes fits."""

    label: str = field(
        metadata=column(
            "The most probable class, always one of the model's.",
            lambda found: found.labels,
            value=lambda classes, number: classes[int(number)],
        )
    )
    confidence: float = field(
        metadata=column("The probability of the best class.", lambda found: found.probabilities.max(1))
    )
    probabilities: dict[str, float] = field(
        metadata=column(
            "The calibrated probability of every class; they sum to 1.",
            lambda found: found.probabilities,
            value=lambda classes, row: dict(zip(classes, row.tolist(), strict=True)),
            cells=lambda found: {f"p({name})": f"{share:.6f}" for name, share in found.probabilities.items()},
            by_class=True,
        )
    )
    unknown: bool = field(
        metadata=column(
            "Whether the photo looks like none of the classes.",
            lambda found: found.unknown,
            remark=lambda found: "looks like none of the classes" if found.unknown else "",
        )
    )
    unknown_score: float = field(
        metadata=column(
            "The share of photos of the classes that should look less strange, from 0 to 1; if it exceeds the recall "
            "(0.95 by default), the photo is called unknown.",
            lambda found: found.unknown_scores,
        )
    )
    disagreement: float = field(
        metadata=column(
            "How much the epochs of the ensemble disagree, from 0 to 1.",
            lambda found: found.disagreement,
        )
    )
    prediction_set: tuple[str, ...] | None = field(
        default=None,
        metadata=column(
            "Classes that include the right one with the requested coverage, the most probable first; None if not "
            "requested.",
            ranked_sets,
            value=lambda classes, row: tuple(classes[number] for number in row if number >= 0),
            remark=_other_members,
        ),
    )

    def _repr_html_(self) -> str:
        """Bars of the most probable classes, for notebooks."""
        from html import escape

        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])[:MOST_BARS]
        bars = "".join(
            f"<tr><td>{escape(name)}</td><td style='min-width:12em'><div style='background:#0072b2;height:.8em;"
            f"width:{100 * share:.1f}%'></div></td><td>{100 * share:.1f} %</td></tr>"
            for name, share in ranked
        )
        said = remarks(self)
        note = f"<p>{escape(said)}</p>" if said else ""
        return f"<p><b>{escape(self.label)}</b> ({100 * self.confidence:.1f} %)</p>{note}<table>{bars}</table>"

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values; the prediction set only where there is one."""
        values = {name: getattr(self, name) for name in COLUMNS}
        return {name: _json_value(value) for name, value in values.items() if value is not None}


COLUMNS: dict[str, Column] = {one.name: one.metadata[Column] for one in fields(Prediction)}
"""The columns of a prediction by name, in the order in which they are shown."""


def column_arrays(found: PredictionArrays) -> dict[str, np.ndarray]:
    """Every column of N examples as an array; those that were not asked for are left out."""
    arrays = {name: one.array(found) for name, one in COLUMNS.items()}
    return {name: array for name, array in arrays.items() if array is not None}


def prediction_records(classes: Sequence[str], found: PredictionArrays) -> list[Prediction]:
    """A record for every example."""
    arrays = column_arrays(found)
    return [
        Prediction(**{name: COLUMNS[name].value(classes, array[row]) for name, array in arrays.items()})
        for row in range(len(found.labels))
    ]


class Predictions(list[Prediction]):
    """The predictions of several photos, in their order: a list that is also a table."""

    def __init__(self, found: Iterable[Prediction] = (), names: Sequence[str] = (), column: str = "path") -> None:
        """``names`` are the paths of the photos, where they have any; a table calls them ``column``."""
        super().__init__(found)
        self.names, self.column = tuple(names), column

    def to_frame(self) -> Any:
        """A pandas frame with a row for each photo and the columns of `e3bm predict --csv`, in numbers."""
        try:
            import pandas
        except ImportError:
            raise SettingsError("A data frame needs pandas; run: pip install pandas") from None
        rows = [_frame_cells(one) for one in self]
        index = pandas.Index(self.names, name=self.column) if len(self.names) == len(self) else None
        return pandas.DataFrame(rows, index=index)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from html import escape

        shown = "".join(
            f"<tr><td>{escape(name)}</td><td><b>{escape(one.label)}</b></td><td>{100 * one.confidence:.1f} %</td>"
            f"<td>{escape(remarks(one))}</td></tr>"
            for name, one in zip(self.names or map(str, range(len(self))), self[:MOST_ROWS], strict=False)
        )
        more = f"<p>{len(self) - MOST_ROWS} more</p>" if len(self) > MOST_ROWS else ""
        head = "<tr><th></th><th>label</th><th>confidence</th><th>remarks</th></tr>"
        return f"<table><thead>{head}</thead><tbody>{shown}</tbody></table>{more}"


def csv_table(classes: Sequence[str], found: Sequence[Prediction]) -> list[list[str]]:
    """The names of the columns and a row of cells for each prediction; the columns of the classes come last."""
    rows = [_csv_cells(one) for one in found]
    names = rows[0] if rows else _csv_cells(_placeholder(classes))
    return [list(names), *(list(row.values()) for row in rows)]


def remarks(found: Prediction) -> str:
    """What should give a person pause, in a few words; empty for an ordinary prediction."""
    return "; ".join(filter(None, (one.remark(found) for one in COLUMNS.values())))


def _frame_cells(found: Prediction) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, one in sorted(COLUMNS.items(), key=lambda item: item[1].by_class):
        value = getattr(found, name)
        if one.by_class and isinstance(value, dict):
            cells |= {f"p({key})": share for key, share in value.items()}
        elif value is not None:
            cells[name] = value
    return cells


def _csv_cells(found: Prediction) -> dict[str, str]:
    cells: dict[str, str] = {}
    for name, one in sorted(COLUMNS.items(), key=lambda item: item[1].by_class):
        value = getattr(found, name)
        if value is not None:
            cells |= {name: _cell(value)} if one.cells is None else one.cells(found)
    return cells


def _placeholder(classes: Sequence[str]) -> Prediction:
    """A prediction that says nothing: a table without rows still has a header."""
    nothing = np.zeros(1)
    labels, no = nothing.astype(int), nothing > 0
    arrays = PredictionArrays(np.zeros((1, len(classes))), labels, no, nothing, nothing, nothing)
    return prediction_records(classes, arrays)[0]


def _json_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, dict) else value


def _cell(value: bool | float | str | tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "; ".join(value)
    return f"{value:.6f}" if isinstance(value, float) else str(value)

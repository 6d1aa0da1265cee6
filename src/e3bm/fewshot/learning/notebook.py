"""A fitted classifier as a notebook shows it: its classes, what to expect of it, and what to look at."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier

MOST_CLASSES = 30


def classifier_html(model: "FewShotClassifier") -> str:
    """HTML for ``_repr_html_``; every name is escaped."""
    name = type(model).__name__
    if not model.is_fitted:
        return f"<p><b>{name}</b>, which knows no class yet ({escape(model.extractor.origin.name)})</p>"
    counts = model.counts
    rows = "".join(
        f"<tr><td>{escape(label)}</td><td>{count}</td></tr>" for label, count in list(counts.items())[:MOST_CLASSES]
    )
    more = f"<tr><td>{len(counts) - MOST_CLASSES} more</td><td></td></tr>" if len(counts) > MOST_CLASSES else ""
    said = [f"{len(counts)} classes, {sum(counts.values())} examples, {escape(model.extractor.origin.name)}"]
    if model.expected_accuracy is not None and model.left_out_accuracy is not None:
        said.append(
            f"expected on new examples: about {100 * model.expected_accuracy:.0f} % "
            f"(left-out accuracy {100 * model.left_out_accuracy:.1f} %)"
        )
    said += [
        f"doubtful: {escape(one.name)} is in '{escape(one.label)}' and looks like '{escape(one.looks_like)}'"
        for one in model.suspicions
    ]
    said += [f"note: {escape(note)}" for note in model.notes]
    table = f"<table><thead><tr><th>class</th><th>examples</th></tr></thead><tbody>{rows}{more}</tbody></table>"
    return f"<p><b>{name}</b><br>{'<br>'.join(said)}</p>{table}"

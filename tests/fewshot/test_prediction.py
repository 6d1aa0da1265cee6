"""A column of predictions is defined in one place, and shown everywhere."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from e3bm import Prediction
from e3bm.fewshot.fitted_head import PredictionArrays
from e3bm.fewshot.prediction import COLUMNS, csv_table, prediction_records, remarks
from photo_models import picture, support, unfitted

pytestmark = pytest.mark.same_anywhere

ROOT = Path(__file__).resolve().parents[2]
SETS = np.array([[False, True, True], [True, False, False]])
ARRAYS = PredictionArrays(
    probabilities=np.array([[0.125, 0.5, 0.375], [0.75, 0.25, 0.0]]),
    labels=np.array([1, 0]),
    unknown=np.array([True, False]),
    known_scores=np.array([-1.0, 2.0]),
    disagreement=np.array([0.25, 0.0]),
    unknown_scores=np.array([0.96875, 0.5]),
    sets=SETS,
)


def test_records_tables_and_remarks_come_from_the_columns():
    first, second = prediction_records(("a", "b", "c"), ARRAYS)
    assert first == Prediction(
        label="b",
        confidence=0.5,
        probabilities={"a": 0.125, "b": 0.5, "c": 0.375},
        unknown=True,
        unknown_score=0.96875,
        disagreement=0.25,
        prediction_set=("b", "c"),
    )
    assert json.loads(json.dumps(first.as_json()))["prediction_set"] == ["b", "c"]
    header, *rows = csv_table(("a", "b", "c"), [first, second])
    assert header == [
        "label", "confidence", "unknown", "unknown_score", "disagreement", "prediction_set", "p(a)", "p(b)", "p(c)",
    ]  # fmt: skip
    assert rows[0] == ["b", "0.500000", "yes", "0.968750", "0.250000", "b; c", "0.125000", "0.500000", "0.375000"]
    assert (remarks(first), remarks(second)) == ("looks like none of the classes; or c", "")
    (only_a_header,) = csv_table(("a", "b", "c"), [])
    assert only_a_header == [name for name in header if name != "prediction_set"]


def test_every_field_is_a_column_with_a_sentence_and_a_line_in_the_guide():
    guide = (ROOT / "docs" / "how_to" / "own_photos.md").read_text()
    assert list(COLUMNS) == [one.name for one in fields(Prediction)]
    for name, column in COLUMNS.items():
        assert column.about.endswith(".")
        assert f"| {name} |" in guide


# The module as if its author had added one field, in this process and in those that the server starts; everything else
# is imported after that, as it is.
ADD_A_COLUMN = '''
import importlib.util, sys, types
spec = importlib.util.find_spec("e3bm.fewshot.prediction")
text = open(spec.origin).read()
mark = "    prediction_set: tuple[str, ...] | None = field("
field = """    margin: float = field(
        metadata=column(
            "How far the best class is ahead of the second.",
            lambda found: np.diff(np.sort(found.probabilities, 1)[:, -2:], axis=1)[:, 0],
            remark=lambda found: "narrow" if found.margin < 2 else "",
        )
    )
"""
assert text.count(mark) == 1
changed = types.ModuleType("e3bm.fewshot.prediction")
changed.__file__ = spec.origin
sys.modules["e3bm.fewshot.prediction"] = changed
exec(compile(text.replace(mark, field + mark), spec.origin, "exec"), changed.__dict__)
'''
SHOW_IT = """
import io, json
from contextlib import redirect_stdout
import numpy as np
from e3bm import E3BMClassifier
from e3bm.cli.commands.predict import _write_csv, _write_json, _write_text
from fastapi.testclient import TestClient
from e3bm.serving.app import create_app
from photo_models import picture, support, unfitted

def printed(write):
    with redirect_stdout(io.StringIO()) as out:
        write(model.classes, [("a.png", found)])
    return out.getvalue()

model = unfitted().fit(support())
found = model.predict(picture("sky", 9))
image = io.BytesIO()
from PIL import Image
Image.fromarray(picture("sky", 9)).save(image, "png")
with TestClient(create_app(None, model), base_url="http://localhost") as client:
    (served,) = client.post("/predict", files={"photos": image.getvalue()}).json()["predictions"]
    schema = client.get("/openapi.json").json()["components"]["schemas"]["PhotoPrediction"]["properties"]["margin"]
rows = np.eye(4)
print(json.dumps({
    "attribute": found.margin, "json": json.loads(printed(_write_json))[0]["margin"],
    "csv": dict(zip(*[line.split(",") for line in printed(_write_csv).splitlines()]))["margin"],
    "text": printed(_write_text), "http": served["margin"], "schema": schema,
    "sklearn": E3BMClassifier().fit(rows, [0, 0, 1, 1]).details(rows)["margin"].shape,
}))
"""


def test_a_new_column_is_one_field(tmp_path):
    """A field that is added to Prediction, and nowhere else, is in JSON, CSV, text, HTTP, OpenAPI and scikit-learn."""
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
    pytest.importorskip("httpx", reason="httpx is not installed")
    (tmp_path / "sitecustomize.py").write_text(ADD_A_COLUMN)  # run by every Python that finds it
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", SHOW_IT], capture_output=True, text=True, check=False, cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    shares = sorted(unfitted().fit(support()).predict(picture("sky", 9)).probabilities.values())
    margin = pytest.approx(shares[-1] - shares[-2], abs=1e-6)  # another process, the same numbers up to rounding
    assert found["attribute"] == found["json"] == found["http"] == margin
    assert found["csv"] == f"{found['attribute']:.6f}"
    assert found["text"].rstrip().endswith("narrow")
    assert found["schema"] == {
        "description": "How far the best class is ahead of the second.",
        "title": "Margin",
        "type": "number",
    }
    assert found["sklearn"] == [4]

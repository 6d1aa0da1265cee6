"""pandas in and out, weights of rows, and what left-out accuracy says of new examples."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris

from e3bm import E3BMClassifier, TextClassifier
from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.fitted_head import FitOptions, fit_head
from e3bm.fewshot.prior.file import load_prior
from photo_models import CLASSES, picture, same_fit, support, unfitted, write_folder


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


def test_columns_of_a_frame_are_photos_and_labels(pandas, tmp_path):
    folder = write_folder(tmp_path / "photos")
    rows = [{"path": str(path), "label": path.parent.name} for path in sorted(folder.rglob("*.png"))]
    frame = pandas.DataFrame(rows).sample(frac=1, random_state=1)
    assert same_fit(unfitted().fit(frame["path"], frame["label"]), unfitted().fit(folder))


def test_a_whole_frame_is_photos_and_labels(pandas, tmp_path):
    folder = write_folder(tmp_path / "photos")
    rows = [{"n": 1, "path": path, "label": path.parent.name} for path in sorted(folder.rglob("*.png"))]
    frame, whole = pandas.DataFrame(rows), unfitted().fit(folder)
    assert same_fit(unfitted().fit(frame), whole)
    assert same_fit(unfitted().fit(frame[["path"]], frame[["label"]]), whole)
    assert same_fit(unfitted().fit(frame.rename(columns={"path": "where", "label": "Class"})), whole)
    assert whole.predict(frame) == whole.predict(list(frame["path"])) == whole.predict(frame[["path"]])
    np.testing.assert_array_equal(whole.predict_proba(frame), whole.predict_proba(frame["path"]))
    assert whole.evaluate(frame).accuracy.value == whole.evaluate(folder).accuracy.value


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": ["x"], "b": ["y"]}, "has the columns a, b; expected a column path with the photos"),
        ({"n": [1.0]}, "has the columns n; expected a column path"),
        ({}, "has no columns; expected a column path"),
        ({"path": ["x"], "n": [1]}, "has the columns path, n; expected a column label"),
        ({"path": ["x", "y", "z"], "label": ["sky", None, float("nan")]}, "needs a label; 2 photos have none"),
    ],
)
def test_a_frame_without_photos_or_labels_is_refused_by_its_columns(pandas, columns, words):
    with pytest.raises(DataError, match=words):
        unfitted().fit(pandas.DataFrame(columns))


def test_sentences_of_a_frame(pandas):
    model = TextClassifier(lambda texts: np.array([[len(text), text.count("o") + 1.0] for text in texts]))
    frame = pandas.DataFrame({"text": ["no", "oo", "longer words", "as long as"], "label": ["a", "a", "b", "b"]})
    model.fit(frame)
    assert model.counts == {"a": 2, "b": 2}
    found = model.predict(frame.drop(columns="label"))
    assert found == model.predict(list(frame["text"]))
    assert model.predict(frame.rename(columns={"text": "what they wrote"})) == found
    assert model.add_shots("a", pandas.DataFrame({"text": ["on"]})).counts["a"] == 3
    with pytest.raises(DataError, match="has the columns x, y; expected a column text with the sentences"):
        model.predict(pandas.DataFrame({"x": ["a"], "y": ["b"]}))


def test_predictions_become_a_frame(pandas, tmp_path):
    model = unfitted().fit(support())
    folder = write_folder(tmp_path / "photos", count=2)
    paths = [str(path) for path in sorted(folder.rglob("*.png"))]
    found = model.predict(paths, coverage=0.9)
    frame = found.to_frame()
    assert list(frame.index) == paths
    assert list(frame["label"]) == [one.label for one in found]
    assert list(frame["prediction_set"]) == [one.prediction_set for one in found]
    assert np.allclose(frame[[f"p({name})" for name in CLASSES]].sum(axis=1), 1)
    assert frame["unknown"].dtype == bool
    assert list(model.predict([picture("sky", 3)]).to_frame().index) == ["1"]
    assert len(model.predict([]).to_frame()) == 0


def test_without_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(SettingsError, match="pip install pandas"):
        unfitted().fit(support()).predict([picture("sky", 3)]).to_frame()


def test_notebooks_show_predictions_with_escaped_names():
    model = unfitted().fit({f"<{name}>": photos for name, photos in support().items()})
    found = model.predict([picture("sky", number) for number in range(60)])
    assert "&lt;sky&gt;" in found._repr_html_()
    assert "10 more" in found._repr_html_()
    assert "<sky>" not in found._repr_html_() + found[0]._repr_html_()
    assert f"{100 * found[0].confidence:.1f} %" in found[0]._repr_html_()


def rows_of_iris(count=40):
    found = load_iris()
    places = np.random.default_rng(0).permutation(len(found.target))
    return found.data[places[:count]], found.target[places[:count]], found.data[places[count:]]


def test_a_weight_is_a_number_of_equal_rows():
    rows, labels, asked = rows_of_iris()
    weights = np.random.default_rng(1).integers(0, 4, len(rows))
    weighted = E3BMClassifier(unit_length=False).fit(rows, labels, sample_weight=weights)
    repeated = E3BMClassifier(unit_length=False).fit(np.repeat(rows, weights, 0), np.repeat(labels, weights))
    plain = E3BMClassifier(unit_length=False).fit(rows, labels)
    assert np.allclose(weighted.predict_proba(asked), repeated.predict_proba(asked), atol=1e-9)
    assert not np.allclose(weighted.predict_proba(asked), plain.predict_proba(asked), atol=1e-3)
    same = E3BMClassifier(unit_length=False).fit(rows, labels, sample_weight=np.ones(len(rows)))
    assert np.array_equal(same.predict_proba(asked), plain.predict_proba(asked))


def test_doubtful_rows_keep_their_places():
    rows, labels, _ = rows_of_iris()
    wrong = labels.copy()
    wrong[30] = (labels[30] + 1) % 3
    weights = np.ones(len(rows))
    weights[:5] = 0
    assert 30 in E3BMClassifier(unit_length=False).fit(rows, wrong, sample_weight=weights).suspicious_


@pytest.mark.parametrize("weights", [[-1.0] + [1.0] * 39, [0.0] * 40, [1.0] * 3])
def test_weights_that_cannot_be_are_refused(weights):
    rows, labels, _ = rows_of_iris()
    with pytest.raises(ValueError):
        E3BMClassifier().fit(rows, labels, sample_weight=weights)


def test_the_expected_accuracy_is_nearer_to_the_truth():
    """With two of each digit, where one less matters most, left-out accuracy is far too low; the corrected is near."""
    data, labels = load_digits(return_X_y=True)
    prior, random = load_prior(), np.random.default_rng(5)
    found = []
    for _ in range(30):
        places = random.permutation(len(labels))
        chosen = np.concatenate([places[labels[places] == name][:2] for name in range(10)])
        rest = np.setdiff1d(places, chosen)[:300]
        head = fit_head(prior, data[chosen].astype(np.float32), labels[chosen].astype(np.int64), 10, FitOptions())
        truth = (head.scores(data[rest].astype(np.float32)).argmax(1) == labels[rest]).mean()
        found.append((head.left_out_accuracy, head.expected_accuracy, truth))
    left_out, expected, truth = np.mean(found, axis=0)
    assert left_out < truth
    assert abs(expected - truth) < (truth - left_out) / 2


def test_nothing_is_expected_of_single_examples():
    assert unfitted().fit(support(1)).expected_accuracy is None


def test_probabilities_become_a_frame_by_scikit_learns_own_setting(pandas):
    rows, labels, asked = rows_of_iris()
    model = E3BMClassifier(unit_length=False).fit(rows, np.array(["a", "b", "c"])[labels])
    assert np.array_equal(model.transform(asked), model.predict_proba(asked))
    frame = model.set_output(transform="pandas").transform(asked)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["p(a)", "p(b)", "p(c)"]
    assert np.array_equal(frame.to_numpy(), model.predict_proba(asked))


def test_plots_show_the_numbers():
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    rows, labels, _ = rows_of_iris(60)
    model = E3BMClassifier(unit_length=False).fit(rows[:30], labels[:30])
    axes = Figure().add_subplot()
    plot = model.plot_reliability(rows[30:], labels[30:], ax=axes)
    assert plot.ax_ is axes
    assert plot.figure_ is axes.figure
    found = model.predict_proba(rows[30:]).max(1)
    (dots,) = [one for one in axes.collections if isinstance(one, PathCollection)]
    shown = dots.get_offsets()
    assert found.min() * 100 <= shown[:, 0].min() <= shown[:, 0].max() <= found.max() * 100
    votes = model.plot_votes(ax=Figure().add_subplot())
    assert len(votes.ax_.patches) == 2 * len(model.votes_)


def test_notebooks_show_a_classifier():
    assert "knows no class yet" in unfitted()._repr_html_()
    shown = unfitted().fit({"<b>": support()["sky"], "grass": support()["grass"]})._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "left-out accuracy" in shown


def test_a_classifier_is_printed_as_what_it_knows():
    assert repr(unfitted()).endswith(", not fitted>")
    examples = support(3)
    assert repr(unfitted().fit(examples)).endswith(f": {len(examples)} classes, {3 * len(examples)} photos>")


def test_nothing_is_expected_where_a_class_has_one_example():
    shots = support(4)
    name = next(iter(shots))
    model = unfitted().fit({**shots, name: shots[name][:1]})
    assert model.left_out_accuracy is not None
    assert model.expected_accuracy is None

"""What scripts/measure_classifier.py measures classifiers by: rivals in the span of the examples, and what is kept."""

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "classifier_measure"]:
        del sys.modules[name]


def task(ways, shots=4, dimensions=50):
    """More dimensions than examples, as few-shot tasks have."""
    random = np.random.default_rng(0)
    centres = 1 + random.normal(size=(ways, dimensions))
    labels, truth = (np.repeat(np.arange(ways), count) for count in (shots, 10))
    draw = lambda classes: centres[classes] + random.normal(size=(len(classes), dimensions))
    return draw(labels), labels, draw(truth)


@pytest.mark.parametrize("ways", [2, 5])
@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_logistic_regression_in_the_span_predicts_as_in_all_dimensions(ways, strength):
    from classifier_measure import rivals

    support, labels, query = task(ways)
    inside, outside = rivals.placed("unit length", support, query)
    assert inside.shape[1] <= len(support) < support.shape[1]
    found = np.exp(rivals._log_probabilities(rivals._logistic(inside, labels, strength), outside))
    whole = LogisticRegression(C=strength, tol=1e-8, max_iter=10_000).fit(rivals.unit(support), labels)
    np.testing.assert_allclose(found, whole.predict_proba(rivals.unit(query)), atol=2e-3)


@pytest.mark.parametrize("ways", [2, 5])
def test_an_svm_in_the_span_has_the_margins_that_it_has_in_all_dimensions(ways):
    from classifier_measure import rivals

    support, labels, query = task(ways)
    inside, outside = rivals.placed("unit length", support, query)
    mean = rivals.unit(support).mean(0)
    whole = LinearSVC(C=1.0, tol=1e-8, max_iter=100_000, random_state=0).fit(rivals.unit(support) - mean, labels)
    margins = whole.decision_function(rivals.unit(query) - mean)
    found = rivals._margins(inside, labels, outside, 1.0)
    np.testing.assert_allclose(found[:, 1] if ways == 2 else found, margins, atol=5e-3)


def test_a_call_that_asks_no_classifier_leaves_the_rows_of_its_cell(tmp_path):
    from classifier_measure import kept

    path = tmp_path / "measured.json.xz"
    row = {"ways": 5, "shots": 1, "method": "ours", "accuracy": 80.0, "ci": 1.0, "episodes_hash": "a"}
    kept.change_cell(path, "birds", 5, 1, 20, rows=[row], trust={"unknown": {"kept_known": 95.0}})
    kept.change_cell(path, "birds", 5, 1, 20, rows=[], views={"accuracy": 80.0})
    part = kept.read(path)["birds"]
    assert part["rows"] == [row]
    (cell,) = part["cells"].values()
    assert set(cell) == {"ways", "shots", "trust", "views"}

    kept.change_cell(path, "birds", 5, 1, 100, rows=[], trust={"unknown": {"kept_known": 94.0}})
    fewer, more = kept.read(path)["birds"]["cells"].values()
    assert set(fewer) == {"ways", "shots", "views"}
    assert more["trust"] == {"unknown": {"kept_known": 94.0}}
    kept.change_cell(path, "birds", 5, 1, 100, rows=[], views={"accuracy": 81.0})
    (cell,) = kept.read(path)["birds"]["cells"].values()
    assert set(cell) == {"ways", "shots", "trust", "views"}


def test_rivals_stay_while_ours_is_as_accurate_as_before_on_the_same_episodes(tmp_path):
    from classifier_measure import kept

    path = tmp_path / "measured.json.xz"
    ours = {"ways": 5, "shots": 1, "method": "ours", "accuracy": 80.0, "ci": 1.0, "episodes_hash": "a", "ece": 9.0}
    rival = {**ours, "method": "rival", "ours_minus_this": {"accuracy": 1.0, "ci": 0.5, "nll": 0.1, "nll_ci": 0.1}}
    kept.change_cell(path, "birds", 5, 1, 20, rows=[ours, rival])
    kept.change_cell(path, "birds", 5, 1, 20, rows=[{**ours, "ece": 4.0}])
    new, old = kept.read(path)["birds"]["rows"]
    assert new["ece"] == 4.0
    assert old == {**rival, "ours_minus_this": {"accuracy": 1.0, "ci": 0.5}}
    kept.change_cell(path, "birds", 5, 1, 20, rows=[{**ours, "accuracy": 81.0}])
    assert [row["method"] for row in kept.read(path)["birds"]["rows"]] == ["ours"]


def test_the_interval_of_a_share_is_that_of_its_mean_over_support_sets():
    from classifier_measure.trust import means_of

    found = means_of({"kept_known": [90.0, 100.0] * 8, "auroc": [70.0] * 16}, "kept_known")
    assert found == {"kept_known": 95.0, "auroc": 70.0, "kept_known_ci": pytest.approx(1.96 * 5 / 4, abs=1e-3)}


def test_sentences_to_fit_on_are_read_from_the_files_of_packages(tmp_path):
    from classifier_measure import fitting_texts

    sayings = tmp_path / "usr/share/games/fortunes"
    sayings.mkdir(parents=True)
    (sayings / "food").write_text("An apple a day\nkeeps you away.\n\t\t-- A doctor\n%\nEat up.\n")
    (sayings / "food.dat").write_bytes(b"")
    (sayings / "cookie").write_text("Of no subject.\n")
    assert fitting_texts.fortunes(tmp_path) == {"food": ["An apple a day keeps you away.", "Eat up."]}

    asked = tmp_path / "ovos_skill_weather/locale"
    for language, text in (("en-us", "(is|will) it (rain|be (hot|cold)) in {place}\n"), ("de-de", "regnet es\n")):
        (asked / language).mkdir(parents=True)
        (asked / language / "rain.intent").write_text(text)
    assert fitting_texts.requests(tmp_path) == {"weather": ["is it rain in place"]}

    (tmp_path / "available").write_text(
        "Package: a\nSection: mail\nDescription: reads letters\n\nPackage: b\nSection: libs\nDescription: no subject\n"
    )
    assert fitting_texts.descriptions(tmp_path) == {"mail": ["reads letters"]}


def test_of_many_sentences_some_are_taken_evenly():
    from classifier_measure.fitting_texts import evenly

    assert evenly(list("abcdef"), 3) == ["a", "c", "e"]
    assert evenly(list("ab"), 3) == ["a", "b"]


def test_the_gap_is_what_is_claimed_minus_what_is_right():
    from classifier_measure.compare import OURS, measure, rows_of
    from classifier_measure.tables import Table

    labels = np.repeat([0, 1, 2], 30)
    table = Table("three classes", np.eye(3)[labels], labels, (2,))
    answer = lambda table, episode: {OURS: np.tile([0.7, 0.3], (len(episode.query), 1))}
    (row,) = rows_of("", table, 2, 1, 4, measure(table, 2, 1, 4, [answer]))
    assert (row["accuracy"], row["says"], row["gap"], row["gap_ci"]) == pytest.approx((50.0, 70.0, 20.0, 0.0))


def noisy_table(noise):
    from classifier_measure.tables import Table

    random = np.random.default_rng(1)
    labels = np.repeat(np.arange(6), 14)
    features = random.normal(size=(6, 20))[labels] + noise * random.normal(size=(len(labels), 20))
    return Table(f"noise {noise}", features, labels, ())


def test_the_limit_of_doubtful_labels_is_the_least_that_few_right_ones_exceed_in_every_cell(monkeypatch):
    from classifier_measure import limits

    monkeypatch.setattr(limits, "SETS", 20)
    tables = [noisy_table(0.7), noisy_table(2.0)]
    limit, outcome = limits.fit_limit("pixels", tables, 1.0)
    cells = outcome["cells"]
    assert [(row["data"], row["ways"], row["shots"]) for row in cells] == [
        (table.about, ways, shots) for table in tables for ways in (2, 5) for shots in (3, 5, 10)
    ]
    former, new = zip(*(row["right_labels_pointed_out"] for row in cells), strict=True)
    assert max(new) == pytest.approx(5, abs=0.5)
    assert max(former) > 5
    assert limit > 1
    assert limit == limits.fit_limit("pixels", tables[1:], 1.0)[0] > limits.fit_limit("pixels", tables[:1], 1.0)[0]


def test_labels_are_doubted_as_a_fit_doubts_them():
    from classifier_measure.compare import fitted
    from classifier_measure.episodes import episodes
    from classifier_measure.limits import odds_of
    from classifier_measure.trust import doubtful

    from e3bm.fewshot.prior.file import load_prior

    table, prior = noisy_table(1.5), load_prior()
    planted = [episode.with_wrong_label(number) for number, episode in enumerate(episodes(table, 5, 5, 8))]
    odds = odds_of(table, planted[0][0])
    found = {one.position: np.log(one.odds) for one in fitted(prior, table, planted[0][0]).suspicions}
    assert found == pytest.approx({row: odds[row] for row in np.flatnonzero(odds > prior.trust.suspicion)}, rel=1e-4)
    assert found
    named = [[one.position for one in fitted(prior, table, episode).suspicions] for episode, _ in planted]
    measured = doubtful(table, 5, 5, 8, prior.trust)
    hits = [place in rows for rows, (_, place) in zip(named, planted, strict=True)]
    first = [rows[:1] == [place] for rows, (_, place) in zip(named, planted, strict=True)]
    assert measured["found_wrong_label"] == 100 * np.mean(hits)
    assert measured["named_first"] == 100 * np.mean(first)
    wrong = [len(rows) - hit for rows, hit in zip(named, hits, strict=True)]
    assert measured["right_labels_pointed_out"] == pytest.approx(100 * np.mean(wrong) / 24, abs=1e-3)

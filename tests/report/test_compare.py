"""All methods in one table: sorted, on the same episodes, every difference recomputed from the answers."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch

from e3bm.cli.main import main
from e3bm.errors import SettingsError
from e3bm.paper.presets import find_preset, presets
from e3bm.report.compare import COLUMNS, Question, compare, compared_runs, comparison_table, comparison_text
from e3bm.report.result_words import method_words, told_apart
from e3bm.runs.folder.run import duration
from e3bm.runs.kept.entries import entries
from e3bm.runs.kept.store import KeptResults
from e3bm.runs.settings import TrainSettings
from e3bm.runs.system import system_of

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture(scope="module")
def runs():
    return KeptResults(RESULTS).runs("fc100")


@pytest.fixture(scope="module")
def compared():
    return compared_runs(KeptResults(RESULTS))


@pytest.fixture(scope="module")
def studied():
    """The runs of each part of the study by its name."""
    parts = {}
    for run in KeptResults(RESULTS).runs("study"):
        parts.setdefault(run.path.parent.name, []).append(run)
    return parts


@pytest.fixture(scope="module")
def found(runs):
    return compare(runs, Question("fc100", 1, against="nearest class mean resnet12 x0.5 whitened"))


def test_best_first_on_one_list_of_episodes(found):
    accuracies = [result.accuracy for result in found]
    assert accuracies == sorted(accuracies, reverse=True)
    assert len({result.episodes_hash for result in found}) == 1
    assert len({(result.method, result.backbone, result.hyperprior) for result in found}) >= 20


def test_a_difference_is_that_of_all_seeds(found):
    """Not of the seeds that both happen to have: the means of the table are what is subtracted."""
    (partner,) = [result for result in found if result.paired_with is None]
    assert (partner.method, partner.backbone) == ("nearest class mean", "resnet12 x0.5 whitened")
    for result in found:
        if result is not partner:
            assert result.paired_difference == pytest.approx(result.accuracy - partner.accuracy, abs=1e-9)


def test_its_interval_is_paired(runs, found):
    best = found[0]
    names = best.run.split(", ")
    mine = lambda each: each.protocol == best.protocol and each.method == best.method and each.run in names
    members = [run for run in runs if any(map(mine, run.results))]
    (partner,) = [run for run in runs if run.name == "resnet12-half-whitened-s0"]

    def right(run):
        (result,) = [each for each in run.results if each.protocol == best.protocol]
        return torch.tensor(run.answers(result), dtype=torch.double) / (best.ways * best.queries)

    gap = 100 * (torch.stack([right(run) for run in members]).mean(0) - right(partner))
    assert best.paired_ci == pytest.approx(float(1.96 * gap.std(correction=0) / len(gap) ** 0.5), rel=1e-9)


def test_the_table_says_what_it_compares(found):
    table = comparison_table(found)
    assert table.columns == COLUMNS
    text = table.text()
    assert "differences to nearest class mean, resnet12 x0.5 whitened" in text
    assert "SIB+E3BM (fc transductive)" in text
    assert len(table.rows) == len(found)
    said = " ".join(text.split())  # times of features that were computed before and of images are of two kinds
    assert 'rows cannot be compared by it: the table "Every method" of docs/performance.md has CPU times' in said


@pytest.mark.parametrize("shots", [1, 5])
def test_what_was_trained_on_cross_fitted_tasks_is_in_the_table_and_says_so(compared, shots):
    found = compare(compared, Question("fc100", shots))
    learned = [result for result in found if result.method == "MAP+E3BM"]
    assert learned
    assert all("tasks cross-fitted" in method_words(result) for result in learned)
    (alone,) = [result for result in found if result.method == "MAP" and not result.train_seconds]
    assert "tasks" not in method_words(alone)  # nothing of it is trained
    names = [f"{method_words(result)}, {result.backbone}" for result in found]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("dataset", "shots", "study", "words"),
    [
        ("fc100", 1, "related-1shot", "tasks cross-fitted, related 0.5"),
        ("fc100", 5, "one-fold-5shot", "tasks cross-fitted"),
        ("fc100", 5, "equivariant-5shot", "tasks cross-fitted, related 0.25, gradient net equivariant"),
        ("miniimagenet", 1, "miniimagenet-cross-fitted-1shot", "tasks cross-fitted"),
        ("miniimagenet", 5, "miniimagenet-cross-fitted-5shot", "tasks cross-fitted"),
    ],
)
def test_rows_of_the_study_that_the_pages_quote_are_in_the_table(compared, studied, dataset, shots, study, words):
    found = compare(compared, Question(dataset, shots))
    quoted = [entry for entry in entries(studied[study]) if entry.first.dataset == dataset and not entry.first.uneven]
    assert quoted
    for entry in quoted:
        (row,) = [result for result in found if result.system == entry.first.system]
        assert row.accuracy == pytest.approx(entry.together().accuracy)
        assert words in row.apart


def test_what_was_trained_again_on_better_tasks_is_tabled_once(compared, studied):
    """MAP was not: its rows stay."""
    for shots in (1, 5):
        name = f"cross-fitted-{shots}shot"
        shown = {run.name for run in compared if run.path.parent.name == name}
        assert shown == {run.name for run in studied[name] if run.name.startswith("map-")}


def test_parts_of_the_study_that_are_not_kept_are_no_error(studied):
    add = [run for name in ("related-1shot", "cross-fitted-1shot") for run in studied[name] if run.name[-2:] == "s0"]
    kept = SimpleNamespace(runs=lambda under: add, tabled=list)
    assert {run.path.parent.name for run in compared_runs(kept)} == {"related-1shot", "cross-fitted-1shot"}


def test_what_a_method_does_otherwise_by_choice_is_told():
    """Also where something else would do to tell two systems apart."""
    train = find_preset("small-sib-whitened-fc100-1shot-plain").train
    other = train.but(method__gradient_net="equivariant", method__epochs=6, tasks="cross-fitted")
    words = ["tasks all, gradient net published", "tasks cross-fitted, gradient net equivariant"]
    assert told_apart([train, other], ["SIB", "SIB"]) == words
    assert told_apart([train, train.but(method__epochs=6)], ["SIB", "SIB"]) == ["epochs 3", "epochs 6"]
    assert told_apart([train, other], ["SIB", "MTL"]) == ["", ""]


def test_what_is_not_set_needs_no_word():
    train = find_preset("small-map_rounds-fc100-1shot-plain").train
    rows = [train, train.but(method__learned_balance=True), train.but(method__learned_balance=True, query_shares=2)]
    words = ["no learned balance", "learned balance", "learned balance, query shares 2"]
    assert told_apart(rows, ["MAP"] * 3) == words


def test_a_row_is_named_exactly_or_by_a_beginning_that_no_other_has(runs):
    def partner(against):
        (row,) = [each for each in compare(runs, Question("fc100", 1, against=against)) if each.paired_with is None]
        return f"{method_words(row)}, {row.backbone}"

    assert partner("maml++") == "MAML++, conv4 x1"
    assert partner("MAML++ + E3BM") == "MAML++ + E3BM (lstm inductive), conv4 x1"
    assert partner("maml, pre-trained") == partner("MAML pre") == "MAML, pre-trained, conv4 x1"
    assert partner("LEO+") == "LEO+E3BM (lstm inductive), resnet12 x0.5"
    two = r"'MAML' is not .* one row alone; name one: MAML, pre-trained, conv4 x1; MAML, from scratch, conv4 x1\."
    with pytest.raises(SettingsError, match=two):
        partner("MAML")
    with pytest.raises(SettingsError, match=r"name one: PT\+MAP, .* and \d+ more\."):
        partner("whitened")


def test_on_a_narrow_terminal_the_table_has_shorter_words(found):
    """Every number, and every backbone by its number in the note; only the runs are left to a wider one."""
    wide, narrow = comparison_text(found, None), comparison_text(found, 120)
    assert wide == comparison_table(found).text() == comparison_text(found, 1000)
    assert max(map(len, narrow.splitlines())) <= 120
    said = " ".join(narrow.split())
    for result in found:
        assert f"{result.accuracy:.2f} ± {result.ci:.2f}" in narrow
        assert f": {result.backbone}" in said
    assert "trans.: transductive" in said
    assert found[0].run not in narrow


@pytest.mark.parametrize("shots", [1, 5])
def test_no_two_rows_have_the_same_name(runs, shots):
    found = compare(runs, Question("fc100", shots, ablations=True))
    names = [(method_words(result), result.backbone) for result in found]
    assert len(set(names)) == len(names)


def test_different_presets_have_different_names():
    """Each as tables would call it beside all others of the same data and number of shots."""
    found: dict[tuple, dict[str, TrainSettings]] = {}
    for preset in presets().values():
        train = preset.train
        place = train.data.dataset, train.episode.ways, preset.test.shots or train.episode.shots, preset.members
        found.setdefault(place, {})[system_of(train)] = train
    for same in found.values():
        kinds = [
            f"{train.hyperprior.generator} {train.hyperprior.setting}" * train.hyperprior.generated
            for train in same.values()
        ]
        names = [
            f"{train.title} {kind} {train.backbone.title}" for train, kind in zip(same.values(), kinds, strict=True)
        ]
        words = told_apart(list(same.values()), names)
        assert len(set(zip(names, words, strict=True))) == len(names)
        assert all(words[place] == "" for place, name in enumerate(names) if names.count(name) == 1)


def test_a_learner_and_a_graph_are_part_of_the_name():
    titles = {
        find_preset(f"small-{word}").train.title
        for word in ("meta_opt_net-fc100-1shot", "meta_opt_net-ridge-fc100-1shot")
    }
    assert titles == {"MetaOptNet (svm)", "MetaOptNet (ridge)"}
    for word, title in (("egnn", "EGNN (transductive)"), ("egnn-inductive", "EGNN (inductive)")):
        assert find_preset(f"small-{word}-fc100-5shot-plain").train.title == title


def test_ablations_only_when_asked_for(runs):
    assert len(compare(runs, Question("fc100", 1, ablations=True))) > len(compare(runs, Question("fc100", 1)))


def test_what_is_not_there_is_said(runs):
    with pytest.raises(SettingsError, match="No run was tested on fc100 test, 5-way 3-shot"):
        compare(runs, Question("fc100", 3))
    with pytest.raises(SettingsError, match=r"No method's name has 'prototipical' in it; there are .*MAML"):
        compare(runs, Question("fc100", 1, against="prototipical"))


def test_a_misspelt_data_set_is_named(runs):
    with pytest.raises(SettingsError, match=r"no data set fc10 among the results; did you mean fc100\?"):
        compare(runs, Question("fc10", 1))
    with pytest.raises(SettingsError, match=r"no data set birds among the results; there are .*fc100"):
        compare(runs, Question("birds", 1))


@pytest.mark.parametrize("words", ["compare", "results list", "results check", "results unpack fc100/x"])
def test_without_kept_results_the_option_is_named(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert "There is no folder results here; name the folder of kept results with --results." in capsys.readouterr().err


def test_uneven_queries_have_a_table_of_their_own(runs):
    """Made up from kept runs: the same results once more, as if on uneven queries."""
    runs = [run for run in runs if not any(each.uneven for each in run.results)]
    changes = {"query_shares": 2, "episodes_hash": "uneven"}
    more = [
        replace(run, results=tuple(each.but(**changes) for each in run.results), answers=run.answers)
        for run in runs[:9]
    ]
    with pytest.raises(SettingsError, match="5-way 1-shot with uneven queries"):
        compare(runs, Question("fc100", 1, uneven=True))
    found = compare([*runs, *more], Question("fc100", 1, uneven=True))
    assert {result.episodes_hash for result in found} == {"uneven"}
    assert "Dirichlet(2) queries" in comparison_table(found).text()
    assert len(compare([*runs, *more], Question("fc100", 1))) == len(compare(runs, Question("fc100", 1)))


def test_from_the_command_line(capsys):
    assert main(["compare", "--dataset", "fc100", "--shots", "1", "5", "--results", str(RESULTS), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["shots"] for row in rows} == {1, 5}
    assert main(["compare", "--shots", "5", "--results", str(RESULTS), "--markdown"]) == 0
    assert capsys.readouterr().out.count("\n|") > 20


def test_a_figure_for_each_number_of_shots(capsys, tmp_path):
    words = ["compare", "--shots", "1", "5", "--results", str(RESULTS), "--figure", str(tmp_path / "times.png")]
    assert main(words) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"times-1shot.png", "times-5shot.png"}


def test_pre_training_is_no_training_of_a_method(found):
    assert {result.train_seconds for result in found if result.method == "nearest class mean"} == {0.0}
    assert all(result.train_seconds > 0 for result in found if result.hyperprior != "none")


def test_times_are_those_of_one_training(runs, found):
    """The mean over seeds; members that answer together are one system, whose time is the sum of theirs."""
    for result in found:
        all_of_them = [one for run in runs for one in run.results if one.system == result.system]
        each = [one for one in all_of_them if one.protocol == result.protocol]
        assert len(each) == len(result.seeds or (0,))
        if result.train_seconds:  # pre-training does not count
            assert result.train_seconds == pytest.approx(fmean(one.train_seconds for one in each))
        assert result.seconds == pytest.approx(fmean(one.seconds for one in each))
    (five,) = [result for result in found if result.method == "5x MAML"]
    (ensemble,) = [run for run in runs if run.name == five.run]
    names = [Path(member).name for member in ensemble.settings.members]
    members = [one for run in runs if run.name in names for one in run.results if one.protocol == five.protocol]
    assert five.train_seconds > sum(one.train_seconds for one in members) > 0  # three of the five are kept
    row = next(row for row in comparison_table(found).rows if row[0].text == "5x MAML")
    assert row[COLUMNS.index("Training")].text == duration(five.train_seconds)


def test_runs_that_are_in_no_table_are_named_with_what_to_run(tmp_path, capsys):
    def said(*names):
        folder = tmp_path / str(len(names))
        words = ["--results", str(RESULTS)]
        assert main(["results", "unpack", *(f"fc100/{name}" for name in names), "--out", str(folder), *words]) == 0
        capsys.readouterr()
        assert main(["compare", "--shots", "1", "--runs", str(folder), *words]) == 0
        return capsys.readouterr().err.replace(f"{folder}/", "").strip()

    asked = "--dataset fc100 --split test --episodes 3000 --ways 5 --shots 1 --queries 15"
    because = "not tested on these episodes; run: e3bm test"
    assert said("can-5shot-s0") == f"can-5shot-s0 is not in any table because it was {because} can-5shot-s0 {asked}"
    assert said("can-1shot-s0", "can-5shot-s0").startswith("can-5shot-s0 is not")  # the other is
    few = "can-5shot-s0, can-5shot-s1, can-5shot-s2"
    many = [*few.split(", "), "ctm-5shot-s0", "ctm-5shot-s1"]
    assert said(*many) == f"{few} and 2 more are not in any table because they were {because} RUN {asked}"

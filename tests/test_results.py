"""Every number that we print is in results/, and everything in results/ can be verified."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import small_runs
from e3bm.data.episodes.class_index import ClassIndex
from e3bm.data.read.archives import open_tree
from e3bm.data.read.plan import PlanSettings, make_plan
from e3bm.data.source import open_dataset, registered_sources
from e3bm.report.compare import Question, compare, compared_runs
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.kept.pack import add_runs, unpack
from e3bm.runs.kept.store import KeptResults
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.train import run_train
from kept_results import faults_of_run, indexes, known_numbers, unfounded_numbers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
KEPT = KeptResults(RESULTS)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INDEXES = indexes(RESULTS)
MOST_FILES, MOST_BYTES = 50, 12_000_000
REAL_FILES = {
    "fc100": ["fc100.zip"],
    "omniglot": ["omniglot_images_background.zip", "omniglot_images_evaluation.zip"],
    "miniimagenet": ["miniimagenet_trainval_100.zip"],
}


@pytest.mark.skipif(not KEPT.exists, reason="results/ holds no runs yet")
@pytest.mark.parametrize("group", KEPT.groups)
def test_kept_runs_are_complete_and_their_numbers_follow_from_what_is_kept(group):
    runs = KEPT.runs(group)
    assert runs
    faults = {str(run.path.relative_to(RESULTS)): faults_of_run(run, runs, INDEXES) for run in runs}
    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.skipif(not KEPT.exists, reason="results/ holds no runs yet")
def test_results_are_what_was_written_and_stay_small():
    assert KEPT.damages() == []
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= MOST_FILES
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


@pytest.mark.skipif("glyphs" not in KEPT.groups, reason="results/ holds no runs on glyphs yet")
def test_a_kept_run_answers_again_from_a_fresh_clone(tmp_path):
    """Its data come with the package, its backbone is kept beside it; large weights are rounded."""
    run, *_ = unpack("glyphs/mtl-e3bm", RESULTS, tmp_path)
    (kept,) = next(each for each in KEPT.runs("glyphs") if each.name == "mtl-e3bm").results
    settings = TestSettings(episodes=kept.episodes, seed=kept.episodes_seed)
    (again,) = run_test([run], settings)
    assert again.episodes_hash == kept.episodes_hash
    assert again.settings_digest == kept.settings_digest
    # Half of an answer in a hundred: rounding the backbone's weights may turn a close decision.
    assert again.accuracy == pytest.approx(kept.accuracy, abs=0.5)


@pytest.mark.skipif(not INDEXES, reason="results/ holds no class index yet")
@pytest.mark.parametrize("index", INDEXES.values(), ids=lambda index: f"{index.name}-{index.digest[:8]}")
def test_a_class_index_is_that_of_the_real_data(index):
    if index.name == "glyphs":
        assert ClassIndex.of(open_dataset("glyphs")) == index
        return
    counts = [count for _, count in index.label_runs]
    if (index.name, len(counts)) == ("miniimagenet", 100):  # the whole set, of which the test data have a part
        assert set(counts) == {600}
        assert {name: len(numbers) for name, numbers in index.splits.items()} == {"train": 64, "val": 16, "test": 20}
        return
    folder = os.environ.get("E3BM_TEST_DATA")
    if not folder:
        pytest.skip("E3BM_TEST_DATA names no folder with the real files")
    paths = [Path(folder) / name for name in REAL_FILES.get(index.name, ["unknown"])]
    if not all(path.exists() for path in paths):
        pytest.skip(f"{index.name} is not in the folder that E3BM_TEST_DATA names")
    source = registered_sources()[index.name]()
    tree = open_tree(paths, source.card.archive_patterns)
    try:
        plan = make_plan(source, tree, PlanSettings(allow_other_counts=True))
    finally:
        tree.close()
    labels = np.repeat([label for label, _ in index.label_runs], counts)
    np.testing.assert_array_equal(plan.listing.labels, labels)
    assert plan.splits() == index.splits


@pytest.fixture(scope="module")
def known():
    return known_numbers(RESULTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_result_in_a_table_of_ours_is_in_results(page, known):
    assert unfounded_numbers(page.read_text(), known) == []


def test_what_e3bm_adds_is_said_of_every_method():
    """Of each that has kept runs with it: gains and losses, none is left out."""
    page = (ROOT / "docs" / "results.md").read_text()
    table = page.split("<!-- fc100 added table -->")[1].split("<!-- /fc100 added table -->")[0]
    told = {line.split(" (lstm")[0].removeprefix("| ") for line in table.splitlines() if "E3BM (" in line}
    with_it = {
        result.method
        for shots in (1, 5)
        for result in compare(compared_runs(KEPT), Question("fc100", shots))
        if result.hyperprior != "none"
    }
    assert told == with_it


@pytest.fixture(scope="module")
def kept(small_data, tmp_path_factory):
    """Two kept runs, one compared with the other."""
    folder = tmp_path_factory.mktemp("made_up")
    runs = [
        run_train(small_runs.settings(small_data, method, optimiser__steps=4), folder / "runs" / method).path
        for method in ("mtl", "mtl+e3bm")
    ]
    run_test(runs, TestSettings(episodes=20))
    add_runs(runs, folder / "results")
    return folder / "results"


def changed(run, **values):
    """The same run with a changed result."""
    return replace(run, results=tuple(result.but(**values) for result in run.results))


SPOILT = {
    "there are no metrics": lambda run: replace(run, metrics=()),
    "there are no schedules": lambda run: replace(run, schedules=()),
    "the test classes were used and the log does not say so": lambda run: replace(run, test_log=()),
    "no commit or no command is stated": lambda run: replace(run, environment=run.environment | {"commit": ""}),
    "the answers give": lambda run: changed(run, accuracy=99.0),
    "the answers give ": lambda run: changed(run, ci=0.01),
    "the difference to mtl is": lambda run: changed(run, paired_difference=9.0),
    "the episodes have another hash": lambda run: changed(run, episodes_seed=5),
    "there is no class index": lambda run: changed(run, data_digest="0" * 64),
    "the answers were not kept": lambda run: replace(run, answers=lambda result: None),
    "the settings are not those of the result": lambda run: replace(run, settings_digest="0" * 16),
}


def test_whole_runs_pass(kept):
    runs = KeptResults(kept).runs()
    assert len(runs) == 2
    assert [fault for run in runs for fault in faults_of_run(run, runs, indexes(kept))] == []


@pytest.mark.parametrize("fault", SPOILT)
def test_spoilt_runs_do_not_pass(kept, fault):
    runs = KeptResults(kept).runs()
    spoilt = SPOILT[fault](next(run for run in runs if run.name == "mtl+e3bm"))
    found = faults_of_run(spoilt, runs, indexes(kept))
    assert any(fault.strip() in each for each in found), found


def test_invented_numbers_do_not_pass(kept):
    row = next(run for run in KeptResults(kept).runs() if run.name == "mtl+e3bm").results[0]
    table = "| method | paper | ours |\n|---|---|---|\n| MTL+E3BM | 45.0 | {} |\n"
    known = known_numbers(kept)
    right = f"{row.accuracy:.2f} ± {row.ci:.2f}"
    assert unfounded_numbers(table.format(right), known) == []
    assert unfounded_numbers(table.format(f"**{row.accuracy:.1f}**"), known) == []
    assert unfounded_numbers(table.format("98.76 ± 0.12"), known) == ["98.76 ± 0.12"]
    assert unfounded_numbers(table.format(f"{row.accuracy:.2f} ± 7.77"), known) == [f"{row.accuracy:.2f} ± 7.77"]
    assert unfounded_numbers(table.format("98.7"), known) == ["98.7"]
    assert unfounded_numbers("98.76 ± 0.12, said outside of a table", known) == []
    difference = f"{row.paired_difference:+.2f} ± {row.paired_ci:.2f}"
    assert unfounded_numbers(f"| a | b |\n|---|---|\n| x | {difference} |", known) == []
    assert unfounded_numbers("| a | b |\n|---|---|\n| x | −8.88 ± 0.01 |", known) == ["−8.88 ± 0.01"]
    assert unfounded_numbers("| a | b |\n|---|---|\n| x | 53.2 ± 1.8 |", known) == []  # the paper's own

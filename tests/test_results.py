"""Every number that we print is in results/, and everything in results/ can be verified."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import small_runs
from e3bm.data.episodes.class_index import ClassIndex
from e3bm.data.read.archives import open_tree
from e3bm.data.read.plan import PlanSettings, make_plan
from e3bm.data.source import open_dataset, registered_sources
from e3bm.paper.collect import collect_runs
from e3bm.paper.export import export_run
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.train import run_train
from kept_results import faults_of_run, indexes, known_numbers, unfounded_numbers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
RUNS = collect_runs(RESULTS) if RESULTS.exists() else []
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INDEXES = indexes(RESULTS)
REAL_FILES = {
    "fc100": ["fc100.zip"],
    "omniglot": ["omniglot_images_background.zip", "omniglot_images_evaluation.zip"],
    "miniimagenet": ["miniimagenet_trainval_100.zip"],
}


@pytest.mark.skipif(not RUNS, reason="results/ holds no runs yet")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.path.relative_to(RESULTS)))
def test_a_kept_run_is_complete_and_its_numbers_follow_from_what_is_kept(run):
    assert faults_of_run(run, INDEXES) == []


@pytest.mark.skipif(not INDEXES, reason="results/ holds no class index yet")
@pytest.mark.parametrize("index", INDEXES.values(), ids=lambda index: f"{index.name}-{index.digest[:8]}")
def test_a_class_index_is_that_of_the_real_data(index):
    if index.name == "glyphs":
        assert ClassIndex.of(open_dataset("glyphs")) == index
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
    labels = np.repeat([label for label, _ in index.label_runs], [count for _, count in index.label_runs])
    np.testing.assert_array_equal(plan.listing.labels, labels)
    assert plan.splits() == index.splits


@pytest.fixture(scope="module")
def known():
    return known_numbers(RESULTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_result_in_a_table_of_ours_is_in_results(page, known):
    assert unfounded_numbers(page.read_text(), known) == []


@pytest.fixture(scope="module")
def made_up(small_data, tmp_path_factory):
    """Two kept runs, one compared with the other."""
    folder = tmp_path_factory.mktemp("made_up")
    runs = [
        run_train(small_runs.settings(small_data, method, optimiser__steps=4), folder / "runs" / method).path
        for method in ("mtl", "mtl+e3bm")
    ]
    run_test(runs, TestSettings(episodes=20))
    for run in runs:
        export_run(run, folder / "results")
    return folder / "results"


@pytest.fixture
def kept(made_up, tmp_path):
    return Path(shutil.copytree(made_up, tmp_path / "results"))


def faults(results):
    known = indexes(results)
    return [fault for run in collect_runs(results) for fault in faults_of_run(run, known)]


def change(path, **values):
    content = json.loads(path.read_text())
    (content[0] if isinstance(content, list) else content).update(values)
    path.write_text(json.dumps(content))


def test_whole_runs_pass(kept):
    assert len(collect_runs(kept)) == 2
    assert faults(kept) == []


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda run: (run / "log.txt").unlink(), "log.txt is missing"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "metrics.jsonl is empty"),
        (lambda run: (run / "test_log.jsonl").unlink(), "the test classes were used and test_log.jsonl does not say"),
        (lambda run: change(run / "environment.json", commit=""), "environment.json states no commit"),
        (lambda run: change(run / "results.json", accuracy=99.0), "the answers give"),
        (lambda run: change(run / "results.json", ci=0.01), "the answers give"),
        (lambda run: change(run / "results.json", paired_difference=9.0), "the difference to mtl is"),
        (lambda run: change(run / "results.json", episodes_seed=5), "the episodes have another hash"),
        (lambda run: change(run / "results.json", data_digest="0" * 64), "there is no class index"),
        (lambda run: (run / "answers.json").write_text("{}"), "the answers were not kept"),
    ],
)
def test_spoilt_runs_do_not_pass(kept, spoil, fault):
    spoil(kept / "small" / "mtl+e3bm")
    assert any(found.startswith(fault) for found in faults(kept)), faults(kept)


def test_other_settings_do_not_pass(kept):
    config = json.loads((kept / "small" / "mtl" / "config.json").read_text())
    config["settings"]["method"]["rate"] = 0.2
    (kept / "small" / "mtl" / "config.json").write_text(json.dumps(config))
    assert "the settings are not those of the result" in faults(kept)


def test_invented_numbers_do_not_pass(kept):
    row = collect_runs(kept)[1].rows[0]
    table = "| method | paper | ours |\n|---|---|---|\n| MTL+E3BM | 45.0 | {} |\n"
    known = known_numbers(kept)
    right = f"{row['accuracy']:.2f} ± {row['ci']:.2f}"
    assert unfounded_numbers(table.format(right), known) == []
    assert unfounded_numbers(table.format(f"**{row['accuracy']:.1f}**"), known) == []
    assert unfounded_numbers(table.format("98.76 ± 0.12"), known) == ["98.76 ± 0.12"]
    assert unfounded_numbers(table.format(f"{row['accuracy']:.2f} ± 7.77"), known) == [f"{row['accuracy']:.2f} ± 7.77"]
    assert unfounded_numbers(table.format("98.7"), known) == ["98.7"]
    assert unfounded_numbers("98.76 ± 0.12, said outside of a table", known) == []
    difference = f"{row['paired_difference']:+.2f} ± {row['paired_ci']:.2f}"
    assert unfounded_numbers(f"| a | b |\n|---|---|\n| x | {difference} |", known) == []
    assert unfounded_numbers("| a | b |\n|---|---|\n| x | −8.88 ± 0.01 |", known) == ["−8.88 ± 0.01"]
    assert unfounded_numbers("| a | b |\n|---|---|\n| x | 53.2 ± 1.8 |", known) == []  # the paper's own

"""Rows of the paper: what is there is shown, what is missing is run, everything is kept and found again."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from e3bm.errors import DataError, SettingsError
from e3bm.paper import reproduce as module
from e3bm.paper.presets import find_preset, presets
from e3bm.paper.printed import cost_table, reproduction_table
from e3bm.paper.reproduce import Request, draw_figure, reproduce, reproduce_costs
from e3bm.paper.run_missing import Effort, backbone_name, preset_name, studied_arms
from e3bm.paper.tables import paper_rows
from e3bm.paper.timed_cost import TimedCost
from e3bm.progress import Silent
from e3bm.runs.folder.run import duration
from e3bm.runs.kept.pack import add_runs
from e3bm.runs.kept.store import open_run

PROMISED = {
    "method", "backbone", "dataset", "paper", "published_code", "ours", "ci", "paired_difference", "paired_ci",
    "episodes", "episodes_hash", "budget", "run", "ways", "shots", "queries", "setting", "hyperprior", "batchnorm",
    "order", "seed", "seeds", "commit", "seconds", "train_seconds",
}  # fmt: skip


RESULTS = Path(__file__).resolve().parents[2] / "results"
RUN = ("MAML", "MTL", "SIB", "MetaOptNet", "ProtoNets")  # parts of names; MAML++ is one of MAML's


class Listener(Silent):
    """Remembers what was said and begun."""

    def __init__(self):
        self.said, self.begun = [], []

    def begin(self, title, total, done=0):
        self.begun.append(title)

    def say(self, sentence):
        self.said.append(sentence)


@pytest.fixture(scope="module")
def first(house):
    """Table 1 on FC100 with one shot, some of its systems run from nothing."""
    for row in RUN:
        reproduce(Request("T1", "fc100", row, 1, effort=Effort()))
    return reproduce(Request("T1", "fc100", shot=1))


def find(rows, method, backbone=None):
    return next(row for row in rows if row.method == method and backbone in (None, row.backbone))


def test_every_row_has_paper_and_ours_side_by_side(first):
    assert [row.method for row in first] == [
        "ProtoNets", "MAML", "MAML++", "TADAM", "MetaOptNet", "MTL", "MTL", "MAML+E3BM", "MTL+E3BM", "SIB", "SIB+E3BM",
        "nearest class mean", "nearest class mean",
    ]  # fmt: skip
    assert [row.method for row in first if row.ours is None] == ["TADAM"]
    assert all(row.as_json().keys() >= PROMISED for row in first)
    maml = find(first, "MAML+E3BM")
    assert (maml.paper, maml.published_code) == (39.9, None)
    assert maml.ours.result.accuracy == open_run(Path(maml.ours.runs[0])).results[0].accuracy
    assert maml.ours.result.paired_with == "small-maml-fc100-1shot-plain-s0"
    assert maml.ours.budget.startswith("4 steps x 2 tasks, ")
    assert maml.ours.result.transductive_batchnorm is True
    assert len({row.ours.result.episodes_hash for row in first if row.ours}) == 1
    told = maml.as_json()
    assert (told["ours"], told["run"], told["seeds"]) == (maml.ours.result.accuracy, maml.ours.runs[0], [0])


def test_a_system_without_a_printed_number_has_a_row_where_it_was_run(first):
    row = find(first, "ProtoNets")
    assert (row.paper, row.backbone, row.table) == (None, "4CONV", "T1")
    assert row.ours.adapted == "full_pretrained"


def test_rows_say_how_far_they_are_from_the_published_recipe(first):
    assert find(first, "MAML").ours.distance == "0.125 of the width, 16 for 32 px, 0.0033 % of the tasks"
    expected = "resnet12 x0.125 for wrn28_10_sib x1, 16 for 80 px, 0.016 % of the tasks"
    assert find(first, "SIB").ours.distance == expected
    text = reproduction_table(first).text()
    assert expected in text
    assert "frozen instead of scale_shift" in text
    assert "5 for 15 shots in training" in find(first, "MetaOptNet").ours.distance
    assert find(first, "MAML").as_json()["distance"] == find(first, "MAML").ours.distance


@pytest.mark.parametrize("shots", [1, 5])
def test_kept_rows_name_networks_that_are_fewer_and_trainings_that_serve_all_shots(shots):
    rows = reproduce(Request("T1", "fc100", shot=shots, results=RESULTS))
    distances = {row.method: row.ours.distance for row in rows if row.ours}
    assert "3 for 20 networks, one training for 1 and 5 shots" in distances["Robust20-dist"]
    assert "5 for 15 shots in training, one training for 1 and 5 shots" in distances["MetaOptNet"]
    assert "shots" not in distances["CAN"]


@pytest.mark.parametrize("dataset", ["fc100", "miniimagenet"])
@pytest.mark.parametrize("shots", [1, 5])
def test_every_system_of_the_first_table_has_a_kept_run(shots, dataset):
    rows = reproduce(Request("T1", dataset, shot=shots, results=RESULTS))
    others = [
        "MatchNets",
        "ProtoNets",
        "MAML++",
        "TADAM",
        "MetaOptNet",
        "CAN",
        "CAN+T",
        "CTM",
        "LEO",
        "EGNN",
        "Robust20-dist",
    ]
    assert {row.method for row in rows} >= {*others, "MAML", "MAML+E3BM", "MTL", "MTL+E3BM", "SIB", "SIB+E3BM"}
    assert [row.method for row in rows if row.ours is None] == []


def test_a_dash_has_its_reason_and_the_preset_that_would_fill_it(first):
    tadam = find(first, "TADAM")
    assert (tadam.ours, tadam.preset) == (None, "small-tadam-fc100-1shot")
    assert find(first, "MAML").preset is None
    assert "not run here, so there is no kept run" in reproduction_table(first).text()
    assert "TADAM: small-tadam-fc100-1shot." in reproduction_table(first).text()
    assert "not run here" not in reproduction_table([find(first, "MAML")]).text()
    rows = reproduce(Request("T1", "tieredimagenet", "LEO", results=RESULTS))
    assert [row.as_json()["preset"] for row in rows] == [
        f"paper-leo-wrn28_10-tieredimagenet-{shots}shot-plain" for shots in (1, 5)
    ]
    words = reproduction_table([*rows, replace(rows[0], method="ABC", preset=None)]).text()
    assert "LEO: paper-leo-wrn28_10-tieredimagenet-{1,5}shot-plain; ABC: none." in words


def test_a_system_is_asked_as_the_test_of_its_preset_says(first):
    """MetaOptNet is trained with more shots than it is tested with."""
    ours = find(first, "MetaOptNet").ours
    assert ours.result.shots == 1
    assert open_run(Path(ours.runs[0])).trained.episode.shots == 5


def test_a_run_stands_beside_the_row_with_its_backbone_and_beside_rows_that_have_no_other(first):
    own, other = find(first, "MTL", "ResNet-12"), find(first, "MTL", "ResNet-25")
    assert own.ours.result == other.ours.result
    assert own.published_code == 44.3
    assert other.ours.distance.startswith("resnet12 x0.125 for resnet25 x1")
    together = find(first, "MTL+E3BM", "ResNet-25")
    assert together.ours.result.backbone == "resnet12 x0.125"
    assert together.ours.adapted == "frozen"
    assert find(first, "SIB+E3BM").ours.result.hyperprior == "lstm transductive"


def test_features_alone_have_a_row_that_the_paper_does_not_have(first):
    row = find(first, "nearest class mean")
    assert (row.paper, row.table, row.ours.result.paired_difference) == (None, None, None)
    assert row.ours.budget.startswith("1 epochs")


def test_what_is_there_is_shown_again_and_nothing_is_run(first, house, tmp_path):
    listener = Listener()
    for row in RUN:
        reproduce(Request("T1", "fc100", row, 1, effort=Effort()), listener)
    assert listener.said == ["Nothing is missing."] * len(RUN)
    assert listener.begun == []
    again = reproduce(Request("T1", "fc100", shot=1))
    assert again == first
    shutil.copytree("results", tmp_path / "moved")
    moved = reproduce(Request("T1", "fc100", shot=1, results=tmp_path / "moved"))
    numbers = lambda rows: [(row.method, row.ours and row.ours.result.as_json()) for row in rows]
    assert numbers(moved) == numbers(first)
    # The comparison alone is not asked for, and is still there.
    assert find(reproduce(Request("T1", "fc100", "SIB+E3BM", 1)), "SIB+E3BM").ours.result.paired_difference is not None


def test_runs_in_the_study_folder_are_in_no_table(first, house, tmp_path):
    add_runs(sorted(Path("runs/fc100").glob("small-sib-*")), tmp_path / "results", group="study/tried")
    rows = reproduce(Request("T1", "fc100", shot=1, results=tmp_path / "results"))
    assert {row.ours for row in rows} == {None}


def test_more_seeds_are_run_and_taken_together(first, house):
    rows = reproduce(Request("T1", "fc100", "SIB", 1, effort=Effort(seeds=2)))
    together = find(rows, "SIB+E3BM")
    assert together.ours.seeds == together.ours.result.seeds == (0, 1)
    assert together.ours.result.seed_std is not None
    single = [open_run(Path(path)).results[0] for path in together.ours.runs]
    assert together.ours.result.accuracy == pytest.approx(sum(each.accuracy for each in single) / 2)
    seconds = sum(each.train_seconds for each in single) / 2
    assert together.as_json()["train_seconds"] == pytest.approx(seconds)
    assert together.ours.budget.endswith(f" tasks, {duration(seconds)}")  # of one training, as its steps
    assert together.ours.result.paired_with == "small-sib-fc100-1shot-plain-s0, small-sib-fc100-1shot-plain-s1"
    text = reproduction_table([together]).text()
    assert together.ours.runs[0].replace("-s0", "-s*") in text
    assert ", ".join(together.ours.runs) not in text


def test_a_budget_that_is_too_short_leaves_rows_empty_and_says_so(first, house, tmp_path):
    listener = Listener()
    effort = Effort(seconds=0.0, runs=tmp_path / "runs")
    rows = reproduce(Request("T1", "fc100", "MAML", 5, results=tmp_path / "results", effort=effort), listener)
    assert [row.ours for row in rows] == [None, None, None]
    waiting, *left = listener.said  # MAML++ begins with a pre-trained backbone here
    assert waiting.startswith("fc100/conv4-x0.125-s0: the time is up, and what builds on it has to wait.")
    assert left == [
        "No time is left for small-maml-fc100-5shot-plain-s0.",
        "No time is left for small-maml-fc100-5shot-lstm-inductive-s0.",
    ]


def test_a_run_that_reached_its_budget_is_shown_with_it_and_continued(house, tmp_path, monkeypatch):
    from e3bm.paper import run_missing

    short = run_missing.find_preset("small-maml-fc100-5shot-plain")
    long = short.train.but(optimiser__steps=100_000, validation__every=1)
    monkeypatch.setattr(run_missing, "find_preset", lambda name: type(short)(name, "", long, None, short.test))
    effort = Effort(seconds=1.5, runs=tmp_path / "runs")
    request = Request("S2", "fc100", "MAML", 5, results=tmp_path / "results", effort=effort)
    wanted = lambda rows: [row for row in rows if row.method == "MAML"]
    (row,) = wanted(reproduce(request))
    done = int(row.ours.budget.split()[0].replace(",", ""))
    assert 0 < done < 100_000
    assert f"{done:,} of 100,000 steps x 2 tasks" in row.ours.budget
    (row,) = wanted(reproduce(request))
    assert int(row.ours.budget.split()[0].replace(",", "")) > done


def test_five_seeds_answer_together(house):
    rows = reproduce(Request("S2", "fc100", "5x MAML", 1, effort=Effort()))
    (row,) = rows
    assert row.paper == 40.1
    assert row.ours.runs == ("results/fc100/small-5xmaml-fc100-1shot",)
    members = [open_run(Path(f"runs/fc100/small-maml-fc100-1shot-plain-s{seed}")).seconds for seed in range(5)]
    assert 0 < row.ours.result.train_seconds <= sum(members)  # which are with validations
    assert row.ours.budget == f"5 runs together, {duration(row.ours.result.train_seconds)}"
    assert row.ours.result.paired_with.startswith("small-maml-fc100-1shot-plain-s0")
    assert open_run(Path(row.ours.runs[0])).kind == "ensemble"


def test_the_figure_has_every_arm_once(first, house):
    rows = reproduce(Request("F4", "fc100", shot=1, effort=Effort()))
    assert [row.method for row in rows] == [
        "MTL (a1)", "MTL (a2)", "MTL (a3)", "MTL (a4, v5)", "MTL (v1)", "MTL (v2)", "MTL (v3)", "MTL (v4)",
    ]  # fmt: skip
    assert all(row.paper is None and row.ours is not None for row in rows)
    assert sum(row.ours.result.paired_difference is not None for row in rows) == 7
    listener = Listener()
    reproduce(Request("F4", "fc100", shot=1, effort=Effort()), listener)
    assert listener.said == ["Nothing is missing."]
    page = draw_figure(Request("F4", "fc100", shot=1), house / "figure")
    assert page is not None
    drawn = {path.name for path in page.parent.glob("*.png")}
    assert drawn >= {"validation-fc100-5-way-1-shot.png", "weights-mtl-v1-e3bm.png", "rates-mtl-a1-e3bm.png"}
    assert "smoothed at 0.9" in page.read_text(encoding="utf-8")
    # Arms are not mistaken for rows of a table.
    table = reproduce(Request("T1", "fc100", "MTL", 1))
    assert [row.method for row in table] == ["MTL", "MTL", "MTL+E3BM"]


def test_tested_runs_can_be_kept_by_hand(first, house, tmp_path):
    runs = (Path("runs/fc100/small-sib-fc100-1shot-plain-s0"),)
    row = find(reproduce(Request("T1", "fc100", "SIB", 1, results=tmp_path, keep=runs)), "SIB")
    assert row.ours.result.accuracy == find(first, "SIB").ours.result.accuracy
    assert row.ours.runs == (str(tmp_path / "fc100" / "small-sib-fc100-1shot-plain-s0"),)


def test_costs_stand_beside_the_printed_ones(house, monkeypatch):
    rows = reproduce_costs(Request("S3"))
    found = {(row.method, row.backbone): row for row in rows}
    assert len(rows) == 8
    assert found["ProtoNets", "WRN-28-10"].ours == found["ProtoNets", "WRN-28-10"].paper == 36482
    assert (found["MTL+E3BM", "ResNet-25"].paper, found["MTL+E3BM", "ResNet-25"].ours) == (4351, 4352)
    assert found["MTL+E3BM", "ResNet-25"].paper_time_percent == 5.9
    assert all(row.time_percent is None for row in rows)
    assert rows[0].as_json().keys() >= PROMISED
    timed = TimedCost("MTL+E3BM", "resnet25", 10, 1, 10.0, "", 100, 0.1, 0.2, 0.5, 2.0, None, None, None, None)
    monkeypatch.setattr(module, "preset_cost", lambda preset, **options: [timed])
    (row,) = reproduce_costs(Request("S3", row="MTL+E3BM", effort=Effort()))
    assert (row.time_percent, row.run) == (0.5, f"results/costs.json {module.PRESETS['ResNet-25']}")
    assert "0.50" in cost_table([row]).text()


def test_the_printed_table_says_what_must_not_be_overlooked(first):
    text = reproduction_table(first).text()
    assert "45.1" in text
    assert "44.3 ± 1.8" in text
    assert "MAML+E3BM (lstm-inductive) †" in text
    assert "transductive in fact" in text
    assert "different systems" in text
    assert first[0].ours.result.episodes_hash[:8] in text


VARIANTS = {
    "maml": ["small-pretrained"],
    "mtl": ["small-whitened", "small-scaled"],
    "sib": ["small-whitened"],
}


def test_every_row_that_we_have_has_a_preset_in_both_scales():
    names = presets()
    for table in ("T1", "T2", "S1", "S2"):
        for row in paper_rows(table, unprinted=table == "T1"):
            if row.accuracy is not None:
                assert preset_name(row, "paper") in names
            if row.dataset == "fc100":
                assert preset_name(row, "small") in names
            if row.dataset in ("fc100", "miniimagenet"):
                for variant in VARIANTS.get(row.system.preset, []):
                    assert preset_name(row, variant) in names
    stem = "small-mtl-fc100-1shot-"
    assert all(stem + arm in names for arm in studied_arms())


def test_names_of_backbones():
    assert backbone_name(find_preset("small-sib-fc100-1shot-plain").pretrain) == "resnet12-half-s0"
    assert backbone_name(find_preset("small-sib-whitened-fc100-1shot-plain").pretrain) == "resnet12-half-whitened-s0"
    assert backbone_name(find_preset("small-maml-pretrained-fc100-1shot-plain").pretrain) == "conv4-s0"
    assert backbone_name(find_preset("paper-sib-wrn28_10-fc100-1shot-plain").pretrain) == "wrn28_10_sib-s0"


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request("T9"), "There is no 'T9' to reproduce; there are T1, T2, S1, S2, S3, F4."),
        (Request("T1", "cub"), "The paper has no results on 'cub'"),
        (Request("T1", row="LEA"), "T1 has no such row; it has MatchNets, ProtoNets, MAML"),
        (Request("S3", row="LEO"), "S3 has no such row; it has MTL, MTL\\+E3BM"),
        (Request("T1", results=Path("nowhere")), "There is no folder nowhere; name the folder"),
        (
            Request("T1", "tieredimagenet", effort=Effort()),
            "no preset of MAML for two cores on tieredimagenet, only on fc100 and miniimagenet",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(house, request_, sentence):
    with pytest.raises(SettingsError, match=sentence):
        reproduce_costs(request_) if request_.target == "S3" else reproduce(request_)


def test_data_that_is_not_here_is_one_sentence(house):
    with pytest.raises(DataError, match="miniimagenet is not prepared"):
        reproduce(Request("S2", "miniimagenet", "MAML", 1, effort=Effort(scale="paper")))

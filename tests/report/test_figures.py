import re
from pathlib import Path

from e3bm.report.figures import Section, figures
from e3bm.runs.folder.answers import keep_result
from e3bm.runs.folder.run import read_what_is_there
from result_records import result_of


def sections_of(paths: list[Path]) -> dict[str, Section]:
    runs = [read_what_is_there(path) for path in paths]
    return {section.title: section for section in figures(runs, [row for run in runs for row in run.results])}


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_pair_gets_every_figure(pair, pretrained):
    sections = sections_of([*pair, pretrained])
    names = {title: [drawing.name for drawing in section.drawings] for title, section in sections.items()}
    assert names == {
        "Paired differences": ["difference-0"],
        "Meta-training": ["validation-glyphs-5-way-1-shot", "loss-glyphs-5-way-1-shot"],
        "Rates α and weights v over meta-training": ["rates-mtl-e3bm", "weights-mtl-e3bm"],
        "Inside an episode, epoch by epoch": ["epochs-mtl-0", "test-rates-mtl-0", "test-weights-mtl-0"],
        "Calibration": ["reliability-mtl-0"],
        "Pretraining": ["pretraining-loss", "pretraining-accuracy"],
    }
    assert not any(section.missing for section in sections.values())
    drawings = [drawing for section in sections.values() for drawing in section.drawings]
    assert all(re.fullmatch(r"[^.]+(\d\.\d[^.]*)*\.", drawing.caption) for drawing in drawings), "one sentence each"


def test_alpha_and_v_are_shown_for_the_papers_epochs(make_run):
    drawings = sections_of([make_run("mtl", e3bm=True, epochs=100)])[
        "Rates α and weights v over meta-training"
    ].drawings
    for drawing, words in zip(drawings, ("rate α", "weight v"), strict=True):
        assert [text for text in texts(drawing.svg) if text.startswith("epoch")] == [
            f"epoch {m}" for m in (1, 25, 50, 75, 100)
        ]
        assert words in texts(drawing.svg)


def test_constant_rates_and_a_last_vote_have_no_figure_over_training(make_run):
    assert "Rates α and weights v over meta-training" not in sections_of([make_run("plain", results=[])])


def test_calibration_names_its_error_and_weights_leave_out_a_last_vote(pair):
    sections = sections_of(pair)
    labels = texts(sections["Calibration"].drawings[0].svg)
    assert {"MTL (ECE 3.4 %)", "MTL+E3BM (ECE 3.4 %)"} <= set(labels)
    weights = sections["Inside an episode, epoch by epoch"].drawings[2]
    assert "MTL" not in texts(weights.svg)
    assert "MTL: only the last epoch votes, not drawn" in weights.caption


def test_other_tasks_and_methods_get_figures_of_their_own(make_run):
    five = {"episode": {"ways": 5, "shots": 5, "queries": 15}}
    sections = sections_of([make_run("a"), make_run("b", **five), make_run("c", "sib")])
    assert [drawing.name for drawing in sections["Meta-training"].drawings] == [
        "validation-glyphs-5-way-1-shot", "loss-glyphs-5-way-1-shot",
        "validation-glyphs-5-way-5-shot", "loss-glyphs-5-way-5-shot",
    ]  # fmt: skip
    assert [drawing.name for drawing in sections["Calibration"].drawings] == ["reliability-mtl-0", "reliability-sib-0"]


def test_seeds_are_drawn_as_one_arm(make_run):
    drawing = sections_of([make_run(f"s{seed}", seed=seed, results=[]) for seed in range(3)])["Meta-training"].drawings[
        0
    ]
    assert "MTL (3 seeds)" in texts(drawing.svg)
    assert "means over seeds" in drawing.caption


def test_what_could_not_be_drawn_is_said(make_run):
    young = make_run("young", e3bm=True, done=10, results=[])
    bare_result = result_of("bare", "MTL+E3BM", reliability=None, epoch_accuracy=())
    bare = make_run("bare", e3bm=True, results=[bare_result])
    (bare / "schedules.jsonl").unlink()
    (bare / "metrics.jsonl").unlink()
    sections = sections_of([young, bare])
    assert sections["Meta-training"].missing == (
        "young has no validation yet.",
        "bare has no validation yet (metrics.jsonl is missing).",
    )
    assert sections["Calibration"] == Section(
        "Calibration", (), ("The result of MTL+E3BM carries no reliability bins.",), 3
    )
    alone = sections_of([bare])
    assert alone["Rates α and weights v over meta-training"].missing == (
        "bare has logged no rates (schedules.jsonl is missing).",
        "bare has logged no weights (schedules.jsonl is missing).",
    )


def test_a_nearest_mean_has_no_epochs_to_show(pretrained):
    changes = {"epochs": 0, "epoch_accuracy": [50.0], "rates": [0.0], "weights": [1.0]}
    keep_result(pretrained, result_of("pretrain", "nearest class mean", **changes))
    sections = sections_of([pretrained])
    assert list(sections) == ["Calibration", "Pretraining"]


def test_names_that_fall_together_are_kept_apart(make_run):
    runs = [make_run("a", e3bm=True, results=[], name="鳥"), make_run("b", e3bm=True, epochs=6, results=[], name="魚")]
    names = [drawing.name for section in sections_of(runs).values() for drawing in section.drawings]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)

import re
from pathlib import Path

from e3bm.report.drawing import SERIES
from e3bm.report.effect_figures import DIFFERENCES, by_partner, difference_figure
from e3bm.report.figures import Section, figures
from e3bm.report.series import Look
from e3bm.runs.folder.answers import keep_result
from e3bm.runs.folder.run import read_what_is_there
from e3bm.runs.result import Result
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
        "The task": ["task-0"],
        "Accuracy and trust": ["accuracy-0", "nll-0", "ece-0"],
        "Paired differences": ["difference-mtl-0", "nll-difference-mtl-0"],
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
    assert {"MTL (ECE 3.4 %)", "MTL+E3BM (ECE 1.2 %)"} <= set(labels)
    weights = sections["Inside an episode, epoch by epoch"].drawings[2]
    assert "MTL" not in texts(weights.svg)
    assert "a method alone, whose last epoch decides, is not drawn" in weights.caption


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
    assert list(sections) == ["The task", "Accuracy and trust", "Calibration", "Pretraining"]


def test_names_that_fall_together_are_kept_apart(make_run):
    runs = [make_run("a", e3bm=True, results=[], name="鳥"), make_run("b", e3bm=True, epochs=6, results=[], name="魚")]
    names = [drawing.name for section in sections_of(runs).values() for drawing in section.drawings]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_a_task_is_shown_only_from_the_very_data_of_its_result(make_run):
    other = sections_of([make_run("other")])["The task"]
    assert other.drawings == ()
    assert "not the one that was tested on" in other.missing[0]
    absent = sections_of([make_run("absent", results=[result_of("absent", "MTL", dataset="fc100-of-nobody")])])
    assert absent["The task"].missing == (
        "Its tasks are not shown: fc100-of-nobody is not on this machine in the form that was tested on.",
    )


def test_the_picture_has_a_column_for_each_class_and_both_kinds_of_examples(pair):
    (drawing,) = sections_of(pair)["The task"].drawings
    assert {"1", "5", "labelled", "to answer"} <= set(texts(drawing.svg))
    assert "6" not in texts(drawing.svg)
    assert drawing.svg.count("<image") == 5 * (1 + 4)
    assert "(4 of 15 queries of each class are shown)" in drawing.caption


def test_a_far_row_is_marked_at_the_edge_and_flattens_nothing():
    near, far = Look(SERIES[0], "-"), Look(SERIES[1], "--")
    paired = {"paired_with": "NCM (pretrain)", "paired_ci": 0.1}
    rows = [
        ("near", near, result_of("a", "A", paired_difference=0.12, **paired)),
        ("level", near, result_of("b", "B", paired_difference=0.02, **paired)),
        ("far", far, result_of("c", "C", paired_difference=-11.25, **paired)),
    ]
    drawing = difference_figure("d", DIFFERENCES[0], "NCM", rows)
    assert drawing is not None
    written = texts(drawing.svg)
    assert "-11.2" in written
    ticks = [float(text.replace("−", "-")) for text in written if re.fullmatch(r"−?\d+\.\d+", text)]
    assert ticks
    assert max(map(abs, ticks)) < 1


def test_every_baseline_has_a_panel_of_its_own():
    def row(run: str, method: str, partner: str, **changes: object) -> tuple[str, Look, Result]:
        result = result_of(run, method, paired_with=partner, paired_difference=0.1, paired_ci=0.2, **changes)
        return method, Look(SERIES[0], "-"), result

    rows = [row("maml", "MAML", "NCM (p)"), row("m2", "MAML+E3BM", "MAML (maml)", hyperprior="lstm inductive")]
    groups = by_partner([("NCM", Look(SERIES[0], "-"), result_of("p", "NCM")), *rows])
    assert {partner: [label for label, _, _ in part] for partner, part in groups.items()} == {
        "MAML": ["MAML+E3BM"],
        "NCM": ["MAML"],
    }
    assert list(groups) == ["MAML", "NCM"], "what E3BM changes comes first"

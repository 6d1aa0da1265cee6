import pytest

from e3bm.report.tables import Cell, Table, details_table, results_table, runs_table
from e3bm.runs.folder.run import read_what_is_there
from result_records import result_of

BASE = result_of("plain", "MTL", accuracy=61.251, ci=0.714, nll=1.0123, ece=3.456, seconds=20.0, parameters=1_000,
                 episodes_hash="0123456789abcdef", commit="abc", system="p", baseline="p")  # fmt: skip
BETTER = BASE.but(
    method="MTL+E3BM", run="e3bm", hyperprior="lstm inductive", schedules="alpha generated, v generated",
    paired_with="MTL (plain)", paired_difference=1.5, paired_ci=0.4, seconds=21.0, parameters=1_010, system="e",
)  # fmt: skip


def column(table: Table, name: str) -> list[Cell]:
    return [row[table.columns.index(name)] for row in table.rows]


def test_a_row_shows_interval_calibration_difference_and_labels():
    table = results_table([BASE, BETTER])
    assert table.caption == "glyphs test, 5-way 1-shot, Q=15, 600 episodes (hash 0123456789ab)"
    assert [cell.text for cell in column(table, "Accuracy %")] == ["61.25 ± 0.71"] * 2
    assert [cell.text for cell in column(table, "NLL")] == ["1.012"] * 2
    assert [cell.text for cell in column(table, "ECE %")] == ["3.46"] * 2
    assert [cell.text for cell in column(table, "Difference %")] == ["–", "+1.50 ± 0.40 * vs MTL"]
    assert [cell.strong for cell in column(table, "Difference %")] == [False, True]
    assert [cell.text for cell in column(table, "Setting")] == ["inductive"] * 2
    assert "excludes zero" in table.text()
    assert "**+1.50 ± 0.40 \\* vs MTL**" in table.markdown()
    assert "<strong>+1.50 ± 0.40 * vs MTL</strong>" in table.html()


@pytest.mark.parametrize(
    ("difference", "interval", "marked"), [(-0.5, 0.4, True), (0.4, 0.4, False), (0.1, None, False)]
)
def test_only_an_interval_that_excludes_zero_is_marked(difference: float, interval: float | None, marked: bool):
    table = results_table([BETTER.but(paired_difference=difference, paired_ci=interval)])
    assert column(table, "Difference %")[0].strong is marked
    assert ("excludes zero" in table.text()) is marked


def test_batch_statistics_are_flagged_as_transductive_in_fact():
    table = results_table([BASE, BASE.but(batchnorm="batch", transductive_batchnorm=True)])
    assert [cell.text for cell in column(table, "Setting")] == ["inductive", "inductive †"]
    assert [cell.text for cell in column(table, "BatchNorm")] == ["running", "batch †"]
    assert [cell.flag for cell in column(table, "Setting")] == [False, True]
    assert "transductive in fact" in table.text()
    assert "transductive in fact" not in results_table([BASE]).text()


def test_what_differs_gets_a_column_and_other_episodes_a_note():
    table = results_table([BASE, BASE.but(shots=(1, 5), seed=1), BASE.but(episodes_hash="ffff")])
    assert [cell.text for cell in column(table, "Task")] == [
        "5-way 1-shot, Q=15",
        "5-way 1–5-shot, Q=15",
        "5-way 1-shot, Q=15",
    ]
    assert [cell.text for cell in column(table, "Seed")] == ["0", "1", "0"]
    assert "Episodes" in table.columns
    assert "not comparable" in table.text()
    assert "Seed" not in results_table([BASE, BETTER]).columns
    assert [cell.text for cell in column(results_table([BASE.but(seeds=(0, 1, 2))]), "Seed")] == ["0, 1, 2"]


def test_costs_are_relative_to_the_same_method_alone():
    table = details_table([BETTER, BASE])
    assert [cell.text for cell in column(table, "+param")] == ["+1.00 %", "–"]
    assert [cell.text for cell in column(table, "+time")] == ["+5.0 %", "–"]
    for other in ({"system": "on resnet12"}, {"episodes_hash": "f"}):
        assert column(details_table([BETTER, BASE.but(**other)]), "+param")[0].text == "–"
    stranger = BASE.but(method="SIB", run="sib", system="s", baseline="s")
    assert column(details_table([BETTER.but(paired_with="SIB (sib)"), stranger]), "+param")[0].text == "–"
    renamed = BETTER.but(method="our best")
    assert column(details_table([renamed, BASE]), "+param")[0].text == "+1.00 %"
    seeds = [BASE.but(seed=seed, seconds=10.0 * (seed + 1)) for seed in range(3)]
    assert column(details_table([BETTER.but(seed=1), *seeds]), "+time")[0].text == "+5.0 %"
    together = BETTER.but(seed="mean", seeds=(0, 1, 2))  # its time is the mean of theirs
    assert column(details_table([together, BASE]), "+time")[0].text == "+5.0 %"


def test_a_method_without_an_inner_loop_has_dashes():
    nearest = BASE.but(epochs=0, rates=(), weights=(), epoch_accuracy=(), schedules="none", order="none")
    assert column(details_table([nearest]), "M")[0].text == "–"


def test_a_partner_goes_by_its_method_where_that_says_enough():
    other = BASE.but(run="plain-again")
    assert column(results_table([BASE, BETTER]), "Difference %")[1].text.endswith(" vs MTL")
    assert column(results_table([BASE, other, BETTER]), "Difference %")[2].text.endswith(" vs MTL (plain)")
    assert column(results_table([BETTER]), "Difference %")[0].text.endswith(" vs MTL (plain)")


def test_other_training_data_and_the_spread_over_seeds_are_said():
    assert results_table([BASE.but(trained_on="fc100")]).caption.startswith("glyphs test (trained on fc100), 5-way")
    assert results_table([BASE.but(trained_on="glyphs")]).caption.startswith("glyphs test, 5-way")
    seeds = column(results_table([BASE.but(seeds=(0, 1), seed="mean", seed_std=0.314)]), "Seed")
    assert [cell.text for cell in seeds] == ["0, 1 (std 0.31)"]


def test_no_results_make_an_empty_table_and_odd_numbers_a_dash():
    for table in (results_table([]), details_table([])):
        assert table.text()
        assert table.markdown()
        assert table.html()
    odd = BASE.but(metrics={"nll": float("nan")}, ece=float("inf"), train_seconds=float("nan"))
    assert column(results_table([odd]), "NLL")[0].text == column(results_table([odd]), "ECE %")[0].text == "–"
    assert column(details_table([odd]), "Train time")[0].text == "–"


def test_text_is_aligned_also_with_wide_characters():
    table = Table(
        ("Name", "N"), ((Cell("鳥類"), Cell("1", number=True)), (Cell("bird"), Cell("22", number=True))), "Title"
    )
    assert table.text().splitlines() == ["Title", "Name   N", "----  --", "鳥類   1", "bird  22"]


def test_everything_is_escaped():
    evil = "<script>alert('x')</script>|**_\x1b[31m"
    table = results_table([BASE.but(method=evil, dataset=evil, hyperprior=evil, paired_with=evil)])
    assert "<script" not in table.html()
    assert "&lt;script&gt;" in table.html()
    assert "<script" not in table.markdown()
    assert table.markdown().splitlines()[-1].count("|") == table.markdown().splitlines()[-1].count("\\|") + 9
    assert "\x1b" not in table.text() + table.markdown()


def test_runs_table_says_how_far_a_run_came(make_run, pretrained):
    table = runs_table(
        [
            read_what_is_there(make_run("whole")),
            read_what_is_there(make_run("half", done=90)),
            read_what_is_there(pretrained),
        ]
    )
    assert [cell.text for cell in column(table, "Steps")] == ["200", "90 of 200 (unfinished)", "3 epochs"]
    assert [cell.flag for cell in column(table, "Steps")] == [False, True, False]
    assert [cell.text for cell in column(table, "Time")] == ["30.0 s", "13.0 s", "12.0 s"]
    assert [cell.text for cell in column(table, "Method")] == ["MTL", "MTL", "pretraining"]
    assert [cell.text for cell in column(table, "Data")] == ["glyphs, 5-way 1-shot"] * 3
    assert column(table, "Backbone")[0].text == "conv4, frozen"


@pytest.mark.parametrize("width", [None, 200, 60, 40, 10])
def test_a_text_fits_as_far_as_words_and_numbers_allow(width):
    rows = tuple(
        (Cell(name), Cell("some more words about it", number=False), Cell("-10.25 ± 0.71 *", number=True))
        for name in ("MTL", "results/fc100/small-mtl-whitened-fc100-1shot")
    )
    table = Table(
        ("Method", "What is said", "Difference %"), rows, "a caption of a few words", ("a note of ten words",)
    )
    lines = table.text(width).splitlines()
    assert sum("-10.25 ± 0.71 *" in line for line in lines) == 2
    joined = "".join(table.text(width).split())
    assert all(part in joined for part in ("MTL", "results/fc100/small-", "some", "about", "acaptionofafewwords"))
    if width is None:
        assert table.text() == table.text(1000)
    if width in (60, 200):
        assert max(map(len, lines)) <= width
    if width in (10, 40):
        assert max(map(len, lines)) == max(map(len, table.text(1).splitlines()))  # no narrower than this


def test_a_table_without_some_columns():
    table = results_table([BASE, BETTER])
    left = table.without("NLL", "Setting")
    assert [name for name in table.columns if name not in left.columns] == ["NLL", "Setting"]
    assert column(left, "Accuracy %") == column(table, "Accuracy %")

from statistics import fmean

import pytest

from e3bm.errors import SettingsError
from e3bm.methods import METHODS
from e3bm.paper.tables import (
    PAPER_DATASETS,
    SYSTEMS,
    paper_claims,
    paper_costs,
    paper_rows,
    paper_settings,
)
from e3bm.settings import read_settings

TABLES = ("T1", "T2", "S1", "S2")


def accuracy(table, method, dataset, shots, backbone=None, kind=None):
    (row,) = [
        row
        for row in paper_rows(table, dataset=dataset, shots=shots)
        if row.method == method and backbone in (None, row.backbone) and kind in (None, row.kind)
    ]
    return row.accuracy


def test_every_printed_accuracy_is_there():
    assert {table: len(paper_rows(table)) for table in TABLES} == {"T1": 84, "T2": 48, "S1": 24, "S2": 36}


def test_the_goals_on_fc100():
    assert [accuracy("T1", "MAML+E3BM", "fc100", shots) for shots in (1, 5)] == [39.9, 52.6]
    assert [accuracy("S1", "MTL+E3BM", "fc100", shots, "ResNet-12") for shots in (1, 5)] == [43.2, 60.2]
    assert [accuracy("T1", "SIB+E3BM", "fc100", shots) for shots in (1, 5)] == [46.0, 57.1]


@pytest.mark.parametrize(("method", "claim"), [("SIB", 1.6), ("MAML", 2.9)])
def test_the_gains_of_table_1_average_to_what_the_text_claims(method, claim):
    gains = [
        accuracy("T1", f"{method}+E3BM", dataset, shots) - accuracy("T1", method, dataset, shots)
        for dataset in PAPER_DATASETS
        for shots in (1, 5)
    ]
    assert fmean(gains) == pytest.approx(claim, abs=0.05)
    assert paper_claims()[f"average gain of {method}+E3BM over {method}"] == claim


def test_extra_time_averages_to_what_the_text_claims():
    times = [row.plus_time for row in paper_rows("T1", method="sib+e3bm")]
    assert None not in times
    assert fmean(times) == pytest.approx(5.2, abs=0.05)


def test_tables_that_repeat_a_row_agree_except_where_the_paper_does_not():
    known = {("MTL+E3BM", "fc100", 5), ("MAML+E3BM", "miniimagenet", 5)}  # 60.5 and 60.4, 65.1 and 65.0
    for table in ("T2", "S2"):
        for row in paper_rows("T1"):
            alike = [
                other.accuracy
                for other in paper_rows(table, dataset=row.dataset, shots=row.shots)
                if (other.method, other.backbone, other.kind) == (row.method, row.backbone, row.kind)
            ]
            if alike and (row.method, row.dataset, row.shots) not in known:
                assert alike == [row.accuracy], row


def test_published_code_stands_beside_the_rows_it_belongs_to():
    rows = paper_rows("S1", dataset="miniimagenet", method="MTL+E3BM")
    found = {(row.backbone, row.shots): (row.published_code, row.published_code_ci) for row in rows}
    assert found[("ResNet-12", 1)] == (64.09, 0.37)
    assert found[("ResNet-25", 1)] == (None, None)


def test_the_kind_of_hyperprior_is_the_text_s_where_a_table_is_silent():
    kinds = {row.method: row.kind for row in paper_rows("T1")}
    assert kinds["SIB+E3BM"] == "lstm-transductive"
    assert kinds["MTL+E3BM"] == "lstm-inductive"
    assert kinds["MTL"] == "plain"
    assert {row.kind for row in paper_rows("T2", method="SIB+E3BM")} == {"fc-transductive", "lstm-transductive"}


def test_every_printed_system_is_a_method_here():
    for table in TABLES:
        for row in paper_rows(table):
            for name in row.system.methods:
                own = read_settings(METHODS[name].settings, dict(row.system.options))
                by_hyperprior = row.kind.endswith("transductive")
                assert (row.setting == "transductive") == (own.transductive or by_hyperprior)
    assert {row.alone for table in TABLES for row in paper_rows(table)} == set(SYSTEMS)


def test_places_without_a_number():
    every, printed = paper_rows("T1", dataset="fc100", unprinted=True), paper_rows("T1", dataset="fc100")
    assert len(every) == 2 * 18
    assert [row for row in every if row.accuracy is not None] == printed
    assert {row.method for row in every} - {row.method for row in printed} == {
        "MatchNets", "ProtoNets", "CAN", "CTM", "LEO", "Robust20-dist", "EGNN", "CAN+T",
    }  # fmt: skip


def test_costs_and_settings():
    costs = {(cost.method, cost.backbone): cost for cost in paper_costs()}
    assert len(costs) == 8
    assert costs["MTL+E3BM", "ResNet-25"].minutes / costs["MTL", "ResNet-25"].minutes == pytest.approx(1.0587, abs=1e-4)
    assert paper_settings()["meta_lr_psi"] == 1e-6


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"table": "T9"}, "There is no table of accuracies 'T9'; there are T1, T2, S1, S2."),
        ({"table": "T1", "dataset": "cub"}, "The paper has no results on 'cub'; it has miniimagenet"),
        ({"table": "T1", "shots": 3}, "none with 3 shots"),
    ],
)
def test_what_the_paper_does_not_have_is_one_sentence(arguments, sentence):
    with pytest.raises(SettingsError, match=sentence.replace("(", r"\(")):
        paper_rows(**arguments)

"""The words that open a report: they follow from the numbers and claim nothing that an interval does not allow."""

from typing import Any

import pytest

from e3bm.report.verdict import Verdict, verdicts
from e3bm.runs.result import Result
from result_records import result_of


def pair_of(
    name: str, difference: float, ci: float, nll: float = -0.1, nll_ci: float = 0.02, **both: Any
) -> list[Result]:
    """A method alone and with E3BM on the same episodes."""
    alone = result_of(name, name.upper(), ece=12.0, **both).model_copy(update={"system": name, "baseline": name})
    changes = {"paired_with": name, "paired_difference": difference, "paired_ci": ci, "ece": 4.0}
    metrics = {"nll_difference": nll, "nll_difference_ci": nll_ci}
    labels = {"hyperprior": "lstm inductive", "schedules": "alpha generated, v generated"}
    better = result_of(f"{name}-e3bm", f"{name.upper()}+E3BM", **(changes | metrics | labels | both))
    return [alone, better.model_copy(update={"system": f"{name}-e3bm", "baseline": name})]


def only(results: list[Result]) -> Verdict:
    (verdict,) = verdicts(results, [])
    return verdict


@pytest.mark.parametrize(
    ("difference", "nll", "answer"),
    [
        (1.5, -0.1, "E3BM helps here."),
        (0.1, -0.1, "E3BM helps here."),
        (0.1, -0.01, "E3BM makes no certain difference here."),
        (-1.5, 0.01, "E3BM hurts here."),
        (-1.5, -0.1, "E3BM helps in one respect here and hurts in the other."),
    ],
)
def test_the_answer_follows_the_intervals(difference: float, nll: float, answer: str):
    assert only(pair_of("mtl", difference, 0.4, nll)).answer == answer


def test_the_sentences_say_by_how_much_and_for_whom():
    verdict = only([*pair_of("mtl", 0.8, 0.3), *pair_of("sib", 0.1, 0.3, 0.001), *pair_of("maml", -2.0, 0.3, 0.3)])
    assert verdict.answer == "E3BM helps 1 of 3 methods here and hurts 1."
    assert verdict.sentences == (
        "Accuracy on the same 600 tasks rises for MTL+E3BM (+0.80 ± 0.30 points), falls for MAML+E3BM (-2.00 ± 0.30 "
        "points), and shows no certain change for SIB+E3BM (+0.10 ± 0.30 points).",
        "Trust in the probabilities grows for MTL+E3BM (NLL -0.100 ± 0.020, ECE 12.0 → 4.0 %), shrinks for MAML+E3BM "
        "(NLL +0.300 ± 0.020, ECE 12.0 → 4.0 %), and shows no certain change for SIB+E3BM (NLL +0.001 ± 0.020, "
        "ECE 12.0 → 4.0 %).",
    )
    assert "another seed" in verdict.caution


def test_without_an_interval_nothing_is_called_certain():
    alone, better = pair_of("mtl", 0.1, 0.4)
    bare = better.but(metrics={"nll": 0.9}).model_copy(update={"system": "mtl-e3bm", "baseline": "mtl"})
    verdict = only([alone, bare])
    assert verdict.answer == "E3BM makes no certain difference here."
    assert "without an interval" in verdict.sentences[1]


def test_seeds_together_stand_for_the_single_ones():
    alone, better = pair_of("mtl", 0.1, 0.4)
    pooled = [
        each.model_copy(update={"seeds": (0, 1), "seed": "mean", "paired_difference": difference})
        for each, difference in ((alone, None), (better, 0.9))
    ]
    verdict = only([alone, better, *pooled])
    assert "+0.90 ± 0.40" in verdict.sentences[0]
    assert "+0.10" not in verdict.sentences[0]
    assert "another seed" not in verdict.caution


def test_every_list_of_tasks_has_its_own_answer():
    five = pair_of("mtl", -1.0, 0.4, 0.1, shots=5, episodes_hash="f" * 20)
    answers = [verdict.answer for verdict in verdicts([*pair_of("mtl", 1.0, 0.4), *five], [])]
    assert answers == ["E3BM helps on glyphs test, 5-way 1-shot.", "E3BM hurts on glyphs test, 5-way 5-shot."]


def test_ablations_and_single_methods_are_no_verdict_on_e3bm():
    alone, better = pair_of("mtl", 1.0, 0.4)
    half = better.model_copy(update={"schedules": "alpha generated, v last"})
    assert verdicts([alone, half], []) == []
    assert verdicts([better], []) == []
    assert verdicts([], []) == []

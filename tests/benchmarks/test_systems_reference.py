"""The authors' loops give what our batched forms give; every form of a method has a line of the table."""

import pytest
import torch
from benchmarks.systems_reference import ctm_scores, egnn_scores, svm_scores

from benchmarks import systems
from e3bm.methods import METHODS
from e3bm.paper.presets import presets


def check_derivatives(plain, ours, batch, weights, atol=1e-10):
    """The derivatives that are timed, of all tasks together."""
    found, expected = (systems.learn(scores, batch, weights) for scores in (ours, plain))
    for each, wanted in zip(found, expected, strict=True):
        assert (each is None) == (wanted is None)
        if each is not None:
            torch.testing.assert_close(each, wanted, rtol=1e-10, atol=atol)


@pytest.mark.parametrize("graph", ["inductive", "transductive"])
@pytest.mark.parametrize("shots", [1, 2])
def test_egnn_graph_by_graph(graph, shots):
    method, _ = systems.egnn(shots, graph)
    method, batch = method.double(), systems.tasks(2, shots, 2, (systems.FEATURES,), torch.double)
    for task in range(2):
        found = egnn_scores(method, batch, task)
        torch.testing.assert_close(found, method.scores(batch)[task], rtol=1e-10, atol=1e-10)
    plain = systems.one_by_one(lambda batch, task: egnn_scores(method, batch, task))
    check_derivatives(plain, method.scores, batch, tuple(method.parameters()))


@pytest.mark.parametrize("shots", [1, 2])
def test_ctm_example_by_example(shots):
    method, _ = systems.ctm(shots)
    method, batch = method.double(), systems.tasks(2, shots, 2, (32, 4, 4), torch.double)
    for task in range(2):
        found = ctm_scores(method, batch, task)
        torch.testing.assert_close(found, method.scores(batch)[task], rtol=1e-10, atol=1e-10)
    plain = systems.one_by_one(lambda batch, task: ctm_scores(method, batch, task))
    check_derivatives(plain, method.scores, batch, tuple(method.parameters()))


@pytest.mark.parametrize("shots", [1, 2])
def test_the_svm_by_a_general_solver(shots):
    qpth = pytest.importorskip("qpth.qp", reason="qpth, the solver of MetaOptNet's authors, is not installed")
    method, _ = systems.meta_opt_net(shots)
    method, batch = method.double(), systems.tasks(2, shots, 2, (systems.FEATURES,), torch.double)
    ours = lambda batch: method(batch).scores
    plain = lambda batch: svm_scores(method, qpth.QPFunction(verbose=False), batch)
    # It stops at residuals of 1e-12, and clamps multipliers and slacks at 1e-8 in its backward pass.
    torch.testing.assert_close(plain(batch), ours(batch), rtol=0, atol=1e-7)
    check_derivatives(plain, ours, batch, tuple(method.parameters()), atol=1e-7)


def test_every_small_form_of_a_method_is_timed():
    forms, five = systems.small_forms(1), systems.small_forms(5)
    assert set(forms) == set(five)
    assert {form.method for form in forms} == set(METHODS)
    timed = {systems.what_is_computed(preset.train) for preset in forms.values()}
    with_psi = {systems.what_is_computed(forms[form].train) for form in forms if form.hyperprior}
    small = {
        name: preset.train for name, preset in presets().items() if name.startswith("small-") and "-fc100-1" in name
    }
    assert small
    for train in small.values():
        assert systems.what_is_computed(train) in (with_psi if train.hyperprior.generated else timed)


def test_lines_have_names_of_their_own():
    names = [(form.title(preset.train), form.psi) for form, preset in systems.small_forms(1).items()]
    assert len(set(names)) == len(names)
    assert {("MAP, balanced", "no"), ("EGNN (inductive)", "LSTM, inductive"), ("MetaOptNet (ridge)", "no")} <= set(
        names
    )


MEASURED = {
    ("map_rounds", "", ""): False,
    ("map_rounds", "", "lstm-inductive"): True,
    ("map_rounds", "balanced", ""): True,
    ("egnn", "inductive", ""): True,
    ("leo", "", ""): True,
    ("mtl", "scaled", "lstm-inductive"): True,
    ("nearest_mean", "", ""): False,
}


@pytest.mark.parametrize("form", MEASURED, ids=lambda form: "-".join(filter(None, form)))
def test_a_line_can_be_measured(form):
    answered, trained = systems.measured(systems.small_forms(1)[systems.Form(*form)].train, 1, quick=True)
    assert answered >= 0
    assert trained >= 0 if MEASURED[form] else trained == "nothing to train"


def test_a_pass_forward_and_one_with_derivatives_are_compared():
    duel = next(duel for duel in systems.duels(1) if duel.name == "CTM")
    rows = [duel.row(when, 1) for when in ("forward", "forward and backward")]
    assert [row.name for row in rows] == ["CTM, forward, 1-shot", "CTM, forward and backward, 1-shot"]

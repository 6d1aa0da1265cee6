"""The four hyperprior kinds run on MTL and SIB, and an LSTM trains over many episodes without keeping state."""

import pytest
import torch

from e3bm.core.context import ClassMean, Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Generated, equal_values
from e3bm.methods import Mtl, ReadyFeatures, Sib

FEATURES, WAYS, EPOCHS = 12, 3, 4
METHODS = {
    "linear": (lambda: Mtl(ReadyFeatures(FEATURES), ways=WAYS), 0.1),
    "cosine": (lambda: Mtl(ReadyFeatures(FEATURES), head="cosine", start="prototype"), 0.1),
    "sib": (lambda: Sib(ReadyFeatures(FEATURES), ways=WAYS, gradient_net="equivariant"), 0.01),
}


def episode(number, tasks=8, queries=9):
    """Classes are directions in a few of the features; the rest is noise."""
    draw = torch.Generator().manual_seed(number)
    centres = torch.zeros(tasks, WAYS, FEATURES)
    centres[..., :4] = torch.randn(tasks, WAYS, 4, generator=draw)

    def examples(labels):
        return centres[:, labels] + 0.5 * torch.randn(tasks, len(labels), FEATURES, generator=draw)

    labels, query_labels = torch.arange(WAYS), torch.arange(WAYS).repeat(queries // WAYS)
    expand = lambda values: values.expand(tasks, -1).contiguous()
    return TaskBatch(examples(labels), expand(labels), examples(query_labels), expand(query_labels), WAYS)


def learner(name, kind, transductive, summary="stats", rate=None):
    torch.manual_seed(1)
    build, usual = METHODS[name]
    context = (
        Context(Stats(transductive=transductive), transductive=transductive)
        if summary == "stats"
        else Context(ClassMean(FEATURES), FEATURES, transductive)
    )
    psi = FcGenerator(context, EPOCHS, 2) if kind == "fc" else LstmGenerator(context, 2, hidden=4)
    return MetaLearner(
        build(), Hyperprior(Generated([rate or usual] * EPOCHS), Generated(equal_values(EPOCHS)), psi), EPOCHS
    )


@pytest.mark.parametrize("summary", ["stats", "class_mean"])
@pytest.mark.parametrize("transductive", [False, True], ids=["inductive", "transductive"])
@pytest.mark.parametrize("kind", ["fc", "lstm"])
@pytest.mark.parametrize("name", METHODS)
def test_the_four_kinds_run(name, kind, transductive, summary):
    model, batch = learner(name, kind, transductive, summary), episode(0)
    # Adam's first step is as long as its rate: one of 0.01 could bring SIB's alpha' of 0.01 to exactly zero.
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(2):  # a read-out that starts at zero hides the cell's gradient at the first step
        trace = model(batch)
        optimizer.zero_grad()
        meta_loss(trace.scores, batch.query_labels).backward()
        optimizer.step()
    assert trace.scores.shape == (8, 9, WAYS)
    assert trace.rates.shape == trace.weights.shape == trace.losses.shape == (8, EPOCHS)
    for parameter in model.hyperprior.parameters():
        assert torch.isfinite(parameter.grad).all()
    assert any(float(parameter.grad.abs().max()) > 0 for parameter in model.hyperprior.generator.parameters())
    assert float(trace.rates.detach().std(0).max()) > 0  # tasks have rates of their own


def trained(name, steps):
    """Only psi and the base values learn: what goes down is theirs."""
    model = learner(name, "lstm", False, rate=0.003)
    optimizer = torch.optim.Adam(model.hyperprior.parameters(), 0.03)
    for step in range(steps):
        batch = episode(step)
        optimizer.zero_grad()
        meta_loss(model(batch).scores, batch.query_labels).backward()
        optimizer.step()
    return model


def held_out_loss(model):
    with torch.no_grad():
        losses = [meta_loss(model(batch).scores, batch.query_labels) for batch in map(episode, range(1000, 1010))]
    return float(torch.stack(losses).mean())


@pytest.mark.parametrize("name", METHODS)
def test_an_lstm_trains_over_many_episodes(name):
    assert held_out_loss(trained(name, 60)) < held_out_loss(trained(name, 0)) - 0.02


@pytest.mark.parametrize("name", METHODS)
def test_no_state_is_kept_between_episodes(name):
    model, first, second = trained(name, 5), episode(50), episode(51)
    before = model(first)
    model(second)
    after = model(first)
    assert torch.equal(before.scores, after.scores)
    assert torch.equal(before.rates, after.rates)


def test_nothing_of_an_episode_is_in_the_checkpoint():
    model = learner("linear", "lstm", False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model(episode(0))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())

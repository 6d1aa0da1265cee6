"""The loop and what it leaves behind."""

import pytest
import torch

from e3bm.core.adapt import InnerProblem, adapt, adapt_and_keep
from e3bm.core.context import Basis, ClassMean, Context, Observation, Stats, Summary, query_entropies
from e3bm.core.hyperprior import FcGenerator, Generator, Hyperprior, LstmGenerator
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly, Learned
from e3bm.errors import SettingsError


class Sinking:
    """The smallest problem there is: a number per task that sinks by rate times direction; queries see the number."""

    def __init__(self, tasks=3):
        self.tasks = tasks

    def basis(self):
        embeddings = torch.ones(self.tasks, 2, 4)
        return Basis(None, lambda: embeddings, lambda: embeddings, torch.ones(self.tasks, 2, dtype=torch.bool))

    def start(self):
        return torch.full((self.tasks,), 10.0)

    def empty(self):
        return torch.zeros(self.tasks)

    def direction(self, state):
        return torch.ones_like(state)

    def observe(self, state, direction):
        return SinkingObservation(state)

    def step(self, state, direction, rate):
        return state - rate * direction

    def vote(self, ensemble, state, weight):
        return ensemble + weight * state

    def scores(self, ensemble):
        return ensemble.view(-1, 1, 1).expand(-1, 2, 2)


class SinkingObservation:
    def __init__(self, state):
        self.state = state

    def coefficients(self):
        return self.state.view(-1, 1, 1).expand(-1, 4, 2)

    def squared_norm(self):
        return self.state.square()

    def loss(self):
        return self.state.clone()

    def query_scores(self):
        return torch.zeros(len(self.state), 2, 2)


def test_the_numbers_of_algorithm_2():
    trace = adapt(Sinking(), Hyperprior(Learned([1.0, 2.0, 3.0]), Learned([0.5, 0.25, 0.25])), 3)
    # 10 -> 9 -> 7 -> 4; 0.5 * 9 + 0.25 * 7 + 0.25 * 4
    assert torch.equal(trace.scores.detach(), torch.full((3, 2, 2), 7.25))
    assert trace.rates[0].tolist() == [1.0, 2.0, 3.0]
    assert trace.weights[0].tolist() == [0.5, 0.25, 0.25]
    assert trace.losses[0].tolist() == [10.0, 9.0, 7.0]  # before each update
    assert trace.epoch_scores is None


def test_single_epochs_on_request():
    trace = adapt(Sinking(), Hyperprior(Constant(1.0), LastOnly()), 3, every_epoch=True)
    assert trace.epoch_scores.shape == (3, 3, 2, 2)
    assert trace.epoch_scores[0, :, 0, 0].tolist() == [9.0, 8.0, 7.0]
    assert torch.equal(trace.epoch_scores[:, -1], trace.scores)


def test_the_start_is_not_in_the_ensemble():
    assert adapt(Sinking(), Hyperprior(Constant(1.0), Equal()), 1).scores[0, 0, 0] == 9.0


def test_the_ensemble_itself_is_kept_on_request():
    trace, ensemble = adapt_and_keep(Sinking(), Hyperprior(Constant(1.0), Equal()), 2)
    assert torch.equal(trace.scores[:, 0, 0], ensemble)


def test_losses_carry_no_graph_and_rates_do():
    trace = adapt(Sinking(), Hyperprior(Learned([1.0, 2.0]), Learned([0.5, 0.5])), 2)
    assert not trace.losses.requires_grad
    assert trace.rates.requires_grad
    assert trace.weights.requires_grad


@pytest.mark.parametrize("epochs", [0, -1])
def test_at_least_one_epoch(epochs):
    with pytest.raises(SettingsError, match=f"at least 1 epoch, found {epochs}"):
        adapt(Sinking(), Hyperprior(Constant(1.0), LastOnly()), epochs)


def test_protocols():
    assert isinstance(Sinking(), InnerProblem)
    assert isinstance(SinkingObservation(torch.ones(2)), Observation)
    assert isinstance(ClassMean(3), Summary)
    assert isinstance(FcGenerator(Context(Stats()), 2, 2), Generator)
    assert isinstance(LstmGenerator(Context(Stats()), 2), Generator)


def test_a_hyperprior_sees_the_epoch_before_the_update():
    """The FC layer of epoch m is given the state before step m: with a weight on the loss alone, rates follow it."""
    psi = FcGenerator(Context(Stats()), 2, 1, zero_start=True)
    with torch.no_grad():
        psi.weight[0][:, 1] = 1.0
    hyperprior = Hyperprior(Generated([0.0, 0.0]), LastOnly(), psi, mixing="residual", fractions=(0.1, 0.1))
    assert adapt(Sinking(), hyperprior, 2).rates[0].tolist() == pytest.approx([1.0, 0.9])


def test_an_lstm_remembers_earlier_epochs():
    """With the input shut off, what is left is memory: values differ from epoch to epoch."""
    torch.manual_seed(0)
    psi = LstmGenerator(Context(Stats()), 1, hidden=1, readout=False)
    with torch.no_grad():
        psi.input_weight[0].zero_()
        psi.input_bias[0].fill_(0.5)
    rates = adapt(Sinking(), Hyperprior(Generated([1.0] * 3), LastOnly(), psi), 3).rates[0].tolist()
    assert len({round(rate, 6) for rate in rates}) == 3


def test_contexts_say_their_size():
    assert Context(Stats()).size == 4
    assert Context(Stats(transductive=True), transductive=True).size == 6
    assert Context(ClassMean(7), embedding=7).size == 14
    assert Context(ClassMean(7), embedding=7, transductive=True).size == 21


def test_entropies_of_queries():
    scores = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[50.0, 0.0], [0.0, 50.0]], [[50.0, 0.0], [50.0, 0.0]]])
    each, mean = query_entropies(scores)
    log2 = 0.6931471805599453
    # Unsure; sure of different classes; sure of the same class.
    torch.testing.assert_close(each, torch.tensor([log2, 0.0, 0.0]))
    torch.testing.assert_close(mean, torch.tensor([log2, log2, 0.0]))


def test_means_of_centred_embeddings():
    embeddings = torch.randn(2, 3, 5, dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, False, True]])
    plain = Basis(None, lambda: embeddings, lambda: embeddings, mask)
    centred = Basis(None, lambda: embeddings, lambda: embeddings, mask, centred=True)
    torch.testing.assert_close(plain.support_mean()[1], embeddings[1, [0, 2]].mean(0))
    moved = embeddings - embeddings.mean(-1, keepdim=True)
    torch.testing.assert_close(centred.support_mean()[1], moved[1, [0, 2]].mean(0))
    torch.testing.assert_close(centred.query_mean(), moved.mean(1))
    torch.testing.assert_close(centred.support_square()[1], moved[1, [0, 2]].square().sum(-1).mean())


def test_a_detached_basis_gives_no_gradient():
    embeddings = torch.randn(1, 2, 3, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    basis = Basis(lambda: embeddings, lambda: embeddings, lambda: embeddings, mask).detached()
    assert not basis.support_mean().requires_grad
    assert not basis.query_mean().requires_grad
    assert not basis.project(torch.ones(1, 1, 3)).requires_grad

"""The meta-loss and the KL term."""

import torch
from torch.nn import functional

from e3bm.core.adapt import AdaptationTrace
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import kl_to_base, meta_loss
from e3bm.core.schedules import Constant, LastOnly, Learned


def trace(rates, weights):
    tasks = len(rates)
    return AdaptationTrace(torch.zeros(tasks, 2, 3), rates, weights, torch.zeros_like(rates))


def test_the_meta_loss_is_the_mean_over_queries_and_tasks():
    scores = torch.randn(4, 5, 3, dtype=torch.float64)
    labels = torch.randint(3, (4, 5))
    expected = torch.stack([functional.cross_entropy(scores[task], labels[task]) for task in range(4)]).mean()
    torch.testing.assert_close(meta_loss(scores, labels), expected)


def test_no_movement_costs_nothing():
    hyperprior = Hyperprior(Learned([0.1, 0.2]), LastOnly())
    still = trace(torch.tensor([[0.1, 0.2]] * 3), torch.tensor([[0.0, 1.0]] * 3))
    assert float(kl_to_base(still, hyperprior).detach()) == 0.0


def test_the_value_is_the_formula():
    base, rates = [0.5, -2.0], [[0.6, -2.0], [0.5, -1.5]]
    hyperprior = Hyperprior(Learned(base), Constant(1.0)).double()
    found = kl_to_base(trace(torch.tensor(rates).double(), torch.ones(2, 2).double()), hyperprior)
    # s = 1e-2 |base| + 1e-3; the KL of two normals of equal s is (difference)^2 / (2 s^2), summed over epochs.
    expected = ((0.1 / 0.006) ** 2 / 2 + (0.5 / 0.021) ** 2 / 2) / 2
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_it_is_the_kl_of_two_normals():
    base, value = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.35, dtype=torch.float64)
    scale = 1e-2 * base + 1e-3
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(value, scale), torch.distributions.Normal(base, scale)
    )
    hyperprior = Hyperprior(Learned([0.3]).double(), Constant(1.0).double())
    found = kl_to_base(trace(value.view(1, 1), torch.ones(1, 1).double()), hyperprior)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_its_gradient_pulls_value_and_base_together():
    hyperprior = Hyperprior(Learned([0.5]), Constant(1.0)).double()
    rates = torch.tensor([[0.6]], dtype=torch.float64, requires_grad=True)
    kl_to_base(trace(rates, torch.ones(1, 1).double()), hyperprior).backward()
    # s is a constant: the two pulls are equal and opposite.
    torch.testing.assert_close(rates.grad[0], torch.tensor([0.1 / 0.006**2], dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(hyperprior.rate.values.grad, -rates.grad[0])


def test_silent_weights_are_part_of_the_base():
    """A last-only schedule is zero in base and in trace: it adds nothing."""
    hyperprior = Hyperprior(Constant(0.1), LastOnly())
    found = kl_to_base(trace(torch.full((1, 3), 0.1), torch.tensor([[0.0, 0.0, 1.0]])), hyperprior)
    assert float(found) == 0.0

"""BatchNorm inside a head: tasks apart in training, running averages in tests."""

import pytest
import torch
from torch import nn

from e3bm.backbones.normalisation import commit_statistics, pop_statistics
from e3bm.errors import DataError, SettingsError
from e3bm.methods.head_norm import HeadNorm, NormedLinear


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def randomised(norm):
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return norm


def pair(features=4):
    norm, reference = HeadNorm(features).double(), nn.BatchNorm1d(features).double()
    reference.load_state_dict(randomised(norm).state_dict())
    return norm, reference


def values(tasks=3, rows=7, features=4):
    return torch.randn(tasks, rows, features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_each_task_is_a_batch_of_its_own():
    norm, reference = pair()
    close(norm.train()(values()), torch.stack([reference.train()(task) for task in values()]))
    commit_statistics(norm, pop_statistics(norm))
    for name, value in reference.state_dict().items():
        close(norm.state_dict()[name], value)


def test_nothing_moves_until_statistics_are_committed():
    norm, _ = pair()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    norm.train()(values())
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert pop_statistics(norm)[0].shape == (3, 2, 4)
    assert pop_statistics(norm)[0].shape == (0, 2, 4)


def test_running_averages_serve_tests():
    norm, reference = pair()
    close(norm.eval()(values()), reference.eval()(values().flatten(0, 1)).view(3, 7, 4))
    assert not norm.pending


def test_a_count_is_that_many_rows():
    norm, _ = pair()
    counts = torch.tensor([[2.0, 1, 0, 1, 3, 0, 1]], dtype=torch.float64)
    rows = values(tasks=1)
    repeated = rows[:, [0, 0, 1, 3, 4, 4, 4, 6]]
    expected = norm.train()(repeated)[:, [0, 2, 3, 4, 7]]
    close(norm(rows, counts)[:, [0, 1, 3, 4, 6]], expected)
    with_counts, with_repeats = norm.pending[1], norm.pending[0]
    close(with_counts, with_repeats)


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_takes_in_its_norm(bias):
    layer = NormedLinear(4, 3, bias=bias).double().eval()
    randomised(layer.norm)
    close(layer(values()), layer.norm(layer.linear(values())))


def test_derivatives_with_counts():
    norm = randomised(HeadNorm(2)).double().train()
    counts = torch.tensor([[1.0, 2, 0, 1], [1, 1, 1, 1]], dtype=torch.float64)
    inputs = values(2, 4, 2).requires_grad_(), *norm.parameters()
    assert torch.autograd.gradcheck(lambda rows, *_: norm(rows, counts), inputs)


@pytest.mark.parametrize("power", [1, 2])
def test_a_second_derivative_is_refused_by_a_sentence(power):
    """Even where the first does not depend on what comes after: else it would be taken for a constant."""
    rows = values().requires_grad_()
    loss = randomised(HeadNorm(4)).double().train()(rows).pow(power).sum()
    with pytest.raises(
        SettingsError, match=r"^The BatchNorm of a head \(HeadNorm\) has no second derivative, but .*\.$"
    ):
        torch.autograd.grad(loss, rows, create_graph=True)


def test_one_row_has_no_variance():
    with pytest.raises(DataError, match="two or more examples a task"):
        HeadNorm(4).train()(torch.randn(2, 1, 4))

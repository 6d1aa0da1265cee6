"""The solver against slow and obvious references, and against the conditions of an optimum."""

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, minimize
from tests.methods.feature_tasks import close, task_batch, uneven

from e3bm.methods.heads.dual_solver import ridge_dual, svm_dual


def problem(batch):
    one_hot = torch.nn.functional.one_hot(batch.support_labels, batch.ways).double().mT
    return batch.support @ batch.support.mT, one_hot, batch.mask


def missed_conditions(gram, one_hot, alpha, cap, ridge=1.0):
    """The largest violation of stationarity, signs, complementarity and sums, for real examples only.

    Multipliers of the sums are those that leave the least: the largest residual of a class, which is free.
    """
    gradient = alpha @ (gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype)) - one_hot
    slack = cap * one_hot - alpha
    equality = -gradient.max(1, keepdim=True).values
    multiplier = -gradient - equality
    return float(
        torch.stack([(-slack).clamp(min=0).max(), (multiplier * slack).abs().max(), alpha.sum(1).abs().max()]).max()
    )


def by_sequential_quadratic_programming(gram, one_hot, cap):
    """scipy on one task, all variables in one vector."""
    ways, count = one_hot.shape
    matrix = np.kron(np.eye(ways), gram.numpy() + np.eye(count))
    linear = one_hot.flatten().numpy()
    found = minimize(
        lambda x: x @ matrix @ x / 2 - linear @ x,
        np.zeros(ways * count),
        jac=lambda x: matrix @ x - linear,
        bounds=[(None, cap * value) for value in linear],
        constraints=LinearConstraint(np.kron(np.ones(ways), np.eye(count)), 0, 0),
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return torch.from_numpy(found.x).view(ways, count)


def by_projected_gradient(gram, one_hot, cap, steps=20_000):
    """Small steps, each followed by the projection onto the caps and the sums: min(v - t, cap), t by bisection."""
    matrix = gram + torch.eye(gram.shape[-1], dtype=gram.dtype)
    rate = 1 / torch.linalg.eigvalsh(matrix)[-1]
    alpha, caps = torch.zeros_like(one_hot), cap * one_hot
    for _ in range(steps):
        moved = alpha - rate * (alpha @ matrix - one_hot)
        low, high = moved.min(0).values - 1, moved.max(0).values + 1
        for _ in range(60):
            middle = (low + high) / 2
            above = torch.minimum(moved - middle, caps).sum(0) > 0
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        alpha = torch.minimum(moved - low, caps)
    return alpha


@pytest.mark.parametrize("cap", [0.02, 0.1, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_against_scipy(seed, cap):
    """SLSQP stops near 1e-8 of the optimum: its own accuracy, not ours."""
    gram, one_hot, mask = problem(task_batch(seed))
    alpha = svm_dual(gram, one_hot, mask, cap)
    for task in range(2):
        close(alpha[task], by_sequential_quadratic_programming(gram[task], one_hot[task], cap), 1e-6)


def test_against_projected_gradient():
    gram, one_hot, mask = problem(task_batch(3, shots=1))
    alpha = svm_dual(gram, one_hot, mask, 0.1)
    close(alpha[0], by_projected_gradient(gram[0], one_hot[0], 0.1, steps=500))


@pytest.mark.parametrize("cap", [0.02, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    ("ways", "shots", "features", "length"), [(3, 2, 5, 1), (5, 5, 40, 4), (5, 15, 20, 3), (20, 1, 8, 1), (2, 6, 3, 10)]
)
def test_conditions_of_an_optimum(ways, shots, features, length, cap):
    batch = task_batch(4, tasks=3, ways=ways, shots=shots, features=features)
    gram, one_hot, mask = problem(batch)
    gram = length**2 * gram
    # Rounding is in units of the Gram matrix.
    assert missed_conditions(gram, one_hot, svm_dual(gram, one_hot, mask, cap), cap) < 1e-13 * float(gram.max()) + 1e-12


def test_tasks_with_different_masks():
    batch = uneven(task_batch(5, tasks=3, shots=3))
    gram, one_hot, mask = problem(batch)
    for solve in (lambda *task: svm_dual(*task, 0.1), lambda *task: ridge_dual(*task, 2.0)):
        together = solve(gram, one_hot, mask)
        assert float(together[~mask.unsqueeze(1).expand_as(together)].abs().max()) == 0.0
        for task in range(3):
            real = mask[task]
            alone = solve(gram[task][real][:, real][None], one_hot[task][:, real][None], real[real][None])
            close(together[task][:, real], alone[0])


@pytest.mark.parametrize("looks", [1, 3, 6])
def test_tasks_with_different_masks_stopped_early(looks):
    gram, one_hot, mask = problem(uneven(task_batch(5, tasks=3, shots=3)))
    together = svm_dual(gram, one_hot, mask, 0.1, looks=looks)
    for task in range(3):
        real = mask[task]
        alone = svm_dual(
            gram[task][real][:, real][None], one_hot[task][:, real][None], real[real][None], 0.1, looks=looks
        )
        close(together[task][:, real], alone[0])


def test_many_looks_reach_the_optimum():
    gram, one_hot, mask = problem(task_batch())
    close(svm_dual(gram, one_hot, mask, 0.1, looks=30), svm_dual(gram, one_hot, mask, 0.1), 1e-9)


def test_orthogonal_examples_by_hand():
    """B = 2 I: the true class is at its cap 0.1, the other three share -0.1; with a wide cap nothing is."""
    gram, one_hot = torch.eye(4, dtype=torch.float64)[None], torch.eye(4, dtype=torch.float64)[None]
    mask = torch.ones(1, 4, dtype=torch.bool)
    close(svm_dual(gram, one_hot, mask, 0.1)[0], 0.1 * (4 * one_hot[0] - 1) / 3)
    close(svm_dual(gram, one_hot, mask, 1.0), (one_hot - 1 / 4) / 2)


def test_identical_examples_of_different_classes():
    """Nothing tells them apart: scores of any query are equal."""
    batch = task_batch()
    support = batch.support[:, :1].expand_as(batch.support)
    alpha = svm_dual(support @ support.mT, problem(batch)[1], batch.mask, 0.1)
    weight = alpha @ support
    close(weight, weight.mean(1, keepdim=True).expand_as(weight))


def test_derivatives_of_both_orders():
    batch = uneven(task_batch(6))
    _, one_hot, mask = problem(batch)
    support = batch.support.clone().requires_grad_()
    svm = lambda examples: svm_dual(examples @ examples.mT, one_hot, mask, 0.1)
    slack = 0.1 * one_hot - svm(support)
    assert not bool(((slack > 1e-12) & (slack < 1e-3)).any())  # none is about to reach its cap: no derivative there
    for dual in (svm, lambda examples: ridge_dual(examples @ examples.mT, one_hot, mask, 2.0)):
        assert torch.autograd.gradcheck(dual, (support,), fast_mode=True)
        assert torch.autograd.gradgradcheck(dual, (support,), fast_mode=True)


def test_ridge_dual_is_its_primal():
    """Y (K + l)^-1 X = Y X (X^T X + l)^-1, a system of the features' size."""
    batch = task_batch()
    gram, one_hot, mask = problem(batch)
    identity = torch.eye(batch.support.shape[-1], dtype=torch.float64)
    primal = one_hot @ batch.support @ torch.linalg.inv(batch.support.mT @ batch.support + 2.0 * identity)
    close(ridge_dual(gram, one_hot, mask, 2.0) @ batch.support, primal)

"""Large systems of several tasks: torch's batched LU fails on them as soon as there are two threads."""

import pytest
import torch

from e3bm.methods.heads.linear_systems import LARGE, solve_each


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [1, 7, LARGE - 1, LARGE, 200])
def test_solutions_and_their_derivatives(threads, size):
    systems = torch.randn(3, size, size, dtype=torch.float64) + 3 * size * torch.eye(size, dtype=torch.float64)
    rights = torch.randn(3, size, dtype=torch.float64)
    systems.requires_grad_()
    found = solve_each(systems, rights)
    torch.testing.assert_close((systems @ found.unsqueeze(-1)).squeeze(-1), rights, rtol=1e-10, atol=1e-10)

    found.square().sum().backward()
    for system, right, derivative in zip(systems.detach(), rights, systems.grad, strict=True):
        inverse = torch.linalg.inv(system)
        solution = inverse @ right
        expected = -2 * torch.outer(inverse.T @ solution, solution)
        torch.testing.assert_close(derivative, expected, rtol=1e-9, atol=1e-12)

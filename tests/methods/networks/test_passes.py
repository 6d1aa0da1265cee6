"""Computations that run again in the backward pass."""

import torch

from e3bm.methods.networks.passes import run


def test_results_and_gradients_are_those_of_the_plain_computation():
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    constant = torch.randn(4, 3, dtype=torch.float64)
    calls = []

    def compute(inputs):
        calls.append(torch.is_grad_enabled())
        matrix, rows = inputs
        outside = torch.is_grad_enabled()
        with torch.enable_grad():
            matrix = matrix if outside else matrix.detach().requires_grad_()
            loss = (rows @ matrix).tanh().square().sum()
            (slope,) = torch.autograd.grad(loss, matrix, create_graph=outside)
        return loss if outside else loss.detach(), slope

    results = []
    for recompute in (False, True):
        loss, slope = run(compute, (weight, constant), recompute=recompute)
        results.append((loss, slope, *torch.autograd.grad(loss + slope.square().sum(), weight)))
    for expected, found in zip(*results, strict=True):
        assert torch.equal(found, expected)
    assert calls == [True, False, True]


def test_what_nobody_differentiates_is_not_computed_again():
    weight, calls = torch.ones(2, requires_grad=True), []

    def compute(inputs):
        calls.append(1)
        return inputs[0] * 2, inputs[0].detach() * 3

    _, constant = run(compute, (weight,), recompute=True)
    (weight.sum() + constant.sum()).backward()
    assert torch.equal(weight.grad, torch.ones(2))
    with torch.no_grad():
        run(compute, (weight,), recompute=True)
    assert len(calls) == 3


def test_random_numbers_are_drawn_again_and_the_stream_goes_on():
    weight = torch.ones(100, requires_grad=True)

    def compute(inputs):
        return (torch.nn.functional.dropout(inputs[0], 0.5),)

    results = []
    for recompute in (False, True):
        torch.manual_seed(3)
        (dropped,) = run(compute, (weight,), recompute=recompute)
        (slope,) = torch.autograd.grad(dropped.sum(), weight)
        results.append((dropped, slope, torch.rand(3)))
    for expected, found in zip(*results, strict=True):
        assert torch.equal(found, expected)

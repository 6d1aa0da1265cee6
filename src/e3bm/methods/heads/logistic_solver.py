"""Softmax regression with a ridge penalty and a free bias, solved exactly in the span of the examples."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from e3bm.methods.heads.linear_systems import solve_each

STILL = 1e-12  # of the residual: a Newton step from here is below rounding
MOST_STEPS = 50
MOST_HALVINGS = 40


def logistic_dual(
    gram: Float[Tensor, "T S S"], one_hot: Float[Tensor, "T W S"], mask: Bool[Tensor, "T S"], inverse_penalty: float
) -> tuple[Float[Tensor, "T W S"], Float[Tensor, "T W"]]:
    """Coefficients over the support and biases of the softmax regression.

    At the optimum alpha = -C (softmax - Y) and the residuals of a class sum to zero. Newton's method on these
    conditions, shortened until the loss falls, finds them without a graph; one more step with a graph changes nothing
    but has the exact derivative.
    """
    with torch.no_grad():
        alpha, bias = torch.zeros_like(one_hot), one_hot.new_zeros(one_hot.shape[:2])
        loss = _loss(gram, one_hot, mask, inverse_penalty, alpha, bias)
        for _ in range(MOST_STEPS):
            missed = _conditions(gram, one_hot, mask, inverse_penalty, alpha, bias)
            if bool(missed.abs().amax() < STILL):
                break
            step = _newton(gram, mask, inverse_penalty, alpha, bias, missed)
            length = loss.new_ones(len(loss), 1, 1)
            for _ in range(MOST_HALVINGS):
                moved = alpha + length * step[..., :-1], bias + (length * step[..., -1:]).squeeze(-1)
                found = _loss(gram, one_hot, mask, inverse_penalty, *moved)
                # Near the optimum the loss cannot tell any more; rounding must not stop the step.
                worse = found > loss + 1e-12 * (1 + loss.abs())
                if not bool(worse.any()):
                    break
                length = torch.where(worse.view(-1, 1, 1), length / 2, length)
            alpha, bias, loss = *moved, found
    missed = _conditions(gram, one_hot, mask, inverse_penalty, alpha, bias)
    step = _newton(gram.detach(), mask, inverse_penalty, alpha, bias, missed)
    return alpha + step[..., :-1], bias + step[..., -1]


def _conditions(
    gram: Float[Tensor, "T S S"],
    one_hot: Float[Tensor, "T W S"],
    mask: Bool[Tensor, "T S"],
    inverse_penalty: float,
    alpha: Float[Tensor, "T W S"],
    bias: Float[Tensor, "T W"],
) -> Float[Tensor, "T W S+1"]:
    """What should be zero: residual + alpha/C of every example, then the sums of residuals with the sum of biases."""
    scores = torch.baddbmm(bias.unsqueeze(-1), alpha, gram)
    residual = (scores.softmax(1) - one_hot) * mask.unsqueeze(1)
    # A constant added to all biases changes nothing: of all solutions take the one whose biases sum to zero.
    sums = residual.sum(-1, keepdim=True) + bias.sum(1).view(-1, 1, 1)
    return torch.cat([residual + alpha / inverse_penalty, sums], -1)


def _newton(
    gram: Float[Tensor, "T S S"],
    mask: Bool[Tensor, "T S"],
    inverse_penalty: float,
    alpha: Float[Tensor, "T W S"],
    bias: Float[Tensor, "T W"],
    missed: Float[Tensor, "T W S+1"],
) -> Float[Tensor, "T W S+1"]:
    """The step that removes what is missed, to first order."""
    tasks, ways, count = alpha.shape
    probability = torch.baddbmm(bias.unsqueeze(-1), alpha, gram).softmax(1) * mask.unsqueeze(1)
    # How the residual of class k, example i moves with the score of class l, same example.
    curved = torch.diag_embed(probability.mT).permute(0, 2, 3, 1) - probability.unsqueeze(2) * probability.unsqueeze(1)
    scores = torch.cat([gram, torch.ones_like(gram[:, :1])], 1)  # of the examples, by alpha_j and the bias: [T, S+1, S]
    by_example = torch.einsum("tkli,tji->tkilj", curved, scores)
    system = torch.cat([by_example, by_example.sum(2, keepdim=True)], 2)
    system = system.reshape(tasks, ways * (count + 1), ways, count + 1)
    places = torch.arange(ways * (count + 1), device=gram.device).view(ways, count + 1)
    own = torch.zeros(places.numel(), places.numel(), dtype=gram.dtype, device=gram.device)
    own[places[:, :-1].flatten(), places[:, :-1].flatten()] = 1 / inverse_penalty
    own[places[:, -1:], places[:, -1]] = 1
    system = system.reshape(tasks, places.numel(), places.numel()) + own
    return solve_each(system, -missed.flatten(1)).view_as(missed)


def _loss(
    gram: Float[Tensor, "T S S"],
    one_hot: Float[Tensor, "T W S"],
    mask: Bool[Tensor, "T S"],
    inverse_penalty: float,
    alpha: Float[Tensor, "T W S"],
    bias: Float[Tensor, "T W"],
) -> Float[Tensor, " T"]:
    fitted = alpha @ gram
    logs = (fitted + bias.unsqueeze(-1)).log_softmax(1)
    return (alpha * fitted).sum((1, 2)) / (2 * inverse_penalty) - (logs * one_hot * mask.unsqueeze(1)).sum((1, 2))

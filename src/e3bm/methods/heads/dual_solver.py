"""The duals of MetaOptNet's base learners, solved exactly: ridge regression, and the Crammer-Singer SVM.

Dual variables are alpha [T, W, S], a row for each class. With B = K + r I (K the support's Gram matrix) the SVM is

    minimise  1/2 sum_k alpha_k B alpha_k - sum_k Y_k alpha_k   subject to  alpha <= C Y  and  sum_k alpha_k = 0.

B is the same for all classes and the equality couples classes only through sums over them, so a Newton step takes W
Cholesky factors of size S and one system of size S, never one of size W S. An interior point finds which variables are
at their caps; the free ones then solve a linear system, which is exact and has ordinary derivatives.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from e3bm.methods.heads.linear_systems import solve_each

TOLERANCE = 1e-12  # of the interior point's residual, as published
MOST_LOOKS = 40
LOOKS_WITHOUT_PROGRESS = 3
SHORTENED = 0.999  # of the longest step that keeps slacks and multipliers positive
MOST_EXCHANGES = 10


class Point(NamedTuple):
    """An interior point: variables, slacks under the caps, multipliers of the caps and of the sums."""

    alpha: Float[Tensor, "T W S"]
    slack: Float[Tensor, "T W S"]
    multiplier: Float[Tensor, "T W S"]
    equality: Float[Tensor, "T S"]


class Residual(NamedTuple):
    """What is missing from the four conditions of an optimum."""

    alpha: Float[Tensor, "T W S"]
    slack: Float[Tensor, "T W S"]
    multiplier: Float[Tensor, "T W S"]
    equality: Float[Tensor, "T S"]


def ridge_dual(
    gram: Float[Tensor, "T S S"], targets: Float[Tensor, "T W S"], mask: Bool[Tensor, "T S"], penalty: float
) -> Float[Tensor, "T W S"]:
    """(K + penalty I)^-1 applied to the targets; padded examples have alpha 0."""
    matrix, real = _without_padding(gram, mask, penalty)
    return torch.cholesky_solve((targets * real).mT, torch.linalg.cholesky(matrix)).mT * real


def svm_dual(
    gram: Float[Tensor, "T S S"],
    one_hot: Float[Tensor, "T W S"],
    mask: Bool[Tensor, "T S"],
    penalty: float,
    *,
    ridge: float = 1.0,
    looks: int | None = None,
) -> Float[Tensor, "T W S"]:
    """The SVM's dual solution for cap ``penalty``; ``ridge`` is what the diagonal of K is raised by.

    With ``looks`` it is the interior point's best of so many looks, without a derivative: the published code tests with
    3 looks, the starting point and two updates.
    """
    matrix, real = _without_padding(gram, mask, ridge)
    targets = one_hot * real
    caps = penalty * targets
    with torch.no_grad():
        point = _interior_point(matrix, targets, caps, real, looks)
        if looks is not None:
            return point.alpha * real
        free = _free_variables(matrix, targets, caps, real, point)
    return _solve_free(matrix, targets, caps, free)[0]


def _without_padding(
    gram: Float[Tensor, "T S S"], mask: Bool[Tensor, "T S"], ridge: float
) -> tuple[Float[Tensor, "T S S"], Float[Tensor, "T 1 S"]]:
    """K + ridge I without products of padded examples, and 1 where an example is real."""
    real = mask.to(gram.dtype).unsqueeze(1)
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return gram * real * real.mT + ridge * identity, real


def _interior_point(
    matrix: Float[Tensor, "T S S"],
    targets: Float[Tensor, "T W S"],
    caps: Float[Tensor, "T W S"],
    real: Float[Tensor, "T 1 S"],
    looks: int | None,
) -> Point:
    """The best of the points that Mehrotra's predictor and corrector visit, each task for itself."""
    count = real.sum((1, 2)) * caps.shape[1]
    zero = torch.zeros_like(caps)
    start = _newton(matrix, torch.ones_like(caps), Residual(-targets, zero, -caps, zero[:, 0]), real)
    point = start._replace(slack=_lifted(start.slack, real), multiplier=_lifted(start.multiplier, real))
    best, least = point, count.new_full(count.shape, torch.inf)
    without_progress = torch.zeros_like(count)
    for _ in range(MOST_LOOKS if looks is None else looks):
        residual = Residual(
            (torch.bmm(point.alpha, matrix) - targets + point.multiplier + point.equality.unsqueeze(1)) * real,
            point.multiplier * real,
            (point.alpha + point.slack - caps) * real,
            point.alpha.sum(1),
        )
        gap = (point.slack * point.multiplier * real).sum((1, 2)) / count
        size = sum(
            (part.flatten(1).norm(dim=1) for part in (residual.alpha, residual.multiplier, residual.equality)),
            count * gap,
        )
        better = size < least
        least = torch.where(better, size, least)
        best = Point(*(torch.where(_each(better, old), new, old) for new, old in zip(point, best, strict=True)))
        without_progress = torch.where(better, 0, without_progress + 1)
        done = (least < TOLERANCE) | (without_progress >= LOOKS_WITHOUT_PROGRESS)
        if bool(done.all()):
            break
        weight = torch.where(real > 0, point.multiplier / point.slack, 1.0)
        ahead = _newton(matrix, weight, residual, real)
        reach = _longest(point, ahead, real).clamp(max=1)
        moved = lambda value, change, length: value + _each(length, value) * change
        product = moved(point.slack, ahead.slack, reach) * moved(point.multiplier, ahead.multiplier, reach)
        share = ((product * real).sum((1, 2)) / (gap * count)) ** 3
        centring = (ahead.slack * ahead.multiplier - _each(gap * share, zero)) / point.slack * real
        corrected = _newton(matrix, weight, Residual(zero, centring, zero, zero[:, 0]), real)
        change = Point(*(first + second for first, second in zip(ahead, corrected, strict=True)))
        # A task that is done stands still: further steps would only divide by slacks that are zero.
        length = torch.where(done, 0, (SHORTENED * _longest(point, change, real)).clamp(max=1))
        point = Point(*(moved(value, step, length) for value, step in zip(point, change, strict=True)))
    return best


def _newton(
    matrix: Float[Tensor, "T S S"],
    weight: Float[Tensor, "T W S"],
    residual: Residual,
    real: Float[Tensor, "T 1 S"],
) -> Point:
    """The step that removes a residual to first order; ``weight`` is multiplier / slack. Padding does not move."""
    factors = torch.linalg.cholesky(matrix.unsqueeze(1) + torch.diag_embed(weight))  # [T, W, S, S]
    right = residual.slack - residual.alpha - weight * residual.multiplier
    solved = torch.cholesky_solve(right.unsqueeze(-1), factors).squeeze(-1)
    coupling = torch.cholesky_inverse(factors).sum(1)
    equality = solve_each(coupling, solved.sum(1) + residual.equality)
    pulled = torch.cholesky_solve(equality.unsqueeze(1).unsqueeze(-1).expand(*right.shape, 1), factors).squeeze(-1)
    alpha = (solved - pulled) * real
    slack = (-residual.multiplier - alpha) * real
    return Point(alpha, slack, (-residual.slack - weight * slack) * real, equality * real.squeeze(1))


def _lifted(values: Float[Tensor, "T W S"], real: Float[Tensor, "T 1 S"]) -> Float[Tensor, "T W S"]:
    """Values of at least 1 where any was negative, as published; 1 for padding, which then divides safely."""
    least = values.masked_fill(real == 0, torch.inf).amin((1, 2), keepdim=True)
    return torch.where(real > 0, torch.where(least < 0, values - least + 1, values), 1.0)


def _longest(point: Point, change: Point, real: Float[Tensor, "T 1 S"]) -> Float[Tensor, " T"]:
    """How far a step may go before a slack or a multiplier is zero."""
    reaches = []
    for value, step in ((point.slack, change.slack), (point.multiplier, change.multiplier)):
        shrinks = (step < 0) & (real > 0)
        reaches.append(torch.where(shrinks, -value / torch.where(shrinks, step, 1.0), torch.inf).amin((1, 2)))
    return torch.minimum(*reaches)


def _each(per_task: Tensor, like: Tensor) -> Tensor:
    """One number a task, shaped to multiply."""
    return per_task.view(-1, *[1] * (like.ndim - 1))


def _free_variables(
    matrix: Float[Tensor, "T S S"],
    targets: Float[Tensor, "T W S"],
    caps: Float[Tensor, "T W S"],
    real: Float[Tensor, "T 1 S"],
    point: Point,
) -> Bool[Tensor, "T W S"]:
    """Which variables are below their caps at the optimum: the interior point's guess, exchanged until it holds."""
    free = _with_one_a_row(point.slack > point.multiplier, point.slack, real)
    for _ in range(MOST_EXCHANGES):
        alpha, equality = _solve_free(matrix, targets, caps, free)
        multiplier = targets - torch.bmm(alpha, matrix) - equality.unsqueeze(1)
        # A free variable has no multiplier but what rounding leaves of it.
        found = _with_one_a_row((caps - alpha) > torch.where(free, 0, multiplier), caps - alpha, real)
        if bool((found == free).all()):
            break
        free = found
    return free


def _with_one_a_row(
    free: Bool[Tensor, "T W S"], slack: Float[Tensor, "T W S"], real: Float[Tensor, "T 1 S"]
) -> Bool[Tensor, "T W S"]:
    """A row of caps cannot sum to zero, so one variable of every example is free; padding has none."""
    return (free | (slack == slack.amax(1, keepdim=True))) & (real > 0)


def _solve_free(
    matrix: Float[Tensor, "T S S"],
    targets: Float[Tensor, "T W S"],
    caps: Float[Tensor, "T W S"],
    free: Bool[Tensor, "T W S"],
) -> tuple[Float[Tensor, "T W S"], Float[Tensor, "T S"]]:
    """The optimum over the free variables, all others at their caps, and the multipliers of the sums."""
    open_ = free.to(matrix.dtype)
    held = caps * (1 - open_)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    among = open_.unsqueeze(-1) * matrix.unsqueeze(1) * open_.unsqueeze(-2)
    factors = torch.linalg.cholesky(among + torch.diag_embed(1 - open_))
    inverse = open_.unsqueeze(-1) * torch.cholesky_solve(identity.expand_as(among), factors) * open_.unsqueeze(-2)
    apply = lambda values: (inverse @ values.unsqueeze(-1)).squeeze(-1)
    right = targets - torch.bmm(held, matrix)
    solved = apply(right)
    # Padded examples have no free variable: a 1 in their place keeps the system regular.
    coupling = inverse.sum(1) + torch.diag_embed((open_.sum(1) == 0).to(matrix.dtype))
    equality = solve_each(coupling, (solved + held).sum(1))
    return solved - apply(equality.unsqueeze(1).expand_as(right)) + held, equality

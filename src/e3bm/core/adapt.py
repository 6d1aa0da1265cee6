"""Algorithm 2 of the paper: M updates, each learner's prediction added as it appears, no past learner kept.

MAML, MTL and SIB alone are the same loop with a constant rate and a vote for the last epoch only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.core.context import Basis, Observation
from e3bm.core.hyperprior import BoundHyperprior, Hyperprior
from e3bm.errors import SettingsError


@dataclass(frozen=True)
class Trace:
    """What a learner leaves behind: the query scores. A method with a loss of its own may add to it."""

    scores: Float[Tensor, "T Q W"]


@dataclass(frozen=True)
class AdaptationTrace(Trace):
    """What an inner loop leaves behind: the ensemble's query scores and, epoch by epoch, how it came to them.

    ``rates`` and ``weights`` keep their graph (the KL term needs it); ``losses`` are detached training losses before
    each update. ``epoch_scores`` holds every single learner's scores when they were asked for.
    """

    rates: Float[Tensor, "T M"]
    weights: Float[Tensor, "T M"]
    losses: Float[Tensor, "T M"]
    epoch_scores: Float[Tensor, "T M Q W"] | None = None


State = TypeVar("State")
Direction = TypeVar("Direction")
Ensemble = TypeVar("Ensemble")


@runtime_checkable
class InnerProblem(Protocol[State, Direction, Ensemble]):
    """A batch of tasks being learned. It knows eight moves and nothing of rates, weights or M."""

    def basis(self) -> Basis:
        """What a hyperprior may see once."""
        ...

    def start(self) -> State:
        """Theta_0 (Eq. 5)."""
        ...

    def empty(self) -> Ensemble:
        """The sum of no predictions."""
        ...

    def direction(self, state: State) -> Direction:
        """The true or synthetic gradient at a state."""
        ...

    def observe(self, state: State, direction: Direction) -> Observation:
        """What a hyperprior may see at this epoch, before the update."""
        ...

    def step(self, state: State, direction: Direction, rate: Float[Tensor, " T"]) -> State:
        """Eq. 6: one update."""
        ...

    def vote(self, ensemble: Ensemble, state: State, weight: Float[Tensor, " T"]) -> Ensemble:
        """Eq. 9: add this learner's weighted prediction."""
        ...

    def scores(self, ensemble: Ensemble) -> Float[Tensor, "T Q W"]:
        """The query scores of a sum of predictions."""
        ...


@runtime_checkable
class ReplayableProblem(InnerProblem[State, Direction, Ensemble], Protocol):
    """A problem that may add up all its learners at once where their directions are constants of the outer loop."""

    @property
    def second_order(self) -> bool:
        """Whether directions carry a graph."""
        ...

    def replay(
        self, directions: Sequence[Direction], rates: Float[Tensor, "T M"], weights: Float[Tensor, "T M"]
    ) -> Ensemble:
        """The ensemble of the learners that these updates lead to."""
        ...


@runtime_checkable
class RememberingProblem(InnerProblem[State, Direction, Ensemble], Protocol):
    """A problem whose method trains on more than the scores; such problems are not replayed."""

    def remember(self, trace: AdaptationTrace, state: State) -> AdaptationTrace:
        """The trace, with what the method's own training loss needs to know of the last state."""
        ...


def adapt(
    problem: InnerProblem[State, Direction, Ensemble],
    hyperprior: Hyperprior,
    epochs: int,
    *,
    every_epoch: bool = False,
) -> AdaptationTrace:
    """Learn a batch of tasks; ``every_epoch`` also keeps each single learner's scores."""
    trace, _ = adapt_and_keep(problem, hyperprior, epochs, every_epoch=every_epoch)
    return trace


def adapt_and_keep(
    problem: InnerProblem[State, Direction, Ensemble],
    hyperprior: Hyperprior,
    epochs: int,
    *,
    every_epoch: bool = False,
) -> tuple[AdaptationTrace, Ensemble]:
    """The same, with the ensemble itself: what a head collapses into one matrix."""
    if epochs < 1:
        raise SettingsError(f"A learner needs at least 1 epoch, found {epochs}.")
    psi, memory = hyperprior.bind(problem.basis(), epochs), None
    if (
        isinstance(problem, ReplayableProblem)
        and not problem.second_order
        and not any(psi.silent)  # a single vote has next to no graph
        and torch.is_grad_enabled()
        and not every_epoch
    ):
        return _replay(problem, psi, epochs)
    state, ensemble = problem.start(), problem.empty()
    rates, weights, losses, singles = [], [], [], []
    for epoch in range(epochs):
        direction = problem.direction(state)
        observation = problem.observe(state, direction)
        rate, weight, memory = psi(epoch, psi.see(observation), memory)
        state = problem.step(state, direction, rate)
        if weight is not None:
            ensemble = problem.vote(ensemble, state, weight)
        rates.append(rate)
        weights.append(torch.zeros_like(rate) if weight is None else weight)
        losses.append(observation.loss().detach())
        if every_epoch:
            singles.append(problem.scores(problem.vote(problem.empty(), state, torch.ones_like(rate))))
    trace = AdaptationTrace(
        scores=problem.scores(ensemble),
        rates=torch.stack(rates, 1),
        weights=torch.stack(weights, 1),
        losses=torch.stack(losses, 1),
        epoch_scores=torch.stack(singles, 1) if every_epoch else None,
    )
    return problem.remember(trace, state) if isinstance(problem, RememberingProblem) else trace, ensemble


def _replay(
    problem: ReplayableProblem[State, Direction, Ensemble], psi: BoundHyperprior, epochs: int
) -> tuple[AdaptationTrace, Ensemble]:
    """First order: directions are constants, so the loop runs without a graph and one pass over all epochs has it."""
    directions, seen, losses, memory = [], [], [], None
    with torch.no_grad():
        state = problem.start()
        for epoch in range(epochs):
            direction = problem.direction(state)
            observation = problem.observe(state, direction)
            directions.append(direction)
            seen.append(psi.see(observation))
            losses.append(observation.loss())
            rate, _, memory = psi(epoch, seen[-1], memory)
            state = problem.step(state, direction, rate)
    rates, weights = psi.all_epochs(seen)
    ensemble = problem.replay(directions, rates, weights)
    return AdaptationTrace(problem.scores(ensemble), rates, weights, torch.stack(losses, 1)), ensemble

"""Algorithm 2 of the paper: M updates, each learner's prediction added as it appears, no past learner kept.

MAML, MTL and SIB alone are the same loop with a constant rate and a vote for the last epoch only.
"""

from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from e3bm.core.context import Basis, Observation
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.trace import AdaptationTrace
from e3bm.errors import SettingsError

State = TypeVar("State")
Direction = TypeVar("Direction")
Ensemble = TypeVar("Ensemble")


@runtime_checkable
class InnerProblem(Protocol[State, Direction, Ensemble]):
    """A batch of tasks being learned. It knows its moves and nothing of rates, weights or M."""

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
    state, ensemble = problem.start(), problem.empty()
    psi, memory = hyperprior.bind(problem.basis(), epochs), None
    rates, weights, losses, singles = [], [], [], []
    for epoch in range(epochs):
        direction = problem.direction(state)
        observation = problem.observe(state, direction)
        rate, weight, memory = psi(epoch, observation, memory)
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
    return trace, ensemble

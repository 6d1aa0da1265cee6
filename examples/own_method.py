"""A method of one's own in one file: a linear head with squared loss. E3BM comes for free with the six moves."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from e3bm.core.context import Basis, Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Generated, equal_values
from e3bm.methods import METHODS, Parts
from e3bm.runs.settings import TrainSettings


class Direction(NamedTuple):
    """The gradient by the weights, and the errors it came from."""

    gradient: Tensor  # T D W
    errors: Tensor  # T S W


class SquaredProblem:
    """A batch of tasks: everything in plain feature space, because clarity comes before speed here."""

    def __init__(self, support: Tensor, targets: Tensor, query: Tensor, start: Tensor, batch: TaskBatch) -> None:
        self.support, self.targets, self.query, self.first, self.batch = support, targets, query, start, batch

    def basis(self) -> Basis:
        return Basis(None, lambda: self.support, lambda: self.query, self.batch.mask)

    def start(self) -> Tensor:
        return self.first

    def empty(self) -> Tensor:
        return self.query.new_zeros(())

    def direction(self, state: Tensor) -> Direction:
        errors = self.support @ state - self.targets
        return Direction(self.support.mT @ errors / self.support.shape[1], errors)

    def observe(self, state: Tensor, direction: Direction) -> "SquaredObservation":
        return SquaredObservation(self, state, direction)

    def step(self, state: Tensor, direction: Direction, rate: Tensor) -> Tensor:
        return state - rate.view(-1, 1, 1) * direction.gradient

    def vote(self, ensemble: Tensor, state: Tensor, weight: Tensor) -> Tensor:
        return ensemble + weight.view(-1, 1, 1) * (self.query @ state)

    def scores(self, ensemble: Tensor) -> Tensor:
        return 10 * ensemble


class SquaredObservation:
    """What a hyperprior may see at an epoch."""

    def __init__(self, problem: SquaredProblem, state: Tensor, direction: Direction) -> None:
        self.problem, self.state, self.seen = problem, state, direction

    def coefficients(self) -> Tensor:
        return self.seen.gradient

    def squared_norm(self) -> Tensor:
        return self.seen.gradient.square().sum((1, 2))

    def loss(self) -> Tensor:
        return self.seen.errors.square().mean((1, 2))

    def query_scores(self) -> Tensor:
        return 10 * self.problem.query @ self.state


@METHODS.register("squared")
class Squared(nn.Module):
    """Least squares by gradient descent from a learned start; `e3bm train --method.name squared` finds it."""

    def __init__(self, encoder: nn.Module, features: int, ways: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.first = nn.Parameter(torch.zeros(features, ways))

    @classmethod
    def from_settings(cls, settings: TrainSettings, parts: Parts) -> "Squared":
        return cls(parts.encoder, parts.feature_size, settings.episode.ways)

    def begin(self, batch: TaskBatch) -> SquaredProblem:
        support, query = self.encoder(batch.support), self.encoder(batch.query)
        targets = nn.functional.one_hot(batch.support_labels, batch.ways).to(support.dtype)
        return SquaredProblem(support, targets, query, self.first.expand(len(batch), -1, -1), batch)


def main() -> None:
    from quickstart import EPOCHS, FEATURES, WAYS, accuracy, tasks

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hyperprior = Hyperprior(
        Generated([0.5] * EPOCHS), Generated(equal_values(EPOCHS)), LstmGenerator(Context(Stats()), outputs=2)
    )
    learner = MetaLearner(Squared(nn.Identity(), FEATURES, WAYS), hyperprior, EPOCHS)
    optimiser = torch.optim.Adam(learner.parameters(), 1e-2)
    before = accuracy(learner)
    for step in range(100):
        batch = tasks(16, seed=step)
        optimiser.zero_grad()
        meta_loss(learner(batch).scores, batch.query_labels).backward()
        optimiser.step()
    print(f"squared loss + E3BM: {before:.1f} % before meta-training, {accuracy(learner):.1f} % after")


if __name__ == "__main__":
    main()

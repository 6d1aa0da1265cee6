"""Methods of one's own, each in one file: one with an inner loop, to which E3BM comes for free, and one without."""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from e3bm.core.adapt import Trace
from e3bm.core.context import Basis, Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import DirectLearner, Learner, MetaLearner
from e3bm.core.schedules import Generated, equal_values
from e3bm.methods import METHODS, DirectMethod, InnerLoopMethod, InnerLoopSettings, MethodSettings, Parts


class Direction(NamedTuple):
    """The gradient by the weights, and the errors it came from."""

    gradient: Tensor  # T D W
    errors: Tensor  # T S W


class SquaredProblem:
    """A batch of tasks: everything in plain feature space, because clarity comes before speed here."""

    def __init__(
        self, support: Tensor, targets: Tensor, query: Tensor, start: Tensor, batch: TaskBatch, sharpness: float
    ) -> None:
        self.support, self.targets, self.query, self.first, self.batch = support, targets, query, start, batch
        self.sharpness = sharpness

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
        return self.sharpness * ensemble


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
        return self.problem.sharpness * self.problem.query @ self.state


class SquaredSettings(InnerLoopSettings):
    """Its options, beside those of every inner loop (epochs, rate, order)."""

    title = "Squared"

    name: Literal["squared"] = "squared"
    rate: float = Field(default=0.5, gt=0)
    """alpha' of every epoch before training; features have length one, so that this suits any backbone."""
    sharpness: float = Field(default=10.0, gt=0)
    """Factor on the scores."""


@METHODS.register("squared")
class Squared(InnerLoopMethod):
    """Least squares by gradient descent from a learned start; `e3bm train --method.name squared` finds it."""

    settings = SquaredSettings

    def __init__(self, encoder: nn.Module, features: int, ways: int, sharpness: float = 10.0) -> None:
        super().__init__()
        self.encoder, self.sharpness = encoder, sharpness
        self.first = nn.Parameter(torch.zeros(features, ways))

    @classmethod
    def from_settings(cls, settings: SquaredSettings, parts: Parts) -> "Squared":
        return cls(parts.encoder, parts.feature_size, parts.ways, settings.sharpness)

    def begin(self, batch: TaskBatch) -> SquaredProblem:
        unit = nn.functional.normalize
        support, query = unit(self.encoder(batch.support), dim=-1), unit(self.encoder(batch.query), dim=-1)
        targets = nn.functional.one_hot(batch.support_labels, batch.ways).to(support.dtype)
        start = self.first.expand(len(batch), -1, -1)
        return SquaredProblem(support, targets, query, start, batch, self.sharpness)


class NearestExampleSettings(MethodSettings):
    """A method without an inner loop has no epochs, no rate and no hyperprior."""

    title = "Nearest example"

    name: Literal["nearest_example"] = "nearest_example"


@METHODS.register("nearest_example")
class NearestExample(DirectMethod):
    """The class of the nearest support example, with a learned scale on the distance: batch in, scores out."""

    settings = NearestExampleSettings

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.log_scale = nn.Parameter(torch.zeros(()))

    @classmethod
    def from_settings(cls, settings: NearestExampleSettings, parts: Parts) -> "NearestExample":
        return cls(parts.encoder)

    def forward(self, batch: TaskBatch) -> Trace:
        distances = torch.cdist(self.encoder(batch.query), self.encoder(batch.support))  # T Q S
        others = nn.functional.one_hot(batch.support_labels, batch.ways).mT == 0  # T W S
        others = others | ~batch.mask.unsqueeze(1)  # padding is nobody's example
        by_class = distances.unsqueeze(2).masked_fill(others.unsqueeze(1), torch.inf)
        return Trace(-self.log_scale.exp() * by_class.amin(-1))


def train(learner: Learner, name: str) -> None:
    from quickstart import accuracy, tasks

    optimiser = torch.optim.Adam(learner.parameters(), 1e-2)
    before = accuracy(learner)
    for step in range(100):
        batch = tasks(16, seed=step)
        optimiser.zero_grad()
        learner.training_loss(learner(batch), batch, step / 100).backward()
        optimiser.step()
    print(f"{name}: {before:.1f} % before meta-training, {accuracy(learner):.1f} % after")


def main() -> None:
    from quickstart import EPOCHS, FEATURES, WAYS

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hyperprior = Hyperprior(
        Generated([0.5] * EPOCHS), Generated(equal_values(EPOCHS)), LstmGenerator(Context(Stats()), outputs=2)
    )
    train(MetaLearner(Squared(nn.Identity(), FEATURES, WAYS), hyperprior, EPOCHS), "squared loss + E3BM")
    train(DirectLearner(NearestExample(nn.Identity())), "nearest example")


if __name__ == "__main__":
    main()

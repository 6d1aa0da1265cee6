"""Many unlabelled examples at once: SIB+E3BM on top of a fitted head.

The head's weights start SIB, whose synthetic gradients read the batch's own scores (class-equivariant net: any number
of ways); E3BM's hyperprior sets how far each epoch goes and how much of its change is added to what the head says
alone. A batch from which nothing can be learned leaves the predictions as they were.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.core.adapt import adapt, adapt_and_keep
from e3bm.core.context import Basis, Context, query_entropies
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import InnerLoopMethod, MetaLearner
from e3bm.core.schedules import Generated
from e3bm.fewshot.prior.ensemble_head import EnsembleHead
from e3bm.fewshot.prior.head import LARGEST_LOSS
from e3bm.fewshot.prior.learner import HIDDEN, PrincipalMethod, TaskStats
from e3bm.methods.base import ReadyFeatures
from e3bm.methods.heads.collapsed import unit
from e3bm.methods.heads.cosine import CosineDirection, CosineEnsemble, CosineHead, CosineObservation, CosineState
from e3bm.methods.sib import EquivariantNet, Sib

EPOCHS = 5
FIRST_RATE = 0.01
FIRST_VOTE = 0.1  # of every epoch's change, before training
OTHER_CHANNELS = 0.1  # of the gradient net's usual start, beside the channel that begins with a meaning
ABOVE_ZERO = 2.0  # lifts standardised probabilities over the ReLU
USUAL_BATCH = 50
BATCH_STATS = 9
MOST_LOG_QUERIES = math.log(150)


class BatchEnsemble(NamedTuple):
    """The sum of the epochs' scores, and of their votes."""

    cosine: CosineEnsemble
    total: Float[Tensor, " T"]


class BatchHead:
    """SIB's moves, with the change of its scores added to the head's own."""

    def __init__(self, cosine: CosineHead, alone: Float[Tensor, "T Q W"], facts: Float[Tensor, "T F"]) -> None:
        """``alone`` are the scores of the fitted head, ``facts`` what it knows of the task."""
        self.cosine, self.alone = cosine, alone
        queries = alone.new_full((len(alone), 1), min(math.log(alone.shape[1]), MOST_LOG_QUERIES))
        self.facts = torch.cat([facts, queries - 3], -1)
        one = alone.new_ones(len(alone))
        self.start_scores = cosine.scores(cosine.vote(cosine.empty(), cosine.start(), one))

    def basis(self) -> Basis:
        return self.cosine.basis()

    def start(self) -> CosineState:
        return self.cosine.start()

    def empty(self) -> BatchEnsemble:
        return BatchEnsemble(self.cosine.empty(), self.alone.new_zeros(len(self.alone)))

    def direction(self, state: CosineState) -> CosineDirection:
        return self.cosine.direction(state)

    def observe(self, state: CosineState, direction: CosineDirection) -> "BatchObservation":
        return BatchObservation(self, self.cosine.observe(state, direction))

    def step(self, state: CosineState, direction: CosineDirection, rate: Float[Tensor, " T"]) -> CosineState:
        # Synthetic gradients are summed over the batch: a rate is for a batch of the usual size.
        return self.cosine.step(state, direction, rate * (USUAL_BATCH / self.alone.shape[1]))

    def vote(self, ensemble: BatchEnsemble, state: CosineState, weight: Float[Tensor, " T"]) -> BatchEnsemble:
        return BatchEnsemble(self.cosine.vote(ensemble.cosine, state, weight), ensemble.total + weight)

    def scores(self, ensemble: BatchEnsemble) -> Float[Tensor, "T Q W"]:
        change = self.cosine.scores(ensemble.cosine) - ensemble.total.view(-1, 1, 1) * self.start_scores
        return self.alone + change


class BatchObservation:
    """What the hyperprior may see of a batch at an epoch."""

    def __init__(self, head: BatchHead, cosine: CosineObservation) -> None:
        self._head, self._cosine = head, cosine

    def coefficients(self) -> Float[Tensor, "T N W"]:
        return self._cosine.coefficients()

    def squared_norm(self) -> Float[Tensor, " T"]:
        return self._cosine.squared_norm()

    def loss(self) -> Float[Tensor, " T"]:
        return self._cosine.loss()

    def query_scores(self) -> Float[Tensor, "T Q W"]:
        return self._cosine.query_scores()

    def scalars(self) -> Float[Tensor, "T 9"]:
        """Log gradient norm, loss of the class means, entropies of the batch (in units of log W), the task's facts."""
        unit_loss = math.log(self._head.alone.shape[-1])
        each, of_mean = query_entropies(self.query_scores())
        moving = [
            (self.squared_norm().clamp_min(0) + 1e-8).log() / 4 + 1,
            (self.loss() / unit_loss).clamp(max=LARGEST_LOSS),
            each / unit_loss,
            of_mean / unit_loss,
        ]
        return torch.cat([torch.stack(moving, -1), self._head.facts], -1)


class BatchMethod(InnerLoopMethod):
    """Opens tasks whose queries are used together; the fitted heads come from an inductive prior that stays."""

    def __init__(self, inductive: MetaLearner) -> None:
        super().__init__()
        self.sib = Sib(ReadyFeatures(1), gradient_net="equivariant", feature_weight=False)
        # With few shots what all queries have in common is far from the support's centre; no class should follow it.
        self.sib.gradient_net = EquivariantNet(contrasts=True)
        # Not a part of this module: it is neither trained nor saved with it.
        self._inductive = (inductive,)

    def begin(self, batch: TaskBatch) -> BatchHead:
        (inductive,) = self._inductive
        method = inductive.method
        assert isinstance(method, PrincipalMethod)
        with torch.no_grad():
            head, space = method.open(batch)
            trace, ensemble = adapt_and_keep(head, inductive.hyperprior, inductive.epochs)
            weight = head.collapse(ensemble).weight
            means = head.means @ head.principal.axes.mT
        return self.on_top(space(batch.query), means, weight, trace.scores, head.facts)

    def on_top(
        self,
        query: Float[Tensor, "T Q D"],
        means: Float[Tensor, "T W D"],
        weight: Float[Tensor, "T W D"],
        alone: Float[Tensor, "T Q W"],
        facts: Float[Tensor, "T F"],
    ) -> BatchHead:
        """The moves for heads that are fitted: of the support only the class means are asked for, one of each class."""
        labels = torch.arange(means.shape[1]).expand(len(means), -1)
        batch = TaskBatch(means, labels, query, None, means.shape[1])
        return BatchHead(self.sib.problem(batch, means, query, unit(weight)), alone, facts)


@torch.no_grad()
def scores_together(learner: MetaLearner, head: EnsembleHead, placed: Float[Tensor, "Q D"]) -> Float[Tensor, "Q W"]:
    """Scores of examples that are used together, by a fitted head; they are in its support space."""
    method = learner.method
    assert isinstance(method, BatchMethod)
    one = lambda values: values.unsqueeze(0)
    alone = head.scores(placed)
    problem = method.on_top(one(placed), one(head.means), one(head.weight), one(alone), one(head.facts))
    return adapt(problem, learner.hyperprior, learner.epochs).scores[0]


def build_batch_prior(inductive: MetaLearner, *, epochs: int = EPOCHS, seed: int = 0) -> MetaLearner:
    """SIB+E3BM on top of an inductive prior, before training."""
    torch.manual_seed(seed)
    generator = LstmGenerator(Context(TaskStats(BATCH_STATS)), 2, hidden=HIDDEN)
    method = BatchMethod(inductive)
    _pull_classes_to_their_queries(method.sib.gradient_net)
    hyperprior = Hyperprior(
        Generated([FIRST_RATE] * epochs), Generated([FIRST_VOTE] * epochs), generator, mixing="scaled"
    )
    return MetaLearner(method, hyperprior, epochs)


@torch.no_grad()
def _pull_classes_to_their_queries(net: nn.Module) -> None:
    """Begin with a net whose step moves each class to the queries that are probably its own.

    The steps of a random net do harm, so that training takes the votes away before the net has learned anything.
    """
    assert isinstance(net, EquivariantNet)
    # The first channel of every layer hands on the probabilities, the second input of the net; norms standardise them.
    net.first.weight[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    net.second.weight[0] = 0.0
    net.second.weight[0, 0] = 1.0
    net.third.weight *= OTHER_CHANNELS
    net.third.weight[0, 0] = -1.0
    net.first.bias[0], net.second.bias[0], net.third.bias[0] = 0.0, ABOVE_ZERO, 0.0

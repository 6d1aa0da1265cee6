"""The last scalar: one factor on all scores, fitted on validation classes, so that confidence means what it says.

The votes of an ensemble add up to a factor on its scores, that is to a temperature. Fitting this one number afterwards,
for a method alone and for E3BM alike, tells apart who ranks classes better and who only scales its scores better. It
changes no answer, only the confidence in it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from e3bm.core.learner import Learner
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import TaskSource

LIMIT = 12.0  # of the factor's natural logarithm, either way
HALVINGS = 60


def best_factor(scores: Float[Tensor, "N W"], labels: Int[Tensor, " N"]) -> float:
    """The factor on the scores with the least mean -log p of the right class.

    That mean is convex in the factor; its slope is the mean score that probabilities expect minus the right class's.
    """
    scores = scores.double()
    right = scores.gather(1, labels.unsqueeze(1)).mean()
    low, high = -LIMIT, LIMIT
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        shares = (torch.exp(torch.tensor(middle, dtype=torch.double)) * scores).softmax(1)
        if float((shares * scores).sum(1).mean() - right) > 0:
            high = middle
        else:
            low = middle
    return float(torch.exp(torch.tensor((low + high) / 2, dtype=torch.double)))


def fitted_factor(
    learner: Learner, tasks: TaskSource, episodes: int, *, batch: int, engine: Engine, epochs: int | None = None
) -> float:
    """The best factor for a model on its validation tasks 0..n-1; the same on all processes."""
    numbers = engine.mine(range(episodes))
    was_training = learner.training
    learner.eval()
    found: list[Tensor] = []
    with torch.no_grad():
        for start in range(0, len(numbers), batch):
            part = tasks.load(numbers[start : start + batch])
            scores = learner(engine.place(part), epochs=epochs).scores.cpu().double()
            assert part.query_labels is not None
            found.append(torch.cat([scores, part.query_labels.unsqueeze(-1).double()], -1))
    learner.train(was_training)
    shape = engine.agree(found[0].shape[1] if found else 0), engine.agree(found[0].shape[2] if found else 0)
    rows = engine.gather(torch.cat(found) if found else torch.zeros(0, *shape).double(), episodes).flatten(0, 1)
    return best_factor(rows[:, :-1], rows[:, -1].long())

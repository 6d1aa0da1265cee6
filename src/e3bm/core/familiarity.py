"""How much a task is like those of training: outside their range, generated alpha and v go back to fixed ones.

A generator that was trained on photographs may be asked about drawings. What it says there is a guess far from
anything it has seen; the further away, the less it counts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

RANGE = 0.99  # the share of training tasks that count as inside
RIDGE = 1e-6  # of the mean variance: keeps numbers that hardly vary from deciding alone


class Familiarity(nn.Module):
    """Trust in the generator, from what it sees of a task before the first update.

    Trust is 1 for tasks nearer to the mean of the training tasks than 99 % of these (Mahalanobis distance), and falls
    with the square of the distance beyond. Before `learn` was called every task is trusted.
    """

    rates: Tensor
    weights: Tensor
    mean: Tensor
    whitening: Tensor
    reach: Tensor

    def __init__(self, size: int, rates: Sequence[float], weights: Sequence[float]) -> None:
        """``size`` numbers are seen of a task; ``rates`` and ``weights`` of each epoch are what is gone back to."""
        super().__init__()
        self.register_buffer("rates", torch.tensor([float(rate) for rate in rates]), persistent=False)
        self.register_buffer("weights", torch.tensor([float(weight) for weight in weights]), persistent=False)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("whitening", torch.zeros(size, size))
        self.register_buffer("reach", torch.zeros(()))
        self._watched: list[Tensor] | None = None

    @property
    def known(self) -> bool:
        """Whether it has learned how training tasks look."""
        return bool(self.reach > 0)

    @torch.no_grad()
    def learn(self, seen: Float[Tensor, "N X"]) -> None:
        """Note how the training tasks look."""
        values = seen.double()
        mean = values.mean(0)
        covariance = torch.cov(values.mT).reshape(len(mean), len(mean))
        ridge = RIDGE * covariance.diagonal().mean().clamp_min(torch.finfo(torch.double).tiny)
        covariance += ridge * torch.eye(len(mean), dtype=torch.double, device=values.device)
        whitening = torch.linalg.inv(torch.linalg.cholesky(covariance))
        distances = torch.linalg.vector_norm((values - mean) @ whitening.mT, dim=-1)
        self.mean.copy_(mean)
        self.whitening.copy_(whitening)
        self.reach.copy_(distances.quantile(RANGE))

    @torch.no_grad()
    def forward(self, seen: Float[Tensor, "T X"]) -> Float[Tensor, " T"]:
        """Trust in (0, 1] for each task."""
        if self._watched is not None:
            self._watched.append(seen.detach().cpu())
        if not self.known:
            return torch.ones_like(seen[:, 0])
        distance = torch.linalg.vector_norm((seen - self.mean) @ self.whitening.mT, dim=-1)
        trust: Tensor = (self.reach / distance.clamp_min(self.reach)).square()
        return trust

    @contextmanager
    def watching(self) -> Iterator[list[Tensor]]:
        """Collects what is seen of tasks meanwhile."""
        self._watched = []
        try:
            yield self._watched
        finally:
            self._watched = None

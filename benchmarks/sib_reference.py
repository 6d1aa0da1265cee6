"""SIB as it is usually written: one task at a time, the synthetic gradient pulled back to the weights by autograd.

Nothing is done that could be left out; a test holds scores and meta-gradients equal to the package's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-5


@dataclass(frozen=True)
class Layer:
    """A linear layer and, after its ReLU, BatchNorm over the queries."""

    weight: Tensor
    bias: Tensor
    gamma: Tensor | None = None
    beta: Tensor | None = None


@dataclass(frozen=True)
class ReferenceSib:
    """The head of SIB: a scaled cosine classifier moved by a synthetic gradient."""

    layers: tuple[Layer, ...]
    initial_weight: Tensor
    scale: Tensor
    bias: Tensor
    rate: float
    steps: int

    def scores(self, support: Tensor, labels: Tensor, query: Tensor, ways: int) -> Tensor:
        """Query scores [Q, W] of one task after all steps, with the graph of all of them."""
        support, query = functional.normalize(support, dim=-1), functional.normalize(query, dim=-1)
        one_hot = functional.one_hot(labels, ways).to(support.dtype)
        weights = self.initial_weight * ((one_hot / one_hot.sum(0)).mT @ support)
        for _ in range(self.steps):
            scores = self._classify(query, weights)
            (gradient,) = torch.autograd.grad(scores, weights, self._synthetic(scores), create_graph=True)
            weights = weights - self.rate * gradient
        return self._classify(query, weights)

    def _classify(self, query: Tensor, weights: Tensor) -> Tensor:
        return self.scale * (functional.linear(query, functional.normalize(weights, dim=-1)) + self.bias)

    def _synthetic(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = functional.linear(values, layer.weight, layer.bias)
            if layer.gamma is not None:
                values = functional.batch_norm(
                    values.relu(), None, None, layer.gamma, layer.beta, training=True, eps=EPS
                )
        return values

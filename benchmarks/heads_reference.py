"""The head loop as it is usually written: one task at a time, autograd in every epoch, query scores in every epoch.

The FC hyperprior computes the rows of all epochs each time and uses one, as published. Apart from that nothing is done
that could be left out; a test holds the results equal to the package's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Deltas = Callable[[int, Tensor], tuple[Tensor, Tensor]]  # (epoch, context [C]) -> Delta alpha, Delta v


@dataclass(frozen=True)
class FcRows:
    """For alpha and for v a layer with a row per epoch; all rows are computed at each epoch."""

    weights: tuple[Tensor, Tensor]  # M C
    biases: tuple[Tensor, Tensor]  # M

    def begin(self) -> Deltas:
        """Forget the last task."""
        return self._deltas

    def _deltas(self, epoch: int, context: Tensor) -> tuple[Tensor, Tensor]:
        rate, weight = (functional.linear(context, *layer) for layer in zip(self.weights, self.biases, strict=True))
        return rate[epoch], weight[epoch]


@dataclass(frozen=True)
class LstmCells:
    """For alpha and for v an LSTM of hidden size 1 whose hidden state is the output."""

    cells: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]  # input weight 4 C, hidden weight 4 1, two biases 4

    def begin(self) -> Deltas:
        """Forget the last task."""
        zero = self.cells[0][0].new_zeros(1, 1)
        memory = [(zero, zero) for _ in self.cells]

        def step(epoch: int, context: Tensor) -> tuple[Tensor, Tensor]:
            for number, cell in enumerate(self.cells):
                memory[number] = torch.lstm_cell(context.unsqueeze(0), memory[number], *cell)
            return memory[0][0].view(()), memory[1][0].view(())

        return step


@dataclass(frozen=True)
class ReferenceHead:
    """A head learned by gradient descent and the ensemble of its epochs."""

    cosine: bool
    temperature: float
    start_weight: Tensor | None  # None: class means
    start_bias: Tensor | None
    rates: Tensor  # M
    weights: Tensor  # M
    generator: FcRows | LstmCells
    fraction: float

    def scores(self, support: Tensor, labels: Tensor, query: Tensor, ways: int, *, meta_gradient: bool) -> Tensor:
        """Query scores [Q, W] of one task; ``meta_gradient`` keeps the graph of all epochs."""
        if self.cosine:
            support, query = support - support.mean(-1, keepdim=True), query - query.mean(-1, keepdim=True)
        embedding = support.mean(0)
        if self.start_weight is None:
            one_hot = functional.one_hot(labels, ways).to(support.dtype)
            parts = [(one_hot / one_hot.sum(0)).mT @ support]
        else:
            parts = [self.start_weight] if self.start_bias is None else [self.start_weight, self.start_bias]
        if self.cosine:
            support, query = functional.normalize(support, dim=-1), functional.normalize(query, dim=-1)
        deltas = self.generator.begin()
        total: Tensor | None = None
        for epoch in range(len(self.rates)):
            if not meta_gradient:
                parts = [part.detach().requires_grad_() for part in parts]
            with torch.enable_grad():
                loss = functional.cross_entropy(self._scores(support, parts), labels)
                gradients = torch.autograd.grad(loss, parts, create_graph=meta_gradient)
            for_rate, for_weight = deltas(epoch, torch.cat([embedding, gradients[0].mean(0)]))
            rate = self.rates[epoch] + self.fraction * for_rate
            parts = [part - rate * gradient for part, gradient in zip(parts, gradients, strict=True)]
            vote = (self.weights[epoch] + self.fraction * for_weight) * self._scores(query, parts)
            total = vote if total is None else total + vote
        assert total is not None
        return total

    def _scores(self, examples: Tensor, parts: list[Tensor]) -> Tensor:
        if not self.cosine:
            return functional.linear(examples, *parts)
        return self.temperature * functional.linear(examples, functional.normalize(parts[0], dim=-1))

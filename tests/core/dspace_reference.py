"""The slow reference: one task at a time, weights of full size, gradients by autograd or by their formula.

Nothing here is shared with the package but the tensors of its parameters. Features are [examples, D], head weights
[W, D]. In first order the gradient and everything observed with it (loss, query scores) are constants.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

TINY = 1e-12
SHORTEST = 1e-16


@dataclass(frozen=True)
class Task:
    """One task without padding."""

    support: Tensor
    labels: Tensor
    query: Tensor
    ways: int


@dataclass
class Outcome:
    """What a run leaves: query scores of the ensemble, and per epoch rate, weight, training loss and query scores."""

    scores: Tensor | None = None
    rates: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    singles: list[Tensor] = field(default_factory=list)


# --- heads: prepare features, start, score, gradient ------------------------------------------------------------------


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + SHORTEST).sqrt()


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def class_means(x: Tensor, labels: Tensor, ways: int) -> Tensor:
    return torch.stack([x[labels == way].mean(0) for way in range(ways)])


def residual(scores: Tensor, labels: Tensor) -> Tensor:
    one_hot = functional.one_hot(labels, scores.shape[1]).to(scores.dtype)
    return (scores.softmax(-1) - one_hot) / len(labels)


@dataclass(frozen=True)
class LinearReference:
    """x -> W x + b."""

    weight: Tensor | None = None  # None: prototypes
    bias: Tensor | None = None
    log_scale: Tensor | None = None

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def embed(self, x: Tensor) -> Tensor:
        return x

    def start(self, task: Task, second_order: bool) -> list[Tensor]:
        if self.weight is not None:
            return [self.weight, self.bias]
        means = class_means(task.support if second_order else task.support.detach(), task.labels, task.ways)
        scale = self.log_scale.exp()
        return [scale * means, -scale * means.square().sum(-1) / 2]

    def scores(self, theta: list[Tensor], x: Tensor) -> Tensor:
        return functional.linear(x, theta[0], theta[1])

    def loss(self, theta: list[Tensor], task: Task) -> Tensor:
        return functional.cross_entropy(self.scores(theta, task.support), task.labels)

    def autograd_gradient(self, theta: list[Tensor], task: Task, create_graph: bool) -> list[Tensor]:
        return list(torch.autograd.grad(self.loss(theta, task), theta, create_graph=create_graph))

    def formula_gradient(self, theta: list[Tensor], task: Task) -> list[Tensor]:
        by_score = residual(self.scores(theta, task.support), task.labels)
        return [by_score.mT @ task.support, by_score.sum(0)]


def cosine_scores(weight: Tensor, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return scale * (unit(x) @ unit(weight).mT + bias)


def cosine_formula(weight: Tensor, x: Tensor, scale: Tensor, by_score: Tensor) -> Tensor:
    """Sum over examples of by_score times the derivative of the scores by the weights."""
    length = (weight.square().sum(-1, keepdim=True) + SHORTEST).sqrt()
    cosines = unit(x) @ (weight / length).mT
    return scale * (
        by_score.mT @ unit(x) / length - (by_score * cosines).sum(0).unsqueeze(-1) * weight / length.square()
    )


@dataclass(frozen=True)
class CosineReference:
    """x -> s cos(x, w) on features that lost their own mean."""

    temperature: Tensor
    weight: Tensor | None = None  # None: prototypes

    def prepare(self, x: Tensor) -> Tensor:
        return centred(x)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def start(self, task: Task, second_order: bool) -> list[Tensor]:
        if self.weight is not None:
            return [self.weight]
        return [class_means(task.support if second_order else task.support.detach(), task.labels, task.ways)]

    def scores(self, theta: list[Tensor], x: Tensor) -> Tensor:
        return cosine_scores(theta[0], x, self.temperature, torch.zeros_like(self.temperature))

    def loss(self, theta: list[Tensor], task: Task) -> Tensor:
        return functional.cross_entropy(self.scores(theta, task.support), task.labels)

    def autograd_gradient(self, theta: list[Tensor], task: Task, create_graph: bool) -> list[Tensor]:
        return list(torch.autograd.grad(self.loss(theta, task), theta, create_graph=create_graph))

    def formula_gradient(self, theta: list[Tensor], task: Task) -> list[Tensor]:
        by_score = residual(self.scores(theta, task.support), task.labels)
        return [cosine_formula(theta[0], task.support, self.temperature, by_score)]


@dataclass(frozen=True)
class SibReference:
    """x -> s (cos(x, w) + b), moved by what a network says of the query scores."""

    scale: Tensor
    bias: Tensor
    initial_weight: Tensor
    net: nn.Module

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def embed(self, x: Tensor) -> Tensor:
        return unit(x)

    def start(self, task: Task, second_order: bool) -> list[Tensor]:
        return [self.initial_weight * class_means(unit(task.support), task.labels, task.ways)]

    def scores(self, theta: list[Tensor], x: Tensor) -> Tensor:
        return cosine_scores(theta[0], x, self.scale, self.bias)

    def loss(self, theta: list[Tensor], task: Task) -> Tensor:
        return functional.cross_entropy(self.scores(theta, task.support), task.labels)

    def autograd_gradient(self, theta: list[Tensor], task: Task, create_graph: bool) -> list[Tensor]:
        scores = self.scores(theta, task.query)
        synthetic = self.net(scores.unsqueeze(0)).squeeze(0)
        return list(torch.autograd.grad(scores, theta, grad_outputs=synthetic, create_graph=create_graph))

    def formula_gradient(self, theta: list[Tensor], task: Task) -> list[Tensor]:
        synthetic = self.net(self.scores(theta, task.query).unsqueeze(0)).squeeze(0)
        return [cosine_formula(theta[0], task.query, self.scale, synthetic)]


Head = LinearReference | CosineReference | SibReference


# --- what the hyperprior sees, explicitly concatenated ----------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Everything observable at one epoch."""

    gradient: list[Tensor]
    loss: Tensor
    query_scores: Tensor
    support: Tensor  # embeddings
    query: Tensor


@dataclass(frozen=True)
class ContextReference:
    """[mean support, [mean query], summary]."""

    summary: str
    embedding: bool
    transductive: bool
    detach: bool = False

    def __call__(self, seen: Seen) -> Tensor:
        parts = []
        if self.embedding:
            parts.append(seen.support.mean(0))
            if self.transductive:
                parts.append(seen.query.mean(0))
        parts.append(getattr(self, self.summary)(seen))
        vector = torch.cat(parts)
        return vector.detach() if self.detach else vector

    def class_mean(self, seen: Seen) -> Tensor:
        return seen.gradient[0].mean(0)

    def flat(self, seen: Seen) -> Tensor:
        return seen.gradient[0].flatten()

    def rms(self, seen: Seen) -> Tensor:
        return (seen.gradient[0].square().mean(0) + TINY).sqrt()

    def stats(self, seen: Seen) -> Tensor:
        squared = sum(part.square().sum() for part in seen.gradient)
        gram = seen.support @ seen.support.mT
        scalars = [
            (squared + TINY).sqrt().log(),
            seen.loss,
            (gram.mean() + TINY).log(),
            (gram.diagonal().mean() + TINY).log(),
        ]
        if self.transductive:
            p = seen.query_scores.softmax(-1)
            mean = p.mean(0)
            scalars += [-(p * p.log()).sum(-1).mean(), -(mean * (mean + TINY).log()).sum()]
        return torch.stack(scalars)


# --- hyperpriors ------------------------------------------------------------------------------------------------------

Deltas = Callable[[int, Tensor], Tensor]  # (epoch, context) -> [outputs]


def no_deltas(epoch: int, context: Tensor) -> Tensor:
    return context.new_zeros(0)


def fc_deltas(weights: list[Tensor], biases: list[Tensor]) -> Deltas:
    """For each output a weight [M, C] and a bias [M]: epoch m uses row m."""
    return lambda epoch, context: torch.stack(
        [weight[epoch] @ context + bias[epoch] for weight, bias in zip(weights, biases, strict=True)]
    )


def lstm_deltas(cells: list[tuple[Tensor, ...]], readouts: list[Tensor] | None) -> Deltas:
    """For each cell input weight [4, H, C], hidden weight [4, H, H] and two biases [4, H].

    Gates come in the order enter, forget, candidate, leave; the state starts at zero.
    """
    hidden = cells[0][0].shape[1]
    memory = [(cells[0][0].new_zeros(hidden), cells[0][0].new_zeros(hidden)) for _ in cells]

    def step(epoch: int, context: Tensor) -> Tensor:
        outputs = []
        for number, (input_weight, hidden_weight, input_bias, hidden_bias) in enumerate(cells):
            h, c = memory[number]
            gate = [input_weight[k] @ context + input_bias[k] + hidden_weight[k] @ h + hidden_bias[k] for k in range(4)]
            c = torch.sigmoid(gate[1]) * c + torch.sigmoid(gate[0]) * torch.tanh(gate[2])
            h = torch.sigmoid(gate[3]) * torch.tanh(c)
            memory[number] = (h, c)
            outputs.append(h if readouts is None else readouts[number] @ h)
        return torch.cat(outputs)

    return step


def mix(rule: str, which: str, base: Tensor, delta: Tensor, fraction: float) -> Tensor:
    if rule == "residual":
        return base + fraction * delta
    if rule == "convex":
        return (1 - fraction) * base + fraction * delta
    if rule == "literal":
        return fraction * base + (1 - fraction) * delta
    return base * torch.exp(delta) if which == "rate" else base * (1 + delta)


@dataclass(frozen=True)
class HyperpriorReference:
    """Base values and, where they are generated, the network's Delta mixed in."""

    rates: Tensor  # M
    weights: Tensor  # M
    deltas: Callable[[], Deltas]  # called once per task: fresh state
    rate_generated: bool
    weight_generated: bool
    mixing: str = "residual"
    fractions: tuple[float, float] = (1e-4, 1e-4)
    context: ContextReference | None = None


# --- the loop ---------------------------------------------------------------------------------------------------------


def run(
    task: Task,
    head: Head,
    hyperprior: HyperpriorReference,
    epochs: int,
    *,
    second_order: bool,
    gradient: str = "autograd",
) -> Outcome:
    """Algorithm 2 word by word; ``gradient`` is "autograd" or "formula"."""
    task = Task(head.prepare(task.support), task.labels, head.prepare(task.query), task.ways)
    theta = head.start(task, second_order)
    deltas = hyperprior.deltas()
    outcome = Outcome()
    ensemble = 0
    for epoch in range(epochs):
        at, there = theta, task
        if not second_order:
            at = [part.detach().requires_grad_() for part in theta]
            there = Task(task.support.detach(), task.labels, task.query.detach(), task.ways)
        elif gradient == "autograd" and not theta[0].requires_grad:
            at = theta = [part.requires_grad_() for part in theta]
        if gradient == "autograd":
            direction = head.autograd_gradient(at, there, create_graph=second_order)
        else:
            direction = head.formula_gradient(at, there)
        loss, query_scores = head.loss(at, there), head.scores(at, there.query)
        if not second_order:
            direction = [part.detach() for part in direction]
            loss, query_scores = loss.detach(), query_scores.detach()
        rate, weight = hyperprior.rates[epoch], hyperprior.weights[epoch]
        if hyperprior.context is not None:
            seen = Seen(direction, loss, query_scores, head.embed(task.support), head.embed(task.query))
            delta = list(deltas(epoch, hyperprior.context(seen)))
            if hyperprior.rate_generated:
                rate = mix(hyperprior.mixing, "rate", rate, delta.pop(0), hyperprior.fractions[0])
            if hyperprior.weight_generated:
                weight = mix(hyperprior.mixing, "weight", weight, delta.pop(0), hyperprior.fractions[1])
        theta = [part - rate * step for part, step in zip(theta, direction, strict=True)]
        single = head.scores(theta, task.query)
        ensemble = ensemble + weight * single
        outcome.rates.append(rate)
        outcome.weights.append(weight)
        outcome.losses.append(loss)
        outcome.singles.append(single)
    outcome.scores = ensemble
    return outcome

"""The two passes of MAML through one task's network: learning from the support, and answering the queries."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from e3bm.methods.heads.collapsed import unit
from e3bm.methods.networks.functional import FunctionalPass
from e3bm.methods.networks.step_statistics import Part, StatisticsLedger

Computation = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
Parameters = tuple[Tensor, ...]  # of one learner, in the order of ParameterNames.adapted, then the head's two


class ParameterNames(NamedTuple):
    """The backbone's parameters that the inner loop adapts, and those it leaves to the outer loop (BatchNorm's)."""

    adapted: tuple[str, ...]
    fixed: tuple[str, ...]


@runtime_checkable
class FixedParameters(Protocol):
    """The values, in the order of ParameterNames.fixed, that a pass of a learner after some updates has."""

    def __call__(self, part: Part, updates: int) -> Parameters: ...


class Lesson(NamedTuple):
    """What a learner finds in its support: features, training loss, and the gradient of every parameter."""

    features: Float[Tensor, "S D"]
    loss: Float[Tensor, ""]
    gradient: Parameters


class Answer(NamedTuple):
    """What a learner says of its queries."""

    features: Float[Tensor, "Q D"]
    scores: Float[Tensor, "Q W"]


class TaskPasses:
    """The passes of a batch of tasks; tasks are looped over, which beats grouped convolutions.

    It knows images and fixed parameters, never a learner: a graph that recomputes refers to it.
    """

    def __init__(
        self,
        network: FunctionalPass,
        ledger: StatisticsLedger,
        names: ParameterNames,
        fixed: FixedParameters,
        *,
        second_order: bool,
        loss_factor: float,
        feature_length: float | None,
        checkpointed: bool,
    ) -> None:
        self.network, self.ledger, self.names, self.fixed = network, ledger, names, fixed
        self.second_order, self.loss_factor, self.checkpointed = second_order, loss_factor, checkpointed
        self.feature_length = feature_length
        self.support: list[tuple[Tensor, Tensor]] = []
        self.query: list[Tensor] = []

    def add_task(
        self,
        support: Float[Tensor, "S C H W"],
        labels: Int[Tensor, " S"],
        mask: Bool[Tensor, " S"],
        query: Float[Tensor, "Q C H W"],
    ) -> None:
        """One more task; padding is dropped here, before it could enter BatchNorm's statistics."""
        if not bool(mask.all()):
            support, labels = support[mask], labels[mask]
        # Once, not in every pass: images whose channels are innermost.
        self.support.append((support.contiguous(memory_format=torch.channels_last), labels))
        self.query.append(query.contiguous(memory_format=torch.channels_last))

    def embed(self, task: int, network: Parameters) -> Float[Tensor, "S D"]:
        """Features of the support before the first update, by a backbone without a head."""

        def compute(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return (self._features("support", task, 0, inputs, len(network), self.support[task][0]),)

        return run(compute, (*network, *self.fixed("support", 0)), recompute=self.checkpointed)[0]

    def learn(self, task: int, updates: int, learner: Parameters) -> Lesson:
        """Features, loss and gradient at a learner.

        In first order the gradient and the loss are constants. Without gradients outside, nothing of the graph stays.
        """
        images, labels = self.support[task]

        def compute(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            outside = torch.is_grad_enabled()
            second = outside and self.second_order
            # In first order only the embeddings that a hyperprior sees, those at Theta_0, keep their graph.
            keep = second or (outside and updates == 0)
            with torch.enable_grad():
                if not outside:
                    inputs = [each.detach().requires_grad_() for each in inputs]
                adapted = inputs[: len(learner)]
                features = self._features("support", task, updates, inputs, len(learner), images)
                loss = self.loss_factor * F.cross_entropy(F.linear(features, adapted[-2], adapted[-1]), labels)
                found = torch.autograd.grad(loss, adapted, create_graph=second, retain_graph=keep, allow_unused=True)
            gradient = [
                torch.zeros_like(each) if part is None else part for each, part in zip(adapted, found, strict=True)
            ]
            return features if keep else features.detach(), loss if second else loss.detach(), *gradient

        features, loss, *gradient = self._run(compute, learner, self.fixed("support", updates))
        return Lesson(features, loss, tuple(gradient))

    def answer(self, task: int, updates: int, learner: Parameters) -> Answer:
        """Features and scores of the queries, in a pass of their own."""

        def compute(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            features = self._features("query", task, updates, inputs, len(learner), self.query[task])
            return features, F.linear(features, inputs[len(learner) - 2], inputs[len(learner) - 1])

        return Answer(*self._run(compute, learner, self.fixed("query", updates)))

    def _run(self, compute: Computation, learner: Parameters, fixed: Parameters) -> tuple[Tensor, ...]:
        return run(compute, (*learner, *fixed), recompute=self.checkpointed)

    def _features(
        self, part: Part, task: int, updates: int, inputs: Sequence[Tensor], learner: int, images: Tensor
    ) -> Tensor:
        """The inputs are ``learner`` tensors, those of the backbone first, and then the fixed ones."""
        parameters = dict(zip(self.names.adapted, inputs[: len(self.names.adapted)], strict=True))
        parameters |= zip(self.names.fixed, inputs[learner:], strict=True)
        given, observe = self.ledger.given(part, updates), self.ledger.observes(part)
        features, seen = self.network(parameters, images, given, observe)
        if observe:
            self.ledger.note(part, updates, task, seen)
        return features if self.feature_length is None else self.feature_length * unit(features)


def parameter_names(backbone: nn.Module) -> ParameterNames:
    """BatchNorm's scale and shift are learned by the outer loop only."""
    fixed = {
        f"{name}.{parameter}" if name else parameter
        for name, layer in backbone.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        for parameter, _ in layer.named_parameters(recurse=False)
    }
    names = [name for name, _ in backbone.named_parameters()]
    return ParameterNames(
        tuple(name for name in names if name not in fixed), tuple(name for name in names if name in fixed)
    )


# Passes that are run again in the backward pass instead of keeping what they computed: memory for time.


class Recomputed(Function):
    """The computation may itself take gradients, for which torch's own checkpoints would run it once more."""

    @staticmethod
    def forward(ctx: Any, compute: Computation, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.compute = compute
        ctx.randomness = torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        return compute(inputs)  # gradients are switched off in here

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        inputs = [each.detach().requires_grad_(want) for each, want in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.randomness)
            outputs = ctx.compute(inputs)
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        sources = [each for each in inputs if each.requires_grad]
        found = iter(
            torch.autograd.grad([pair[0] for pair in pairs], sources, [pair[1] for pair in pairs], allow_unused=True)
            if pairs
            else [None] * len(sources)
        )
        return None, *(next(found) if want else None for want in wanted)


def run(compute: Computation, inputs: Sequence[Tensor], *, recompute: bool) -> tuple[Tensor, ...]:
    """The results of a deterministic computation on its differentiable inputs."""
    if recompute and torch.is_grad_enabled():
        return Recomputed.apply(compute, *inputs)  # type: ignore[no-any-return]
    return compute(inputs)

"""Head rows: the Gram loop against one task at a time with autograd; 5-way, M = 100, d = 640, 75 queries."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.heads_reference import FcRows, LstmCells, ReferenceHead
from benchmarks.rows import Row
from benchmarks.timing import Work, compare
from e3bm.core.context import ClassMean, Context
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Generated, equal_values
from e3bm.methods import Mtl, ReadyFeatures

WAYS, FEATURES, QUERIES, EPOCHS = 5, 640, 75, 100
TEMPERATURE, FRACTION = 8.0, 1e-4

Head = Literal["cosine", "linear"]
Kind = Literal["fc", "lstm"]


@dataclass(frozen=True)
class Case:
    """One row: what is timed, and the ratio it should reach."""

    head: Head
    kind: Kind
    step: Literal["forward", "second order"]
    shots: int
    tasks: int
    target: float

    @property
    def name(self) -> str:
        return f"{self.head} head, {self.kind.upper()}, {self.step}, {self.shots}-shot, T={self.tasks}"


CASES = (
    *(Case("cosine", "fc", "forward", shots, tasks, target) for shots, tasks, target in
      ((1, 64, 150), (1, 1, 10), (5, 64, 100), (5, 1, 8))),
    *(Case("cosine", "fc", "second order", shots, tasks, target) for shots, tasks, target in
      ((1, 64, 100), (1, 16, 55), (1, 4, 18), (5, 64, 70), (5, 16, 45), (5, 4, 12))),
    *(Case("linear", "fc", "forward", shots, 64, target) for shots, target in ((1, 120), (5, 70))),
    *(Case("linear", "fc", "second order", shots, 64, target) for shots, target in ((1, 100), (5, 55))),
    *(Case("cosine", "lstm", "second order", shots, 64, target) for shots, target in ((1, 80), (5, 55))),
)  # fmt: skip


def tasks_of_features(
    tasks: int, shots: int, *, features: int = FEATURES, queries: int = QUERIES, dtype: torch.dtype = torch.float32
) -> TaskBatch:
    """Tasks that look like rectified features of a backbone; both sides' gradients are wanted."""
    draw = torch.Generator().manual_seed(shots)
    labels = torch.arange(WAYS).repeat(shots).expand(tasks, -1).contiguous()
    query_labels = torch.arange(WAYS).repeat(queries // WAYS).expand(tasks, -1).contiguous()
    centres = torch.randn(tasks, WAYS, features, generator=draw, dtype=dtype)

    def examples(of: Tensor) -> Tensor:
        noise = torch.randn(tasks, of.shape[1], features, generator=draw, dtype=dtype)
        return (0.5 * centres.gather(1, of.unsqueeze(-1).expand(-1, -1, features)) + noise).relu()

    support, query = examples(labels).requires_grad_(), examples(query_labels).requires_grad_()
    return TaskBatch(support, labels, query, query_labels, WAYS)


def learner(head: Head, kind: Kind, *, features: int = FEATURES, epochs: int = EPOCHS) -> MetaLearner:
    """The published parametrisation: two learners that see the mean support embedding and the class-mean gradient."""
    torch.manual_seed(0)
    context = Context(ClassMean(features), embedding=features)
    generator = (
        FcGenerator(context, epochs, 2)
        if kind == "fc"
        else LstmGenerator(context, 2, hidden=1, readout=False, separate=True)
    )
    hyperprior = Hyperprior(
        Generated([0.1 if head == "cosine" else 0.01] * epochs),
        Generated(equal_values(epochs)),
        generator,
        mixing="residual",
        fractions=(FRACTION, FRACTION),
    )
    start: Literal["prototype", "learned"] = "prototype" if head == "cosine" else "learned"
    method = Mtl(ReadyFeatures(features), head=head, start=start, ways=WAYS, temperature=TEMPERATURE)
    return MetaLearner(method, hyperprior, epochs)


def reference(ours: MetaLearner) -> ReferenceHead:
    """The plain loop with the same parameters."""
    parameters = dict(ours.named_parameters())
    own = ours.hyperprior.generator
    generator: FcRows | LstmCells
    if isinstance(own, FcGenerator):
        generator = FcRows((own.weight[0], own.weight[1]), (own.bias[0], own.bias[1]))
    else:
        assert isinstance(own, LstmGenerator)
        parts = zip(own.input_weight, own.hidden_weight, own.input_bias, own.hidden_bias, strict=True)
        generator = LstmCells(tuple((a.squeeze(1), b.squeeze(1), c.squeeze(1), d.squeeze(1)) for a, b, c, d in parts))
    return ReferenceHead(
        cosine="method.initialiser.weight" not in parameters,
        temperature=TEMPERATURE,
        start_weight=parameters.get("method.initialiser.weight"),
        start_bias=parameters.get("method.initialiser.bias"),
        rates=parameters["hyperprior.rate.values"],
        weights=parameters["hyperprior.weight.values"],
        generator=generator,
        fraction=FRACTION,
    )


def _of_both(parameters: dict[str, nn.Parameter], name: str, dim: int) -> Tensor:
    """A parameter of the generator of alpha and of that of v, as one tensor."""
    return torch.stack([parameters[f"hyperprior.generator.{name}.{place}"] for place in range(2)], dim)


def reference_scores(head: ReferenceHead, batch: TaskBatch, task: int, *, meta_gradient: bool) -> Tensor:
    """Scores of one task of a batch."""
    return head.scores(
        batch.support[task], batch.support_labels[task], batch.query[task], batch.ways, meta_gradient=meta_gradient
    )


def sides(case: Case) -> tuple[Work, Work]:
    """The plain side (one task a call) and ours (all tasks a call)."""
    batch = tasks_of_features(case.tasks, case.shots)
    assert batch.query_labels is not None
    labels = batch.query_labels
    model = learner(case.head, case.kind)
    head = reference(model)
    leaves = [batch.support, batch.query, *model.parameters()]

    if case.step == "forward":
        slow = torch.no_grad()(partial(reference_scores, head, batch, 0, meta_gradient=False))
        return slow, torch.no_grad()(partial(model, batch))

    # One task is a leaf of its own: its gradient must not be scattered into the batch's.
    single = batch.tasks(0, 1)
    single = TaskBatch(
        single.support.detach().requires_grad_(), single.support_labels,
        single.query.detach().requires_grad_(), single.query_labels, WAYS,
    )  # fmt: skip
    single_leaves = [single.support, single.query, *model.parameters()]

    def slow_step() -> None:
        scores = reference_scores(head, single, 0, meta_gradient=True)
        torch.autograd.grad(functional.cross_entropy(scores, labels[0]), single_leaves, allow_unused=True)

    def fast_step() -> None:
        torch.autograd.grad(meta_loss(model(batch).scores, labels), leaves, allow_unused=True)

    return slow_step, fast_step


def rows(quick: bool) -> list[Row]:
    """Every head row of the target table; ``quick`` keeps the 1-shot rows."""
    found = []
    for case in CASES:
        if quick and case.shots != 1:
            continue
        slow, fast = sides(case)
        result = compare(slow, fast, fast_units=case.tasks, repeats=3 if quick else 5)
        found.append(Row.of(case.name, result, case.target))
    return found

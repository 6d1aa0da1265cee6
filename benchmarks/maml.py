"""MAML rows: 4CONV-32, 5-way, 5 second-order steps, 75 queries, one task a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.maml_reference import LAYERS_OF_A_BLOCK, Labelled, PlainConv4, meta_loss_of_task
from benchmarks.memory import peak_megabytes
from benchmarks.rows import Row
from benchmarks.timing import Work, compare
from e3bm.backbones import build
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods import Maml

WAYS, QUERIES, EPOCHS, RATE = 5, 75, 5, 0.01


@dataclass(frozen=True)
class Case:
    """A size of task, and the ratio of speeds it should reach."""

    image_size: int
    shots: int
    target: float
    repeats: int

    @property
    def name(self) -> str:
        return f"MAML, second order, {self.image_size} px, {self.shots}-shot"


CASES = (Case(32, 1, 1.5, 7), Case(32, 5, 1.9, 5), Case(84, 1, 2.0, 3), Case(84, 5, 2.8, 3))
MEMORY, MEMORY_CHECKPOINTED = 0.7, 0.5


def tasks_of_images(image_size: int, shots: int, *, tasks: int = 1, dtype: torch.dtype = torch.float32) -> TaskBatch:
    """Images of noise: the time does not depend on what they show."""
    draw = torch.Generator().manual_seed(shots)
    images = torch.rand(tasks, WAYS * shots + QUERIES, 3, image_size, image_size, generator=draw, dtype=dtype)
    labels = torch.arange(WAYS).repeat(images.shape[1] // WAYS).expand(tasks, -1).contiguous()
    split = WAYS * shots
    return TaskBatch(images[:, :split], labels[:, :split], images[:, split:], labels[:, split:], WAYS)


def learner(image_size: int, *, checkpointed: bool = False, hyperprior: Hyperprior | None = None) -> MetaLearner:
    """Plain MAML, or MAML with a hyperprior."""
    torch.manual_seed(0)
    method = Maml(build("conv4", image_size=image_size), ways=WAYS, checkpointed=checkpointed)
    return MetaLearner(method, hyperprior or Hyperprior(Constant(RATE), LastOnly()), EPOCHS)


def reference(ours: MetaLearner, image_size: int) -> PlainConv4:
    """The plain network with the same weights."""
    weights = dict(ours.named_parameters())
    plain = PlainConv4(image_size, WAYS).to(weights["method.head.weight"].dtype)
    with torch.no_grad():
        for name, value in plain.named_parameters():
            value.copy_(weights[our_name(name)])
    return plain


def our_name(name: str) -> str:
    """What the learner calls a parameter of the plain network."""
    if not name.startswith("blocks."):
        return f"method.{name}"
    _, layer, part = name.split(".")
    block, kind = divmod(int(layer), LAYERS_OF_A_BLOCK)
    return f"method.backbone.blocks.{block}.{('conv', 'norm')[kind]}.{part}"


def reference_step(network: PlainConv4, batch: TaskBatch) -> Work:
    """Loss and meta-gradients of the first task, the plain way."""
    assert batch.query_labels is not None
    support, query = (
        Labelled(batch.support[0], batch.support_labels[0]),
        Labelled(batch.query[0], batch.query_labels[0]),
    )
    parameters = list(network.parameters())
    return lambda: torch.autograd.grad(meta_loss_of_task(network, support, query, rate=RATE, steps=EPOCHS), parameters)


def our_step(model: MetaLearner, batch: TaskBatch) -> Work:
    """Loss and meta-gradients of a batch."""
    assert batch.query_labels is not None
    labels, parameters = batch.query_labels, list(model.parameters())
    return lambda: torch.autograd.grad(meta_loss(model(batch).scores, labels), parameters, allow_unused=True)


def memory_rows(case: Case, slow: Work, batch: TaskBatch) -> list[Row]:
    """Peak memory as a share of the reference's."""
    plain = peak_megabytes(slow)
    found = []
    for checkpointed, share in ((False, MEMORY), (True, MEMORY_CHECKPOINTED)):
        ours = peak_megabytes(our_step(learner(case.image_size, checkpointed=checkpointed), batch))
        name = f"{case.name}: peak memory{', checkpointed' if checkpointed else ''}"
        found.append(Row.at_most(name, ours, plain, share, "MB"))
    return found


def rows(quick: bool, cases: Sequence[Case] = CASES) -> list[Row]:
    """Every MAML row of the target table; ``quick`` keeps the 1-shot row at 32 px."""
    found = []
    for case in cases[:1] if quick else cases:
        batch, model = tasks_of_images(case.image_size, case.shots), learner(case.image_size)
        slow = reference_step(reference(model, case.image_size), batch)
        found.append(Row.of(case.name, compare(slow, our_step(model, batch), repeats=case.repeats), case.target))
        found += memory_rows(case, slow, batch)
    return found

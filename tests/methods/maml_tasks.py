"""Small networks and tasks for the tests of MAML."""

import torch
from torch import nn

from e3bm.backbones import TaskBatchNorm2d, build
from e3bm.core.context import ClassMean, Context, Flat, Rms, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Constant, Generated, LastOnly
from e3bm.methods import Maml

WAYS = 3


class SmoothNetwork(nn.Module):
    """A convolution, BatchNorm and tanh: every derivative exists everywhere."""

    feature_size, feature_positions = 8, 4

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = TaskBatchNorm2d(2)
        self.pool = nn.AvgPool2d(2)

    def forward(self, images):
        return self.pool(self.norm(self.conv(images)).tanh()).flatten(1)


def smooth(**settings):
    torch.manual_seed(1)
    method = Maml(SmoothNetwork(), ways=WAYS, **settings).double()
    nn.init.uniform_(method.backbone.norm.weight, 0.5, 1.5)
    nn.init.normal_(method.backbone.norm.bias)
    return method


def conv4(**settings):
    """A narrow 4CONV whose scales have both signs."""
    torch.manual_seed(1)
    method = Maml(build("conv4", width=0.1, channels=1, image_size=17), ways=WAYS, **settings).double()
    for block in method.backbone.blocks:
        nn.init.normal_(block.norm.weight)
        nn.init.normal_(block.norm.bias)
    return method


def task_batch(tasks=2, shots=1, queries=2, size=4, seed=0, mask=None):
    draw = torch.Generator().manual_seed(seed)
    examples = WAYS * (shots + queries)
    images = torch.randn(tasks, examples, 1, size, size, generator=draw, dtype=torch.float64)
    labels = (torch.arange(examples) % WAYS).expand(tasks, -1).contiguous()
    split = WAYS * shots
    return TaskBatch(images[:, :split], labels[:, :split], images[:, split:], labels[:, split:], WAYS, mask)


def plain(method, rate=0.1, epochs=3):
    hyperprior = Hyperprior(Constant(0.0), LastOnly()).double()
    hyperprior.rate.value.fill_(rate)
    return MetaLearner(method, hyperprior, epochs)


def context(summary, method, transductive=False, **settings):
    """A context of MAML's channel-pooled embeddings and a summary of the head's gradient."""
    features, positions = method.backbone.feature_size, method.backbone.feature_positions
    summaries = {
        "rms": Rms(features, positions),
        "stats": Stats(transductive),
        "flat": Flat(features, WAYS),
        "class_mean": ClassMean(features),
    }
    embedding = 0 if summary == "stats" else features // positions
    return Context(summaries[summary], embedding, transductive, **settings)


def generated(method, what, generator="lstm", epochs=3, mixing="scaled"):
    """MAML+E3BM with every part of the hyperprior away from zero."""
    torch.manual_seed(2)
    psi = FcGenerator(what, epochs, 2) if generator == "fc" else LstmGenerator(what, 2, hidden=2)
    hyperprior = Hyperprior(
        Generated([0.1 + 0.02 * epoch for epoch in range(epochs)]),
        Generated([(epoch + 1) / 6 for epoch in range(epochs)]),
        psi,
        mixing=mixing,
    )
    for part in psi.parameters():
        nn.init.normal_(part, std=0.3)
    return MetaLearner(method, hyperprior.double(), epochs)

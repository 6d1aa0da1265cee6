"""The meta-loss against finite differences (float64), for MTL and SIB with every pair of schedules."""

import pytest
import torch
from torch.func import functional_call

from e3bm.core.context import ClassMean, Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import InnerLoopMethod, MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, Frozen, Generated, LastOnly, Learned
from e3bm.methods import Mtl, ReadyFeatures, Sib

FEATURES, WAYS, EPOCHS = 5, 3, 3
METHODS = (
    "linear learned",
    "linear prototype",
    "cosine learned",
    "cosine prototype",
    "sib published",
    "sib equivariant",
)
RATES = {
    "constant": Constant,
    "learned": lambda rate: Learned([rate, 1.5 * rate, rate]),
    "frozen": lambda rate: Frozen([rate, 1.5 * rate, rate]),
    "generated": lambda rate: Generated([rate, 1.5 * rate, rate]),
}
WEIGHTS = {
    "last": LastOnly,
    "equal": Equal,
    "learned": lambda: Learned([0.1, 0.3, 0.6]),
    "frozen": lambda: Frozen([0.1, 0.3, 0.6]),
    "generated": lambda: Generated([0.1, 0.3, 0.6]),
}


class OpenSib(InnerLoopMethod):
    def __init__(self, sib):
        super().__init__()
        self.sib = sib

    def begin(self, batch):
        return self.sib.problem(batch, batch.support, batch.query)


def method(name):
    kind, variant = name.split()
    if kind == "sib":
        return OpenSib(Sib(ReadyFeatures(FEATURES), ways=WAYS, gradient_net=variant)), 0.02
    return Mtl(ReadyFeatures(FEATURES), head=kind, start=variant, ways=WAYS), 0.2


def learner(name, rate, weight, generator):
    torch.manual_seed(3)
    module, size = method(name)
    schedules = RATES[rate](size), WEIGHTS[weight]()
    outputs = sum(schedule.generated for schedule in schedules)
    psi = None
    if outputs:
        psi = (
            FcGenerator(Context(ClassMean(FEATURES), embedding=FEATURES), EPOCHS, outputs)
            if generator == "fc"
            else LstmGenerator(Context(Stats(transductive=True)), outputs, hidden=2)
        )
    found = MetaLearner(module, Hyperprior(*schedules, psi), EPOCHS).double()
    with torch.no_grad():
        for key, parameter in found.named_parameters():
            if "generator" in key:
                parameter.normal_(0, 0.1)
            elif key.endswith("sib.scale"):
                parameter.fill_(3.0)
    return found


def check(name, rate, weight, generator, *, one_by_one):
    draw = torch.Generator().manual_seed(1)
    features = lambda count: torch.randn(2, count, FEATURES, generator=draw, dtype=torch.float64).requires_grad_()
    labels = torch.tensor([[0, 1, 2, 1], [2, 1, 0, 0]])
    mask = torch.tensor([[True] * 4, [True] * 3 + [False]])
    query_labels = torch.tensor([[0, 1, 2, 0, 1, 2], [2, 2, 1, 1, 0, 0]])
    model = learner(name, rate, weight, generator)
    names = [key for key, _ in model.named_parameters()]

    def loss(support, query, *values):
        batch = TaskBatch(support, labels, query, query_labels, WAYS, mask)
        trace = functional_call(model, dict(zip(names, values, strict=True)), (batch,))
        return meta_loss(trace.scores, query_labels)

    inputs = (features(4), features(6), *model.parameters())
    if not one_by_one:
        # One random direction through all of them at once.
        sizes, shapes = [each.numel() for each in inputs], [each.shape for each in inputs]
        inner, inputs = loss, (torch.cat([each.detach().flatten() for each in inputs]).requires_grad_(),)
        loss = lambda joined: inner(*(p.view(s) for p, s in zip(joined.split(sizes), shapes, strict=True)))
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True, atol=1e-6, rtol=1e-4, check_undefined_grad=False)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", METHODS)
def test_meta_gradients_are_derivatives(name, rate, weight):
    check(name, rate, weight, "fc", one_by_one=False)


@pytest.mark.parametrize("name", METHODS)
def test_meta_gradients_of_each_tensor(name):
    check(name, "generated", "generated", "fc", one_by_one=True)


@pytest.mark.parametrize(
    ("rate", "weight"), [("generated", "generated"), ("generated", "last"), ("constant", "generated")]
)
@pytest.mark.parametrize("name", METHODS)
def test_meta_gradients_through_an_lstm(name, rate, weight):
    check(name, rate, weight, "lstm", one_by_one=False)


@pytest.mark.parametrize("name", ["linear prototype", "cosine learned", "cosine prototype"])
def test_every_single_derivative(name):
    """Slow mode: the whole Jacobian rather than a random projection of it."""
    draw = torch.Generator().manual_seed(2)
    features = [torch.randn(1, count, 3, generator=draw, dtype=torch.float64).requires_grad_() for count in (3, 2)]
    labels, query_labels = torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1]])
    kind, start = name.split()
    torch.manual_seed(0)
    model = MetaLearner(
        Mtl(ReadyFeatures(3), head=kind, start=start, ways=2), Hyperprior(Learned([0.3, 0.3]), Learned([0.5, 0.5])), 2
    ).double()
    names = [key for key, _ in model.named_parameters()]

    def loss(support, query, *values):
        batch = TaskBatch(support, labels, query, query_labels, 2)
        return meta_loss(functional_call(model, dict(zip(names, values, strict=True)), (batch,)).scores, query_labels)

    assert torch.autograd.gradcheck(loss, (*features, *model.parameters()), check_undefined_grad=False)

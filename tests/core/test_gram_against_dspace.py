"""Gram form, d-space formula and d-space autograd give the same scores and the same meta-gradients (float64, 1e-12)."""

from dataclasses import dataclass

import dspace_reference as slow
import pytest
import torch
from torch.nn import functional

from e3bm.core.context import ClassMean, Context, Flat, Rms, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import InnerLoopMethod, MetaLearner, meta_loss
from e3bm.core.schedules import Generated, Learned
from e3bm.methods import Mtl, ReadyFeatures, Sib

FEATURES, WAYS, QUERIES = 7, 3, 9
SHOTS = ((2, 1, 3), (1, 1, 1))  # the second task is padded
TOLERANCE = 1e-12

HEADS = ("linear learned", "linear prototype", "cosine learned", "cosine prototype", "sib published", "sib equivariant")
GENERATORS = ("fc", "lstm separate", "lstm joint", "lstm separate bare", "lstm joint bare")
SUMMARIES = ("class_mean", "flat", "rms", "stats")
MIXINGS = ("residual", "convex", "literal", "scaled")


@dataclass(frozen=True)
class Case:
    head: str
    generator: str = "fc"
    summary: str = "class_mean"
    transductive: bool = False
    second_order: bool = True
    mixing: str = "scaled"
    epochs: int = 3
    detach: bool = False
    embedding: bool = True

    def __str__(self):
        order = "second" if self.second_order else "first"
        setting = "transductive" if self.transductive else "inductive"
        return f"{self.head}, {self.generator}, {self.summary}, {setting}, {order}, {self.mixing}, M={self.epochs}"


class OpenSib(InnerLoopMethod):
    """SIB with gradients of its features."""

    def __init__(self, sib):
        super().__init__()
        self.sib = sib

    def begin(self, batch):
        return self.sib.problem(batch, batch.support, batch.query)


def tasks(seed=0):
    """Two tasks with uneven shots: padded as a batch, and one by one."""
    draw = torch.Generator().manual_seed(seed)
    longest = max(sum(shots) for shots in SHOTS)
    # Small features: where the support is learned to the last digit, p - 1 has no digits left to compare.
    features = 0.6 * torch.randn(len(SHOTS), longest, FEATURES, generator=draw, dtype=torch.float64) + 0.2
    query = 0.6 * torch.randn(len(SHOTS), QUERIES, FEATURES, generator=draw, dtype=torch.float64) + 0.2
    labels = torch.zeros(len(SHOTS), longest, dtype=torch.long)
    mask = torch.zeros(len(SHOTS), longest, dtype=torch.bool)
    for task, shots in enumerate(SHOTS):
        real = torch.repeat_interleave(torch.arange(WAYS), torch.tensor(shots))
        labels[task, : len(real)] = real
        mask[task, : len(real)] = True
    query_labels = torch.randint(WAYS, (len(SHOTS), QUERIES), generator=draw)
    features.requires_grad_()
    query.requires_grad_()
    return TaskBatch(features, labels, query, query_labels, WAYS, mask)


def build(case):
    """The package's learner, every parameter random and of visible influence."""
    torch.manual_seed(len(str(case)))
    kind, variant = case.head.split()
    if kind == "sib":
        sib = Sib(ReadyFeatures(FEATURES), ways=WAYS, gradient_net=variant, second_order=case.second_order)
        method, rate, visible = OpenSib(sib), 0.02, 0.05  # synthetic gradients of untrained nets are large
    else:
        method = Mtl(ReadyFeatures(FEATURES), head=kind, start=variant, ways=WAYS, second_order=case.second_order)
        rate, visible = 0.2, 0.2
    summary = {
        "class_mean": ClassMean(FEATURES),
        "flat": Flat(FEATURES, WAYS),
        "rms": Rms(FEATURES),
        "stats": Stats(transductive=case.transductive),
    }[case.summary]
    context = Context(summary, FEATURES if case.embedding else 0, case.transductive, case.detach)
    if case.generator == "fc":
        generator = FcGenerator(context, case.epochs, 2)
    else:
        separate, bare = "separate" in case.generator, "bare" in case.generator
        hidden = (1 if separate else 2) if bare else 3
        generator = LstmGenerator(context, 2, hidden=hidden, readout=not bare, separate=separate)
    hyperprior = Hyperprior(
        Generated([rate] * case.epochs),
        Generated([1.0 / (1 + epoch) for epoch in range(case.epochs)]),
        generator,
        mixing=case.mixing,
        fractions=(0.07, 0.3),
    )
    learner = MetaLearner(method, hyperprior, case.epochs).double()
    with torch.no_grad():
        for name, parameter in learner.named_parameters():
            if "generator" in name:
                parameter.normal_(0, visible)
            elif "gradient_net" in name or "initialiser" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif name.endswith("sib.scale"):
                parameter.fill_(3.0)  # softer predictions, better conditioned normalisation of the net's inputs
    return learner


def reference_head(learner):
    method = learner.method
    if isinstance(method, OpenSib):
        sib = method.sib
        return slow.SibReference(sib.scale, sib.bias, sib.initial_weight, sib.gradient_net)
    own = {} if method.initialiser is None else dict(method.initialiser.named_parameters())
    if method.head == "linear":
        return slow.LinearReference(own.get("weight"), own.get("bias"), own.get("log_scale"))
    return slow.CosineReference(method.temperature, own.get("weight"))


def reference_hyperprior(learner, case):
    own = learner.hyperprior
    if case.generator == "fc":
        deltas = lambda: slow.fc_deltas(list(own.generator.weight), list(own.generator.bias))
    else:
        lstm = own.generator
        cells = list(zip(lstm.input_weight, lstm.hidden_weight, lstm.input_bias, lstm.hidden_bias, strict=True))
        deltas = lambda: slow.lstm_deltas(cells, None if lstm.readout is None else list(lstm.readout))
    context = slow.ContextReference(case.summary, case.embedding, case.transductive, case.detach)
    return slow.HyperpriorReference(
        own.rate.values, own.weight.values, deltas, True, True, case.mixing, own.fractions, context
    )


def reference_outcomes(learner, batch, case, gradient):
    head, hyperprior = reference_head(learner), reference_hyperprior(learner, case)
    outcomes = []
    for task in range(len(batch)):
        real = batch.mask[task]
        alone = slow.Task(batch.support[task][real], batch.support_labels[task][real], batch.query[task], batch.ways)
        outcomes.append(
            slow.run(alone, head, hyperprior, case.epochs, second_order=case.second_order, gradient=gradient)
        )
    return outcomes


def leaves(learner, batch):
    named = {"support": batch.support, "query": batch.query}
    return named | {name: value for name, value in learner.named_parameters() if value.requires_grad}


def meta_gradients(loss, named):
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(named.items(), found, strict=True)
    }


def assert_same(name, found, expected, floor):
    """Equal to 1e-12 of the largest entry; ``floor`` keeps exact zeros from asking for 1e-12 of nothing."""
    scale = max(float(expected.detach().abs().max()), floor)
    error = float((found - expected).detach().abs().max())
    assert error <= TOLERANCE * scale, f"{name} differs by {error:.2e} at scale {scale:.2e}"


def check(case, seed=0):
    batch, learner = tasks(seed), build(case)
    named = leaves(learner, batch)
    trace = learner(batch, every_epoch=True)
    ours = meta_gradients(meta_loss(trace.scores, batch.query_labels), named)
    for gradient in ("autograd", "formula"):
        outcomes = reference_outcomes(learner, batch, case, gradient)
        scores = torch.stack([outcome.scores for outcome in outcomes])
        assert_same("scores", trace.scores, scores, 0.0)
        for part in ("rates", "weights", "losses"):
            expected = torch.stack([torch.stack(getattr(outcome, part)) for outcome in outcomes])
            assert_same(part, getattr(trace, part), expected, 0.0)
        singles = torch.stack([torch.stack(outcome.singles) for outcome in outcomes])
        assert_same("epoch scores", trace.epoch_scores, singles, 0.0)
        loss = functional.cross_entropy(scores.flatten(0, 1), batch.query_labels.flatten())
        theirs = meta_gradients(loss, named)
        largest = max(float(value.abs().max()) for value in theirs.values())
        for name, expected in theirs.items():
            # A gradient may be the rest of terms that all but cancel; it is no more exact than they are, and they
            # are about as large as the largest gradient.
            assert_same(f"gradient of {name} ({gradient})", ours[name], expected, 0.1 * largest)
    return ours


@pytest.mark.parametrize("second_order", [True, False], ids=["second", "first"])
@pytest.mark.parametrize("transductive", [False, True], ids=["inductive", "transductive"])
@pytest.mark.parametrize("summary", SUMMARIES)
@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("head", HEADS)
def test_every_hyperprior_on_every_head(head, generator, summary, transductive, second_order):
    check(Case(head, generator, summary, transductive, second_order))


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("generator", ["fc", "lstm joint"])
@pytest.mark.parametrize("head", HEADS)
def test_every_mixing(head, generator, mixing):
    check(Case(head, generator, "stats", mixing=mixing))


@pytest.mark.parametrize("second_order", [True, False], ids=["second", "first"])
@pytest.mark.parametrize("summary", SUMMARIES)
@pytest.mark.parametrize("head", ["linear learned", "cosine learned", "sib equivariant"])
def test_a_detached_context(head, summary, second_order):
    check(Case(head, "lstm joint", summary, True, second_order, detach=True))


@pytest.mark.parametrize("head", HEADS)
def test_a_context_without_embeddings(head):
    check(Case(head, "lstm joint", "stats", True, embedding=False))


@pytest.mark.parametrize("second_order", [True, False], ids=["second", "first"])
@pytest.mark.parametrize("head", HEADS)
def test_ten_epochs(head, second_order):
    check(Case(head, "lstm separate", "flat", True, second_order, "residual", epochs=10))


@pytest.mark.parametrize("head", ["linear learned", "cosine prototype", "cosine learned"])
def test_a_hundred_epochs(head):
    check(Case(head, "fc", "stats", False, True, "residual", epochs=100))


def test_first_order_gives_the_support_no_gradient():
    """With no embedding in the context, a constant gradient is all that ties a learned start to the support."""
    case = Case("linear learned", "fc", "class_mean", second_order=False, embedding=False)
    assert float(check(case)["support"].abs().max()) == 0.0


def test_second_order_reaches_the_support():
    assert float(check(Case("linear learned", embedding=False))["support"].abs().max()) > 1e-3


def test_learned_schedules_need_no_context():
    """The reference without a hyperprior network."""
    batch = tasks()
    hyperprior = Hyperprior(Learned([0.1, 0.2, 0.3]), Learned([0.2, 0.3, 0.5]))
    learner = MetaLearner(Mtl(ReadyFeatures(FEATURES), ways=WAYS), hyperprior, 3).double()
    trace = learner(batch)
    plain = slow.HyperpriorReference(
        hyperprior.rate.values, hyperprior.weight.values, lambda: slow.no_deltas, False, False
    )
    for task in range(len(batch)):
        real = batch.mask[task]
        alone = slow.Task(batch.support[task][real], batch.support_labels[task][real], batch.query[task], WAYS)
        expected = slow.run(alone, reference_head(learner), plain, 3, second_order=True)
        assert_same("scores", trace.scores[task], expected.scores, 0.0)

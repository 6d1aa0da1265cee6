"""Soft k-means, MAP, PT+MAP and TIM: each against its published rounds written out for one task."""

import math
from dataclasses import replace

import pytest
import torch
from tests.methods.feature_tasks import (
    FEATURES,
    check_gradients,
    check_order_has_no_meaning,
    check_padding_has_no_influence,
    check_tasks_are_alone,
    close,
    task_batch,
    uneven,
)

from e3bm.core.context import ClassMean, Context, Stats
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly, Learned
from e3bm.errors import SettingsError
from e3bm.methods import Parts, ReadyFeatures
from e3bm.methods.map_rounds import MapRounds, partly_balanced
from e3bm.methods.proto_nets import ProtoNets
from e3bm.methods.pt_map import PtMap, balanced
from e3bm.methods.soft_k_means import SoftKMeans
from e3bm.methods.tim import Tim
from e3bm.paper.presets import find_preset
from e3bm.runs.assembly import build_hyperprior

METHODS = {
    "soft k-means": lambda **options: SoftKMeans(ReadyFeatures(FEATURES), **options),
    "map": lambda **options: MapRounds(ReadyFeatures(FEATURES), **options),
    "balanced map": lambda **options: MapRounds(
        ReadyFeatures(FEATURES), **{"balance": 0.75, "learned_scale": True, "learned_balance": True, **options}
    ),
    "pt+map": lambda **options: PtMap(ReadyFeatures(FEATURES), **options),
    "tim": lambda **options: Tim(ReadyFeatures(FEATURES), **options),
}
# A rate that binary fractions hold exactly, so that single and double precision agree on it.
RATE = 0.25


def learner(name, hyperprior=None, epochs=4, **options):
    method = METHODS[name](**options)
    return MetaLearner(method, hyperprior or Hyperprior(Constant(RATE), LastOnly()), epochs).double()


def one_task(batch, task):
    """Real support, labels and queries of a task, as a reader would write them down."""
    real = batch.mask[task]
    return batch.support[task, real], batch.support_labels[task, real], batch.query[task]


def normalise(values):
    return values / values.norm(dim=-1, keepdim=True)


def apart(query, prototypes):
    return (query.unsqueeze(1) - prototypes.unsqueeze(0)).square().sum(-1)


def pulled(support, labels, query, assigned):
    """Means of each class's support and of the assigned shares of queries."""
    one_hot = torch.nn.functional.one_hot(labels, assigned.shape[1]).double()
    everyone, shares = torch.cat([support, query]), torch.cat([one_hot, assigned])
    return shares.mT @ everyone / shares.sum(0).unsqueeze(-1)


def class_means(support, labels, ways):
    return torch.stack([support[labels == way].mean(0) for way in range(ways)])


def written_out_soft_k_means(support, labels, query, ways, epochs):
    prototypes = class_means(support, labels, ways)
    for _ in range(epochs):
        assigned = (-apart(query, prototypes)).softmax(-1)
        prototypes = prototypes + RATE * (pulled(support, labels, query, assigned) - prototypes)
    return (-apart(query, prototypes)).log_softmax(-1)


def written_out_map(support, labels, query, ways, epochs):
    support, query = normalise(support), normalise(query)
    middle = torch.cat([support, query]).mean(0)
    support, query = support - middle, query - middle
    prototypes = class_means(support, labels, ways)
    for _ in range(epochs):
        assigned = (-10 * apart(query, prototypes)).softmax(-1)
        prototypes = prototypes + RATE * (pulled(support, labels, query, assigned) - prototypes)
    return (-10 * apart(query, prototypes)).log_softmax(-1)


def evened(costs, balance):
    """Shares for every query and class: the class's score minus the balance times the logarithm of its plain mass."""
    queries, ways = costs.shape
    plain = (-10 * costs).softmax(-1)
    mass = [sum(plain[query, way] for query in range(queries)) for way in range(ways)]
    shares = torch.zeros_like(costs)
    for query in range(queries):
        parts = [torch.exp(-10 * costs[query, way]) / mass[way] ** balance for way in range(ways)]
        for way in range(ways):
            shares[query, way] = parts[way] / sum(parts)
    return shares


def written_out_balanced_map(support, labels, query, ways, epochs):
    support, query = normalise(support), normalise(query)
    middle = torch.cat([support, query]).mean(0)
    support, query = support - middle, query - middle
    prototypes = class_means(support, labels, ways)
    for _ in range(epochs):
        assigned = evened(apart(query, prototypes), 0.75)
        prototypes = prototypes + RATE * (pulled(support, labels, query, assigned) - prototypes)
    return evened(apart(query, prototypes), 0.75).log()


def transported(costs):
    """Rows to 1, columns to Q/W, in turn, until the rows' sums before a turn are those of the turn before."""
    plan = (-10 * costs).exp()
    plan = plan / plan.sum()
    before = torch.zeros(len(plan), dtype=plan.dtype)
    for _ in range(1000):
        if float((before - plan.sum(1)).abs().max()) <= 1e-6:
            break
        before = plan.sum(1)
        plan = plan / before.unsqueeze(1)
        plan = plan * (plan.shape[0] / plan.shape[1] / plan.sum(0))
    return plan


def written_out_pt_map(support, labels, query, ways, epochs):
    prepared = []
    for part in (support, query):
        powered = normalise((part + 1e-6).sqrt())
        prepared.append(normalise(powered - powered.mean(0)))
    support, query = prepared
    prototypes = class_means(support, labels, ways)
    for _ in range(epochs):
        assigned = transported(apart(query, prototypes))
        prototypes = prototypes + RATE * (pulled(support, labels, query, assigned) - prototypes)
    return transported(apart(query, prototypes)).log()


def written_out_tim(support, labels, query, ways, epochs):
    support, query = normalise(support), normalise(query)
    one_hot = torch.nn.functional.one_hot(labels, ways).double()
    prototypes = class_means(support, labels, ways)
    of_support, ratio = 0.1 / 1.1, len(support) / len(query)
    for _ in range(epochs):
        on_support = (-7.5 * apart(support, prototypes)).softmax(-1)
        on_query = (-7.5 * apart(query, prototypes)).softmax(-1)
        surer = on_query**1.1
        auxiliary = surer / surer.sum(0).sqrt()
        auxiliary = auxiliary / auxiliary.sum(1, keepdim=True)
        goals = torch.zeros_like(prototypes)
        for way, prototype in enumerate(prototypes):
            above, below = torch.zeros_like(prototype), 0.0
            for example, truth, found in zip(support, one_hot[:, way], on_support[:, way], strict=True):
                above = above + of_support * (truth * example + found * (prototype - example))
                below = below + of_support * truth
            for example, wanted, found in zip(query, auxiliary[:, way], on_query[:, way], strict=True):
                above = above + ratio * (wanted * example + found * (prototype - example))
                below = below + ratio * wanted
            goals[way] = above / below
        prototypes = prototypes + RATE * (goals - prototypes)
    return (-7.5 * apart(query, prototypes)).log_softmax(-1)


WRITTEN_OUT = {
    "soft k-means": written_out_soft_k_means,
    "map": written_out_map,
    "balanced map": written_out_balanced_map,
    "pt+map": written_out_pt_map,
    "tim": written_out_tim,
}


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("name", METHODS)
def test_rounds_written_out(name, epochs):
    batch = uneven(task_batch())
    scores = learner(name, epochs=epochs)(batch).scores
    for task in range(2):
        close(scores[task], WRITTEN_OUT[name](*one_task(batch, task), batch.ways, epochs))


@pytest.mark.parametrize("name", METHODS)
def test_order_tasks_and_padding(name):
    scores = lambda batch: learner(name, Hyperprior(Constant(RATE), Equal()))(batch).scores
    check_order_has_no_meaning(scores, uneven(task_batch()))
    check_tasks_are_alone(scores, uneven(task_batch()))
    check_padding_has_no_influence(scores, task_batch())


@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_gradients(name, generated):
    torch.manual_seed(0)
    rates, votes = [0.3, 0.2, 0.4], [0.1, 0.3, 0.6]
    hyperprior = Hyperprior(Learned(rates), Learned(votes))
    if generated:
        psi = FcGenerator(Context(ClassMean(FEATURES), embedding=FEATURES, transductive=True), 3, 2)
        hyperprior = Hyperprior(Generated(rates), Generated(votes), psi)
    # Soft assignments and a small tolerance: finite differences must not change the number of turns.
    options = {"scale": 1.0, "tolerance": 1e-13} if name == "pt+map" else {}
    check_gradients(learner(name, hyperprior, epochs=3, **options), uneven(task_batch(queries=2)), fast=True)


@pytest.mark.parametrize("name", METHODS)
def test_a_hyperprior_may_choose_rates_and_votes(name):
    torch.manual_seed(0)
    generator = LstmGenerator(Context(Stats(transductive=True), transductive=True), 2, hidden=2)
    model = learner(name, Hyperprior(Generated([RATE] * 4), Generated([0.25] * 4), generator))
    batch = uneven(task_batch())
    trace = model(batch, every_epoch=True)
    close(trace.scores, torch.einsum("tm,tmqw->tqw", trace.weights, trace.epoch_scores))
    meta_loss(trace.scores, batch.query_labels).backward()
    assert float(model.hyperprior.rate.values.grad.abs().min()) > 0
    assert float(model.hyperprior.weight.values.grad.abs().min()) > 0


@pytest.mark.parametrize("name", ["soft k-means", "map", "tim"])
def test_without_a_step_it_is_the_nearest_mean(name):
    batch = uneven(task_batch())
    problem = METHODS[name]().double().begin(batch)
    scale = float(problem.scale)
    prepared = replace(batch, support=problem.support, query=problem.query)
    means = ProtoNets(ReadyFeatures(FEATURES), scale=scale).double()(prepared).scores.log_softmax(-1)
    close(learner(name, Hyperprior(Constant(0.0), LastOnly()))(batch).scores, means)


def test_queries_that_belong_to_no_class_in_particular_pull_all_alike():
    """Soft k-means with a scale of almost zero: every query has the share 1/W of every class."""
    batch = task_batch()
    problem = METHODS["soft k-means"](scale=1e-12).double().begin(batch)
    state = problem.start()
    found = problem.step(state, problem.direction(state), torch.ones(2, dtype=torch.float64)).prototypes
    means = torch.stack([class_means(batch.support[t], batch.support_labels[t], 3) for t in range(2)])
    queries = batch.query.sum(1, keepdim=True) / 3
    close(found, (2 * means + queries) / (2 + batch.query.shape[1] / 3), 1e-9)


@pytest.mark.parametrize("name", ["map_rounds-fc100-1shot-fc", "map_rounds-fc100-1shot-lstm", "balanced"])
def test_a_learned_map_begins_with_the_rule_itself(name):
    """20 rounds at 0.2 with temperature 10, a vote for the last, to the last bit; and it can leave from there."""
    torch.manual_seed(0)
    balanced_too = name == "balanced"
    name = "map_rounds-balanced-fc100-1shot-lstm" if balanced_too else name
    train = find_preset(f"small-{name}-transductive").train.but(method__learned_scale=True)
    assert train.method.learned_balance == balanced_too
    settings = train.method
    assert (settings.epochs, settings.rate, settings.scale) == (20, 0.2, 10.0)
    psi = build_hyperprior(settings, train.hyperprior, Parts(ReadyFeatures(FEATURES), None, FEATURES, 1))
    batch = uneven(task_batch())
    learned = learner("map", psi, epochs=20, learned_scale=True, learned_balance=balanced_too)
    free = learner("map", Hyperprior(Constant(settings.rate), LastOnly()), epochs=20)
    trace = learned(batch)
    assert torch.equal(trace.scores, free(batch).scores)
    meta_loss(trace.scores, batch.query_labels).backward()
    kinds = learned.parameter_kinds()
    for kind_of_parameter in ("theta", "base_rate", "base_weight", "psi_rate"):
        assert any(float(each.grad.abs().max()) > 0 for each in kinds[kind_of_parameter] if each.grad is not None)
    assert all(float(each.grad.abs()) > 0 for each in kinds["theta"])
    # Votes of the rounds before the last can become something, which a factor on zero could not.
    assert float(learned.hyperprior.weight.values.grad[:-1].abs().min()) > 0


@pytest.mark.parametrize("kind", ["fc", "lstm"])
def test_a_learned_map_knows_no_coordinates(kind):
    """What its hyperprior sees are lengths, losses and entropies: turned features make the same rates and votes."""
    torch.manual_seed(0)
    train = find_preset(f"small-map_rounds-fc100-1shot-{kind}-transductive").train
    psi = build_hyperprior(train.method, train.hyperprior, Parts(ReadyFeatures(FEATURES), None, FEATURES, 1))
    model = learner("map", psi, epochs=20)
    with torch.no_grad():
        for parameter in psi.generator.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch = uneven(task_batch())
    turn, _ = torch.linalg.qr(torch.randn(FEATURES, FEATURES, dtype=torch.double))
    turned = model(replace(batch, support=batch.support @ turn, query=batch.query @ turn))
    straight = model(batch)
    assert float(straight.rates.detach().std()) > 1e-4
    close(turned.rates, straight.rates)
    close(turned.weights, straight.weights)
    close(turned.scores, straight.scores)


def test_map_does_not_know_lengths():
    batch = task_batch()
    longer = replace(batch, support=2 * batch.support, query=5 * batch.query)
    close(learner("map")(longer).scores, learner("map")(batch).scores)


def test_a_balance_of_zero_is_map_to_the_last_bit():
    batch = uneven(task_batch())
    expected = learner("map", epochs=20)(batch).scores
    assert torch.equal(learner("map", epochs=20, balance=0.0)(batch).scores, expected)
    assert torch.equal(learner("map", epochs=20, learned_balance=True)(batch).scores, expected)
    assert not torch.equal(learner("map", epochs=20, balance=0.5)(batch).scores, expected)


def test_more_balance_makes_classes_more_even():
    scores = 3 * torch.randn(50, 12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shares = lambda balance: partly_balanced(scores, torch.tensor(balance, dtype=torch.float64)).exp()

    def unevenness(balance):
        mass = shares(balance).mean(1)
        return float((mass * mass.log()).sum(-1).mean())

    found = [unevenness(balance) for balance in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    assert found == sorted(found, reverse=True)
    # 1 is one turn of the transport: columns to one sum, then rows.
    plan = scores.softmax(-1)
    plan = plan / plan.sum(1, keepdim=True)
    close(shares(1.0), plan / plan.sum(2, keepdim=True))


def test_a_balanced_plan():
    scores = 3 * torch.randn(3, 12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plan = balanced(scores, 1e-13).exp()
    close(plan.sum(1), torch.full((3, 4), 3.0, dtype=torch.float64))
    close(plan.sum(2), torch.ones(3, 12, dtype=torch.float64))
    # Only whole rows and columns were rescaled: differences of differences stay.
    crosswise = lambda values: values[:, 1:, 1:] - values[:, :1, 1:] - values[:, 1:, :1] + values[:, :1, :1]
    close(crosswise(plan.log()), crosswise(scores))
    close(balanced(torch.zeros(1, 6, 3, dtype=torch.float64), 1e-6), torch.full((1, 6, 3), -math.log(3)).double(), 1e-7)


def test_tims_rounds_lower_its_loss():
    """The closed form is a descent of a CE - b H(mean) + c H, here on tasks that are not trivial."""
    batch = task_batch(2, spread=6.0)
    problem = METHODS["tim"]().double().begin(batch)

    def loss(state):
        logs = problem.support_scores(state.prototypes).log_softmax(-1)
        truth = logs.gather(-1, batch.support_labels.unsqueeze(-1)).squeeze(-1)
        mean = state.assigned.exp().mean(1)
        sure = -(state.assigned.exp() * state.assigned).sum(-1).mean(1)
        return -0.1 * truth.mean(1) + (mean * mean.log()).sum(-1) + 0.1 * sure

    state, one = problem.start(), torch.ones(2, dtype=torch.float64)
    start = loss(state)
    for _ in range(150):
        state = problem.step(state, problem.direction(state), one)
    assert bool((loss(state) < start - 1e-3).all())


def test_a_power_of_negative_features_keeps_their_sign():
    batch = task_batch()
    flip = torch.tensor([1.0, -1, 1, -1, 1])
    turned = replace(batch, support=batch.support * flip, query=batch.query * flip)
    close(learner("pt+map")(turned).scores, learner("pt+map")(batch).scores)
    # One query alone on the other side is another task.
    other = replace(batch, query=torch.cat([-batch.query[:, :1], batch.query[:, 1:]], 1))
    assert not torch.allclose(learner("pt+map")(other).scores, learner("pt+map")(batch).scores, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("soft k-means", {"scale": 0.0}, r"scale of soft k-means' distances must be positive, found 0\.0"),
        ("map", {"balance": 1.5}, r"MAP's balance must be from -1 to 1, found 1\.5"),
        ("map", {"scale": -1.0}, r"scale of MAP's distances must be positive, found -1\.0"),
        ("pt+map", {"power": 0.0}, r"PT\+MAP's power must be positive, found 0\.0"),
        ("tim", {"temperature": 0.0}, r"TIM's temperature must be positive, found 0\.0"),
        ("tim", {"evenness": -1.0}, r"TIM's weight of evenness must be 0 or more, found -1\.0"),
    ],
)
def test_bad_settings(name, options, sentence):
    with pytest.raises(SettingsError, match=sentence):
        METHODS[name](**options)

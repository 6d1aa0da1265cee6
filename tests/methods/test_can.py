"""CAN and CAN+T: cross attention against its definition, its limits and its symmetries."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy

from e3bm.core.adapt import AdaptationTrace, InnerProblem, Trace
from e3bm.core.context import ClassMean, Context, Observation, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import DirectLearner, InnerLoopMethod, MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly, Learned
from e3bm.errors import DataError, SettingsError
from e3bm.methods import NearestMean
from e3bm.methods.base import Parts
from e3bm.methods.can import Can, CanSettings, CanT, CanTSettings, chosen_by_round, most_confident

CHANNELS, SIDE, WAYS, SHOTS, QUERIES, CLASSES = 5, 2, 3, 2, 7, 8
POSITIONS = SIDE * SIDE


class Given(nn.Module):
    """The encoder of examples that are maps already, whatever they are."""

    feature_size = CHANNELS * POSITIONS

    def forward(self, examples, mask=None):
        return examples


class Pooled(nn.Module):
    feature_size = CHANNELS

    def forward(self, examples, mask=None):
        return examples.mean((3, 4))


def close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def can(kind=Can, **options):
    torch.manual_seed(0)
    settings = {"channels": CHANNELS, "positions": POSITIONS, "classes": CLASSES, **options}
    method = kind(Given(), **settings).double().eval()
    with torch.no_grad():
        norm = method.attention.first.norm
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.05, 0.2)
    return method


def batch(tasks=2, *, shots=SHOTS, queries=QUERIES, side=SIDE, mask=None, seed=1):
    draw = torch.Generator().manual_seed(seed)
    maps = lambda count: torch.rand(tasks, count, CHANNELS, side, side, generator=draw, dtype=torch.float64)
    labels = torch.arange(WAYS).repeat(shots).expand(tasks, -1).contiguous()
    query_labels = torch.randint(WAYS, (tasks, queries), generator=draw)
    return TaskBatch(maps(WAYS * shots), labels, maps(queries), query_labels, WAYS, mask)


def class_numbers(tasks):
    return (tasks.query_labels * 2 + 1).contiguous()


def numbered(tasks):
    """The same tasks with the numbers of their classes."""
    return replace(tasks, query_classes=class_numbers(tasks))


def own_loss(method, tasks):
    """CAN's training loss."""
    classes, query = method.maps(tasks)
    return method.total(method.losses(method.look(classes, query), query, tasks))


def attention_of_a_pair(method, first, second):
    """Attention over the positions of the first map [C, P], as the paper writes it."""
    layer = method.attention
    correlations = torch.stack(
        [
            torch.stack([cosine_similarity(first[:, i], second[:, j], dim=0) for j in range(POSITIONS)])
            for i in range(POSITIONS)
        ]
    )
    hidden = layer.first.linear(correlations.mean(0))
    norm = layer.first.norm
    hidden = norm.weight * (hidden - norm.running_mean) / (norm.running_var + 1e-5).sqrt() + norm.bias
    kernel = layer.second(hidden.relu())
    return ((correlations * kernel).mean(1) / layer.temperature).softmax(0)


def slow(method, tasks, labels, numbers):
    """Scores, dense loss and classifier loss, pair by pair, with attended maps."""
    scores = torch.zeros(len(tasks), tasks.query.shape[1], WAYS, dtype=torch.float64)
    dense, overall = [], []
    for task in range(len(tasks)):
        for number, query in enumerate(tasks.query[task].flatten(2)):
            seen = []
            for way in range(WAYS):
                members = tasks.support[task][(tasks.support_labels[task] == way) & tasks.mask[task]]
                mean = members.mean(0).flatten(1)
                class_map = mean * (1 + attention_of_a_pair(method, mean, query))
                query_map = query * (1 + attention_of_a_pair(method, query, mean))
                scores[task, number, way] = 7 * cosine_similarity(class_map.mean(1), query_map.mean(1), dim=0)
                seen.append(torch.stack([cosine_similarity(class_map.mean(1), x, dim=0) for x in query_map.T]))
                if way == labels[task, number]:
                    logits = query_map.T @ method.classifier.weight.T + method.classifier.bias
                    overall.append(cross_entropy(logits, numbers[task, number].expand(POSITIONS)))
            dense.append(cross_entropy(7 * torch.stack(seen, 1), labels[task, number].expand(POSITIONS)))
    return scores, torch.stack(dense).mean(), torch.stack(overall).mean()


def test_all_pairs_at_once_are_the_pairs_one_by_one():
    mask = torch.ones(2, WAYS * SHOTS, dtype=torch.bool)
    mask[1, 0] = False
    method, tasks = can(), batch(mask=mask)
    scores, dense, overall = slow(method, tasks, tasks.query_labels, class_numbers(tasks))
    close(method.scores(tasks), scores)
    classes, query = method.maps(tasks)
    losses = method.losses(method.look(classes, query), query, numbered(tasks))
    close(losses.dense, dense)
    close(losses.overall, overall)
    close(own_loss(method, numbered(tasks)), overall + dense / 2)


def test_attention_is_a_distribution_over_positions():
    method, tasks = can(), batch()
    looks = method.look(*method.maps(tasks))
    assert looks.query_attention.shape == (2, QUERIES, WAYS, POSITIONS)
    close(looks.query_attention.sum(-1), torch.ones(2, QUERIES, WAYS, dtype=torch.float64))
    assert float(looks.query_attention.detach().std(-1).max()) > 0.05  # and not the uniform one


@pytest.mark.parametrize("shots", [1, SHOTS])
def test_without_a_kernel_it_is_the_cosine_to_the_mean_maps(shots):
    method, tasks = can(), batch(shots=shots)
    with torch.no_grad():
        method.attention.second.weight.zero_()
        method.attention.second.bias.zero_()
    members = tasks.support.view(2, shots, WAYS, *tasks.support.shape[2:]).mean((1, 4, 5))
    expected = 7 * cosine_similarity(tasks.query.mean((3, 4)).unsqueeze(2), members.unsqueeze(1), dim=-1)
    close(method.scores(tasks), expected)
    if shots == 1:
        close(NearestMean(Pooled(), scale=7.0)(tasks).scores, expected)


def test_one_position_leaves_nothing_to_attend_to():
    tasks = batch(side=1, shots=1)
    method = can(positions=1, hidden=2)
    close(method.scores(tasks), NearestMean(Pooled(), scale=7.0)(tasks).scores)


def test_positions_have_no_order_but_the_kernel_s():
    method, tasks = can(), batch()
    expected = method.scores(tasks)
    order = torch.tensor([2, 0, 3, 1])
    moved = lambda maps: maps.flatten(3)[..., order].unflatten(3, (SIDE, SIDE))
    layer = method.attention
    with torch.no_grad():
        layer.first.linear.weight.copy_(layer.first.linear.weight[:, order].clone())
        layer.second.weight.copy_(layer.second.weight[order].clone())
        layer.second.bias.copy_(layer.second.bias[order].clone())
    shuffled = TaskBatch(moved(tasks.support), tasks.support_labels, moved(tasks.query), tasks.query_labels, WAYS)
    close(method.scores(shuffled), expected)


def answers(method, tasks):
    """Scores of CAN, and of CAN+T after two rounds."""
    learner = MetaLearner(method, Hyperprior(Constant(1.0), LastOnly()), 2).double()
    learner.train(method.training)
    return method.scores(tasks), learner(tasks).scores


@pytest.mark.parametrize("training", [False, True])
def test_tasks_queries_classes_and_shots_may_change_places(training):
    method, tasks = can(CanT, classes=0).train(training), batch()
    rows, shots, names = torch.randperm(QUERIES), torch.randperm(WAYS * SHOTS), torch.tensor([2, 0, 1])
    shuffled = TaskBatch(
        tasks.support[:, shots].flip(0),
        names[tasks.support_labels[:, shots]].flip(0),
        tasks.query[:, rows].flip(0),
        names[tasks.query_labels[:, rows]].flip(0),
        WAYS,
    )
    for found, before in zip(answers(method, shuffled), answers(method, tasks), strict=True):
        close(found.flip(0)[:, :, names], before[:, rows], 1e-10)
    close(own_loss(method, shuffled), own_loss(method, tasks), 1e-10)


@pytest.mark.parametrize("training", [False, True])
def test_tasks_do_not_know_of_one_another(training):
    method, tasks = can(CanT).train(training), numbered(batch(3))
    together = answers(method, tasks)
    alone = [answers(method, tasks.tasks(task, task + 1)) for task in range(3)]
    for kind in range(2):
        close(together[kind], torch.cat([each[kind] for each in alone]))


def test_padding_has_no_influence():
    mask = torch.ones(2, WAYS * SHOTS, dtype=torch.bool)
    mask[0, 1] = False
    tasks, other = batch(mask=mask), batch(mask=mask)
    other.support[0, 1] += 3.0
    method = can(CanT)
    for found, expected in zip(answers(method, tasks), answers(method, other), strict=True):
        assert torch.equal(found, expected)


def test_query_labels_serve_the_training_loss_only():
    method, tasks = can(CanT), batch()
    other = TaskBatch(tasks.support, tasks.support_labels, tasks.query, (tasks.query_labels + 1) % WAYS, WAYS)
    for found, expected in zip(answers(method, tasks), answers(method, other), strict=True):
        assert torch.equal(found, expected)
    tasks, other = (replace(each, query_classes=class_numbers(tasks)) for each in (tasks, other))
    with torch.no_grad():
        assert abs(float(own_loss(method, tasks) - own_loss(method, other))) > 1e-3


def test_can_looks_at_queries_one_by_one_and_can_t_does_not():
    method, tasks = can(CanT), batch()
    few = TaskBatch(tasks.support, tasks.support_labels, tasks.query[:, :5], tasks.query_labels[:, :5], WAYS)
    (one, more), (one_of_few, more_of_few) = answers(method, tasks), answers(method, few)
    close(one[:, :5], one_of_few)
    assert float((more[:, :5] - more_of_few).detach().abs().max()) > 1e-3


def test_rounds_against_the_published_procedure():
    """Task by task: the best queries join the original support as further shots, and CAN scores again."""
    method, tasks = can(CanT), batch()
    expected = []
    for task in range(2):
        one = tasks.tasks(task, task + 1)
        scores = method.scores(one)
        for number in (1, 2):
            best = scores[0].max(1).values.argsort(descending=True)[: 3 * number]  # 7 queries: 7 * 35 // 75 = 3
            support = torch.cat([one.support, one.query[:, best]], 1)
            labels = torch.cat([one.support_labels, scores[:, best].argmax(2)], 1)
            scores = method.scores(TaskBatch(support, labels, one.query, one.query_labels, WAYS))
        expected.append(scores)
    close(answers(method, tasks)[1], torch.cat(expected))


def test_without_a_rate_rounds_are_can():
    method, tasks = can(CanT), batch()
    trace = MetaLearner(method, Hyperprior(Constant(0.0), Equal()), 2).double().eval()(tasks)
    close(trace.scores, method.scores(tasks))


def test_how_many_are_chosen():
    assert [chosen_by_round(number, 75, 35 / 75) for number in (1, 2, 3)] == [35, 70, 75]
    assert [chosen_by_round(number, 2, 35 / 75) for number in (1, 2)] == [0, 0]
    method = can(CanT)
    assert [method.rounds(queries) for queries in (75, 15, 10, 2)] == [2, 2, 2, 0]
    scores = torch.tensor([[[0.0, 2.0], [3.0, 0.0], [2.0, 1.0], [0.0, 1.0]]])
    chosen, classes = most_confident(scores, 2)
    assert chosen.tolist() == [[True, True, False, False]]  # the earlier of two equals
    assert classes.tolist() == [[1, 0, 0, 1]]


SUMMARIES = {
    "stats": Context(Stats(transductive=True), transductive=True),
    "class mean": Context(ClassMean(CHANNELS), embedding=CHANNELS),
}


@pytest.mark.parametrize("summary", SUMMARIES)
@pytest.mark.parametrize("generator", ["fc", "lstm"])
def test_schedules_alone_make_it_e3bm(summary, generator):
    method, tasks = can(CanT), batch()
    context = SUMMARIES[summary]
    psi = FcGenerator(context, 2, 2) if generator == "fc" else LstmGenerator(context, 2, hidden=2)
    schedules = Generated([0.7, 0.9]), Generated([0.4, 0.6])
    learner = MetaLearner(method, Hyperprior(*schedules, psi), 2).double()
    trace = learner(tasks, every_epoch=True)
    close(trace.scores, torch.einsum("tm,tmqw->tqw", trace.weights, trace.epoch_scores))
    meta_loss(trace.scores, tasks.query_labels).backward()
    for schedule in schedules:
        assert float(schedule.values.grad.abs().min()) > 0
    for name, parameter in learner.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def test_it_opens_tasks_for_learning():
    method = can(CanT)
    problem = method.begin(batch())
    state = problem.start()
    assert isinstance(method, InnerLoopMethod)
    assert isinstance(problem, InnerProblem)
    assert isinstance(problem.observe(state, problem.direction(state)), Observation)


def test_what_a_hyperprior_sees():
    method, tasks = can(CanT), batch()
    problem = method.begin(tasks)
    state = problem.start()
    seen = problem.observe(state, problem.direction(state))
    way_back = state.coefficients - problem.direction(state)
    gradient = torch.einsum("twn,tnd->twd", way_back, torch.cat([tasks.support, tasks.query], 1).mean((3, 4)))
    close(seen.squared_norm(), gradient.square().sum((1, 2)))
    close(problem.basis().dense(seen.coefficients()), gradient.mT)
    means = tasks.support.view(2, SHOTS, WAYS, CHANNELS, -1).mean((1, 4))
    cosines = cosine_similarity(tasks.support.mean((3, 4)).unsqueeze(2), means.unsqueeze(1), dim=-1)
    losses = [cross_entropy(7 * cosines[task], tasks.support_labels[task]) for task in range(2)]
    close(seen.loss(), torch.stack(losses))


@pytest.mark.parametrize("training", [False, True])
def test_derivatives(training):
    """At a high temperature, where differences are small numbers; rounds choose the same queries throughout."""
    method, tasks = can(CanT, temperature=0.5).train(training), numbered(batch(shots=1, queries=3))
    learner = MetaLearner(method, Hyperprior(Learned([0.7, 0.9]), Learned([0.4, 0.6])), 2).double().train(training)
    names = [name for name, parameter in learner.named_parameters() if "classifier" not in name]

    def loss(support, query, *values):
        moved = replace(tasks, support=support, query=query)
        return functional_call(learner, dict(zip(names, values, strict=True)), (moved,)).scores

    def training_loss(support, query):
        return own_loss(method, replace(tasks, support=support, query=query))

    inputs = [maps.requires_grad_() for maps in (tasks.support, tasks.query)]
    values = [dict(learner.named_parameters())[name].detach().clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(loss, (*inputs, *values), fast_mode=True)
    assert torch.autograd.gradcheck(training_loss, inputs, fast_mode=True)


def test_empty_positions_have_finite_derivatives():
    """Rectified maps may be zero at a position: there is no direction there, and no explosion."""
    method, tasks = can(CanT), batch()
    tasks.support[..., 0, 0] = 0.0
    tasks.query[..., 1, 1] = 0.0
    inputs = [maps.requires_grad_() for maps in (tasks.support, tasks.query)]
    loss = own_loss(method, numbered(tasks)) + answers(method, tasks)[1].sum()
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(loss, inputs))


def test_maps_are_needed():
    pooled = batch()
    pooled = TaskBatch(pooled.support.mean((3, 4)), pooled.support_labels, pooled.query.mean((3, 4)), None, WAYS)
    with pytest.raises(SettingsError, match="take a backbone that gives maps"):
        can().scores(pooled)


def test_maps_of_another_size_are_refused():
    with pytest.raises(SettingsError, match="made for maps of 5 channels and 4 positions; the encoder gave 5 channels"):
        can().scores(batch(side=3))


def test_the_classifier_needs_class_numbers():
    tasks = batch()
    with pytest.raises(DataError, match="number among them"):
        own_loss(can(), tasks)
    unlabelled = TaskBatch(tasks.support, tasks.support_labels, tasks.query, None, WAYS)
    with pytest.raises(DataError, match="labels of the queries"):
        own_loss(can(), unlabelled)
    without = can(classes=0)
    classes, query = without.maps(tasks)
    dense = without.losses(without.look(classes, query), query, tasks).dense
    close(own_loss(without, tasks), dense / 2)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"positions": 0}, {"classes": -1}])
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(SettingsError, match="CAN needs"):
        can(**wrong)


def test_a_share_is_a_share():
    with pytest.raises(SettingsError, match="share of the queries"):
        can(CanT, share=0.0)


def test_training_adds_the_ensemble_where_schedules_are_trained():
    method, tasks = can(CanT).train(), numbered(batch())
    plain = MetaLearner(method, Hyperprior(Constant(0.8), Equal()), 2).double().train()
    trained = MetaLearner(method, Hyperprior(Learned([0.8, 0.8]), Learned([0.5, 0.5])), 2).double().train()
    own, trace = own_loss(method, tasks), trained(tasks)
    close(plain.training_loss(plain(tasks), tasks, 0.0), own)
    close(trained.training_loss(trace, tasks, 0.0), own + meta_loss(trace.scores, tasks.query_labels))


def test_tests_know_no_losses():
    """Without labels, or out of training, only scores are left behind."""
    tasks = batch()
    assert type(DirectLearner(can())(tasks)) is Trace
    unlabelled = replace(tasks, query_labels=None)
    assert type(DirectLearner(can().train())(unlabelled)) is Trace
    assert type(MetaLearner(can(CanT).train(), Hyperprior(Constant(1.0), LastOnly()), 2).double()(unlabelled)) is (
        AdaptationTrace
    )


@pytest.mark.parametrize(("kind", "own"), [(Can, CanSettings), (CanT, CanTSettings)])
def test_it_is_made_of_settings(kind, own):
    parts = Parts(Given(), None, CHANNELS, classes=CLASSES, map_shape=(CHANNELS, SIDE, SIDE))
    method = kind.from_settings(own(scale=3.0, hidden=5), parts)
    assert (method.channels, method.positions, method.classes, method.scale) == (CHANNELS, POSITIONS, CLASSES, 3.0)
    assert method.attention.second.in_features == 5
    with pytest.raises(SettingsError, match="needs feature maps"):
        kind.from_settings(own(), replace(parts, map_shape=None))

"""EGNN: graphs against their definition, their limits and their symmetries."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, leaky_relu

from e3bm.core.adapt import InnerProblem
from e3bm.core.context import ClassMean, Context, Observation, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import InnerLoopMethod, MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, Generated, LastOnly, Learned
from e3bm.errors import DataError, SettingsError
from e3bm.methods import ReadyFeatures
from e3bm.methods.egnn import Egnn, over_layers
from e3bm.methods.head_norm import HeadNorm

FEATURES, HIDDEN, EDGES, LAYERS, WAYS, SHOTS, QUERIES = 5, 4, 3, 3, 3, 2, 4
SETTINGS = ("inductive", "transductive")


def close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def egnn(setting="transductive", **options):
    torch.manual_seed(0)
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "edge_hidden": EDGES, **options}
    method = Egnn(ReadyFeatures(FEATURES), setting=setting, **sizes).double().eval()
    with torch.no_grad():
        for name, value in method.state_dict().items():
            if name.endswith("running_mean"):
                value.normal_(0, 0.3)
            elif name.endswith("running_var"):
                value.uniform_(0.3, 1.5)
            elif name.endswith("norm.bias"):
                value.normal_(0, 0.3)
            elif name.endswith(("linear.weight", "out.weight")):
                value.mul_(2)  # large enough for estimates that differ
    return method


def batch(tasks=2, *, shots=SHOTS, queries=QUERIES, mask=None, seed=1):
    draw = torch.Generator().manual_seed(seed)
    features = lambda count: torch.randn(tasks, count, FEATURES, generator=draw, dtype=torch.float64)
    labels = torch.stack([torch.arange(WAYS).repeat(shots).roll(task) for task in range(tasks)])
    query_labels = torch.stack([torch.arange(queries).roll(task) % WAYS for task in range(tasks)])
    return TaskBatch(features(WAYS * shots), labels, features(queries), query_labels, WAYS, mask)


def own_loss(method, tasks):
    """The published training loss."""
    problem = method.problem(tasks, observed=False)
    return over_layers(torch.stack([problem.edge_loss(edges) for edges in problem.all_layers()]))


def learner(method, rate=None, weight=None, psi=None, epochs=LAYERS):
    hyperprior = Hyperprior(rate or Constant(1.0), weight or LastOnly(), psi)
    return MetaLearner(method, hyperprior, epochs).double().train(method.training)


def slow_net(net, values):
    """A network of a layer on one vector, normalised by running averages."""
    for layer in net.layers:
        norm, values = layer.norm, layer.linear.weight @ values
        values = norm.weight * (values - norm.running_mean) / (norm.running_var + 1e-5).sqrt() + norm.bias
        values = leaky_relu(values)
    return values


def slow_graph(method, nodes, labels):
    """Edges e_1 of one graph after every layer; a label of None is a query."""
    size, found = len(nodes), []
    edges = torch.full((2, size, size), 0.5, dtype=torch.float64)
    for i in range(size):
        for j in range(size):
            if labels[i] is not None and labels[j] is not None:
                edges[0, i, j] = float(labels[i] == labels[j])
                edges[1, i, j] = 1 - edges[0, i, j]
    for layer in method.layers:
        gathered = []
        for i in range(size):
            parts = [nodes[i]]
            for kind in range(2):
                total = sum(edges[kind, i, j] for j in range(size) if j != i)
                parts.append(sum(edges[kind, i, j] / total * nodes[j] for j in range(size) if j != i))
            gathered.append(slow_net(layer.node, torch.cat(parts)))
        nodes = torch.stack(gathered)
        after = torch.zeros_like(edges)
        for i in range(size):
            alike = [torch.sigmoid(layer.out(slow_net(layer.edge, (nodes[i] - other).abs()))[0]) for other in nodes]
            for kind in range(2):
                seen = [s if kind == 0 else 1 - s for s in alike]
                mass = sum(edges[kind, i, j] for j in range(size) if j != i)
                total = sum(seen[j] * edges[kind, i, j] for j in range(size) if j != i)
                for j in range(size):
                    after[kind, i, j] = 0.0 if i == j else seen[j] * edges[kind, i, j] / total * mass
            after[0, i, i] = 1.0
        after = after + 1e-6
        edges = after / after.sum(0)
        found.append(edges[0])
    return found


def slow(method, tasks):
    """Scores and training loss, task by task and graph by graph, without padding."""
    scores, losses = [], []
    for task in range(len(tasks)):
        real = tasks.mask[task]
        support, known = tasks.support[task][real], tasks.support_labels[task][real].tolist()
        asked, count = tasks.query_labels[task].tolist(), int(real.sum())
        if method.transductive:
            graphs = [(tasks.query[task], asked)]
        else:
            graphs = [(tasks.query[task][q : q + 1], asked[q : q + 1]) for q in range(len(asked))]
        kept = [[] for _ in method.layers]
        for queries, wanted in graphs:
            layers = slow_graph(method, torch.cat([support, queries]), [*known, *[None] * len(queries)])
            everyone = [*known, *wanted]
            for number, edges in enumerate(layers):
                for i in range(len(everyone)):
                    for j in range(len(everyone)):
                        among = i >= count and j >= count
                        if (i >= count) != (j >= count) or (among and method.transductive):
                            kept[number].append((everyone[i] == everyone[j], edges[i, j]))
            for q in range(len(queries)):
                row = layers[-1][count + q]
                by_class = [
                    torch.stack([row[j] for j in range(count) if known[j] == way]).mean() for way in range(WAYS)
                ]
                share = torch.stack(by_class)
                scores.append((share / share.sum()).log())
        total = 0.0
        for number, edges in enumerate(kept):
            positive = torch.stack([-edge.log() for same, edge in edges if same]).mean()
            negative = torch.stack([-(1 - edge).log() for same, edge in edges if not same]).mean()
            total = total + (positive + negative) * (1.0 if number == len(kept) - 1 else 0.5)
        losses.append(total / len(kept))
    return torch.stack(scores).view(len(tasks), -1, WAYS), torch.stack(losses).mean()


def uneven_mask():
    mask = torch.ones(2, WAYS * SHOTS, dtype=torch.bool)
    mask[1, 0] = mask[1, 2] = False
    return mask


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("mask", [None, uneven_mask()], ids=["even", "uneven"])
def test_all_graphs_at_once_are_the_graphs_one_by_one(setting, mask):
    method, tasks = egnn(setting), batch(mask=mask)
    with torch.no_grad():
        scores, loss = slow(method, tasks)
        close(method.scores(tasks), scores, 1e-10)
        close(learner(method)(tasks).scores, scores, 1e-10)
        close(own_loss(method, tasks), loss, 1e-10)


def test_parameters_are_those_of_the_published_network():
    method = Egnn(ReadyFeatures(128))
    assert sum(parameter.numel() for parameter in method.parameters()) == 493_923


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_tasks_queries_classes_and_shots_may_change_places(setting, training):
    method, tasks = egnn(setting).train(training), batch()
    rows, shots, names = torch.randperm(QUERIES), torch.randperm(WAYS * SHOTS), torch.tensor([2, 0, 1])
    shuffled = TaskBatch(
        tasks.support[:, shots].flip(0),
        names[tasks.support_labels[:, shots]].flip(0),
        tasks.query[:, rows].flip(0),
        names[tasks.query_labels[:, rows]].flip(0),
        WAYS,
    )
    close(method.scores(shuffled).flip(0)[:, :, names], method.scores(tasks)[:, rows], 1e-10)
    close(own_loss(method, shuffled), own_loss(method, tasks), 1e-10)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_tasks_do_not_know_of_one_another(setting, training):
    method, tasks = egnn(setting, embedding=6).train(training), batch(3)
    together = learner(method)(tasks).scores
    close(together, torch.cat([learner(method)(tasks.tasks(task, task + 1)).scores for task in range(3)]))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_padding_has_no_influence(setting, training):
    """It is as if the padded examples were not there, in the statistics of training too."""
    method, tasks = egnn(setting, embedding=6).train(training), batch(1)
    mask = torch.tensor([[True, True, True, False, True, False]])
    padded = TaskBatch(tasks.support, tasks.support_labels, tasks.query, tasks.query_labels, WAYS, mask)
    real = mask[0]
    short = TaskBatch(tasks.support[:, real], tasks.support_labels[:, real], tasks.query, tasks.query_labels, WAYS)
    close(method.scores(padded), method.scores(short), 1e-10)
    close(own_loss(method, padded), own_loss(method, short), 1e-10)
    ours, theirs = learner(method)(padded), learner(method)(short)
    close(ours.losses, theirs.losses, 1e-10)
    for norm in (module for module in method.modules() if isinstance(module, HeadNorm)):
        statistics = norm.take()
        assert len(statistics) == (6 if training else 0)
        close(statistics[0::2], statistics[1::2], 1e-10)


def test_inductive_queries_do_not_know_of_one_another():
    method, tasks = egnn("inductive"), batch()
    alone = [
        method.scores(TaskBatch(tasks.support, tasks.support_labels, tasks.query[:, [q]], None, WAYS))
        for q in range(QUERIES)
    ]
    close(method.scores(tasks), torch.cat(alone, 1))


def test_transductive_queries_do():
    method, tasks = egnn(), batch()
    few = TaskBatch(tasks.support, tasks.support_labels, tasks.query[:, :2], tasks.query_labels[:, :2], WAYS)
    assert float((method.scores(tasks)[:, :2] - method.scores(few)).detach().abs().max()) > 1e-4


def test_with_one_query_both_settings_are_the_same():
    tasks = batch(queries=1)
    close(egnn("inductive").scores(tasks), egnn("transductive").scores(tasks))


@pytest.mark.parametrize("setting", SETTINGS)
def test_query_labels_serve_the_training_loss_only(setting):
    method, tasks = egnn(setting), batch()
    other = TaskBatch(tasks.support, tasks.support_labels, tasks.query, (tasks.query_labels + 1) % WAYS, WAYS)
    with torch.no_grad():
        assert torch.equal(method.scores(tasks), method.scores(other))
        assert torch.equal(learner(method)(tasks).scores, learner(method)(other).scores)
        assert abs(float(own_loss(method, tasks) - own_loss(method, other))) > 1e-3


def test_estimates_are_symmetric_and_a_node_is_like_itself():
    method, tasks = egnn(), batch()
    problem = method.problem(tasks, observed=False)
    nodes, edges, _ = problem.direction(problem.start())
    estimate = method.layers[0].estimate(nodes, problem.layout).detach()
    assert torch.equal(estimate, estimate.mT)
    for both in (estimate, edges):
        close(both.sum(2), torch.ones_like(both[:, :, 0]))
    assert float(edges[:, :, 0].detach().diagonal(dim1=-2, dim2=-1).min()) > 1 - 2e-6
    assert float((edges - edges.mT).detach().abs().max()) > 1e-4  # rows are normalised: edges are not symmetric


def test_the_diagonal_of_the_start_has_no_influence():
    problem = egnn().problem(batch(), observed=False)
    start = problem.start()
    other = start.edges.clone()
    other.diagonal(dim1=-2, dim2=-1).fill_(0.3)
    expected, found = problem.direction(start), problem.direction(start._replace(edges=other))
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)


def test_a_constant_estimate_keeps_the_edges():
    method = egnn()
    with torch.no_grad():
        for layer in method.layers:
            layer.out.weight.zero_()
    problem = method.problem(batch(), observed=False)
    start, off = problem.start().edges, ~torch.eye(WAYS * SHOTS + QUERIES, dtype=torch.bool)
    for edges in problem.all_layers():
        assert float((edges - start)[..., off].detach().abs().max()) < 4e-6


@pytest.mark.parametrize("setting", SETTINGS)
def test_without_a_rate_nothing_is_learned_of_the_queries(setting):
    trace = learner(egnn(setting), Constant(0.0), Equal())(batch())
    close(trace.scores, torch.full_like(trace.scores, 1 / WAYS).log())


def test_edges_stay_probabilities_beyond_the_published_rate():
    """A learned rate may pass 1, where a straight line would leave [0, 1]."""
    problem = egnn().problem(batch(), observed=False)
    state, lowest = problem.start(), 1.0
    for _ in range(LAYERS):
        found = problem.direction(state)
        line = torch.lerp(state.edges, found.edges, 3.0)
        lowest = min(lowest, float(line.detach().min()))
        state = problem.step(state, found, torch.full((2,), 3.0, dtype=torch.float64))
        inside = (line > 1e-12) & (line < 1)
        close(state.edges[inside], line[inside])
        assert float(state.edges.detach().min()) > 0
        assert float(state.edges.detach().max()) <= 1
    assert lowest < 0
    assert torch.isfinite(problem.class_scores(state.edges)).all()


def test_a_part_of_the_layers_may_do():
    method, tasks = egnn(), batch()
    expected = method.problem(tasks, observed=False)
    trace = learner(method, epochs=2)(tasks, every_epoch=True)
    for number, edges in enumerate(expected.all_layers()[:2]):
        close(trace.epoch_scores[:, number], expected.class_scores(edges))


SUMMARIES = {
    "stats": Context(Stats()),
    "queries too": Context(Stats(transductive=True), transductive=True),
    "class mean": Context(ClassMean(FEATURES), embedding=FEATURES),
}


def generated(method, summary, generator="fc"):
    context = SUMMARIES[summary]
    torch.manual_seed(2)
    psi = FcGenerator(context, LAYERS, 2) if generator == "fc" else LstmGenerator(context, 2, hidden=2)
    return learner(method, Generated([0.7, 0.8, 0.9]), Generated([0.2, 0.3, 0.5]), psi)


@pytest.mark.parametrize("summary", SUMMARIES)
@pytest.mark.parametrize("generator", ["fc", "lstm"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_schedules_alone_make_it_e3bm(setting, generator, summary):
    tasks, model = batch(), generated(egnn(setting).train(), summary, generator)
    trace = model(tasks, every_epoch=True)
    close(trace.scores, torch.einsum("tm,tmqw->tqw", trace.weights, trace.epoch_scores))
    meta_loss(trace.scores, tasks.query_labels).backward()
    for schedule in (model.hyperprior.rate, model.hyperprior.weight):
        assert float(schedule.values.grad.abs().min()) > 0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("summary", ["stats", "class mean"])
def test_generated_rates_of_inductive_tasks_do_not_know_of_the_queries(summary):
    model, tasks, others = generated(egnn("inductive"), summary), batch(), batch(seed=5)
    moved = TaskBatch(tasks.support, tasks.support_labels, others.query, tasks.query_labels, WAYS)
    with torch.no_grad():
        first, second = model(tasks), model(moved)
    for name in ("rates", "weights", "losses"):
        close(getattr(first, name), getattr(second, name))
    assert float(first.rates.std(0).max()) > 1e-3  # while tasks differ


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_hyperprior_sees(setting):
    method, tasks = egnn(setting), batch()
    problem = method.begin(tasks)
    state = problem.start()
    assert isinstance(method, InnerLoopMethod)
    assert isinstance(problem, InnerProblem)
    first = problem.observe(state, problem.direction(state))
    assert isinstance(first, Observation)
    close(first.loss(), torch.zeros(2, dtype=torch.float64))
    state = problem.step(state, problem.direction(state), torch.ones(2, dtype=torch.float64))
    seen = problem.observe(state, problem.direction(state))
    gradient = torch.einsum("tsw,tsd->twd", seen.coefficients(), tasks.support)
    close(seen.squared_norm(), gradient.square().sum((1, 2)))
    edges = problem.support_edges(state.edges)[:, 0]
    for task in range(2):
        labels, found = tasks.support_labels[task], []
        for i in range(len(labels)):
            for j in range(len(labels)):
                if i != j:
                    edge = edges[task, i, j]
                    found.append(-(edge if labels[i] == labels[j] else 1 - edge).log())
        close(seen.loss()[task], torch.stack(found).mean())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_derivatives(setting, training):
    method, tasks = egnn(setting, layers=2, embedding=3).train(training), batch(shots=1, queries=2)
    model = learner(method, Learned([0.7, 0.9]), Learned([0.4, 0.6]), epochs=2)
    names = [name for name, _ in model.named_parameters()]

    def scores(support, query, *values):
        moved = TaskBatch(support, tasks.support_labels, query, tasks.query_labels, WAYS)
        return functional_call(model, dict(zip(names, values, strict=True)), (moved,)).scores

    def training_loss(support, query):
        return own_loss(method, TaskBatch(support, tasks.support_labels, query, tasks.query_labels, WAYS))

    inputs = [features.requires_grad_() for features in (tasks.support, tasks.query)]
    values = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    assert torch.autograd.gradcheck(scores, (*inputs, *values), fast_mode=True)
    assert torch.autograd.gradcheck(training_loss, inputs, fast_mode=True)


def test_dropout_drops_whole_channels_of_a_graph_in_training():
    method = egnn("inductive", dropout=0.5).train()
    net, draw = method.layers[0].node, torch.Generator().manual_seed(3)
    values = torch.randn(2, 3, 4, 3 * FEATURES, generator=draw, dtype=torch.float64)
    counts = torch.ones(2, 3, 4, dtype=torch.float64)
    torch.manual_seed(0)
    dropped = net(values, counts) == 0
    assert torch.equal(dropped, dropped[:, :, :1].expand_as(dropped))
    assert dropped.any()
    assert not dropped.all()
    assert method.layers[-1].node.dropout == method.layers[-1].edge.dropout == 0.0
    method.eval()
    assert torch.equal(method.scores(batch()), method.scores(batch()))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_how_many_graphs_are_taken_at_once_makes_no_difference(setting, training, monkeypatch):
    """One task, or in tests one graph, at a time: the same scores, losses, statistics and dropped channels."""
    found = []
    for pairs in (1, 50, 10**9):
        monkeypatch.setattr("e3bm.methods.networks.graph_layers.PAIRS_AT_ONCE", pairs)
        method, tasks = egnn(setting, dropout=0.5).train(training), batch(3)
        torch.manual_seed(4)
        trace = learner(method)(tasks)
        loss = own_loss(method, tasks)
        loss.backward()
        gradients = [each.grad for each in method.parameters()]
        statistics = [module.take() for module in method.modules() if isinstance(module, HeadNorm)]
        found.append([trace.scores, trace.losses, loss, *gradients, *statistics])
    for ours in found[:2]:
        for one, other in zip(ours, found[2], strict=True):
            close(one, other, 1e-10)


@pytest.mark.parametrize("setting", SETTINGS)
def test_edges_that_nobody_reads_may_be_left_out_of_the_last_layer(setting):
    """Of the last layer a test reads the queries' rows, and a hyperprior the support's own graph."""
    method, tasks = egnn(setting), batch(mask=uneven_mask())
    problem = method.problem(tasks, observed=True)
    whole, state = problem.all_layers(), problem.start()
    rate = torch.ones(2, dtype=torch.float64, requires_grad=True)
    for _ in range(LAYERS):
        found = problem.direction(state)
        state = problem.step(state, found, rate)
    close(problem.class_scores(state.edges), problem.class_scores(whole[-1]))
    real = problem.support_pairs.unsqueeze(1).expand(-1, 2, -1, -1)
    close(problem.support_edges(found.edges)[real], problem.support_edges(whole[-1])[real])
    # What was left out says so, and gradients of scores do not notice.
    for edges in (found.edges, state.edges, problem.all_layers(whole=False)[-1]):
        assert bool(edges.isnan().any()) == (setting == "inductive")
        there = ~edges.isnan()
        close(edges[there], whole[-1][there])
    assert bool(problem.edge_loss(state.edges).isnan()) == (setting == "inductive")
    (slope,) = torch.autograd.grad(problem.class_scores(state.edges).sum(), rate)
    assert slope.isfinite().all()
    assert slope.any()


def test_it_learns():
    """The published loss falls, and the scores with it."""
    method, tasks = egnn("transductive").train(), batch(4, queries=6)
    tasks.query.add_(4 * torch.nn.functional.one_hot(tasks.query_labels, FEATURES))
    tasks.support.add_(4 * torch.nn.functional.one_hot(tasks.support_labels, FEATURES))
    optimiser = torch.optim.Adam(method.parameters(), 1e-2)
    errors = lambda: cross_entropy(method.scores(tasks).flatten(0, 1), tasks.query_labels.flatten()).item()
    before = errors()
    for _ in range(30):
        optimiser.zero_grad()
        own_loss(method, tasks).backward()
        optimiser.step()
    assert errors() < before / 2


def test_epochs_are_layers():
    with pytest.raises(
        SettingsError, match="has 3 layers, which are its epochs; epoch 4 was asked for: set epochs to 3"
    ):
        learner(egnn(), epochs=4)(batch())


def test_features_are_of_the_size_it_was_built_for():
    class Maps(nn.Module):
        feature_size = FEATURES

        def forward(self, examples, mask=None):
            return examples.unflatten(-1, (FEATURES, 1, 1))

    with pytest.raises(SettingsError, match=r"made for features \[tasks, examples, 5\]; the encoder gave"):
        Egnn(Maps()).double().scores(batch())
    wide = TaskBatch(torch.zeros(1, WAYS, 9), torch.arange(WAYS)[None], torch.zeros(1, 2, 9), None, WAYS)
    with pytest.raises(DataError, match="takes features"):
        egnn().scores(wide)


def test_training_needs_labels():
    tasks = batch()
    with pytest.raises(DataError, match="labels of the queries"):
        own_loss(egnn(), TaskBatch(tasks.support, tasks.support_labels, tasks.query, None, WAYS))


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"hidden": 0}, {"dropout": 1.0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match="EGNN"):
        Egnn(ReadyFeatures(FEATURES), **wrong)

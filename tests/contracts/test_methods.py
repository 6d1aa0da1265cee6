"""What every registered method promises. A new method adds a line to EXAMPLES and inherits the suite."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

import e3bm
from e3bm.backbones import build
from e3bm.backbones.encode import TaskEncoder
from e3bm.core.adapt import AdaptationTrace, InnerProblem
from e3bm.core.context import Context, Observation, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import DirectLearner, InnerLoopMethod, MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Equal, Frozen, Generated, LastOnly, Learned
from e3bm.errors import SettingsError
from e3bm.methods import (
    METHODS,
    BayesianMaml,
    Can,
    CanT,
    Ctm,
    Egnn,
    LaplacianShot,
    Leo,
    LogisticRegression,
    Maml,
    MamlPlusPlus,
    MapRounds,
    MatchingNets,
    MatchingNetsFce,
    MetaOptNet,
    MetaOptNetDescent,
    Mtl,
    NearestMean,
    ProtoNets,
    PtMap,
    ReadyFeatures,
    ReadyMaps,
    RidgeRegression,
    RobustEnsemble,
    Sib,
    SoftKMeans,
    Tadam,
    Tim,
)
from e3bm.runs.settings import BackboneSettings, MachineSettings, TrainSettings
from e3bm.settings import InnerLoopSettings, MethodSettings, read_settings

FEATURES, WAYS, QUERIES, EPOCHS = 6, 3, 4, 3
SIZE = 16
MAPS = (5, 2, 3)
POSITIONS = MAPS[1] * MAPS[2]
NETWORK = {"image_size": SIZE, "width": 0.25}
EXAMPLES = {
    "can_t": (lambda: CanT(ReadyMaps(MAPS), channels=MAPS[0], positions=POSITIONS), 0.7, MAPS),
    "egnn": (lambda: Egnn(ReadyFeatures(FEATURES), layers=EPOCHS, hidden=4, embedding=5), 0.7, (FEATURES,)),
    "bayesian_maml": (lambda: BayesianMaml(ReadyFeatures(FEATURES), ways=WAYS, particles=3), 0.1, (FEATURES,)),
    "leo": (lambda: Leo(ReadyFeatures(FEATURES), latents=4, latent_steps=2), 1.0, (FEATURES,)),
    "maml": (lambda: Maml(build("conv4", **NETWORK), ways=WAYS), 0.01, (3, SIZE, SIZE)),
    "maml_plus_plus": (
        lambda: MamlPlusPlus(build("conv4", **NETWORK), ways=WAYS, epochs=EPOCHS, rate=0.01),
        0.01,
        (3, SIZE, SIZE),
    ),
    "mtl": (lambda: Mtl(ReadyFeatures(FEATURES), ways=WAYS), 0.1, (FEATURES,)),
    "sib": (lambda: Sib(ReadyFeatures(FEATURES), ways=WAYS), 0.01, (FEATURES,)),
    "matching_nets_fce": (lambda: MatchingNetsFce(ReadyFeatures(FEATURES)), 1.0, (FEATURES,)),
    "meta_opt_net_descent": (lambda: MetaOptNetDescent(ReadyFeatures(FEATURES), penalty=2.0), 0.1, (FEATURES,)),
    "soft_k_means": (lambda: SoftKMeans(ReadyFeatures(FEATURES)), 0.5, (FEATURES,)),
    "map_rounds": (lambda: MapRounds(ReadyFeatures(FEATURES)), 0.2, (FEATURES,)),
    "pt_map": (lambda: PtMap(ReadyFeatures(FEATURES)), 0.2, (FEATURES,)),
    "tim": (lambda: Tim(ReadyFeatures(FEATURES)), 0.5, (FEATURES,)),
}
RATES = {
    "constant": Constant,
    "learned": lambda rate: Learned([rate] * EPOCHS),
    "frozen": lambda rate: Frozen([rate] * EPOCHS),
    "generated": lambda rate: Generated([rate] * EPOCHS),
}
WEIGHTS = {
    "last": LastOnly,
    "equal": Equal,
    "learned": lambda: Learned([0.2, 0.3, 0.5]),
    "frozen": lambda: Frozen([0.0, 0.5, 0.5]),
    "generated": lambda: Generated([0.2, 0.3, 0.5]),
}


CLASSES = 7  # of the training set


def small_encoder():
    return TaskEncoder(build("conv4", image_size=SIZE, width=0.25), "batch_then_running")


def robust_ensemble():
    networks = [small_encoder() for _ in range(2)]
    return RobustEnsemble(networks, small_encoder(), classes=CLASSES, participation=1.0)


DIRECT = {
    "can": (lambda: Can(ReadyMaps(MAPS), channels=MAPS[0], positions=POSITIONS), MAPS),
    "nearest_mean": (lambda: NearestMean(ReadyFeatures(FEATURES)), (FEATURES,)),
    "proto_nets": (lambda: ProtoNets(ReadyFeatures(FEATURES), learned_scale=True), (FEATURES,)),
    "matching_nets": (lambda: MatchingNets(ReadyFeatures(FEATURES), learned_scale=True), (FEATURES,)),
    "meta_opt_net": (lambda: MetaOptNet(ReadyFeatures(FEATURES)), (FEATURES,)),
    "ridge_regression": (lambda: RidgeRegression(ReadyFeatures(FEATURES)), (FEATURES,)),
    "logistic_regression": (lambda: LogisticRegression(ReadyFeatures(FEATURES)), (FEATURES,)),
    "laplacian_shot": (lambda: LaplacianShot(ReadyFeatures(FEATURES)), (FEATURES,)),
    "ctm": (lambda: Ctm(ReadyMaps(MAPS), MAPS[0], ways=WAYS, widths=(2,)), MAPS),
    "robust_ensemble": (robust_ensemble, (3, SIZE, SIZE)),
    "tadam": (lambda: Tadam(small_encoder(), classes=CLASSES), (3, SIZE, SIZE)),
}


def test_every_method_is_here():
    assert set(METHODS) == set(EXAMPLES) | set(DIRECT)


@pytest.mark.same_anywhere
@pytest.mark.parametrize("name", list(METHODS))
def test_it_declares_itself(name):
    """Its settings have its name and make it of parts; what it may be given is known to the settings of a run."""
    own = METHODS[name].settings
    assert own().name == name
    assert issubclass(own, InnerLoopSettings) == (name in EXAMPLES)
    assert own.title != MethodSettings.title
    for choices, group, field in (
        (own.needs.backbone, BackboneSettings, "adapt"),
        (own.needs.batchnorm, BackboneSettings, "batchnorm"),
        (own.needs.precision, MachineSettings, "precision"),
    ):
        assert set(choices) <= set(get_args(group.model_fields[field].annotation))


@pytest.mark.same_anywhere
@pytest.mark.parametrize("name", list(METHODS))
def test_every_parameter_has_a_kind(name):
    method = (EXAMPLES.get(name) or DIRECT[name])[0]()
    grouped = [id(parameter) for members in method.parameter_kinds().values() for parameter in members]
    assert sorted(grouped) == sorted(id(parameter) for parameter in method.parameters())


@pytest.mark.parametrize("name", DIRECT)
def test_a_direct_method_answers_without_epochs(name):
    make, shape = DIRECT[name]
    torch.manual_seed(0)
    model, tasks = DirectLearner(make()), batch_of(shape, 3)
    trace = model(tasks)
    assert type(trace) is not AdaptationTrace
    assert trace.scores.shape == (3, QUERIES, WAYS)
    alone = torch.cat([model(tasks.tasks(task, task + 1)).scores for task in range(3)])
    torch.testing.assert_close(trace.scores, alone, rtol=1e-5, atol=1e-5)
    assert model.epochs is None
    with pytest.raises(SettingsError, match="no inner epochs"):
        model(tasks, epochs=3)


@pytest.mark.parametrize("name", DIRECT)
def test_a_direct_method_learns_by_its_own_loss(name):
    """Whatever stands still at a time has no gradient; over the training everything that is trained gets one."""
    make, shape = DIRECT[name]
    torch.manual_seed(0)
    model, tasks = DirectLearner(make()), batch_of(shape, 3)
    trained, moved = set(), set()
    for progress in (0.0, 0.9):
        model.zero_grad(set_to_none=True)
        model.method.at(progress)
        loss = model.training_loss(model(tasks), tasks, progress)
        assert torch.isfinite(loss)
        now = {label: parameter for label, parameter in model.named_parameters() if parameter.requires_grad}
        if now:
            loss.backward()
        for label, parameter in model.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), label
        trained |= set(now)
        moved |= {label for label, parameter in now.items() if parameter.grad is not None}
    assert moved == trained
    assert isinstance(model.method.outer_factor(0.5), float)


@pytest.mark.parametrize("name", DIRECT)
def test_the_loss_of_a_direct_method_is_a_mean_over_tasks(name):
    """A process that holds some of the tasks weighs its loss by their number."""
    make, shape = DIRECT[name]
    torch.manual_seed(0)
    model, tasks = DirectLearner(make().double()), batch_of(shape, 3)
    tasks = replace(tasks, support=tasks.support.double(), query=tasks.query.double())
    for progress in (0.1, 0.9):
        loss = lambda batch, progress=progress: model.training_loss(model(batch), batch, progress)
        alone = torch.stack([loss(tasks.tasks(task, task + 1)) for task in range(3)])
        torch.testing.assert_close(loss(tasks), alone.mean(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", DIRECT)
def test_a_checkpoint_brings_a_direct_method_back(name):
    make, shape = DIRECT[name]
    model, again, tasks = make().eval(), make().eval(), batch_of(shape, 2)
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(tasks).scores, again(tasks).scores)


@pytest.mark.same_anywhere
@pytest.mark.parametrize("name", DIRECT)
def test_settings_refuse_what_a_direct_method_does_not_have(name):
    title, needs = METHODS[name].settings.title, METHODS[name].settings.needs
    backbone = {"adapt": needs.backbone[-1], "batchnorm": needs.batchnorm[-1]}
    with pytest.raises(SettingsError, match=f"{title} has no option 'epochs'"):
        read_settings(TrainSettings, {"method": {"name": name, "epochs": 3}, "backbone": backbone})
    with pytest.raises(SettingsError, match=f"{title} has no inner epochs, so there is no alpha and no v"):
        read_settings(
            TrainSettings, {"method": {"name": name}, "hyperprior": {"weight": "equal"}, "backbone": backbone}
        )


@pytest.mark.same_anywhere
def test_no_method_is_named_outside_of_its_own_rooms():
    """A method is chosen by its name in settings; only methods/ and paper/ may write one down.

    How images are treated is named after the publication it comes from, and former settings have to be recognised.
    """
    package = Path(e3bm.__file__).parent
    names = {*METHODS, *(METHODS[name].settings.title for name in METHODS)}
    allowed = {"data/pixels/recipes.py", "data/pixels/pipeline.py", "runs/folder/upgrade.py", "runs/settings.py"}
    found = []
    for path in package.rglob("*.py"):
        place = path.relative_to(package).as_posix()
        if place.startswith(("methods/", "paper/")):
            continue
        constants = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        found += [f"{place}:{node.lineno}: {node.value}" for node in constants if node.value in names]
    assert [each for each in found if each.split(":")[0] not in allowed] == []
    # In the settings the only ones are names of normalisations.
    assert {each.split(": ")[1] for each in found if each.startswith("runs/settings.py")} <= {"mtl"}


def learner(name, rate="constant", weight="last", generator="lstm"):
    torch.manual_seed(0)
    make, size, _ = EXAMPLES[name]
    schedules = RATES[rate](size), WEIGHTS[weight]()
    outputs = sum(schedule.generated for schedule in schedules)
    psi = None
    if outputs:
        context = Context(Stats(transductive=True), transductive=True)
        psi = FcGenerator(context, EPOCHS, outputs) if generator == "fc" else LstmGenerator(context, outputs, hidden=2)
    return MetaLearner(make(), Hyperprior(*schedules, psi), EPOCHS)


def batch(name, tasks=2):
    return batch_of(EXAMPLES[name][2], tasks)


def batch_of(shape, tasks, ways=WAYS):
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(ways).repeat(2).expand(tasks, -1).contiguous()
    query_labels = torch.randint(ways, (tasks, QUERIES), generator=draw)
    examples = lambda count: torch.rand(tasks, count, *shape, generator=draw)
    support, query = examples(2 * ways), examples(QUERIES)
    numbers = torch.stack([torch.randperm(CLASSES, generator=draw)[:ways] for _ in range(tasks)])
    own = numbers.gather(1, labels), numbers.gather(1, query_labels)
    return TaskBatch(support, labels, query, query_labels, ways, None, *own)


@pytest.mark.parametrize("name", list(METHODS))
def test_what_is_bound_to_its_ways_refuses_others_before_there_are_tasks(name):
    """And in the same words as with tasks; whatever does not refuse them answers them."""
    torch.manual_seed(0)
    model = learner(name) if name in EXAMPLES else DirectLearner(DIRECT[name][0]())
    model.eval()
    shape = EXAMPLES[name][2] if name in EXAMPLES else DIRECT[name][1]
    model.check_ways(WAYS)
    more = batch_of(shape, 2, WAYS + 2)
    try:
        scores = model(more).scores
    except SettingsError as refusal:
        with pytest.raises(SettingsError, match=f"^{re.escape(str(refusal))}$"):
            model.check_ways(WAYS + 2)
    else:
        model.check_ways(WAYS + 2)
        assert scores.shape == (2, QUERIES, WAYS + 2)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_opens_tasks_for_learning(name):
    method = EXAMPLES[name][0]()
    assert isinstance(method, InnerLoopMethod)
    problem = method.begin(batch(name))
    assert isinstance(problem, InnerProblem)
    state = problem.start()
    assert isinstance(problem.observe(state, problem.direction(state)), Observation)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_learns_with_every_pair_of_schedules(name, rate, weight):
    model, tasks = learner(name, rate, weight), batch(name)
    trace = model(tasks)
    assert trace.scores.shape == (2, QUERIES, WAYS)
    assert trace.rates.shape == trace.weights.shape == trace.losses.shape == (2, EPOCHS)
    if not list(model.parameters()):
        assert not trace.scores.requires_grad  # a method without parameters, and nothing of its schedules is trained
        return
    meta_loss(trace.scores, tasks.query_labels).backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), label
    for schedule in (model.hyperprior.rate, model.hyperprior.weight):
        for parameter in schedule.parameters():
            assert float(parameter.grad.abs().max()) > 0


@pytest.mark.parametrize("generator", ["fc", "lstm"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_tasks_do_not_know_of_one_another(name, generator):
    model, tasks = learner(name, "generated", "generated", generator), batch(name, tasks=3)
    with torch.no_grad():
        together = model(tasks).scores
        alone = torch.cat([model(tasks.tasks(task, task + 1)).scores for task in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_a_function(name):
    """Nothing of an episode stays behind."""
    model, tasks = learner(name, "generated", "generated"), batch(name)
    first = model(tasks).scores
    model(batch(name, tasks=1))
    assert torch.equal(first, model(tasks).scores)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_last_single_epoch_is_what_a_baseline_says(name):
    model, tasks = learner(name), batch(name)
    trace = model(tasks, every_epoch=True)
    assert trace.epoch_scores.shape == (2, EPOCHS, QUERIES, WAYS)
    assert torch.equal(trace.epoch_scores[:, -1], trace.scores)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_ensemble_is_the_weighted_sum_of_its_epochs(name):
    model, tasks = learner(name, "generated", "generated"), batch(name)
    with torch.no_grad():
        trace = model(tasks, every_epoch=True)
    expected = torch.einsum("tm,tmqw->tqw", trace.weights, trace.epoch_scores)
    torch.testing.assert_close(trace.scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_checkpoint_brings_it_back(name):
    model, tasks = learner(name, "generated", "generated"), batch(name)
    again = learner(name, "generated", "generated")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(tasks).scores, again(tasks).scores)

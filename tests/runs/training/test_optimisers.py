"""Learning rates: one for each kind of parameter, moved by the schedule; gradients bounded, and stopped when broken."""

import math

import pytest
import torch
from torch import nn

from e3bm.core.context import Context, Stats
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Generated
from e3bm.errors import DivergenceError, SettingsError
from e3bm.methods import Mtl, ReadyFeatures
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.settings import OptimiserSettings
from e3bm.runs.training.optimisers import (
    build_optimiser,
    check_gradients,
    clip_gradients,
    parameter_groups,
    schedule_factor,
)
from e3bm.settings import read_settings
from small_runs import settings

RATES = {
    "theta": 1.0, "encoder": 2.0, "gradient_net": 3.0,
    "psi_rate": 4.0, "psi_weight": 5.0, "base_rate": 6.0, "base_weight": 7.0,
}  # fmt: skip
OUTER = OptimiserSettings(**{kind: rate for kind, rate in RATES.items() if kind != "gradient_net"})
PAPER_PSI = {
    "hyperprior__mixing": "residual", "hyperprior__hidden": 1, "hyperprior__readout": False,
    "hyperprior__separate": True,
}  # fmt: skip


def groups(folder, method, **changes):
    """Names of parameters by kind, and the learning rate of each kind."""
    wanted = settings(folder, method, **changes)
    learner = build_learner(wanted, build_backbone(wanted.backbone, 3, 16))
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    found = parameter_groups(learner, RATES)
    for group in found:
        assert group["lr"] == group["base_lr"] == RATES[group["kind"]]
    grouped = [id(parameter) for group in found for parameter in group["params"]]
    trained = [id(parameter) for parameter in learner.parameters() if parameter.requires_grad]
    assert sorted(grouped) == sorted(trained)  # every trained parameter once
    return {group["kind"]: {names[id(parameter)] for parameter in group["params"]} for group in found}


def test_plain_mtl_has_its_initialiser_only(small_data):
    assert groups(small_data, "mtl") == {"theta": {"method.initialiser.weight", "method.initialiser.bias"}}


def test_scale_and_shift_have_a_rate_of_their_own(small_data):
    found = groups(small_data, "mtl-scaled")
    assert found.keys() == {"theta", "encoder"}
    assert {name.rpartition(".")[2] for name in found["encoder"]} == {"scale", "shift", "weight", "bias"}
    assert not any(".conv.weight" in name for name in found["encoder"])  # frozen kernels


def test_maml_is_all_theta(small_data):
    found = groups(small_data, "maml")
    assert found.keys() == {"theta"}
    assert any("backbone" in name for name in found["theta"])


def test_sibs_gradient_net_has_a_rate_of_its_own(small_data):
    found = groups(small_data, "sib")
    assert found["theta"] == {"method.initial_weight", "method.scale", "method.bias"}
    assert all(name.startswith("method.gradient_net.") for name in found["gradient_net"])


def test_a_methods_own_rate_comes_from_its_own_settings(small_data):
    wanted = settings(small_data, "sib", method__gradient_net_rate=0.25)
    learner = build_learner(wanted, build_backbone(wanted.backbone, 3, 16))
    optimiser = build_optimiser(learner, OUTER, wanted.method.learning_rates())
    assert {group["kind"]: group["lr"] for group in optimiser.param_groups} == {"theta": 1.0, "gradient_net": 0.25}


class DeepGenerator(LstmGenerator):
    """A generator with layers of its own, as somebody might write one."""

    def __init__(self) -> None:
        super().__init__(Context(Stats()), 2)
        self.deeper = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def parts(self):
        return [list(self.parameters())]


def test_a_generator_may_contain_any_layers():
    hyperprior = Hyperprior(Generated([0.1]), Generated([1.0]), DeepGenerator())
    learner = MetaLearner(Mtl(ReadyFeatures(4), ways=2), hyperprior, 1)
    (psi,) = [group for group in parameter_groups(learner, RATES) if group["kind"] == "psi_rate"]
    assert {id(each) for each in psi["params"]} == {id(each) for each in hyperprior.generator.parameters()}


def test_a_parameter_without_a_rate_is_named(small_data):
    wanted = settings(small_data, "sib")
    learner = build_learner(wanted, build_backbone(wanted.backbone, 3, 16))
    with pytest.raises(SettingsError, match=r"method\.gradient_net.* has no learning rate: its kind is gradient_net"):
        build_optimiser(learner, OUTER)


@pytest.mark.parametrize("generator", ["fc", "lstm"])
def test_separate_generators_of_alpha_and_v(small_data, generator):
    found = groups(small_data, "mtl+e3bm", hyperprior__generator=generator, **PAPER_PSI)
    assert found.keys() == {"theta", "psi_rate", "psi_weight", "base_rate", "base_weight"}
    assert all(name.endswith(".0") for name in found["psi_rate"])
    assert {name[:-1] + "0" for name in found["psi_weight"]} == found["psi_rate"]
    assert found["base_rate"] == {"hyperprior.rate.values"}
    assert found["base_weight"] == {"hyperprior.weight.values"}


def test_a_joint_generator_counts_as_that_of_alpha(small_data):
    found = groups(small_data, "mtl+e3bm")
    assert "psi_weight" not in found
    assert all(name.startswith("hyperprior.generator.") for name in found["psi_rate"])


@pytest.mark.parametrize(("schedule", "kind"), [("rate", "psi_rate"), ("weight", "psi_weight")])
def test_a_generator_of_one_of_them_has_the_rate_of_that_one(small_data, schedule, kind):
    found = groups(small_data, "mtl", **{f"hyperprior__{schedule}": "generated"})
    psi = {name for name in found if name.startswith("psi")}
    assert psi == {kind}
    assert f"base_{schedule}" in found


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_one_step_moves_each_kind_by_its_own_rate(small_data, kind):
    """With gradients of one everywhere, what moved tells the learning rate."""
    wanted = settings(small_data, "mtl+e3bm", **PAPER_PSI)
    learner = build_learner(wanted, build_backbone(wanted.backbone, 3, 16)).double()
    optimiser = build_optimiser(learner, OUTER.but(kind=kind))
    before = [[parameter.detach().clone() for parameter in group["params"]] for group in optimiser.param_groups]
    for parameter in learner.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    steps = 1.0 if kind == "adam" else 1.9  # Nesterov: 1 + momentum
    for group, old in zip(optimiser.param_groups, before, strict=True):
        for parameter, value in zip(group["params"], old, strict=True):
            torch.testing.assert_close(
                value - parameter, torch.full_like(value, steps * group["lr"]), rtol=1e-6, atol=1e-6
            )


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_every_kind_has_the_rate_that_the_settings_have_for_it(small_data, kind):
    wanted = settings(small_data, "mtl-scaled+e3bm", **PAPER_PSI)
    learner = build_learner(wanted, build_backbone(wanted.backbone, 3, 16))
    optimiser = build_optimiser(learner, OUTER.but(kind=kind))
    found = {group["kind"]: (group["lr"], group["base_lr"]) for group in optimiser.param_groups}
    assert found == {name: (rate, rate) for name, rate in RATES.items() if name != "gradient_net"}


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_weights_decay_where_the_settings_say_so(small_data, kind):
    """Without any other gradient what is trained goes towards zero, or stays."""
    wanted = settings(small_data, "mtl")
    for decay in (0.0, 0.1):
        learner = build_learner(wanted, build_backbone(wanted.backbone, 3, 16))
        optimiser = build_optimiser(learner, OUTER.but(kind=kind, theta=1e-3, weight_decay=decay))
        before = learner.method.initialiser.weight.detach().clone()
        for parameter in learner.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
        after = learner.method.initialiser.weight.detach()
        assert bool((after.abs() < before.abs()).all() if decay else torch.equal(after, before))


def test_schedules_are_functions_of_the_step():
    steps = lambda kind, **more: [
        schedule_factor(OptimiserSettings(steps=8, schedule=kind, **more), step) for step in (0, 3, 4, 8)
    ]
    assert steps("constant") == [1.0, 1.0, 1.0, 1.0]
    assert steps("step", step_every=4, step_factor=0.5) == [1.0, 1.0, 0.5, 0.25]
    assert steps("milestones", milestones=(3, 7), step_factor=0.5) == [1.0, 0.5, 0.5, 0.25]
    assert steps("milestones", milestones=(3, 7), factors=(0.25, 0.5)) == [1.0, 0.25, 0.25, 0.125]
    assert steps("cosine") == pytest.approx([1.0, 0.5 * (1 + math.cos(3 * math.pi / 8)), 0.5, 0.0])


@pytest.mark.parametrize("half", [{"schedule": "milestones"}, {"milestones": (3,)}])
def test_milestones_and_their_schedule_belong_together(half):
    with pytest.raises(SettingsError, match="belong together; set both"):
        read_settings(OptimiserSettings, half)


def test_every_milestone_has_a_factor_or_none_has():
    wrong = {"schedule": "milestones", "milestones": (3, 7), "factors": (0.1,)}
    with pytest.raises(SettingsError, match="2 milestones need as many factors, found 1"):
        read_settings(OptimiserSettings, wrong)


def gradients(*values):
    parameters = [nn.Parameter(torch.zeros(len(value))) for value in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    return torch.optim.SGD(parameters, lr=1.0)


def test_clipping():
    read = lambda optimiser: [parameter.grad.tolist() for parameter in optimiser.param_groups[0]["params"]]
    optimiser = gradients([3.0, 0.0], [4.0])
    clip_gradients(optimiser, OptimiserSettings(clip=1.0))
    assert [value for part in read(optimiser) for value in part] == pytest.approx([0.6, 0.0, 0.8], rel=1e-5)
    optimiser = gradients([30.0, -0.5], [-40.0])
    clip_gradients(optimiser, OptimiserSettings(clip=None, clip_elements=10.0))
    assert read(optimiser) == [[10.0, -0.5], [-10.0]]
    optimiser = gradients([3.0, 4.0], [0.5])
    clip_gradients(optimiser, OptimiserSettings(clip=None, clip_each=1.0))
    assert [value for part in read(optimiser) for value in part] == pytest.approx([0.6, 0.8, 0.5], rel=1e-5)
    optimiser = gradients([30.0])
    clip_gradients(optimiser, OptimiserSettings(clip=None))
    assert read(optimiser) == [[30.0]]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_gradients_stop_before_they_spoil_the_weights(broken):
    check_gradients(gradients([1.0], [2.0]), 4)
    with pytest.raises(DivergenceError, match=r"gradient of step 5 is not finite; the last checkpoint is intact"):
        check_gradients(gradients([1.0], [broken]), 4)


def test_nothing_to_train_is_said(tmp_path):
    wanted = settings(tmp_path, "mtl", method__head="cosine", method__start="prototype")
    learner = build_learner(wanted, build_backbone(wanted.backbone, 3, 16))
    with pytest.raises(SettingsError, match="Nothing is left to train"):
        build_optimiser(learner, OUTER)

"""From settings to a model: every option of the hyperprior reaches the part that it is about."""

from pathlib import Path

import pytest
import torch

from e3bm.core.context import ClassMean, Flat, Rms, Stats
from e3bm.core.hyperprior import FcGenerator, LstmGenerator
from e3bm.errors import SettingsError
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import BackboneSettings
from e3bm.runs.tasks import open_data
from small_runs import settings


def hyperprior(folder, method="mtl", **changes):
    """That of a learner with these settings."""
    wanted = settings(folder, method, **{f"hyperprior__{name}": value for name, value in changes.items()})
    data = open_data(wanted.data)
    return build_learner(wanted, build_backbone(wanted.backbone, *data.input_shape)).hyperprior


def test_frozen_values_are_those_that_the_other_run_ended_with(small_data, tmp_path):
    other = RunFolder(tmp_path / "other")
    for step, last in ((10, 0.3), (20, 0.6), (30, 0.9)):
        values = {"base_rates": [0.1, 0.2, last], "base_weights": [0.5, 0.25, last / 2]}
        other.append("schedules", {"step": step, "rates": [7.0] * 3, "weights": [8.0] * 3, **values})
    found = hyperprior(small_data, rate="frozen", weight="frozen", frozen_from=str(other.path))
    torch.testing.assert_close(found.rate.base(3), torch.tensor([0.1, 0.2, 0.9]))
    torch.testing.assert_close(found.weight.base(3), torch.tensor([0.5, 0.25, 0.45]))
    assert not list(found.parameters())


def test_a_run_that_learned_nothing_has_no_values_to_freeze(small_data, tmp_path):
    with pytest.raises(SettingsError, match="has no learned rates and weights; train it first"):
        hyperprior(small_data, rate="frozen", frozen_from=str(tmp_path))


@pytest.mark.parametrize(("start", "expected"), [("equal", [1 / 3] * 3), ("last", [0.0, 0.0, 1.0])])
def test_votes_start_where_the_settings_say(small_data, start, expected):
    found = hyperprior(small_data, rate="learned", weight="learned", weight_start=start)
    torch.testing.assert_close(found.weight.base(3), torch.tensor(expected))
    torch.testing.assert_close(found.rate.base(3), torch.full((3,), 0.1))  # the method's own rate


@pytest.mark.parametrize(
    ("summary", "kind"), [("stats", Stats), ("class_mean", ClassMean), ("flat", Flat), ("rms", Rms)]
)
@pytest.mark.parametrize("setting", ["inductive", "transductive"])
def test_the_generator_sees_what_the_settings_say(small_data, summary, kind, setting):
    embedding = summary != "stats"
    options = {"summary": summary, "setting": setting, "detach": True, "embedding": embedding, "generator": "fc"}
    generator = hyperprior(small_data, "mtl+e3bm", **options).generator
    assert isinstance(generator, FcGenerator)
    context = generator.context
    assert isinstance(context.summary, kind)
    assert context.transductive is (setting == "transductive")
    assert context.detach
    assert (context.embedding > 0) is embedding
    if summary == "stats":
        assert context.summary.transductive is (setting == "transductive")


@pytest.mark.parametrize("separate", [False, True])
def test_an_lstm_is_as_large_as_the_settings_say(small_data, separate):
    generator = hyperprior(small_data, "mtl+e3bm", generator="lstm", hidden=3, separate=separate).generator
    assert isinstance(generator, LstmGenerator)
    assert (generator.hidden, generator.cells, len(generator.parts())) == (3, 2, 2) if separate else (3, 1, 1)
    alone = hyperprior(small_data, "mtl+e3bm", rate="constant", separate=separate).generator
    assert alone.cells == 1  # one value has one cell, separate or not
    without = hyperprior(small_data, "mtl+e3bm", hidden=2, readout=False).generator
    assert without.readout is None


def test_mixing_and_constraint_are_those_of_the_settings(small_data):
    found = hyperprior(small_data, "mtl+e3bm", mixing="convex", mixing_fraction=0.125, constrained=True)
    assert (found.mixing, found.fractions, found.constrained) == ("convex", (0.125, 0.125), True)
    scaled = hyperprior(small_data, "mtl+e3bm", generator="fc")
    assert not any(parameter.detach().any() for parameter in scaled.generator.parameters())  # Delta starts at zero
    residual = hyperprior(small_data, "mtl+e3bm", generator="fc", mixing="residual")
    assert any(parameter.detach().any() for parameter in residual.generator.parameters())


@pytest.mark.parametrize("method", ["mtl", "maml", "sib"])
def test_the_seed_alone_decides_where_a_learner_starts(small_data, method):
    """Whatever was drawn before; what the backbone brings along is not a learner's to draw."""

    def start(seed, drawn):
        wanted = settings(small_data, method, seed=seed)
        data = open_data(wanted.data)
        torch.manual_seed(99)
        backbone = build_backbone(wanted.backbone, *data.input_shape)
        torch.rand(drawn)
        return {name: value.clone() for name, value in build_learner(wanted, backbone).named_parameters()}

    one, same, other = start(0, 0), start(0, 7), start(1, 0)
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("precision", "expected"), [("float32", None), ("bfloat16", torch.bfloat16), ("float64", None)]
)
def test_a_network_computes_in_half_precision_only_where_it_is_asked_to(small_data, precision, expected):
    wanted = settings(small_data, "mtl-scaled", machine__precision=precision)
    learner = build_learner(wanted, build_backbone(wanted.backbone, *open_data(wanted.data).input_shape))
    assert learner.method.encoder.autocast is expected


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"whitened": False}, r"but this run asks for resnet12 x0\.5: .* use --backbone\.whitened"),
        ({"width": 1.0}, r"but this run asks for resnet12 x1 whitened: .* use --backbone\.width 0\.5"),
        ({"name": "conv4"}, r"but this run asks for conv4 x0\.5 whitened: .* use --backbone\.name resnet12"),
    ],
)
def test_a_kept_backbone_that_does_not_fit_is_explained_by_the_setting_that_differs(changes, advice):
    kept = Path(__file__).parents[2] / "results" / "fc100" / "resnet12-half-whitened-s0"
    wanted = {"name": "resnet12", "width": 0.5, "whitened": True, "pretrained": kept} | changes
    with pytest.raises(SettingsError, match=rf"is resnet12 x0\.5 whitened, {advice}"):
        build_backbone(BackboneSettings(**wanted), 3, 32)

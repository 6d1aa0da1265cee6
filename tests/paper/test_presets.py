"""Every preset holds together, and the two configurations are what the table of decisions says."""

import pytest
import torch

from e3bm.core.hyperprior import FcGenerator, LstmGenerator
from e3bm.data.source import registered_sources
from e3bm.errors import SettingsError
from e3bm.methods import Parts, ReadyFeatures
from e3bm.paper.presets import KINDS, PAPER_PSI_RATE, find_preset, hyperprior_settings, method_settings, presets
from e3bm.paper.presets.configurations import kind_of
from e3bm.runs.assembly import build_backbone, build_generator, build_hyperprior, build_learner
from e3bm.runs.settings import HyperpriorSettings, PretrainSettings, TestSettings, TrainSettings
from e3bm.runs.training.optimisers import build_optimiser, schedule_factor

ALL = presets()
PUBLISHED_CLASSES = {
    name: {split: count.classes for split, count in registered_sources()[name]().card.published.items()}
    for name in registered_sources()
}
METHODS = ("mtl", "mtl-cosine", "sib", "maml")


@pytest.mark.parametrize("name", ALL)
def test_presets_hold_together(name):
    """Settings survive a journey through JSON; methods with a backbone of their own say how it is made."""
    preset = ALL[name]
    assert preset.name == name
    assert TrainSettings.model_validate_json(preset.train.model_dump_json()) == preset.train
    assert TestSettings.model_validate_json(preset.test.model_dump_json()) == preset.test
    if preset.pretrain is not None:
        assert PretrainSettings.model_validate_json(preset.pretrain.model_dump_json()) == preset.pretrain
        assert preset.pretrain.backbone.name == preset.train.backbone.name
        assert preset.pretrain.backbone.width == preset.train.backbone.width
        assert preset.pretrain.backbone.whitened == preset.train.backbone.whitened
        assert preset.pretrain.data.dataset == preset.train.data.dataset
        assert preset.pretrain.data.augment
    scratch = preset.train.method.needs.takes == "images" and "-pretrained-" not in name
    from_scratch = scratch and not name.startswith(("small-mamlpp", "small-tadam"))
    own = tuple(f"paper-{word}" for word in ("proto_nets", "matching_nets", "meta_opt_net", "can", "egnn"))
    assert (preset.pretrain is None) == (from_scratch or name.startswith(own))
    assert preset.train.validation.split == "val"


@pytest.mark.parametrize("name", ALL)
def test_presets_ask_for_no_more_classes_than_their_data_have(name):
    preset = ALL[name]
    counts = PUBLISHED_CLASSES[preset.train.data.dataset]
    validated = preset.train.validation.episode(preset.train.episode)
    tested = preset.test.ways or preset.train.episode.ways
    assert preset.train.episode.ways <= counts["train"]
    assert validated.ways <= counts["val"]
    assert tested <= counts["test"]


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name].train.hyperprior.frozen_from is None])
def test_the_hyperprior_of_every_preset_can_be_built(name):
    train = ALL[name].train
    if train.inner is None:
        assert train.hyperprior == HyperpriorSettings()  # a method without epochs has none
        return
    parts = Parts(ReadyFeatures(32), None, 32, 4 if train.method.name == "maml" else 1)
    build_hyperprior(train.method, train.hyperprior, parts)


def test_every_row_of_the_papers_tables_has_a_preset():
    for data in ("miniimagenet", "tieredimagenet", "fc100"):
        for method in ("maml-conv4", "mtl-resnet12", "mtl-resnet25", "sib-wrn28_10"):
            for shots in (1, 5):
                for kind in KINDS:
                    assert f"paper-{method}-{data}-{shots}shot-{kind}" in ALL


def test_recipes_of_record_of_systems_with_a_backbone_of_their_own():
    can, tiered = (ALL[f"paper-can-resnet12-{data}-5shot"].train for data in ("miniimagenet", "tieredimagenet"))
    assert (can.backbone.name, can.episode.queries, can.optimiser.tasks) == ("resnet12_can", 6, 4)
    assert (can.optimiser.steps, can.optimiser.milestones) == (27_000, (18_000, 21_000, 24_000))
    rate = lambda optimiser, step: 0.1 * schedule_factor(optimiser, step)
    assert [rate(can.optimiser, step) for step in (0, 18_000, 21_000, 26_999)] == pytest.approx(
        [0.1, 0.006, 0.0012, 0.00024]
    )
    assert [rate(tiered.optimiser, 3495 * epoch) for epoch in (0, 20, 40, 60)] == pytest.approx([0.1, 0.01, 1e-3, 1e-4])
    assert ALL["paper-can_t-resnet12-miniimagenet-5shot-plain"].train.optimiser.steps == can.optimiser.steps
    svm = ALL["paper-meta_opt_net-resnet12-fc100-1shot"]
    assert (svm.train.episode.shots, svm.test.shots, svm.train.validation.shots) == (15, 1, 5)
    assert (svm.train.backbone.name, svm.train.method.looks_at_test) == ("resnet12_flat", 3)
    assert svm.train.optimiser.steps * svm.train.optimiser.tasks == 480_000
    egnn = ALL["paper-egnn-conv4-miniimagenet-5shot-plain"].train
    assert (egnn.backbone.name, egnn.optimiser.tasks, egnn.episode.queries) == ("conv4_egnn", 40, 1)
    assert (egnn.method.hidden, egnn.method.embedding, egnn.method.epochs) == (96, 128, 3)
    proto = ALL["paper-proto_nets-conv4-miniimagenet-1shot"]
    assert (proto.train.episode.ways, proto.train.validation.ways, proto.test.ways) == (30, 5, 5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_paper_column_of_the_table_of_decisions(method, kind):
    """residual, v' last, its gradient summary, mean embedding, M, order, LSTM of hidden size 1 without read-out."""
    psi, inner = hyperprior_settings(method, "paper", kind), method_settings(method, "paper")
    assert (psi.rate, psi.weight, psi.mixing, psi.mixing_fraction) == ("generated", "generated", "residual", 1e-4)
    assert psi.weight_start == "last"
    assert psi.summary == {"mtl": "flat", "mtl-cosine": "class_mean", "sib": "class_mean", "maml": "rms"}[method]
    assert psi.embedding
    assert f"{psi.generator}-{psi.setting}" == kind
    assert (psi.hidden, psi.readout, psi.separate) == (1, False, True)
    assert not psi.detach
    assert (psi.kl, psi.constrained) == (0.0, False)
    assert inner.epochs == {"mtl": 100, "mtl-cosine": 100, "sib": 3, "maml": 5}[method]
    assert inner.order == ("first" if method.startswith("mtl") else "second")
    assert inner.rate == {"mtl": 0.01, "mtl-cosine": 0.1, "sib": 1e-3, "maml": 0.01}[method]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_e3bm_column_of_the_table_of_decisions(method, kind):
    """scaled, v' equal and learned, stats, no embedding, second order, the same M, joint LSTM of hidden size 8."""
    psi, inner = hyperprior_settings(method, "e3bm", kind), method_settings(method, "e3bm")
    assert (psi.mixing, psi.weight_start, psi.summary, psi.embedding) == ("scaled", "equal", "stats", False)
    assert (psi.hidden, psi.readout, psi.separate) == (8, True, False)
    assert inner.order == "second"
    assert inner.epochs == method_settings(method, "paper").epochs


@pytest.mark.parametrize("configuration", ["paper", "e3bm"])
@pytest.mark.parametrize("method", METHODS)
def test_plain_is_the_method_alone(configuration, method):
    psi = hyperprior_settings(method, configuration, "plain")
    assert (psi.rate, psi.weight) == ("constant", "last")


def test_paper_presets_train_psi_as_published():
    for name, preset in ALL.items():
        if name.startswith("paper-") and preset.train.inner:
            optimiser = preset.train.optimiser
            rates = (optimiser.psi_rate, optimiser.psi_weight, optimiser.base_rate, optimiser.base_weight)
            assert rates == (PAPER_PSI_RATE,) * 4 == (1e-6,) * 4


def test_published_outer_loops():
    """Optimiser, learning rates, steps, tasks and decay of the four published trainings."""
    parts = lambda name: ALL[name].train.optimiser
    mtl = parts("paper-mtl-resnet25-miniimagenet-1shot-plain")
    assert (mtl.kind, mtl.steps, mtl.tasks, mtl.theta, mtl.encoder) == ("adam", 10_000, 1, 1e-4, 1e-4)
    assert (mtl.schedule, mtl.step_every, mtl.step_factor, mtl.weight_decay) == ("step", 1000, 0.5, 0.0)
    cosine = parts("paper-mtl-resnet12-miniimagenet-1shot-plain")
    assert (cosine.kind, cosine.theta, cosine.encoder, cosine.weight_decay) == ("sgd", 5e-4, 5e-4, 5e-4)
    sib = parts("paper-sib-wrn28_10-miniimagenet-1shot-plain")
    assert (sib.kind, sib.steps, sib.tasks, sib.theta) == ("sgd", 50_000, 1, 1e-3)
    assert find_preset("paper-sib-wrn28_10-miniimagenet-1shot-plain").train.method.gradient_net_rate == 1e-3
    assert (sib.weight_decay, sib.schedule, sib.clip) == (5e-4, "constant", None)
    maml = parts("paper-maml-conv4-miniimagenet-1shot-plain")
    assert (maml.kind, maml.steps, maml.tasks, maml.theta) == ("adam", 60_000, 4, 1e-3)
    assert (maml.clip, maml.clip_elements) == (None, 10.0)


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize(
    ("system", "like"),
    [("leo", "mtl"), ("bmaml", "mtl"), ("mamlpp", "maml-pretrained"), ("mamlpp-per-step", "maml-pretrained")],
)
def test_small_systems_share_backbone_and_episodes_with_the_row_they_are_compared_with(system, like, shots):
    plain, other = (ALL[f"small-{system}-fc100-{shots}shot-{kind}"] for kind in ("plain", "lstm-inductive"))
    assert other.train.but(hyperprior=plain.train.hyperprior) == plain.train
    assert other.train.hyperprior.generated
    beside = ALL[f"small-{like}-fc100-{shots}shot-plain"]
    assert plain.pretrain == beside.pretrain
    assert plain.test == beside.test
    assert (plain.train.data, plain.train.episode) == (beside.train.data, beside.train.episode)


def test_recipes_of_leo_and_maml_plus_plus():
    """A search of LEO's authors for each data set; MAML++ as its code runs, with its second and sixth change off."""
    for data, shots, rate, divergence in (
        ("miniimagenet", 1, 2.74e-4, 0.756),
        ("miniimagenet", 5, 4.10e-4, 0.466),
        ("tieredimagenet", 1, 8.66e-4, 2.03e-3),
        ("tieredimagenet", 5, 6.11e-4, 1.62),
    ):
        leo = ALL[f"paper-leo-wrn28_10-{data}-{shots}shot-plain"].train
        assert (leo.optimiser.kind, leo.optimiser.theta, leo.optimiser.tasks) == ("adam", rate, 12)
        assert (leo.method.divergence, leo.method.epochs, leo.method.latent_steps) == (divergence, 10, 5)
        assert (leo.method.rate, leo.method.latent_rate, leo.method.weight_rate) == (1.0, 1.0, 1e-3)
        clips = (leo.optimiser.clip_elements, leo.optimiser.clip_each, leo.optimiser.clip)
        assert clips == (0.1, 0.1, None)
    mamlpp = ALL["paper-mamlpp-conv4-miniimagenet-5shot-plain"].train
    assert (mamlpp.optimiser.steps, mamlpp.optimiser.tasks, mamlpp.optimiser.theta) == (50_000, 2, 1e-3)
    method = mamlpp.method
    assert (method.epochs, method.rate, method.loss_scale, mamlpp.backbone.batchnorm) == (5, 0.1, "mean", "batch")
    assert (method.training_epochs, method.multi_step_epochs, method.first_order_epochs) == (100, 15, 0)
    assert method.lowest_outer_rate is None


def test_published_recipes_of_tadam_ctm_and_robust_ensembles():
    tadam = ALL["paper-tadam-resnet12-miniimagenet-5shot"].train
    assert (tadam.optimiser.kind, tadam.optimiser.theta, tadam.optimiser.clip_each) == ("sgd", 0.1, 1.0)
    assert not tadam.optimiser.nesterov
    assert (tadam.optimiser.milestones, tadam.optimiser.step_factor) == ((15_000, 17_500, 20_000), 0.1)
    assert ALL["paper-tadam-resnet12-fc100-5shot"].train.optimiser.milestones == (5000, 7500)
    scales = [
        ALL[f"paper-tadam-resnet12-{data}-{shots}shot"].train.method.scale
        for data in ("miniimagenet", "fc100")
        for shots in (1, 5)
    ]
    assert scales == [1.0, 7.5, 2.0, 5.0]
    ctm = ALL["paper-ctm-resnet18-tieredimagenet-1shot"].train
    assert (ctm.optimiser.clip, ctm.optimiser.weight_decay, ctm.optimiser.theta) == (0.5, 5e-4, 1e-3)
    assert [each / ctm.optimiser.steps for each in ctm.optimiser.milestones] == pytest.approx([55 / 110, 75 / 110])
    robust = ALL["paper-robust-wrn28_10-miniimagenet-1shot"]
    assert (robust.train.method.networks, robust.train.method.relation, robust.train.title) == (
        20,
        "robust",
        "Robust20-dist",
    )
    episode = robust.train.episode
    assert episode.ways * (episode.shots + episode.queries) * robust.train.optimiser.tasks == 16
    assert robust.train == ALL["paper-robust-wrn28_10-miniimagenet-5shot"].train
    assert ALL["small-robust-fc100-1shot"].train.title == "Robust3-dist"


@pytest.mark.parametrize("system", ["tadam", "ctm", "robust"])
@pytest.mark.parametrize("shots", [1, 5])
def test_systems_without_an_inner_loop_can_be_looked_up_and_built(system, shots):
    preset = find_preset(f"small-{system}-fc100-{shots}shot")
    assert (preset.test.ways, preset.test.shots) == (5, shots)
    assert kind_of(preset) is None
    size = preset.train.data.image_size or 32
    train = preset.train.but(backbone__pretrained=None)
    learner = build_learner(train, build_backbone(train.backbone, 3, size), classes=60, image_size=size)
    build_optimiser(learner, train.optimiser, train.method.learning_rates())
    assert learner.epochs is None


def test_published_tests_and_statistics():
    maml = ALL["paper-maml-conv4-miniimagenet-5shot-plain"]
    assert (maml.test.episodes, maml.test.queries, maml.train.backbone.batchnorm) == (600, 5, "batch")
    assert maml.train.method.loss_scale == "ways"
    mtl = ALL["paper-mtl-resnet12-fc100-1shot-plain"]
    assert (mtl.test.episodes, mtl.test.queries, mtl.train.data.image_size) == (3000, 15, 84)
    assert mtl.train.backbone.batchnorm == "batch_then_running"
    assert ALL["paper-maml-conv4-fc100-1shot-plain"].train.data.image_size == 32
    assert ALL["small-mtl-fc100-1shot-plain"].train.data.image_size is None  # its own 32 pixels


def test_small_presets_of_both_data_sets_differ_in_data_and_backbone_only():
    small = {name: preset for name, preset in ALL.items() if name.startswith("small-") and "-omniglot-" not in name}
    on_fc100 = {name for name in small if "-fc100-" in name}
    assert {name.replace("-fc100-", "-miniimagenet-") for name in on_fc100} == set(small) - on_fc100
    for name in on_fc100:
        ours, mini = small[name], small[name.replace("-fc100-", "-miniimagenet-")]
        train = mini.train.but(data=ours.train.data)
        if train.validation.ways == 5 != ours.train.validation.ways:  # where training has more ways than there are
            assert ours.train.episode.ways > PUBLISHED_CLASSES["miniimagenet"]["val"]
            train = train.but(validation__ways=None)
        if ours.train.hyperprior.frozen_from is not None:  # a run on the same data
            train = train.but(hyperprior__frozen_from=ours.train.hyperprior.frozen_from)
        assert train == ours.train, name
        assert (mini.test, mini.members, kind_of(mini)) == (ours.test, ours.members, kind_of(ours))
        assert (mini.train.data.dataset, mini.train.data.image_size) == ("miniimagenet", 42)
        assert mini.train.data.augment == ours.train.data.augment
        if ours.pretrain is None:
            assert mini.pretrain is None
        else:
            assert mini.pretrain.but(data=ours.pretrain.data, epochs=ours.pretrain.epochs) == ours.pretrain
            assert mini.pretrain.data.dataset == "miniimagenet"


@pytest.mark.parametrize("shots", [1, 5])
def test_both_arms_of_a_comparison_have_the_same_training(shots):
    for method in ("maml", "mtl", "sib"):
        plain = ALL[f"small-{method}-fc100-{shots}shot-plain"].train
        for kind in KINDS:
            other = ALL[f"small-{method}-fc100-{shots}shot-{kind}"].train
            assert other.but(hyperprior=plain.hyperprior) == plain


@pytest.mark.parametrize(
    ("configuration", "kind", "expected"),
    [
        ("paper", "fc-inductive", 2 * 100 * (1280 + 1)),  # FC per epoch over mean embedding and class-mean gradient
        ("paper", "lstm-inductive", 2 * (4 * 1280 + 4 * 1 + 8)),
        ("paper", "lstm-transductive", 2 * (4 * 1920 + 4 * 1 + 8)),
        ("e3bm", "lstm-inductive", 4 * 8 * 4 + 4 * 8 * 8 + 2 * 4 * 8 + 2 * 8),
    ],
)
def test_generators_have_the_stated_numbers_of_parameters(configuration, kind, expected):
    psi = hyperprior_settings("mtl-cosine", configuration, kind)
    generator = build_generator(psi, 100, Parts(ReadyFeatures(640), None, 640))
    assert isinstance(generator, FcGenerator | LstmGenerator)
    assert sum(parameter.numel() for parameter in generator.parameters()) == expected
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in generator.parameters())


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize(
    "name",
    [
        "proto_nets", "matching_nets", "matching_nets_fce-plain", "matching_nets_fce-lstm-inductive", "meta_opt_net",
        "meta_opt_net-ridge", "meta_opt_net_descent-plain", "meta_opt_net_descent-lstm-inductive",
        "soft_k_means-lstm-transductive", "map_rounds-lstm-transductive", "pt_map-lstm-transductive",
        "tim-lstm-transductive",
    ],
)  # fmt: skip
def test_systems_on_features(name, shots):
    """Named by method and shots; tested with these shots, whatever they were trained with; something is trained."""
    method, _, kind = name.partition("-")
    ridge = kind == "ridge"
    stem = f"small-{method}{'-ridge' if ridge else ''}-fc100-{shots}shot"
    preset = ALL[stem + (f"-{kind}" if kind and not ridge else "")]
    assert preset.train.method.name == method
    assert (preset.test.shots or preset.train.episode.shots) == shots
    train = preset.train.but(backbone__pretrained="weights.safetensors")
    learner = build_learner(train, build_backbone(train.backbone.but(pretrained=None), 3, 32))
    assert build_optimiser(learner, train.optimiser, train.method.learning_rates()).param_groups


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("can", ""),
        ("can_t", "-plain"),
        ("can_t", "-lstm-transductive"),
        ("egnn", "-plain"),
        ("egnn", "-lstm-transductive"),
        ("egnn-inductive", "-plain"),
        ("egnn-inductive", "-lstm-inductive"),
    ],
)
def test_systems_on_maps_and_graphs(name, kind, shots):
    """Named by method, shots and hyperprior; the model can be built, for maps of 4x4 positions."""
    preset = ALL[f"small-{name}-fc100-{shots}shot{kind}"]
    assert preset.train.episode.shots == shots
    assert preset.train.method.transductive == ("inductive" not in name and name != "can")
    train = preset.train.but(backbone__pretrained="weights.safetensors")
    learner = build_learner(
        train, build_backbone(train.backbone.but(pretrained=None), 3, 32), classes=60, image_size=32
    )
    if name.startswith("can"):
        assert (learner.method.channels, learner.method.positions, learner.method.classes) == (320, 16, 60)


def test_unknown_names_are_told_what_there_is():
    with pytest.raises(SettingsError, match="Did you mean small-mtl-fc100-1shot-plain"):
        find_preset("small-mtl-fc100-1shot-plan")
    with pytest.raises(SettingsError, match="Did you mean small-can-fc100-1shot or small-can_t-fc100-1shot-plain"):
        find_preset("small-can-fc100-1shot-plain")
    with pytest.raises(SettingsError, match="Did you mean small-can_t-fc100-1shot-plain or small-can_t-fc100-1shot-ls"):
        find_preset("small-can_t-fc100-1shot")
    with pytest.raises(SettingsError, match="There is no configuration for 'protonet'; known: mtl"):
        method_settings("protonet", "paper")


def test_every_preset_states_its_normalisation():
    for name, preset in presets().items():
        assert preset.train.data.normalisation is not None, name
        assert preset.pretrain is None or preset.pretrain.data.normalisation is not None, name

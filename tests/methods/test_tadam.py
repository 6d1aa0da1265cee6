"""TADAM: what conditioning does and does not touch, limits, permutations, padding, derivatives."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from e3bm.backbones import BACKBONES, build, encode, fold_batchnorm, pop_statistics, wrap
from e3bm.backbones.encode import EarlierStages, StagedEncoder, TaskEncoder
from e3bm.backbones.tadam_resnet import TadamResNet
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.errors import DataError, SettingsError
from e3bm.methods import Parts, ReadyFeatures
from e3bm.methods.tadam import FilmNetwork, Tadam, TadamSettings, auxiliary_probability, conditioned_layers

WAYS, SHOTS, QUERIES, SIDE = 3, 2, 4, 8


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def model(batchnorm="running", *, switched_on=True, **options):
    return varied(Tadam(TaskEncoder(TadamResNet([2, 2, 3, 4], channels=1), batchnorm), **options).double(), switched_on)


def varied(tadam, switched_on=True):
    for layer in tadam.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)
        if isinstance(layer, FilmNetwork) and switched_on:
            nn.init.normal_(layer.scale)
    return tadam


def tasks(count=2, mask=None, side=SIDE):
    support = torch.randn(count, WAYS * SHOTS, 1, side, side, dtype=torch.float64)
    query = torch.randn(count, QUERIES, 1, side, side, dtype=torch.float64)
    labels = torch.arange(WAYS).repeat_interleave(SHOTS).expand(count, -1).contiguous()
    return TaskBatch(support, labels, query, torch.randint(WAYS, (count, QUERIES)), WAYS, mask)


def numbered(batch):
    """The same tasks with the numbers of their classes in a training set of seven."""
    numbers = torch.tensor([[5, 1, 6], [3, 2, 5]])
    return replace(
        batch,
        support_classes=numbers.gather(1, batch.support_labels),
        query_classes=numbers.gather(1, batch.query_labels),
    )


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_without_conditioning_it_is_prototypical_networks_with_a_scale():
    tadam, batch = model(switched_on=False, scale=3.0), tasks()
    support, query = tadam.encoder(batch.support), tadam.encoder(batch.query)
    means = support.view(2, WAYS, SHOTS, -1).mean(2)
    close(tadam.scores(batch), -3.0 * torch.cdist(query, means, compute_mode="donot_use_mm_for_euclid_dist"))


def test_the_scale_scales_the_scores():
    batch, tadam = tasks(), model(scale=1.0)
    before = tadam.scores(batch)
    nn.init.constant_(tadam.scale, 2.5)
    close(tadam.scores(batch), 2.5 * before)


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
def test_conditioning_multiplies_and_shifts_between_batchnorm_and_activation(batchnorm):
    tadam, batch = model(batchnorm), tasks(1)
    films = tadam.embedding(torch.randn(1, 4, dtype=torch.float64))
    found = tadam.conditioned(batch.query, films)
    for name, film in films.items():
        put = lambda layer, inputs, output, film=film: (
            (1 + film.gamma[0])[:, None, None] * output + film.beta[0][:, None, None]
        )
        tadam.encoder.backbone.get_submodule(name).register_forward_hook(put)
    close(found, tadam.encoder(batch.query))


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
def test_tasks_do_not_know_of_one_another(batchnorm):
    tadam, batch = model(batchnorm), tasks(3)
    alone = [tadam.scores(batch.tasks(task, task + 1)) for task in range(3)]
    close(tadam.scores(batch), torch.cat(alone))


@pytest.mark.parametrize(
    ("name", "last", "stages"), [("resnet12_tadam", 4, 2), ("resnet12", 2, 4), ("resnet12", 12, 1)]
)
@pytest.mark.parametrize("padded", [False, True])
def test_kept_stages_give_the_same_scores_as_images(name, last, stages, padded):
    """What is kept of an image, once, by the folded network, against two passes of every image task by task."""
    mask = torch.ones(3, WAYS * SHOTS, dtype=torch.bool)
    mask[1, 3] = not padded
    backbone = build(name, width=0.1, channels=1, image_size=32)
    tadam = varied(Tadam(TaskEncoder(backbone, "running"), conditioned=last).double())
    batch = tasks(3, mask, side=32)
    alone = []
    for task in range(3):
        films = tadam.embedding(class_means(tadam.encoder(batch.support), batch)[task : task + 1].mean(1))
        values = dict(tadam._film_values(films, 0))
        part = batch.tasks(task, task + 1)
        passed = [torch.func.functional_call(tadam.encoder, values, (x,)) for x in (part.support, part.query)]
        alone.append(tadam.scale * -tadam.distances(passed[1], class_means(passed[0], part)))
    expected = torch.cat(alone)
    close(tadam.scores(batch), expected)
    assert tadam.unconditioned_stages() == stages
    earlier = EarlierStages.of(fold_batchnorm(backbone), stages, 32)
    rows = [encode(earlier, images, "running") for images in (batch.support, batch.query)]
    tadam.encoder = StagedEncoder(earlier)
    close(tadam.scores(replace(batch, support=rows[0], query=rows[1])), expected)


def class_means(features, batch):
    one_hot = nn.functional.one_hot(batch.support_labels, WAYS).mT * batch.mask.unsqueeze(1)
    return one_hot.double() @ features / one_hot.sum(-1, keepdim=True)


def test_the_order_of_support_does_not_matter_and_classes_permute_with_their_scores():
    tadam, batch = model(), tasks()
    before = tadam.scores(batch)
    order = torch.randperm(WAYS * SHOTS)
    shuffled = TaskBatch(batch.support[:, order], batch.support_labels[:, order], batch.query, None, WAYS)
    close(tadam.scores(shuffled), before)
    names = torch.tensor([2, 0, 1])
    renamed = TaskBatch(batch.support, names[batch.support_labels], batch.query, None, WAYS)
    close(tadam.scores(renamed)[..., names], before)


def test_a_query_does_not_know_the_others():
    tadam, batch = model(), tasks()
    alone = TaskBatch(batch.support, batch.support_labels, batch.query[:, :1], None, WAYS)
    close(tadam.scores(alone), tadam.scores(batch)[:, :1])


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
def test_padding_has_no_influence(batchnorm):
    mask = torch.ones(2, WAYS * SHOTS, dtype=torch.bool)
    mask[1, 3] = False
    tadam, batch = model(batchnorm), tasks(mask=mask)
    real = mask[1]
    bare = TaskBatch(batch.support[1:, real], batch.support_labels[1:, real], batch.query[1:], None, WAYS)
    close(tadam.scores(batch)[1:], tadam.scores(bare))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_derivatives_by_the_images(metric):
    tadam, batch = model(metric=metric), tasks(1)
    part = lambda images: images[..., :4, :4].clone().requires_grad_()
    scores = lambda support, query: tadam.scores(TaskBatch(support, batch.support_labels, query, None, WAYS))
    assert torch.autograd.gradcheck(scores, (part(batch.support), part(batch.query[:, :2])), fast_mode=True)


def test_derivatives_of_the_embedding_network():
    network = FilmNetwork(3, 2).double()
    nn.init.normal_(network.scale)
    values = [torch.randn(2, 3, dtype=torch.float64), *(p.detach() for p in network.parameters())]
    names = [name for name, _ in network.named_parameters()]
    call = lambda task, *parameters: torch.func.functional_call(
        network, dict(zip(names, parameters, strict=True)), (task,)
    )
    assert torch.autograd.gradcheck(call, tuple(value.requires_grad_() for value in values))


def test_a_query_at_a_class_mean_has_a_finite_derivative():
    tadam, batch = model(), tasks()
    query = batch.support[:, :1].clone().requires_grad_()
    support = batch.support.clone()
    support[:, 1] = support[:, 0]
    scores = tadam.scores(TaskBatch(support, batch.support_labels, query, None, WAYS))
    assert scores[:, 0, 0].abs().max() < 1e-10
    scores.sum().backward()
    assert query.grad.isfinite().all()


def test_at_the_start_only_the_scalars_of_the_embedding_network_learn():
    tadam, batch = model(switched_on=False), tasks()
    tadam.scores(batch).square().sum().backward()
    for name, parameter in tadam.embedding.named_parameters():
        assert bool(parameter.grad.any()) == name.endswith("scale"), name


def test_the_training_loss_is_cross_entropy_penalties_and_co_training():
    tadam, batch = model(classes=7), numbered(tasks())
    trace = tadam(batch)
    plain = meta_loss(trace.scores, batch.query_labels) + tadam.penalty()
    features = tadam.auxiliary(tadam.encoder(batch.support))
    expected = nn.functional.cross_entropy(features.flatten(0, 1), batch.support_classes.flatten())
    close(tadam.training_loss(trace, batch, 0.5), plain + 0.9**11 * expected)
    tadam.auxiliary = None  # without co-training nobody asks for class numbers
    close(tadam.training_loss(trace, replace(batch, support_classes=None, query_classes=None), 0.5), plain)


def test_with_uneven_shots_the_training_loss_is_still_the_mean_over_tasks():
    mask = torch.ones(2, WAYS * SHOTS, dtype=torch.bool)
    mask[1, 3] = False
    tadam, batch = model(classes=7), numbered(tasks(mask=mask))
    losses = [tadam.training_loss(tadam(part), part, 0.1) for part in (batch.tasks(0, 1), batch.tasks(1, 2))]
    close(tadam.training_loss(tadam(batch), batch, 0.1), torch.stack(losses).mean())
    wild = batch.support_classes.clone()
    wild[1, 3] = 0  # the number of padding says nothing
    close(tadam.training_loss(tadam(batch), replace(batch, support_classes=wild), 0.1), torch.stack(losses).mean())


def test_frozen_kernels_are_not_penalised():
    tadam = model()
    tadam.encoder.requires_grad_(False)
    assert tadam.auxiliary_penalty() == 0
    assert tadam.penalty() > 0


def test_the_probability_of_an_auxiliary_step_falls_by_a_tenth_every_twentieth():
    steps = [auxiliary_probability(step / 1000) for step in range(1000)]
    assert steps[0] == steps[49] == 0.9
    assert steps[50] == pytest.approx(0.81)
    assert steps[-1] == pytest.approx(0.9**20)
    assert sum(steps) / 1000 == pytest.approx(sum(0.9**power for power in range(1, 21)) / 20)


def test_each_pass_of_each_task_leaves_its_statistics_once_part_by_part():
    tadam, batch = model("batch_then_running"), tasks()
    tadam.train().scores(batch)
    first_layer, *_ = pop_statistics(tadam)
    assert len(first_layer) == 3 * len(batch)  # support twice, queries once
    conv = tadam.encoder.backbone.blocks[0].residual[0].conv
    seen = conv(batch.support[1]).mean((0, 2, 3))
    close(first_layer[1, 0], seen)
    close(first_layer[3, 0], seen)  # the first convolution reads images, which conditioning has not met yet


@pytest.mark.parametrize("name", list(BACKBONES))
def test_any_backbone_with_batchnorm_can_be_conditioned(name):
    size = 20  # the least that all of them take
    backbone = build(name, width=0.05, channels=1, image_size=size)
    tadam = Tadam(TaskEncoder(backbone, "running"), conditioned=2).double()
    assert len(tadam.embedding.layers) == 2
    batch = TaskBatch(
        torch.randn(1, 3, 1, size, size, dtype=torch.float64),
        torch.arange(3)[None],
        torch.randn(1, 2, 1, size, size, dtype=torch.float64),
        None,
        3,
    )
    before = tadam.scores(batch)
    for network in tadam.embedding.beta:
        nn.init.constant_(network.scale, 0.5)
    # The narrow networks give small features: what matters is a change beyond rounding, however small.
    assert not torch.allclose(tadam.scores(batch), before, rtol=1e-10, atol=0)


def test_shortcuts_are_not_conditioned():
    layers = conditioned_layers(build("resnet12", width=0.05))
    assert len(layers) == 12
    assert not any("shortcut" in name for name in layers)


def test_bad_input_is_refused():
    with pytest.raises(SettingsError, match="TADAM conditions BatchNorm layers that follow convolutions; Wrapped"):
        Tadam(TaskEncoder(wrap(nn.Flatten(), 64), "running"))
    with pytest.raises(SettingsError, match="has 12 of them, and 13 were asked for"):
        model(conditioned=13)
    tadam, batch = model(classes=5), tasks()
    with pytest.raises(DataError, match="TADAM also learns to tell the training classes apart, and this batch does"):
        tadam.training_loss(tadam(batch), batch, 0.0)
    with pytest.raises(DataError, match="built for 5 training classes, numbered from 0; this batch has the number 6"):
        tadam.training_loss(tadam(batch), numbered(batch), 0.0)
    ready = Parts(ReadyFeatures(4), None, 4, classes=9)
    with pytest.raises(SettingsError, match="passes images through its network; set backbone"):
        Tadam.from_settings(TadamSettings(), ready)
    none = Parts(TaskEncoder(TadamResNet([2, 2, 3, 4], channels=1), "running"), None, 4)
    with pytest.raises(SettingsError, match="needs two or more of them; found 0"):
        Tadam.from_settings(TadamSettings(), none)
    assert Tadam.from_settings(TadamSettings(co_training=False), none).auxiliary is None
    with pytest.raises(DataError, match="without training classes"):
        model().auxiliary_scores(torch.zeros(2, 1, SIDE, SIDE, dtype=torch.float64))

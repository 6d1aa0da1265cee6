"""CTM: its mask, what permutes and what does not, padding, limits, derivatives, refusals."""

import pytest
import torch
from torch import nn

from e3bm.backbones import build, pop_statistics, wrap
from e3bm.backbones.encode import MapEncoder
from e3bm.core.episode import TaskBatch
from e3bm.errors import DataError, SettingsError
from e3bm.methods import Parts, ReadyFeatures, ReadyMaps
from e3bm.methods.ctm import Ctm, CtmSettings
from e3bm.methods.heads.labelled import LabelledSupport
from e3bm.settings import read_settings

WAYS, SHOTS, QUERIES, CHANNELS, SIDE = 3, 2, 4, 5, 2
OPTIONS = {
    "examples": {},
    "classes": {"masked": "classes"},
    "relation": {"metric": "relation", "side": SIDE},
    "relation of classes": {"metric": "relation", "side": SIDE, "masked": "classes"},
}


class Ready(nn.Module):
    """Maps that need no encoder."""

    feature_size = CHANNELS

    def forward(self, examples, mask=None):
        return examples


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def model(batchnorm="running", **options):
    ctm = Ctm(Ready(), CHANNELS, ways=WAYS, widths=(2, 3), batchnorm=batchnorm, **options).double()
    for layer in ctm.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)
    return ctm


def tasks(count=2, mask=None, side=SIDE):
    support = torch.randn(count, WAYS * SHOTS, CHANNELS, side, side, dtype=torch.float64)
    query = torch.randn(count, QUERIES, CHANNELS, side, side, dtype=torch.float64)
    labels = torch.arange(WAYS).repeat_interleave(SHOTS).expand(count, -1).contiguous()
    return TaskBatch(support, labels, query, torch.randint(WAYS, (count, QUERIES)), WAYS, mask)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_the_mask_is_a_share_of_each_channel_at_every_position():
    ctm, batch = model(), tasks()
    labelled = LabelledSupport(batch.support_labels, batch.mask, WAYS, torch.float64)
    mask = ctm.mask(ctm.concentrated(batch.support, labelled))
    assert mask.shape == (2, 1, 12, SIDE, SIDE)
    assert (mask > 0).all()
    close(mask.sum(2), torch.ones(2, 1, SIDE, SIDE, dtype=torch.float64))
    assert mask.std() > 1e-3


def test_without_the_projector_scores_are_distances_of_reshaped_maps():
    ctm, batch = model(), tasks()
    last = ctm.projector.backbone.blocks[-1]
    nn.init.zeros_(last.residual[2].norm.weight)
    nn.init.constant_(last.residual[2].norm.bias, -100.0)  # behind ReLU all channels are 0
    support, query = ctm.reshaper(batch.support).flatten(2), ctm.reshaper(batch.query).flatten(2)
    distances = torch.linalg.vector_norm((support[:, None] - query[:, :, None]) / 12 + 1e-6, dim=-1)
    close(ctm.scores(batch), -distances.view(2, QUERIES, WAYS, SHOTS).mean(-1))


def test_without_all_three_nets_one_shot_is_prototypical_networks_with_distances():
    """Blocks that hand positive maps through leave distances of the maps, times the constant mask."""
    ctm = Ctm(Ready(), 4, ways=WAYS, widths=(1,), batchnorm="running").double()
    for net in (ctm.reshaper, ctm.projector):
        nn.init.zeros_(net.backbone.blocks[0].residual[2].norm.weight)
    nn.init.zeros_(ctm.projector.backbone.blocks[0].shortcut.norm.weight)
    support = torch.rand(2, WAYS, 4, SIDE, SIDE, dtype=torch.float64)
    query = torch.rand(2, QUERIES, 4, SIDE, SIDE, dtype=torch.float64)
    batch = TaskBatch(support, torch.arange(WAYS).expand(2, -1), query, None, WAYS)
    expected = torch.cdist(query.flatten(2), support.flatten(2), compute_mode="donot_use_mm_for_euclid_dist") / 4
    torch.testing.assert_close(ctm.scores(batch), -expected, rtol=0, atol=5e-6)  # 1e-6 is added to 16 differences


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_shots_and_queries_may_come_in_any_order(options):
    ctm, batch = model(**options), tasks()
    before = ctm.scores(batch)
    order = torch.tensor([1, 0, 3, 2, 5, 4])
    turned = TaskBatch(batch.support[:, order], batch.support_labels[:, order], batch.query.flip(1), None, WAYS)
    close(ctm.scores(turned), before.flip(1))


def test_the_order_of_classes_matters():
    ctm, batch = model(), tasks()
    names = torch.tensor([2, 0, 1])
    renamed = TaskBatch(batch.support, names[batch.support_labels], batch.query, None, WAYS)
    assert (ctm.scores(renamed)[..., names] - ctm.scores(batch)).abs().max() > 1e-6


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_query_does_not_know_the_others(options):
    ctm, batch = model(**options), tasks()
    alone = TaskBatch(batch.support, batch.support_labels, batch.query[:, :1], None, WAYS)
    close(ctm.scores(alone), ctm.scores(batch)[:, :1])


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_tasks_do_not_know_of_one_another(options, batchnorm):
    ctm, batch = model(batchnorm, **options), tasks(3)
    alone = [ctm.scores(batch.tasks(task, task + 1)) for task in range(3)]
    close(ctm.scores(batch), torch.cat(alone))


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
@pytest.mark.parametrize("over_shots", ["mean", "sum"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_padding_has_no_influence(options, over_shots, batchnorm):
    mask = torch.ones(2, WAYS * SHOTS, dtype=torch.bool)
    mask[1, 3] = False
    ctm, batch = model(batchnorm, over_shots=over_shots, **options), tasks(mask=mask)
    real = mask[1]
    bare = TaskBatch(batch.support[1:, real], batch.support_labels[1:, real], batch.query[1:], None, WAYS)
    close(ctm.scores(batch)[1:], ctm.scores(bare))


@pytest.mark.parametrize("masked", ["examples", "classes"])
def test_the_scale_scales_the_scores(masked):
    batch, ctm = tasks(), model(masked=masked)
    before = ctm.scores(batch)
    ctm.scale = 2.5
    close(ctm.scores(batch), 2.5 * before)


def test_the_published_sum_over_shots_is_their_number_times_the_mean():
    batch, ctm = tasks(), model()
    mean = ctm.scores(batch)
    ctm.over_shots = "sum"
    close(ctm.scores(batch), SHOTS * mean)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_derivatives_by_the_maps(options):
    ctm, batch = model(**options), tasks(1)
    ctm.scores(batch)
    scores = lambda support, query: ctm.scores(TaskBatch(support, batch.support_labels, query, None, WAYS))
    inputs = (batch.support.clone().requires_grad_(), batch.query.clone().requires_grad_())
    assert torch.autograd.gradcheck(scores, inputs, eps=1e-7, atol=1e-6, fast_mode=True)


def test_it_learns_to_look_at_the_one_channel_that_tells_classes_apart():
    ctm = Ctm(Ready(), CHANNELS, ways=WAYS, widths=(2, 2), batchnorm="running").double()
    optimiser = torch.optim.Adam(ctm.parameters(), 0.01)

    def episode():
        batch = tasks(4)
        labels = batch.query_labels
        batch.support[:, :, 0] = 3.0 * batch.support_labels[..., None, None]
        batch.query[:, :, 0] = 3.0 * labels[..., None, None]
        return batch, labels

    losses = []
    for _ in range(60):
        batch, labels = episode()
        loss = nn.functional.cross_entropy(20 * ctm.scores(batch).flatten(0, 1), labels.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


def test_statistics_are_set_aside_part_by_part():
    ctm, batch = model("batch_then_running").train(), tasks()
    ctm.scores(batch)
    reshaper, projector = pop_statistics(ctm.reshaper), pop_statistics(ctm.projector)
    assert {len(layer) for layer in reshaper} == {4}  # support of two tasks, then queries of two tasks
    assert {len(layer) for layer in projector} == {2}
    ctm.eval()
    running = ctm.scores(batch)
    assert pop_statistics(ctm.concentrator)[0].shape[0] == 2  # from training; evaluation adds none
    close(ctm.scores(batch), running)


def test_a_backbone_that_gives_maps_can_be_the_encoder():
    backbone = build("resnet12", width=0.05, channels=1, image_size=16)
    encoder = MapEncoder(backbone, "running", last_pooling=False)
    ctm = Ctm(encoder, backbone.feature_size, ways=WAYS, widths=(2,))
    images = torch.randn(2, WAYS + 1, 1, 16, 16)
    scores = ctm.scores(TaskBatch(images[:, :WAYS], torch.arange(WAYS).expand(2, -1), images[:, WAYS:], None, WAYS))
    assert scores.shape == (2, 1, WAYS)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in ctm.parameters())


def test_the_published_numbers_of_parameters():
    ctm = Ctm(Ready(), 64, ways=5)
    count = lambda net: sum(parameter.numel() for parameter in net.parameters())
    assert [count(net) for net in (ctm.reshaper, ctm.concentrator, ctm.projector)] == [10_160, 10_160, 16_960]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_number_of_shots_is_free(options):
    """A model of two shots answers tasks of one, and shots that are there three times count once."""
    ctm, batch = model(**options), tasks()
    one = TaskBatch(batch.support[:, ::SHOTS], batch.support_labels[:, ::SHOTS], batch.query, None, WAYS)
    assert ctm.scores(one).shape == (2, QUERIES, WAYS)
    again = lambda values: values.repeat_interleave(3, 1)
    thrice = TaskBatch(again(batch.support), again(batch.support_labels), batch.query, None, WAYS)
    close(ctm.scores(thrice), ctm.scores(batch))


def test_bad_input_is_refused():
    batch = tasks()
    with pytest.raises(SettingsError, match="made for 4 ways because of its projector"):
        Ctm(Ready(), CHANNELS, ways=4, widths=(2,)).double().scores(batch)
    with pytest.raises(DataError, match=r"takes feature maps \[tasks, examples, 7 channels"):
        Ctm(Ready(), 7, ways=WAYS, widths=(2,)).double().scores(batch)
    features = TaskBatch(batch.support[..., 0, 0], batch.support_labels, batch.query[..., 0, 0], None, WAYS)
    with pytest.raises(DataError, match="takes feature maps"):
        Ctm(ReadyFeatures(CHANNELS), CHANNELS, ways=WAYS, widths=(2,)).double().scores(features)
    with pytest.raises(SettingsError, match="say the maps' `side`"):
        model(metric="relation")
    with pytest.raises(SettingsError, match="needs 2x2 or more, found 1x1"):
        model(metric="relation", side=1)
    with pytest.raises(SettingsError, match="one block or more"):
        Ctm(Ready(), CHANNELS, ways=WAYS, widths=())
    with pytest.raises(DataError, match="Batch statistics need more than one value per channel"):
        model("batch").scores(tasks(side=1))
    with pytest.raises(SettingsError, match="build it with the shape of the maps"):
        Ctm.from_settings(CtmSettings(), Parts(ReadyFeatures(CHANNELS), None, CHANNELS))
    single = Parts(ReadyMaps((CHANNELS, 1, 1)), None, CHANNELS, map_shape=(CHANNELS, 1, 1))
    with pytest.raises(SettingsError, match="a map of 1x1 has no batch statistics; take larger images"):
        Ctm.from_settings(CtmSettings(), single)
    assert Ctm.from_settings(CtmSettings(batchnorm="running"), single).channels == CHANNELS
    for widths, reason in (((), "at least 1 item"), ((2, 0), "greater than or equal to 1")):
        with pytest.raises(SettingsError, match=reason):
            read_settings(CtmSettings, {"widths": widths})
    without = MapEncoder(wrap(nn.Flatten(), CHANNELS, channels=CHANNELS), "running")
    with pytest.raises(SettingsError, match="needs feature maps; choose one of the backbones"):
        Ctm(without, CHANNELS, ways=WAYS, widths=(2,)).scores(batch)

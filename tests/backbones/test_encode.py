"""Tasks through a backbone: kept apart with batch statistics, merged with running ones; exact derivatives."""

import copy

import pytest
import torch
from torch import nn

from e3bm.backbones import build, commit_statistics, encode, fold_batchnorm, pop_statistics, wrap
from e3bm.backbones.encode import TaskEncoder
from e3bm.backbones.normalisation import task_batchnorms
from e3bm.errors import DataError, SettingsError


def small(**options):
    return build("conv4", **{"width": 0.25, "image_size": 16, "channels": 1, **options}).double()


def images(tasks=3, examples=4, channels=1, size=16):
    return torch.randn(tasks, examples, channels, size, size, dtype=torch.float64)


def test_with_batch_statistics_a_task_does_not_notice_the_others():
    backbone, batch = small(), images()
    together = encode(backbone, batch, "batch")
    for task in range(3):
        assert torch.equal(encode(backbone, batch[task : task + 1], "batch")[0], together[task])
    assert torch.equal(encode(backbone, batch.flip(0), "batch"), together.flip(0))


def test_with_batch_statistics_an_image_does_notice_its_company():
    backbone, batch = small(), images()
    assert not torch.allclose(encode(backbone, batch, "batch")[:, :2], encode(backbone, batch[:, :2], "batch"))


def test_running_statistics_equal_the_flattened_pass_in_eval_mode():
    backbone, batch = small(), images()
    backbone(5 + images().flatten(0, 1))  # moves the running statistics away from their start
    for training in (True, False):
        features = encode(backbone.train(training), batch, "running", chunk_size=5)
        expected = copy.deepcopy(backbone).eval()(batch.flatten(0, 1)).view(3, 4, -1)
        torch.testing.assert_close(features, expected, rtol=1e-13, atol=1e-13)
    assert not torch.allclose(features, encode(backbone, batch, "batch"))


def test_modes_and_training_flag_are_left_as_they_were():
    backbone = small()
    encode(backbone, images(), "batch", update=True)
    assert backbone.training
    assert {(layer.mode, layer.update) for layer in task_batchnorms(backbone)} == {("standard", False)}


def test_update_sets_one_record_per_task_aside():
    backbone, batch = small(), images()
    reference = copy.deepcopy(backbone)
    before = copy.deepcopy(backbone.state_dict())
    encode(backbone, batch, "batch", update=True)
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())
    popped = pop_statistics(backbone)
    assert [layer.shape[0] for layer in popped] == [3] * 4
    commit_statistics(backbone, popped)
    for task in batch:
        reference(task)  # torch's own updates, one training batch after the other
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(backbone.state_dict()[name], value, rtol=1e-13, atol=1e-13, msg=name)


@pytest.mark.parametrize("mode", ["batch", "running"])
def test_padding_has_no_influence(mode):
    backbone, batch = small(), images()
    mask = torch.tensor([[True, True, True, True], [True, False, True, False], [True, True, False, False]])
    features = encode(backbone, batch, mode, mask=mask)
    for task in range(3):
        alone = encode(backbone, batch[task][mask[task]][None], mode)[0]
        torch.testing.assert_close(features[task][mask[task]], alone, rtol=1e-13, atol=1e-13)
    assert torch.equal(features[~mask], torch.zeros_like(features[~mask]))
    garbage = batch.clone()
    garbage[~mask] = float("nan")
    assert torch.equal(encode(backbone, garbage, mode, mask=mask), features)


@pytest.mark.parametrize("mode", ["batch", "running"])
def test_first_and_second_derivatives_of_conv4(mode):
    """Through the images, one convolution, one gamma and one beta; random float64 points lie away from ties."""
    backbone = small()
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
    names = ["blocks.0.norm.weight", "blocks.3.norm.bias", "blocks.3.conv.weight"]
    values = [dict(backbone.named_parameters())[name].clone().requires_grad_() for name in names]
    values[-1] = values[-1].detach()[:2, :2].clone().requires_grad_()
    rest = dict(backbone.named_parameters())["blocks.3.conv.weight"]
    batch = images(tasks=2, examples=2)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = backbone

        def forward(self, batch):
            return encode(self.backbone, batch, mode, update=mode == "batch")

    def features(gamma, beta, corner):
        weight = torch.cat([torch.cat([corner, rest[:2, 2:]], 1), rest[2:]])
        state = dict(zip([f"backbone.{name}" for name in names], (gamma, beta, weight), strict=True))
        return torch.func.functional_call(Encoder(), state, (batch,))

    assert torch.autograd.gradcheck(features, values, fast_mode=False)
    assert torch.autograd.gradgradcheck(features, values, fast_mode=True)


@pytest.mark.parametrize("name", ["resnet12", "resnet18", "wrn28_10", "wrn28_10_sib"])
def test_first_and_second_derivatives_of_residual_nets(name):
    """Activations and sums work in place; derivatives through a direction of the images must survive it."""
    backbone = build(name, width=0.01, channels=1, image_size=16).double()
    start, direction = images(tasks=1, examples=2), images(tasks=1, examples=2)

    def features(step):
        return encode(backbone, start + step * direction, "batch")

    step = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(features, step, eps=1e-7)
    assert torch.autograd.gradgradcheck(features, step, eps=1e-7)


def test_a_wrapped_network_keeps_tasks_apart_too():
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2)).double()
    backbone, batch = wrap(module, 16, channels=1), images()
    together = encode(backbone, batch, "batch")
    assert together.shape == (3, 4, 16)
    assert torch.equal(encode(backbone, batch[1:2], "batch")[0], together[1])


def test_a_wrong_feature_size_of_a_wrapped_network_is_told():
    with pytest.raises(DataError, match=r"gave 4 features .* expected 5"):
        wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)), 5)(torch.randn(1, 3, 8, 8))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("shape", [(4, 1, 16, 16), (2, 4, 3, 16, 16), (2, 0, 1, 16, 16)])
def test_wrong_image_shapes_are_told(shape):
    with pytest.raises(DataError, match=r"1 channels.*found shape \(" + ", ".join(map(str, shape))):
        encode(small(), torch.zeros(shape, dtype=torch.float64), "running")


def test_images_of_another_size_than_conv4_was_built_for_are_told():
    with pytest.raises(DataError, match=r"built for images of 16 x 16 pixels, found 32 x 32"):
        encode(small(), images(size=32), "running")


def test_a_task_of_nothing_but_padding_is_told():
    mask = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    with pytest.raises(DataError, match=r"a real image in every task.*\[4, 0, 4\]"):
        encode(small(), images(), "batch", mask=mask)


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_mode_is_told():
    with pytest.raises(SettingsError, match="no encoding mode 'standard'; known: batch, running"):
        encode(small(), images(), "standard")


def test_a_folded_backbone_refuses_batch_statistics():
    with pytest.raises(SettingsError, match="folded"):
        encode(fold_batchnorm(small()), images(), "batch")


def test_updating_needs_batch_statistics():
    with pytest.raises(SettingsError, match="updated from batch statistics only"):
        encode(small(), images(), "running", update=True)


@pytest.mark.parametrize("batchnorm", ["batch", "running", "batch_then_running"])
@pytest.mark.parametrize("training", [True, False])
def test_whose_statistics_an_encoder_uses_and_when_it_sets_its_own_aside(batchnorm, training):
    """An image's features depend on its company in `batch`, and while `batch_then_running` is being trained."""
    backbone, batch = small(), images()
    backbone(5 + images().flatten(0, 1))  # moves the running statistics away from their start
    encoder = TaskEncoder(backbone, batchnorm).train(training)
    alone = encoder(batch[:, :2])
    taken = [len(calls) for calls in pop_statistics(encoder)]
    own = batchnorm == "batch" or (batchnorm == "batch_then_running" and training)
    assert torch.allclose(encoder(batch)[:, :2], alone, rtol=1e-10, atol=1e-10) is not own
    assert taken == [3 if batchnorm == "batch_then_running" and training else 0] * 4

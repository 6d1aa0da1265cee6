"""TaskBatchNorm2d against nn.BatchNorm2d, and running statistics that do not depend on who computed them."""

import copy

import pytest
import torch
from torch import nn

from e3bm.backbones import TaskBatchNorm2d, batchnorm_mode, commit_statistics, pop_statistics, set_batchnorm
from e3bm.backbones.normalisation import convert_batchnorm
from e3bm.errors import DataError, SettingsError


def pair(dtype=torch.float32, momentum=0.1, affine=True):
    """torch's layer and ours, in the same trained-looking state."""
    theirs = nn.BatchNorm2d(6, momentum=momentum, affine=affine).to(dtype)
    if affine:
        nn.init.uniform_(theirs.weight, 0.5, 1.5)
        nn.init.normal_(theirs.bias)
    theirs.running_mean.normal_()
    theirs.running_var.uniform_(0.5, 2.0)
    ours = TaskBatchNorm2d(6, momentum=momentum, affine=affine).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def calls(number, dtype=torch.float32, size=5):
    return [torch.randn(4, 6, size, size, dtype=dtype) * (i + 1) + i for i in range(number)]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 0.9, None])
def test_standard_mode_is_torchs_layer_bit_for_bit(momentum, affine):
    theirs, ours = pair(momentum=momentum, affine=affine)
    for images in calls(3):
        left, right = images.clone().requires_grad_(), images.clone().requires_grad_()
        out, expected = ours(left), theirs(right)
        assert torch.equal(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
        assert torch.equal(left.grad, right.grad)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    theirs.eval()
    ours.eval()
    assert torch.equal(ours(images), theirs(images))


def test_the_state_interchanges_both_ways():
    theirs, ours = pair()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    nn.BatchNorm2d(6).load_state_dict(ours.state_dict())


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_batch_mode_normalises_like_torch_in_training_and_writes_nothing(training, update):
    theirs, ours = pair()
    ours.train(training)
    before = copy.deepcopy(ours.state_dict())
    set_batchnorm(ours, "batch", update)
    for images in calls(3):
        # Torch's layer keeps running statistics meanwhile, and torch may use other code for that.
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-6, atol=1e-6)
    for name, value in before.items():
        assert torch.equal(ours.state_dict()[name], value), name
    assert len(ours.pending) == (3 if update else 0)


@pytest.mark.parametrize("training", [True, False])
def test_running_mode_is_torch_in_eval_whatever_the_training_flag(training):
    theirs, ours = pair()
    ours.train(training)
    set_batchnorm(ours, "running")
    for images in calls(2):
        assert torch.equal(ours(images), theirs.eval()(images))
    assert torch.equal(ours.running_mean, theirs.running_mean)


def test_recorded_statistics_are_mean_and_unbiased_variance():
    _, ours = pair(torch.float64)
    set_batchnorm(ours, "batch", update=True)
    images = calls(3, torch.float64)
    for call in images:
        ours(call)
    (popped,) = pop_statistics(ours)
    assert popped.shape == (3, 2, 6)
    for call, (mean, variance) in zip(images, popped, strict=True):
        torch.testing.assert_close(mean, call.mean((0, 2, 3)), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(variance, call.var((0, 2, 3), unbiased=True), rtol=1e-13, atol=1e-13)
    assert pop_statistics(ours)[0].shape == (0, 2, 6)


@pytest.mark.parametrize("momentum", [0.1, 0.9, None])
def test_committing_equals_torchs_updates_in_the_same_order(momentum):
    theirs, ours = pair(torch.float64, momentum)
    set_batchnorm(ours, "batch", update=True)
    for call in calls(4, torch.float64):
        theirs(call)
        ours(call)
    commit_statistics(ours, pop_statistics(ours))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-14, atol=1e-14)
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 4


def test_two_processes_that_gather_commit_what_one_would_bit_for_bit():
    network = nn.Sequential(TaskBatchNorm2d(6), nn.Conv2d(6, 4, 3), TaskBatchNorm2d(4))
    set_batchnorm(network, "batch", update=True)
    first, second = copy.deepcopy(network), copy.deepcopy(network)
    tasks = calls(4)
    for task in tasks:
        network(task)
    for replica, share in ((first, tasks[:2]), (second, tasks[2:])):
        for task in share:
            replica(task)
    gathered = [torch.cat(layers) for layers in zip(pop_statistics(first), pop_statistics(second), strict=True)]
    for replica in (first, second):
        commit_statistics(replica, gathered)
    commit_statistics(network, pop_statistics(network))
    for name, value in network.state_dict().items():
        assert torch.equal(first.state_dict()[name], value), name
        assert torch.equal(second.state_dict()[name], value), name


def test_the_order_of_tasks_matters_and_is_kept():
    _, ours = pair(torch.float64)
    set_batchnorm(ours, "batch", update=True)
    for call in calls(2, torch.float64):
        ours(call)
    (popped,) = pop_statistics(ours)
    backwards = copy.deepcopy(ours)
    commit_statistics(ours, [popped])
    commit_statistics(backwards, [popped.flip(0)])
    assert not torch.allclose(ours.running_mean, backwards.running_mean)


def test_a_commit_between_forward_and_backward_changes_no_gradient():
    _, ours = pair(torch.float64)
    images = torch.randn(4, 6, 5, 5, dtype=torch.float64, requires_grad=True)

    def gradient(commit):
        layer = copy.deepcopy(ours)
        set_batchnorm(layer, "running")
        loss = layer(images).pow(3).sum()
        if commit:
            commit_statistics(layer, [torch.rand(1, 2, 6, dtype=torch.float64)])
        return torch.autograd.grad(loss, images)[0]

    assert torch.equal(gradient(commit=True), gradient(commit=False))


@pytest.mark.parametrize("mode", ["standard", "batch", "running"])
def test_first_and_second_derivatives(mode):
    _, ours = pair(torch.float64)
    set_batchnorm(ours, mode, update=mode == "batch")
    images = torch.randn(3, 6, 2, 2, dtype=torch.float64, requires_grad=True)
    weight, bias = (p.detach().clone().requires_grad_() for p in (ours.weight, ours.bias))

    def layer(images, weight, bias):
        return torch.func.functional_call(ours, {"weight": weight, "bias": bias}, (images,))

    assert torch.autograd.gradcheck(layer, (images, weight, bias))
    assert torch.autograd.gradgradcheck(layer, (images, weight, bias))


def test_a_mode_for_a_while_is_undone_also_after_an_error():
    network = nn.Sequential(TaskBatchNorm2d(2), TaskBatchNorm2d(2))
    network[1].mode, network[1].update = "running", True
    with pytest.raises(ZeroDivisionError), batchnorm_mode(network, "batch"):  # noqa: PT012
        assert [layer.mode for layer in network] == ["batch", "batch"]
        raise ZeroDivisionError
    assert [(layer.mode, layer.update) for layer in network] == [("standard", False), ("running", True)]


def test_one_value_per_channel_has_no_batch_statistics():
    _, ours = pair()
    set_batchnorm(ours, "batch")
    with pytest.raises(DataError, match=r"more than one value per channel.*\(1, 6, 1, 1\)"):
        ours(torch.randn(1, 6, 1, 1))


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_mode_is_refused():
    with pytest.raises(SettingsError, match="no BatchNorm mode 'instance'; known: standard, batch, running"):
        set_batchnorm(TaskBatchNorm2d(2), "instance")


def test_statistics_of_another_network_are_refused():
    network = nn.Sequential(TaskBatchNorm2d(2), TaskBatchNorm2d(3))
    with pytest.raises(SettingsError, match="2 BatchNorm layers but statistics for 1"):
        commit_statistics(network, [torch.zeros(1, 2, 2)])
    with pytest.raises(SettingsError, match=r"layer of 3 channels .* \(1, 2, 2\)"):
        commit_statistics(network, [torch.zeros(1, 2, 2), torch.zeros(1, 2, 2)])


def test_converting_keeps_parameters_buffers_settings_and_the_training_flag():
    plain = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Sequential(nn.BatchNorm2d(6, eps=0.1, momentum=None))).eval()
    before = dict(plain.state_dict(keep_vars=True))
    converted = convert_batchnorm(plain)
    layer = converted[1][0]
    assert isinstance(layer, TaskBatchNorm2d)
    assert (layer.eps, layer.momentum, layer.training) == (0.1, None, False)
    after = converted.state_dict(keep_vars=True)
    assert before.keys() == after.keys()
    assert all(after[name] is value for name, value in before.items())


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.BatchNorm2d(3, track_running_stats=False)])
def test_layers_that_would_mix_tasks_are_refused(layer):
    with pytest.raises(SettingsError, match="cannot keep each task's statistics apart"):
        convert_batchnorm(nn.Sequential(layer))

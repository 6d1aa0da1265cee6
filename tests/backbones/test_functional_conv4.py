"""The fast 4CONV against the plain one: values, gradients and gradients of gradients, exact in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

from e3bm.backbones import batchnorm_mode, build, fold_batchnorm, pop_statistics, scale_and_shift
from e3bm.backbones.double_backward import convolve, pool_with_moments, scaled_relu
from e3bm.errors import DataError

NETWORKS = [
    ("conv4", {"image_size": 16}),
    ("conv4", {"image_size": 21, "channels": 1}),  # odd at the first block
    ("conv4", {"image_size": 27, "bias": False}),  # odd at the second and the last block
    ("conv4_stride", {"image_size": 17}),
    ("conv4_stride", {"image_size": 18, "average": True}),
]


def exact(found, expected):
    """Equal to 1e-12 of the largest entry: a small one may be the rest of large terms that all but cancel."""
    largest = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12 * largest)


def network(name, options):
    """A narrow 4CONV with scales of both signs and running statistics that are not 0 and 1."""
    backbone = build(name, width=0.01, **options).double()
    for block in backbone.blocks:
        nn.init.normal_(block.norm.weight)
        nn.init.normal_(block.norm.bias)
        nn.init.normal_(block.norm.running_mean)
        nn.init.uniform_(block.norm.running_var, 0.5, 2.0)
        if block.conv.bias is not None:
            nn.init.normal_(block.conv.bias)
    signs = torch.cat([block.norm.weight for block in backbone.blocks]).sign()
    assert (signs < 0).any()
    assert (signs > 0).any()
    return backbone


def pictures(backbone, examples):
    return torch.randn(examples, backbone.channels, backbone.image_size, backbone.image_size, dtype=torch.float64)


def running(backbone):
    return [torch.stack([block.norm.running_mean, block.norm.running_var]) for block in backbone.blocks]


def plain(backbone, mode):
    """The same function through the network's own layers."""

    def features(parameters, images):
        with batchnorm_mode(backbone, mode):
            return functional_call(backbone, parameters, (images,))

    return features


def fast(backbone, mode):
    run = backbone.functional_pass()
    statistics = None if mode == "batch" else running(backbone)
    return lambda parameters, images: run(parameters, images, statistics)[0]


def adapted_loss(features, backbone, images, query, head):
    """The loss of queries after two steps of gradient descent on everything but BatchNorm."""
    parameters, weight = dict(backbone.named_parameters()), head
    names = [name for name in parameters if ".norm." not in name]
    labels = torch.arange(len(images)) % 3
    inner = []
    for _ in range(2):
        loss = 3 * F.cross_entropy(features(parameters, images) @ weight, labels)
        gradients = torch.autograd.grad(loss, [parameters[name] for name in names] + [weight], create_graph=True)
        parameters |= {name: parameters[name] - 0.1 * part for name, part in zip(names, gradients[:-1], strict=True)}
        weight = weight - 0.1 * gradients[-1]
        inner.append(gradients)
    loss = F.cross_entropy(features(parameters, query) @ weight, torch.arange(len(query)) % 3)
    return loss, inner


@pytest.mark.parametrize("mode", ["batch", "running"])
@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_values_gradients_and_meta_gradients_are_those_of_the_plain_network(name, options, mode):
    backbone = network(name, options)
    images, query = pictures(backbone, 4), pictures(backbone, 6)
    head = torch.randn(backbone.feature_size, 3, dtype=torch.float64, requires_grad=True)
    everything = [*backbone.parameters(), head]
    results = []
    for pass_ in (plain(backbone, mode), fast(backbone, mode)):
        loss, inner = adapted_loss(pass_, backbone, images, query, head)
        meta = torch.autograd.grad(loss, everything)
        results.append([pass_(dict(backbone.named_parameters()), query), loss, *inner[0], *inner[1], *meta])
    assert max(part.abs().max() for part in results[0][-len(everything) :]) > 1e-3
    for expected, found in zip(*results, strict=True):
        exact(found, expected)


def test_images_may_need_gradients_too():
    backbone = network("conv4", {"image_size": 16})
    images = pictures(backbone, 3).requires_grad_()
    results = []
    for pass_ in (plain(backbone, "batch"), fast(backbone, "batch")):
        features = pass_(dict(backbone.named_parameters()), images)
        (first,) = torch.autograd.grad(features.square().sum(), images, create_graph=True)
        results.append((first, *torch.autograd.grad(first.square().sum(), [images, *backbone.parameters()])))
    for expected, found in zip(*results, strict=True):
        exact(found, expected)


def test_a_bias_before_own_statistics_has_a_gradient_of_exactly_zero():
    backbone = network("conv4", {"image_size": 16})
    features = fast(backbone, "batch")(dict(backbone.named_parameters()), pictures(backbone, 3))
    features.square().sum().backward()
    for block in backbone.blocks:
        assert torch.equal(block.conv.bias.grad, torch.zeros_like(block.conv.bias))


@pytest.mark.parametrize("mode", ["batch", "running"])
@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_observed_statistics_are_those_that_batchnorm_sets_aside(name, options, mode):
    backbone = network(name, options)
    images = pictures(backbone, 4)
    run = backbone.functional_pass()
    given = None if mode == "batch" else running(backbone)
    _, seen = run(dict(backbone.named_parameters()), images, given, observe=True)
    assert not any(part.requires_grad for part in seen)
    if mode == "batch":
        with batchnorm_mode(backbone, "batch", update=True):
            backbone(images)
        expected = [calls[0] for calls in pop_statistics(backbone)]
    else:
        expected = []
        keep = lambda _, inputs: expected.append(torch.stack(torch.var_mean(inputs[0].detach(), (0, 2, 3))[::-1]))
        for block in backbone.blocks:
            block.norm.register_forward_pre_hook(keep)
        with batchnorm_mode(backbone, "running"):
            backbone(images)
    assert len(seen) == len(expected) == 4
    for found, wanted in zip(seen, expected, strict=True):
        exact(found, wanted)


def test_nothing_is_observed_unless_asked():
    backbone = network("conv4", {"image_size": 16})
    assert backbone.functional_pass()(dict(backbone.named_parameters()), pictures(backbone, 2))[1] == ()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [4, 5])
def test_the_convolution_is_right_to_second_order(stride, size):
    images = torch.randn(2, 2, size, size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    exact(convolve(images, weight, stride), F.conv2d(images, weight, stride=stride, padding=1))
    assert gradcheck(lambda *both: convolve(*both, stride), (images, weight))
    assert gradgradcheck(lambda *both: convolve(*both, stride), (images, weight))
    assert gradgradcheck(lambda only: convolve(images.detach(), only, stride), (weight,))
    assert gradgradcheck(lambda only: convolve(only, weight.detach(), stride), (images,))


@pytest.mark.parametrize("size", [4, 5])
def test_pooling_with_moments_is_right_to_second_order(size):
    # A permutation of evenly spaced numbers: no two are close enough for a finite difference to change the largest.
    count = 2 * 3 * size * size
    maps = ((torch.randperm(count).double() - count / 2) / 10).view(2, 3, size, size).requires_grad_()
    falling = torch.tensor([1.0, -0.5, 0.0], dtype=torch.float64)
    pooled, mean, variance = pool_with_moments(maps, falling)
    sign = torch.tensor([1.0, -1.0, 1.0]).view(3, 1, 1)
    exact(pooled, sign * F.max_pool2d(sign * maps, 2))
    exact(mean, maps.mean((0, 2, 3)))
    exact(variance, maps.var((0, 2, 3), correction=0))
    assert gradcheck(lambda only: pool_with_moments(only, falling), (maps,))
    assert gradgradcheck(lambda only: pool_with_moments(only, falling), (maps,))


def test_scale_shift_and_relu_are_right_to_second_order():
    maps, scale, shift = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 3, 3, 2), (3,), (3,)))
    plain_ = scale.view(1, 3, 1, 1) * maps + shift.view(1, 3, 1, 1)
    assert plain_.abs().min() > 1e-3  # away from the corner of the ReLU
    inputs = tuple(part.requires_grad_() for part in (maps, scale, shift))
    exact(scaled_relu(*inputs), plain_.relu())
    assert gradcheck(scaled_relu, inputs)
    assert gradgradcheck(scaled_relu, inputs)


def test_single_precision_is_close():
    backbone = build("conv4", image_size=32)
    images, parameters = torch.randn(5, 3, 32, 32), dict(backbone.named_parameters())
    torch.testing.assert_close(
        fast(backbone, "batch")(parameters, images), plain(backbone, "batch")(parameters, images), rtol=1e-4, atol=1e-4
    )


def test_a_changed_network_offers_no_fast_pass():
    assert fold_batchnorm(build("conv4", width=0.25, image_size=16)).functional_pass() is None
    assert scale_and_shift(build("conv4", width=0.25, image_size=16)).functional_pass() is None


def test_errors_are_those_of_the_plain_network(without_shape_checks):
    backbone = network("conv4", {"image_size": 16})
    with pytest.raises(DataError, match="built for images of 16 x 16 pixels, found 20 x 20"):
        fast(backbone, "batch")(dict(backbone.named_parameters()), torch.zeros(2, 3, 20, 20, dtype=torch.float64))
    strided = network("conv4_stride", {"image_size": 16})
    with pytest.raises(DataError, match="more than one value per channel"):
        fast(strided, "batch")(dict(strided.named_parameters()), pictures(strided, 1))
    alone = fast(strided, "running")(dict(strided.named_parameters()), pictures(strided, 1))
    assert alone.shape == (1, strided.feature_size)

"""Published checkpoints: files with the field's names and shapes become our backbones, or say why not."""

import json
import os
from collections import OrderedDict

import pytest
import safetensors
import torch
import torch.nn.functional as F

from e3bm.backbones import build
from e3bm.errors import CheckpointError, SettingsError
from e3bm.runs.import_weights import import_weights

WIDTH = 0.125


def norm(name, size):
    return {
        f"{name}.weight": (size,),
        f"{name}.bias": (size,),
        f"{name}.running_mean": (size,),
        f"{name}.running_var": (size,),
        f"{name}.num_batches_tracked": (),
    }


def resnet12(widths=(64, 160, 320, 640)):
    shapes, inputs = {}, 3
    for stage, size in enumerate(widths, 1):
        for j in (1, 2, 3):
            shapes[f"layer{stage}.0.conv{j}.weight"] = (size, inputs if j == 1 else size, 3, 3)
            shapes |= norm(f"layer{stage}.0.bn{j}", size)
        shapes[f"layer{stage}.0.downsample.0.weight"] = (size, inputs, 1, 1)
        shapes |= norm(f"layer{stage}.0.downsample.1", size)
        inputs = size
    return shapes


def basic_resnet(stem, widths, depth, bias):
    shapes, inputs = {"conv1.weight": (stem, 3, 3, 3), **norm("bn1", stem)}, stem
    if bias:
        shapes["conv1.bias"] = (stem,)
    for stage, size in enumerate(widths, 1):
        for block in range(depth):
            for j in (1, 2):
                shapes[f"layer{stage}.{block}.conv{j}.weight"] = (size, inputs if j == 1 else size, 3, 3)
                shapes |= norm(f"layer{stage}.{block}.bn{j}", size)
            if block == 0 and (inputs != size or stage > 1):
                shapes[f"layer{stage}.0.downsample.0.weight"] = (size, inputs, 1, 1)
                shapes |= norm(f"layer{stage}.0.downsample.1", size)
            inputs = size
    return shapes


def wide_resnet(group, shortcut, widths, bias):
    shapes, inputs = {"conv1.weight": (widths[0], 3, 3, 3)}, widths[0]
    for stage, size in enumerate(widths[1:], 1):
        for block in range(4):
            name = group.format(stage, block)
            shapes |= norm(f"{name}.bn1", inputs) | norm(f"{name}.bn2", size)
            shapes[f"{name}.conv1.weight"] = (size, inputs, 3, 3)
            shapes[f"{name}.conv2.weight"] = (size, size, 3, 3)
            if block == 0:
                shapes[f"{name}.{shortcut}.weight"] = (size, inputs, 1, 1)
            inputs = size
    if bias:
        shapes |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items() if len(shape) == 4}
    return shapes | norm("bn1", inputs)


def conv4_names(conv, batchnorm, size, bias):
    shapes, inputs = {}, 3
    for block in range(4):
        shapes[f"{conv.format(block)}.weight"] = (size, inputs, 3, 3)
        if bias:
            shapes[f"{conv.format(block)}.bias"] = (size,)
        shapes |= norm(batchnorm.format(block), size)
        inputs = size
    return shapes


def with_prefix(prefix, shapes):
    return {prefix + name: shape for name, shape in shapes.items()}


WIDE = (16, 160, 320, 640)
FEAT_WRN, SIB_WRN = ("layer{}.{}", "shortcut.0"), ("block{}.layer.{}", "convShortcut")
HEAD = {"fc.weight": (64, 640), "fc.bias": (64,)}
PUBLISHED = {
    "E3BM, FEAT, DeepEMD ResNet-12": ("resnet12", "params", with_prefix("encoder.", resnet12()) | HEAD),
    "MetaOptNet": ("resnet12", "embedding", resnet12()),
    "MetaOptNet on several GPUs": ("resnet12", "embedding", with_prefix("module.", resnet12())),
    "DeepEMD on several GPUs": ("resnet12", "params", with_prefix("module.encoder.", resnet12()) | HEAD),
    "FEAT ResNet-18": ("resnet18", "params", with_prefix("encoder.", basic_resnet(64, (64, 128, 256, 512), 2, False))),
    "MTL ResNet-25": ("resnet25", "params", with_prefix("encoder.", basic_resnet(80, (160, 320, 640), 4, True))),
    "FEAT WRN-28-10": (
        "wrn28_10",
        "params",
        with_prefix("encoder.", wide_resnet(*FEAT_WRN, WIDE, True)),
    ),
    "SIB WRN-28-10": ("wrn28_10_sib", None, wide_resnet(*SIB_WRN, WIDE, False)),
    "SIB WRN-28-10, meta-trained": ("wrn28_10_sib", "netFeat", wide_resnet(*SIB_WRN, WIDE, False)),
    "FEAT ConvNet": (
        "conv4_64",
        "params",
        with_prefix("encoder.", conv4_names("encoder.{}.0", "encoder.{}.1", 64, True)),
    ),
    "SIB ConvNet": (
        "conv4_64",
        None,
        conv4_names("conv_blocks.{}.layers.Conv", "conv_blocks.{}.layers.BatchNorm", 64, False),
    ),
}


def tensors(shapes, filled=None):
    """Tensors of these shapes; unfilled ones take no space in a file."""
    state = OrderedDict()
    for name, shape in shapes.items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(7)
        elif filled is None:
            state[name] = torch.full((1,), 0.5).expand(shape)
        else:
            state[name] = torch.rand(shape, generator=filled) + (0.5 if "running_var" in name else -0.3)
    return state


def save(path, state, entry=None, **more):
    torch.save({entry: state, **more} if entry else state, path)
    return path


@pytest.mark.parametrize("publication", PUBLISHED)
def test_published_names_and_shapes(tmp_path, publication):
    backbone, entry, shapes = PUBLISHED[publication]
    path = save(tmp_path / "best.pth", tensors(shapes), entry)
    result = import_weights(path, None if "ConvNet" not in publication else backbone, tmp_path / "ours.safetensors")
    assert result.backbone == backbone
    network = build(backbone)
    assert result.matched + len(result.filled) == len(network.state_dict())
    assert set(result.left_out) == set(HEAD) & set(shapes)
    assert result.parameters == sum(value.numel() for value in network.parameters())
    assert all("num_batches" in name or name.endswith("conv.bias") for name in result.filled)
    json.dumps(result.as_json())
    with safetensors.safe_open(result.out, "pt") as file:
        assert file.metadata()["backbone"] == backbone
        assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == {  # noqa: SIM118
            name: tuple(value.shape) for name, value in network.state_dict().items()
        }


def norm_of(state, name, maps):
    parts = (state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(maps, *parts)


def plain_basic(state, images, stages, depth, strides):
    maps = F.relu(norm_of(state, "bn1", F.conv2d(images, state["conv1.weight"], state.get("conv1.bias"), padding=1)))
    for stage in range(1, stages + 1):
        for block in range(depth):
            name, stride = f"layer{stage}.{block}", strides[stage - 1] if block == 0 else 1
            inner = F.conv2d(maps, state[f"{name}.conv1.weight"], stride=stride, padding=1)
            inner = F.relu(norm_of(state, f"{name}.bn1", inner))
            inner = norm_of(state, f"{name}.bn2", F.conv2d(inner, state[f"{name}.conv2.weight"], padding=1))
            if f"{name}.downsample.0.weight" in state:
                shortcut = F.conv2d(maps, state[f"{name}.downsample.0.weight"], stride=stride)
                maps = norm_of(state, f"{name}.downsample.1", shortcut)
            maps = F.relu(inner + maps)
    return maps.mean((2, 3))


def plain_resnet12(state, images):
    maps = images
    for stage in range(1, 5):
        name, inner = f"layer{stage}.0", maps
        for j in (1, 2, 3):
            inner = norm_of(state, f"{name}.bn{j}", F.conv2d(inner, state[f"{name}.conv{j}.weight"], padding=1))
            inner = F.leaky_relu(inner, 0.1) if j < 3 else inner
        shortcut = norm_of(state, f"{name}.downsample.1", F.conv2d(maps, state[f"{name}.downsample.0.weight"]))
        maps = F.max_pool2d(F.leaky_relu(inner + shortcut, 0.1), 2)
    return maps.mean((2, 3))


def plain_wide(state, images, names, strides, biased):
    group, shortcut_name = names
    maps = F.conv2d(images, state["conv1.weight"], state.get("conv1.bias"), padding=1)
    for stage in (1, 2, 3):
        for block in range(4):
            name, stride = group.format(stage, block), strides[stage - 1] if block == 0 else 1
            first, second = (1, stride) if biased else (stride, 1)
            ready = F.relu(norm_of(state, f"{name}.bn1", maps))
            inner = F.conv2d(ready, state[f"{name}.conv1.weight"], state.get(f"{name}.conv1.bias"), first, 1)
            inner = F.relu(norm_of(state, f"{name}.bn2", inner))
            inner = F.conv2d(inner, state[f"{name}.conv2.weight"], state.get(f"{name}.conv2.bias"), second, 1)
            if block == 0:
                weight, bias = (state.get(f"{name}.{shortcut_name}.{part}") for part in ("weight", "bias"))
                maps = F.conv2d(maps if biased else ready, weight, bias, stride)
            maps = maps + inner
    return F.relu(norm_of(state, "bn1", maps)).mean((2, 3))


SMALL = (8, 16, 40, 80)
NETWORKS = {
    "resnet12": (resnet12((8, 16, 40, 80)), plain_resnet12),
    "resnet18": (basic_resnet(8, (8, 16, 32, 64), 2, False), lambda s, x: plain_basic(s, x, 4, 2, (1, 2, 2, 2))),
    "resnet25": (basic_resnet(8, (16, 40, 80), 4, True), lambda s, x: plain_basic(s, x, 3, 4, (2, 2, 2))),
    "wrn28_10": (wide_resnet(*FEAT_WRN, SMALL, True), lambda s, x: plain_wide(s, x, FEAT_WRN, (1, 2, 2), True)),
    "wrn28_10_sib": (wide_resnet(*SIB_WRN, SMALL, False), lambda s, x: plain_wide(s, x, SIB_WRN, (2, 2, 2), False)),
}


@pytest.mark.parametrize("backbone", NETWORKS)
def test_imported_networks_compute_what_the_published_ones_do(tmp_path, backbone):
    shapes, forward = NETWORKS[backbone]
    network = build(backbone, width=WIDTH).eval()
    own = {value.shape for value in network.state_dict().values()}
    assert {torch.Size(shape) for shape in shapes.values()} == own
    state = tensors(shapes, torch.Generator().manual_seed(0))
    state = OrderedDict((name, value * 0.2 if value.ndim == 4 else value) for name, value in state.items())
    path = save(tmp_path / "best.pth", {f"encoder.{name}": value for name, value in state.items()}, "params")
    result = import_weights(path, backbone, width=WIDTH)
    assert result.out == tmp_path / "best.safetensors"
    network.load_state_dict(safetensors.torch.load_file(result.out))
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        network, images = network.double(), images.double()
        expected = forward({name: value.double() for name, value in state.items()}, images)
        torch.testing.assert_close(network(images), expected, rtol=1e-10, atol=1e-10)


def test_the_learned_scales_of_mtl_are_multiplied_in(tmp_path):
    shapes = basic_resnet(8, (16, 40, 80), 4, True)
    for name, shape in list(shapes.items()):
        if len(shape) == 4:
            shapes[name.replace(".weight", ".mtl_weight")] = (*shape[:2], 1, 1)
    shapes["conv1.mtl_bias"] = (8,)
    state = tensors(shapes, torch.Generator().manual_seed(0))
    path = save(tmp_path / "max_acc.pth", {f"encoder.{name}": value for name, value in state.items()}, "params")
    result = import_weights(path, "resnet25", width=WIDTH)
    assert result.folded == 28
    assert not result.left_out
    ours = safetensors.torch.load_file(result.out)
    torch.testing.assert_close(ours["stem.conv.weight"], state["conv1.weight"] * state["conv1.mtl_weight"])
    torch.testing.assert_close(ours["stem.conv.bias"], state["conv1.bias"] + state["conv1.mtl_bias"])


def test_other_forms_of_file(tmp_path):
    state = tensors(resnet12((8, 16, 40, 80)), torch.Generator().manual_seed(0))
    expected = None
    nested = {"epoch": 3, "optimizer": {"lr": 0.1}, "state_dict": {"model": state}}
    half = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    old = {name: value for name, value in state.items() if "num_batches_tracked" not in name}
    for number, content in enumerate((state, nested, old)):
        result = import_weights(save(tmp_path / f"{number}.pth", content), width=WIDTH)
        assert result.backbone == "resnet12"
        found = safetensors.torch.load_file(result.out)
        found = {name: value for name, value in found.items() if "tracked" not in name}
        expected = expected or found
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    legacy = tmp_path / "legacy.pth"
    torch.save(state, legacy, _use_new_zipfile_serialization=False)
    assert import_weights(legacy, "resnet12", width=WIDTH).matched == result.matched + len(result.filled)
    assert import_weights(save(tmp_path / "half.pth", half), "resnet12", width=WIDTH).matched
    again = import_weights(tmp_path / "0.safetensors", "resnet12", tmp_path / "again.safetensors", width=WIDTH)
    assert not again.left_out


class Hostile:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def bad(tmp_path, name):
    good = tensors(resnet12((8, 16, 40, 80)))
    path = tmp_path / "bad.pth"
    kinds = {
        "code": lambda: save(path, good, "params", args=Hostile(f"touch {tmp_path / 'ran'}")),
        "text": lambda: path.write_text("not found"),
        "empty": lambda: path.write_bytes(b""),
        "cut": lambda: path.write_bytes(save(path, good).read_bytes()[:3000]),
        "a list": lambda: save(path, [1, 2, 3]),
        "no tensors": lambda: save(path, {"params": {"a": 1}}),
        "another network": lambda: save(path, {"conv.weight": torch.zeros(3, 3)}),
        "a layer missing": lambda: save(path, {n: v for n, v in good.items() if "layer3.0.conv2" not in n}),
        "a wrong shape": lambda: save(path, {**good, "layer1.0.conv1.weight": torch.zeros(9, 3, 3, 3)}),
        "not finite": lambda: save(path, {**good, "layer1.0.bn1.bias": torch.full((8,), torch.nan)}),
    }
    kinds[name]()
    return path


@pytest.mark.parametrize(
    ("name", "match"),
    {
        "code": r"system.*refused",
        "text": "damaged",
        "empty": "damaged",
        "cut": "damaged",
        "a list": "no named tensors",
        "no tensors": "no named tensors",
        "another network": "does not fit",
        "a layer missing": r"blocks\.2\.residual\.1\.conv\.weight is not in the file",
        "a wrong shape": r"is 9 x 3 x 3 x 3, expected 8 x 3 x 3 x 3",
        "not finite": "not finite",
    }.items(),
)
def test_bad_files_are_a_sentence_and_write_nothing(tmp_path, name, match):
    path = bad(tmp_path, name)
    with pytest.raises(CheckpointError, match=match):
        import_weights(path, "resnet12", width=WIDTH)
    assert [one.name for one in tmp_path.iterdir()] == ["bad.pth"]


def test_bad_settings(tmp_path):
    path = save(tmp_path / "x.pth", tensors(resnet12()))
    with pytest.raises(SettingsError, match="known: resnet12"):
        import_weights(path, "vgg")
    with pytest.raises(SettingsError, match=r"must end in \.safetensors"):
        import_weights(path, "resnet12", tmp_path / "y.bin")
    with pytest.raises(CheckpointError, match="does not exist"):
        import_weights(tmp_path / "nothing.pth", "resnet12")
    with pytest.raises(SettingsError, match="overwritten"):
        import_weights(tmp_path / "y.safetensors", "resnet12")

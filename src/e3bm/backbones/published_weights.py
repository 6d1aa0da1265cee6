"""The names under which the field publishes the layers of its backbones, and their place in ours."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Rename = Callable[..., str]
Rules = tuple[tuple[str, Rename], ...]


def _residual(depth: int) -> Rules:
    """Stages named layer1, layer2, ... of so many blocks, each with conv, bn and downsample (MetaOptNet, FEAT, MTL)."""

    def block(stage: str, number: str) -> str:
        return f"blocks.{(int(stage) - 1) * depth + int(number)}"

    return (
        (r"layer(\d)\.(\d)\.conv(\d)\.(.+)", lambda s, b, j, x: f"{block(s, b)}.residual.{int(j) - 1}.conv.{x}"),
        (r"layer(\d)\.(\d)\.bn(\d)\.(.+)", lambda s, b, j, x: f"{block(s, b)}.residual.{int(j) - 1}.norm.{x}"),
        (r"layer(\d)\.(\d)\.downsample\.0\.(.+)", lambda s, b, x: f"{block(s, b)}.shortcut.conv.{x}"),
        (r"layer(\d)\.(\d)\.downsample\.1\.(.+)", lambda s, b, x: f"{block(s, b)}.shortcut.norm.{x}"),
        (r"conv1\.(.+)", lambda x: f"stem.conv.{x}"),
        (r"bn1\.(.+)", lambda x: f"stem.norm.{x}"),
    )


def _wide(group: str, shortcut: str) -> Rules:
    """Groups of four pre-activation blocks: layerN.K in FEAT's network, blockN.layer.K in SIB's."""

    def block(number: str, place: str) -> str:
        return f"blocks.{(int(number) - 1) * 4 + int(place)}"

    return (
        (group + r"conv(\d)\.(.+)", lambda g, b, j, x: f"{block(g, b)}.conv{j}.{x}"),
        (group + r"bn(\d)\.(.+)", lambda g, b, j, x: f"{block(g, b)}.norm{j}.{x}"),
        (group + shortcut + r"\.(.+)", lambda g, b, x: f"{block(g, b)}.shortcut.{x}"),
        (r"conv1\.(.+)", lambda x: f"stem.{x}"),
        (r"bn1\.(.+)", lambda x: f"norm.{x}"),
    )


CONV4_RULES: Rules = (
    (r"encoder\.(\d)\.0\.(.+)", lambda b, x: f"blocks.{b}.conv.{x}"),
    (r"encoder\.(\d)\.1\.(.+)", lambda b, x: f"blocks.{b}.norm.{x}"),
    (r"conv_blocks\.(\d)\.layers\.Conv\.(.+)", lambda b, x: f"blocks.{b}.conv.{x}"),
    (r"conv_blocks\.(\d)\.layers\.BatchNorm\.(.+)", lambda b, x: f"blocks.{b}.norm.{x}"),
)
PUBLISHED_NAMES: Mapping[str, Rules] = {
    "resnet12": _residual(1),
    "resnet18": _residual(2),
    "resnet25": _residual(4),
    "wrn28_10": _wide(r"layer(\d)\.(\d)\.", r"shortcut\.0"),
    "wrn28_10_sib": _wide(r"block(\d)\.layer\.(\d)\.", "convShortcut"),
    "conv4": CONV4_RULES,
    "conv4_64": CONV4_RULES,
}


@dataclass(frozen=True)
class Translation:
    """A published state in our names."""

    weights: dict[str, Tensor]
    prefix: str
    """What stood before the layer names, such as encoder. or module."""
    left_out: tuple[str, ...]
    """Published names that are no layer of the backbone: heads, attention, optimiser."""
    folded: int
    """Kernels into which a learned scale (and shift) of MTL was multiplied."""


def translate(backbone: str, published: Mapping[str, Tensor]) -> Translation:
    """Published names to ours, by the rules of a backbone; our own names pass as they are."""
    state, folded = fold_scales(published)
    prefix = max(_prefixes(state), key=lambda start: (_fitting(backbone, state, start), -len(start)))
    weights: dict[str, Tensor] = {}
    left_out: list[str] = []
    for name, value in state.items():
        ours = our_name(backbone, name[len(prefix) :]) if name.startswith(prefix) else None
        if ours is None:
            left_out.append(name)
        else:
            weights[ours] = value
    return Translation(weights, prefix, tuple(left_out), folded)


def our_name(backbone: str, name: str) -> str | None:
    """The place of a published layer in ours, None if it is none of the backbone's."""
    for pattern, rename in PUBLISHED_NAMES[backbone]:
        found = re.fullmatch(pattern, name)
        if found:
            return rename(*found.groups())
    return name if re.match(r"(blocks\.\d|stem\.|norm\.)", name) else None


def fold_scales(published: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """Kernels times MTL's learned scales, biases plus its learned shifts."""
    state = {name: value for name, value in published.items() if not name.endswith((".mtl_weight", ".mtl_bias"))}
    folded = 0
    for name, value in published.items():
        layer = name.rpartition(".")[0]
        if name.endswith(".mtl_weight") and f"{layer}.weight" in state:
            state[f"{layer}.weight"] = state[f"{layer}.weight"].float() * value.float()
            folded += 1
        elif name.endswith(".mtl_bias") and f"{layer}.bias" in state:
            state[f"{layer}.bias"] = state[f"{layer}.bias"].float() + value.float()
    return state, folded


def neutral_value(name: str, like: Tensor) -> Tensor | None:
    """What a tensor that old or bias-free files lack must be: a counter or a bias of zero; None if it cannot be known.

    A bias in front of BatchNorm changes nothing, so a network published without it is the same with zeros.
    """
    counter = name.endswith("num_batches_tracked")
    return torch.zeros_like(like) if counter or name.endswith("conv.bias") else None


def _prefixes(state: Mapping[str, Tensor]) -> set[str]:
    starts = {""}
    for name in state:
        parts = name.split(".")
        starts |= {".".join(parts[:depth]) + "." for depth in range(1, min(len(parts), 5))}
    return starts


def _fitting(backbone: str, state: Mapping[str, Tensor], prefix: str) -> int:
    return sum(name.startswith(prefix) and our_name(backbone, name[len(prefix) :]) is not None for name in state)

"""MAML as it is usually written: functional_call and autograd.grad(create_graph=True), one task after another.

Plain layers in torch's default memory layout; nothing is done that could be left out. A test holds loss and
meta-gradients equal to the package's.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

BLOCKS = 4
LAYERS_OF_A_BLOCK = 4


class PlainConv4(nn.Module):
    """4CONV and a linear head."""

    def __init__(self, image_size: int, ways: int, filters: int = 32, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for block in range(BLOCKS):
            layers += [
                nn.Conv2d(channels if block == 0 else filters, filters, 3, padding=1),
                nn.BatchNorm2d(filters, track_running_stats=False),  # always the statistics of the batch
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        self.blocks = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Linear(filters * (image_size // 2**BLOCKS) ** 2, ways)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(images))
        return scores

    def adapted_names(self) -> list[str]:
        """Everything but the scale and shift of BatchNorm."""
        norms = [name for name, layer in self.named_modules() if isinstance(layer, nn.BatchNorm2d)]
        fixed = {f"{name}.{part}" for name in norms for part in ("weight", "bias")}
        return [name for name, _ in self.named_parameters() if name not in fixed]


class Labelled(NamedTuple):
    """Images and what they show."""

    images: Tensor
    labels: Tensor


def meta_loss_of_task(network: PlainConv4, support: Labelled, query: Labelled, *, rate: float, steps: int) -> Tensor:
    """The query loss of one task after some inner steps; the inner loss is W times the mean cross-entropy."""
    parameters: dict[str, Tensor] = dict(network.named_parameters())
    names = network.adapted_names()
    ways = network.head.out_features
    for _ in range(steps):
        loss = ways * functional.cross_entropy(functional_call(network, parameters, (support.images,)), support.labels)
        gradients = torch.autograd.grad(loss, [parameters[name] for name in names], create_graph=True)
        parameters |= {name: parameters[name] - rate * part for name, part in zip(names, gradients, strict=True)}
    return functional.cross_entropy(functional_call(network, parameters, (query.images,)), query.labels)

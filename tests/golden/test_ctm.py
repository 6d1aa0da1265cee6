"""CTM against numbers of the authors' functions, recorded once in float64.

``paper_*`` have the paper's element-wise mask, which is this CTM's. ``code_*`` have what the release does instead: a
matrix product with the mask, and in one of them shots side by side as channels of the concentrator; the test puts both
in place of ours. All that was recorded is kept and met but for one array: with the relation metric the derivative of
its second convolution's kernel is left out for its size. Running statistics are kept for the one case that uses them,
and the task with the relation metric is that of the other cases.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from e3bm.backbones.encode import MapEncoder
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import meta_loss
from e3bm.methods.ctm import Bottlenecks, Ctm

FOLDER = Path(__file__).parent / "systems"
LAYERS = {
    "conv1": "residual.0.conv",
    "norm1": "residual.0.norm",
    "conv2": "residual.1.conv",
    "norm2": "residual.1.norm",
    "conv3": "residual.2.conv",
    "norm3": "residual.2.norm",
    "shortcut": "shortcut.conv",
    "shortcut_norm": "shortcut.norm",
}
RELATION = {
    "conv0": "blocks.0.conv",
    "norm0": "blocks.0.norm",
    "conv1": "blocks.2.conv",
    "norm1": "blocks.2.norm",
    "linear0": "head.0",
    "linear1": "head.2",
}


class Ready(nn.Module):
    """Maps that need no encoder."""

    feature_size = 12

    def forward(self, examples, mask=None):
        return examples


class MatrixProduct:
    """What multiplies maps as the release has it: each channel's map, as a matrix, times the mask's."""

    def __init__(self, mask):
        self.mask = mask

    def __rmul__(self, maps):
        return maps @ self.mask


class ReleasedCtm(Ctm):
    """Masked as in the release."""

    def mask(self, classes):
        return MatrixProduct(super().mask(classes))


class ConcatenatedCtm(ReleasedCtm):
    """The concentrator reads the two shots of a class as one map of twice the channels; shots are in class order."""

    def __init__(self, encoder, channels, *, ways, widths, batchnorm, **options):
        super().__init__(encoder, channels, ways=ways, widths=widths, batchnorm=batchnorm, **options)
        self.concentrator = MapEncoder(Bottlenecks(2 * channels, widths), batchnorm)

    def concentrated(self, support, labelled, mask=None):
        return self.concentrator(support.unflatten(1, (self.ways, 2)).flatten(2, 3))


def load(name):
    return {key: torch.from_numpy(np.asarray(values)) for key, values in np.load(FOLDER / f"{name}.npz").items()}


def ours(name):
    """Where the model keeps what the recording calls so."""
    if found := re.fullmatch(r"relation\.(\w+)\.(\w+)", name):
        return f"relation.backbone.{RELATION[found[1]]}.{found[2]}"
    net, block, layer, part = name.split(".")
    return f"{net}.backbone.blocks.{block}.{LAYERS[layer]}.{part}"


def model(data, weights, kind=Ctm, **options):
    ctm = kind(Ready(), 12, ways=5, widths=(2, 2, 2, 2), over_shots="sum", **options).double()
    state, left = ctm.state_dict(), set(ctm.state_dict())
    for name, values in data.items():
        if name.startswith(f"{weights}/"):
            place = ours(name.removeprefix(f"{weights}/"))
            state[place].copy_(values.view_as(state[place]))
            left.remove(place)
    assert all("num_batches" in name or "running" in name for name in left)
    return ctm


CASES = {
    "code_option1": ("ctm", "weight_common", {"kind": ReleasedCtm, "batchnorm": "batch"}),
    "code_concatenated": ("ctm", "weight_concatenated", {"kind": ConcatenatedCtm, "batchnorm": "batch"}),
    "paper_option1": ("ctm", "weight_common", {"batchnorm": "batch"}),
    "paper_option2": ("ctm", "weight_common", {"batchnorm": "batch", "masked": "classes"}),
    "paper_option1_running": ("ctm", "weight_common", {"batchnorm": "running"}),
    "paper_option1_relation": (
        "ctm_relation",
        "weight_relation",
        {"batchnorm": "batch", "metric": "relation", "side": 4},
    ),
}
NOT_KEPT = {"paper_option1_relation": {"relation.backbone.blocks.2.conv.weight"}}


@pytest.mark.parametrize("case", CASES)
def test_scores_loss_and_derivatives(case):
    file, weights, options = CASES[case]
    data = load("ctm") | load(file)
    ctm = model(data, weights, **options)
    support, query = (data[name][None].clone().requires_grad_() for name in ("support", "query"))
    tasks = TaskBatch(support, data["support_labels"][None], query, data["query_labels"][None], 5)
    scores = ctm.scores(tasks)
    close = lambda found, expected: torch.testing.assert_close(found.detach(), expected, rtol=1e-10, atol=1e-10)
    close(scores, data[f"{case}/scores"][None])
    loss = meta_loss(scores, tasks.query_labels)
    close(loss, data[f"{case}/loss"])
    loss.backward()
    close(support.grad[0], data[f"{case}/grad/support"])
    close(query.grad[0], data[f"{case}/grad/query"])
    parameters = dict(ctm.named_parameters())
    start = f"{case}/grad/"
    names = {name.removeprefix(start) for name in data if name.startswith(start)} - {"support", "query"}
    assert set(parameters) - {ours(name) for name in names} == NOT_KEPT.get(case, set())
    for name in names:
        parameter = parameters[ours(name)]
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        close(found, data[start + name].view_as(parameter))

"""A fitted classifier as one ONNX graph, from pixels to everything that is said of a photo.

It takes 8-bit pixels of the network's own size, any number of images at once, normalises them itself, and gives
probabilities, label, unknown, unknown score, disagreement and confidence. How a photo is brought to that size (resize
by Pillow, then the middle) and the class names are in the file's metadata; examples/onnx_photo.py does it. Networks
side by side have an input each, with metadata of the same ending (`pixels_2`, `resize_2`). Nothing is written before
onnxruntime has given what Python gives.
"""

import json
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from e3bm.data.pixels.pipeline import CentreCrop, Normalisation, Pipeline, Resize
from e3bm.errors import CheckpointError, SettingsError, install_command
from e3bm.fewshot.extractor import MOST_VIEWS
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.fitted_head import LEVELS, FittedHead
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.model_file import check_export_target
from e3bm.fewshot.networks.cache import quiet_runtime
from e3bm.fewshot.networks.graph import IR_VERSION, OPSET, network_graph
from e3bm.fewshot.networks.packaged import PackagedNetwork
from e3bm.fewshot.prior.ensemble_head import EnsembleHead
from e3bm.methods.heads.collapsed import unit
from e3bm.progress import Progress, Silent, stage
from e3bm.runs.folder.files import write_named

CLOSE = 1e-5
TRIED = (1, 3)  # numbers of images at once
INPUT = "pixels"
OUTPUTS = ("probabilities", "label", "unknown", "unknown_score", "disagreement", "confidence")
TINY = 1e-12


@dataclass(frozen=True)
class ExportedModel:
    """What was written, and how well it agrees."""

    path: Path
    size: int
    inputs: dict[str, tuple[int, int, int]]
    """Height, width and channels of an image, for every input."""
    difference: float
    """The largest difference of a number between Python's prediction and onnxruntime on the images that were tried."""


class HeadGraph(nn.Module):
    """Features to everything that is said of a photo; it works in double precision, as in Python."""

    def __init__(self, fitted: FittedHead, views: int = 1) -> None:
        """``views`` is that of a FeatureExtractor."""
        super().__init__()
        self.views, self.threshold, head = views, fitted.threshold, EnsembleHead.of(fitted.ensemble)
        double = lambda values: nn.Buffer(torch.as_tensor(values).double())
        self.centre, self.factor, self.unit_length = double(head.centre), float(head.factor), head.unit_length
        self.weight, self.bias = double(head.weight / fitted.temperature), double(head.bias / fitted.temperature)
        self.means, self.mean_squares = double(head.means), double(head.means.double().square().sum(-1))
        stretch = float(head.votes.sum()) / fitted.temperature
        self.epoch_weight = double(head.epoch_weight.double().flatten(0, 1) * stretch)
        self.epoch_bias = double(head.epoch_bias.double() * stretch)
        self.share = double(head.votes.abs() / (head.votes.abs().sum() + TINY))
        self.facts, self.known = double(head.facts), double(torch.tensor(fitted.trust["known"]).double())
        ends, shares = torch.from_numpy(fitted.score_levels()), torch.tensor(LEVELS, dtype=torch.double)
        self.ends, self.steps, self.rises = double(ends[:-1]), double(ends.diff()), double(shares.diff())

    def forward(self, rows: list[Tensor]) -> tuple[Tensor, ...]:
        """[views * N, features] of every network to OUTPUTS; of several networks at unit length, side by side."""
        features = rows[0] if len(rows) == 1 else torch.cat([unit(row) for row in rows], -1)
        features = features.view(self.views, -1, features.shape[-1]).mean(0).double()
        placed = ((unit(features) if self.unit_length else features) - self.centre) * self.factor
        scores = placed @ self.weight.mT + self.bias
        shares = scores.softmax(-1)
        squares = placed.square().sum(-1, keepdim=True) - 2 * placed @ self.means.mT + self.mean_squares
        distance = squares.clamp_min(0).sqrt().amin(-1)
        both = torch.stack([_log_sum_exp(scores), distance], -1)
        products = (both.unsqueeze(-1) * self.facts).flatten(1)
        facts = self.facts.expand(both.shape[0], -1)
        known = torch.cat([torch.ones_like(both[:, :1]), both, facts, products], -1) @ self.known
        epochs, ways = self.epoch_bias.shape
        by_epoch = (placed @ self.epoch_weight.mT).view(-1, epochs, ways) + self.epoch_bias
        logs = by_epoch - _log_sum_exp(by_epoch).unsqueeze(-1)
        middle = (self.share.view(1, -1, 1) * logs.exp()).sum(1, keepdim=True)
        apart = (logs.exp() * (logs - (middle + TINY).log())).sum(-1) @ self.share
        disagreement = apart.clamp_min(0) / math.log(ways)
        # Straight lines between the levels, as numpy.interp draws them.
        below = LEVELS[0] + ((known.unsqueeze(-1) - self.ends) / self.steps).clamp(0, 1) @ self.rises
        unknown, score, sure = known < self.threshold, (1 - below).float(), shares.amax(-1).float()
        return shares.float(), shares.argmax(-1), unknown, score, disagreement.float(), sure


class ImagesGraph(nn.Module):
    """Pixels to what a network takes: normalised, all views one after another."""

    def __init__(self, normalisation: Normalisation, views: int = 1) -> None:
        super().__init__()
        self.views = views
        mean, std = torch.tensor(normalisation.mean).double(), torch.tensor(normalisation.std).double()
        self.scale, self.shift = nn.Buffer((1 / std).float()), nn.Buffer((-mean / std).float())

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, height, width, channels] of uint8 to [views * N, channels, height, width]."""
        images = (pixels.float() * self.scale + self.shift).permute(0, 3, 1, 2).contiguous()
        return torch.cat([images, images.flip(3)]) if self.views == MOST_VIEWS else images


def _log_sum_exp(scores: Tensor) -> Tensor:
    largest = scores.amax(-1, keepdim=True)
    return (scores - largest).exp().sum(-1).log() + largest.squeeze(-1)


def export_onnx(model: FewShotClassifier, path: str | Path, progress: Progress | None = None) -> ExportedModel:
    """Write the graph of a fitted classifier, after it was checked."""
    check_export_target(Path(path))
    onnx, runtime = _packages()
    progress = progress or Silent()
    target, fitted, extractor = Path(path), model.fitted, model.extractor
    pipelines = extractor.pipelines()
    names = [INPUT + _ending(place) for place in range(len(pipelines))]
    random = np.random.default_rng(0)
    tried = [_pictures(pipelines, extractor.channels, count, random) for count in TRIED]
    with stage(progress, "making the ONNX graph", 0), _quiet(), torch.no_grad():
        proto = _graph(onnx, model, dict(zip(names, map(torch.from_numpy, tried[-1]), strict=True)))
    onnx.helper.set_model_props(proto, _about(fitted, extractor.origin.name, pipelines))
    content = proto.SerializeToString()
    inputs = [dict(zip(names, each, strict=True)) for each in tried]
    with stage(progress, "comparing onnxruntime with Python", sum(TRIED)):
        difference = _largest_difference(runtime, content, model, inputs, progress)
    if not difference <= CLOSE:
        raise CheckpointError(
            f"The ONNX graph of this backbone differs from Python's prediction by {difference:.2g}, more than "
            f"{CLOSE:g}; nothing was written."
        )
    write_named(target, content)
    shapes = {name: each.shape[1:] for name, each in zip(names, tried[0], strict=True)}
    return ExportedModel(target, len(content), shapes, difference)


def _graph(onnx: Any, model: FewShotClassifier, pixels: dict[str, Tensor]) -> Any:
    """Pixels to images and images to features, for every network; then the features of all to OUTPUTS."""
    extractor, batch = model.extractor, torch.export.Dim("batch")
    seen = batch * extractor.views if extractor.views > 1 else batch
    before, networks, rows = dict[str, Any](), dict[str, Any](), dict[str, Tensor]()
    for (name, example), part, pipeline in zip(pixels.items(), extractor.parts(), extractor.pipelines(), strict=True):
        prepare = ImagesGraph(pipeline.normalisation, extractor.views)
        prepared = _exported(prepare, example, batch, [name], ["images"])
        if isinstance(part, PackagedNetwork):  # the very graph that photos go through in Python
            network = onnx.load_from_string(network_graph(onnx, part.module(), part.weights.ranges()))
        else:
            network = _exported(nn.Sequential(part, nn.Flatten()), prepare(example), seen, ["images"], ["features"])
        before[name] = onnx.compose.add_prefix(prepared, f"{name}/before/", rename_inputs=False)
        networks[name] = onnx.compose.add_prefix(network, f"{name}/")
        width = network.graph.output[0].type.tensor_type.shape.dim[1].dim_value
        rows[f"{name}/features"] = torch.zeros(len(example) * extractor.views, width)
    whole = _exported(HeadGraph(model.fitted.head, extractor.views), list(rows.values()), seen, list(rows), OUTPUTS)
    join = lambda first, second, *edges: onnx.compose.merge_models(first, second, io_map=[edges])
    for name in reversed(pixels):  # the inputs of the whole stand in the order of the networks
        whole = join(networks[name], whole, f"{name}/features", f"{name}/features")
        whole = join(before[name], whole, f"{name}/before/images", f"{name}/images")
    opsets = [onnx.helper.make_opsetid(*each) for each in {(one.domain, one.version) for one in whole.opset_import}]
    del whole.opset_import[:]  # joining has repeated them
    whole.opset_import.extend(sorted(opsets, key=lambda one: one.domain))
    whole.producer_name, whole.producer_version = "e3bm", version("e3bm")
    return whole


def _exported(
    module: nn.Module, example: Tensor | list[Tensor], batch: Any, inputs: Sequence[str], outputs: Sequence[str]
) -> Any:
    """The ONNX model of a module that takes a tensor of any number of rows, ``batch``, or a list of such tensors."""
    program = torch.onnx.export(
        module.eval(),
        (example,),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_shapes=([{0: batch} for _ in example] if isinstance(example, list) else {0: batch},),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    found = program.model_proto
    found.ir_version = IR_VERSION
    return found


def _ending(place: int) -> str:
    """What the names of the input and of the metadata of a network end with."""
    return f"_{place + 1}" if place else ""


def _about(fitted: FittedModel, backbone: str, pipelines: Sequence[Pipeline]) -> dict[str, str]:
    """The metadata: class names, what happens to a photo before the graph, and what the numbers mean."""
    about = {
        "classes": json.dumps(fitted.classes, ensure_ascii=False),
        "normalised_inside": "yes",
        "recall": repr(fitted.head.options.recall),
        "temperature": repr(fitted.head.temperature),
        "misfits": json.dumps(fitted.head.misfits.tolist()),
        "backbone": backbone,
        "made_by": f"e3bm {version('e3bm')}",
    }
    for place, pipeline in enumerate(pipelines):
        found = {"preprocessing": str(pipeline)}
        found |= {name: json.dumps(getattr(pipeline.normalisation, name)) for name in ("mean", "std")}
        for step in pipeline.steps:
            if isinstance(step, Resize):
                found |= {"resize": str(step.size), "interpolation": f"Pillow {step.filter.upper()}"}
            elif isinstance(step, CentreCrop):
                found["crop"] = str(step.size)
        about |= {name + _ending(place): text for name, text in found.items()}
    return about


def _pictures(
    pipelines: Sequence[Pipeline], channels: int, count: int, random: np.random.Generator
) -> list[np.ndarray]:
    """Smooth random pictures up to the normalisation: white noise would be unlike anything that a network knows."""
    coarse = [random.integers(0, 256, (7, 9, channels), dtype=np.uint8) for _ in range(count)]
    smooth = [Resize(256, "bicubic").photo(each) for each in coarse]
    return [np.stack([pipeline.photo_steps(each) for each in smooth]) for pipeline in pipelines]


def _largest_difference(
    runtime: Any, content: bytes, model: FewShotClassifier, tried: list[dict[str, np.ndarray]], progress: Progress
) -> float:
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    pipelines, largest, done = model.extractor.pipelines(), 0.0, 0
    for inputs in tried:
        shares, _, _, score, disagreement, sure = session.run(list(OUTPUTS), inputs)
        features = []
        for photo in zip(*inputs.values(), strict=True):
            seen = tuple(one.normalisation.photo(each) for one, each in zip(pipelines, photo, strict=True))
            features.append(model.extractor.features_of(seen if len(seen) > 1 else seen[0]))
        expected = model.fitted.head.predict(np.stack(features))
        for difference in (
            shares - expected.probabilities,
            disagreement - expected.disagreement,
            score - expected.unknown_scores,
            sure - expected.probabilities.max(1),
        ):
            largest = max(largest, float(np.abs(difference).max()))
        done += len(features)
        progress.advance(done)
    return largest


def _packages() -> tuple[Any, Any]:
    try:
        runtime = quiet_runtime()
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError:
        raise SettingsError(
            "Export needs onnx, onnxruntime and onnxscript, which are not all installed; "
            f"run: {install_command('onnx')}"
        ) from None
    return onnx, runtime


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's warnings and log lines are about its own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

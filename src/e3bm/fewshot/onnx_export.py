"""A fitted classifier as one ONNX graph, from pixels to everything that is said of a photo.

It takes 8-bit pixels of the network's own size, any number of images at once, normalises them itself, and gives
probabilities, label, unknown, unknown score and disagreement. How a photo is brought to that size (resize by Pillow,
then the middle) and the class names are in the file's metadata; examples/onnx_photo.py does it. Nothing is written
before onnxruntime has given what Python gives.
"""

import json
import logging
import math
import warnings
from collections.abc import Iterator
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
from e3bm.fewshot.networks.cache import quiet_runtime
from e3bm.fewshot.prior.ensemble_head import EnsembleHead
from e3bm.methods.heads.collapsed import unit
from e3bm.runs.folder.files import write_bytes

CLOSE = 1e-5
TRIED = (1, 3)  # numbers of images at once
SUFFIX = ".onnx"
INPUT = "pixels"
OUTPUTS = ("probabilities", "label", "unknown", "unknown_score", "disagreement")
TINY = 1e-12


@dataclass(frozen=True)
class ExportedModel:
    """What was written, and how well it agrees."""

    path: Path
    size: int
    input_shape: tuple[int, int, int]
    """Height, width and channels of an image."""
    difference: float
    """The largest difference of a number between Python's prediction and onnxruntime on the images that were tried."""


class ClassifierGraph(nn.Module):
    """Pixels to everything that is said of a photo; the head works in double precision, as in Python."""

    def __init__(self, network: nn.Module, fitted: FittedHead, normalisation: Normalisation, views: int = 1) -> None:
        """``views`` is that of a FeatureExtractor."""
        super().__init__()
        self.views = views
        self.network, self.threshold, head = network, fitted.threshold, EnsembleHead.of(fitted.ensemble)
        double = lambda values: nn.Buffer(torch.as_tensor(values).double())
        mean, std = torch.tensor(normalisation.mean).double(), torch.tensor(normalisation.std).double()
        self.scale, self.shift = nn.Buffer((1 / std).float()), nn.Buffer((-mean / std).float())
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

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """[N, height, width, channels] of uint8 to OUTPUTS."""
        images = (pixels.float() * self.scale + self.shift).permute(0, 3, 1, 2).contiguous()
        features: Tensor = self.network(images).flatten(1)
        if self.views == MOST_VIEWS:
            features = (features + self.network(images.flip(-1)).flatten(1)) / MOST_VIEWS
        features = features.double()
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
        return shares.float(), shares.argmax(-1), known < self.threshold, (1 - below).float(), disagreement.float()


def _log_sum_exp(scores: Tensor) -> Tensor:
    largest = scores.amax(-1, keepdim=True)
    return (scores - largest).exp().sum(-1).log() + largest.squeeze(-1)


def export_onnx(model: FewShotClassifier, path: str | Path) -> ExportedModel:
    """Write the graph of a fitted classifier, after it was checked."""
    _check_target(Path(path))
    onnx, runtime = _packages()
    target, fitted, extractor = Path(path), model.fitted, model.extractor
    network, pipeline = extractor.torch_network(), extractor.pipeline
    assert isinstance(pipeline, Pipeline)  # one network has one
    graph = ClassifierGraph(network, fitted.head, pipeline.normalisation, extractor.views).eval()
    random = np.random.default_rng(0)
    tried = [np.stack([_picture(pipeline, extractor.channels, random) for _ in range(count)]) for count in TRIED]
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph,
            (torch.from_numpy(tried[-1]),),
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, _about(fitted, extractor.origin.name, pipeline))
    content = proto.SerializeToString()
    difference = _largest_difference(runtime, content, model, tried)
    if not difference <= CLOSE:
        raise CheckpointError(
            f"The ONNX graph of this backbone differs from Python's prediction by {difference:.2g}, more than "
            f"{CLOSE:g}; nothing was written."
        )
    write_bytes(target, content)
    height, width, channels = tried[0].shape[1:]
    return ExportedModel(target, len(content), (height, width, channels), difference)


def _about(fitted: FittedModel, backbone: str, pipeline: Pipeline) -> dict[str, str]:
    """The metadata: class names, what happens to a photo before the graph, and what the numbers mean."""
    about = {
        "classes": json.dumps(fitted.classes, ensure_ascii=False),
        "preprocessing": str(pipeline),
        "normalised_inside": "yes",
        "mean": json.dumps(pipeline.normalisation.mean),
        "std": json.dumps(pipeline.normalisation.std),
        "threshold": repr(-fitted.head.threshold),
        "temperature": repr(fitted.head.temperature),
        "misfits": json.dumps(fitted.head.misfits.tolist()),
        "backbone": backbone,
        "made_by": f"e3bm {version('e3bm')}",
    }
    for step in pipeline.steps:
        if isinstance(step, Resize):
            about |= {"resize": str(step.size), "interpolation": f"Pillow {step.filter.upper()}"}
        elif isinstance(step, CentreCrop):
            about["crop"] = str(step.size)
    return about


def _picture(pipeline: Pipeline, channels: int, random: np.random.Generator) -> np.ndarray:
    """A smooth random picture up to the normalisation: white noise would be unlike anything that a network knows."""
    coarse = random.integers(0, 256, (7, 9, channels), dtype=np.uint8)
    return pipeline.photo_steps(Resize(256, "bicubic").photo(coarse))


def _largest_difference(runtime: Any, content: bytes, model: FewShotClassifier, tried: list[np.ndarray]) -> float:
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    pipeline, largest = model.extractor.pipeline, 0.0
    assert isinstance(pipeline, Pipeline)
    for pixels in tried:
        shares, _, _, score, disagreement = session.run(list(OUTPUTS), {INPUT: pixels})
        features = [model.extractor.features_of(pipeline.normalisation.photo(each)) for each in pixels]
        expected = model.fitted.head.predict(np.stack(features))
        for difference in (
            shares - expected.probabilities,
            disagreement - expected.disagreement,
            score - expected.unknown_scores,
        ):
            largest = max(largest, float(np.abs(difference).max()))
    return largest


def _check_target(path: Path) -> None:
    """Refuse names that are not those of an ONNX file: whatever has such a name would be replaced."""
    if path.is_dir() or path.suffix != SUFFIX:
        raise CheckpointError(
            f"The name of an exported file must end in {SUFFIX}; found {path}, which was left unchanged."
        )


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

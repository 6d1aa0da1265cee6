"""A fitted classifier as one ONNX graph: backbone, collapsed head, temperature and softmax.

It takes preprocessed images, any number at once, and gives probabilities; the preprocessing and the class names are in
the file's metadata. Nothing is written before onnxruntime has given what torch gives.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from e3bm.errors import CheckpointError, SettingsError, install_command
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.fitted_head import FittedHead
from e3bm.methods.heads.collapsed import unit
from e3bm.runs.folder.files import write_bytes

CLOSE = 1e-5
TRIED = (1, 3)  # numbers of images at once
SUFFIX = ".onnx"
INPUT, OUTPUT = "images", "probabilities"


@dataclass(frozen=True)
class ExportedModel:
    """What was written, and how well it agrees."""

    path: Path
    size: int
    input_shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    difference: float
    """The largest difference of a probability between torch and onnxruntime on the images that were tried."""


class ClassifierGraph(nn.Module):
    """Preprocessed images to calibrated probabilities, in single precision."""

    def __init__(self, network: nn.Module, fitted: FittedHead) -> None:
        super().__init__()
        self.network, head = network, fitted.ensemble
        self.unit_length = head.unit_length
        self.centre, self.factor = nn.Buffer(head.centre.float()), float(head.factor)
        self.weight = nn.Buffer((head.weight / fitted.temperature).float())
        self.bias = nn.Buffer((head.bias / fitted.temperature).float())

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N classes"]:
        features: Tensor = self.network(images).flatten(1)
        placed = ((unit(features) if self.unit_length else features) - self.centre) * self.factor
        return (placed @ self.weight.mT + self.bias).softmax(-1)


def export_onnx(model: FewShotClassifier, path: str | Path) -> ExportedModel:
    """Write the graph of a fitted classifier, after it was checked."""
    _check_target(Path(path))
    onnx, runtime = _packages()
    target, fitted, extractor = Path(path), model.fitted, model.extractor
    shape = extractor.pipeline.output_shape((256, 256, extractor.channels))
    graph = ClassifierGraph(extractor.network, fitted.head).eval()
    random = torch.Generator().manual_seed(0)
    tried = [_images(count, shape, model, random) for count in TRIED]
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph,
            (tried[-1],),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    about = {
        "classes": json.dumps(fitted.classes, ensure_ascii=False),
        "preprocessing": str(extractor.pipeline),
        "backbone": extractor.origin.name,
        "made_by": f"e3bm {version('e3bm')}",
    }
    onnx.helper.set_model_props(proto, about)
    content = proto.SerializeToString()
    difference = _largest_difference(runtime, content, model, tried)
    if not difference <= CLOSE:
        raise CheckpointError(
            f"The ONNX graph of this backbone differs from torch by {difference:.2g} in a probability, more than "
            f"{CLOSE:g}; nothing was written."
        )
    write_bytes(target, content)
    return ExportedModel(target, len(content), shape, difference)


def _images(count: int, shape: tuple[int, int, int], model: FewShotClassifier, random: torch.Generator) -> Tensor:
    """Smooth random pictures, preprocessed: white noise would be unlike anything that a network knows."""
    coarse = torch.randint(0, 256, (count, model.extractor.channels, 7, 7), generator=random, dtype=torch.uint8)
    fine = nn.functional.interpolate(coarse.float(), size=(256, 256), mode="bicubic").clamp(0, 255).to(torch.uint8)
    images = model.extractor.pipeline(fine)
    assert tuple(images.shape[1:]) == shape
    return images.contiguous()


def _largest_difference(runtime: Any, content: bytes, model: FewShotClassifier, tried: list[Tensor]) -> float:
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    largest = 0.0
    for images in tried:
        (found,) = session.run([OUTPUT], {INPUT: images.numpy()})
        features = np.stack([model.extractor.features_of(image[None]) for image in images])
        expected = model.fitted.head.probabilities(features)
        largest = max(largest, float(np.abs(found - expected).max()))
    return largest


def _check_target(path: Path) -> None:
    """Refuse names that are not those of an ONNX file: whatever has such a name would be replaced."""
    if path.is_dir() or path.suffix != SUFFIX:
        raise CheckpointError(f"An export is a file whose name ends in {SUFFIX}; found {path}, which is left alone.")


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError:
        raise SettingsError(
            "Export needs onnx, onnxruntime and onnxscript, which are not all installed; "
            f"run: {install_command('onnx')}"
        ) from None
    return onnx, onnxruntime


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

"""`e3bm export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, show

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Options:
    """Which model, and where it goes."""

    model: Annotated[Path, tyro.conf.Positional]
    """A model file made by `e3bm fit`."""
    onnx: Path
    """The ONNX file to write."""
    backbone: str | None = None
    """Run folder or transformers:NAME, if the model file does not contain its backbone."""
    json: bool = False
    """Print path, bytes, input shape, preprocessing, classes and the difference to Python as JSON."""


def run(words: Sequence[str]) -> int:
    options = parse(
        Options,
        words,
        "export",
        "Write a model as one ONNX file, from pixels to everything that a prediction says, and check it.",
    )
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.fewshot.onnx_export import INPUT, OUTPUTS, export_onnx

    model = FewShotClassifier.load(options.model, backbone=options.backbone)
    made = export_onnx(model, options.onnx)
    if options.json:
        print_json(
            {
                "onnx": str(made.path),
                "bytes": made.size,
                "input_shape": ["batch", *made.input_shape],
                "preprocessing": str(model.extractor.pipeline),
                "classes": model.classes,
                "difference": made.difference,
            }
        )
        return 0
    show(f"saved {made.path} ({made.size / MEGABYTE:.1f} MB)")
    show(f"  takes '{INPUT}': uint8 [batch, {', '.join(map(str, made.input_shape))}], which it normalises itself")
    show(f"  after: {model.extractor.pipeline}")
    show(f"  gives {', '.join(OUTPUTS)}; classes and preprocessing are in the metadata")
    show(f"  onnxruntime agrees with Python's prediction to {made.difference:.1g}")
    return 0

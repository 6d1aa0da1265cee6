"""`e3bm export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from e3bm.cli.console import parse, print_json, progress_here, show

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
    force: bool = False
    """Replace an existing ONNX file."""
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
    from e3bm.fewshot.model_file import check_export_target
    from e3bm.progress import stage

    check_export_target(options.onnx, replace=options.force)
    progress = progress_here()
    with stage(progress, f"loading {options.model.name} and torch", 0):
        model = FewShotClassifier.load(options.model, backbone=options.backbone)
        from e3bm.fewshot.onnx_export import OUTPUTS, export_onnx
    made = export_onnx(model, options.onnx, progress)
    if options.json:
        print_json(
            {
                "onnx": str(made.path),
                "bytes": made.size,
                "inputs": {name: ["batch", *shape] for name, shape in made.inputs.items()},
                "preprocessing": str(model.extractor.pipeline),
                "classes": model.classes,
                "difference": made.difference,
            }
        )
        return 0
    show(f"saved {made.path} ({made.size / MEGABYTE:.1f} MB)")
    for (name, shape), pipeline in zip(made.inputs.items(), model.extractor.pipelines(), strict=True):
        before = ", ".join(step for step in str(pipeline).split(", ") if not step.startswith("normalise"))
        show(f"  takes '{name}': uint8 [batch, {', '.join(map(str, shape))}], which it normalises itself")
        show(f"  made from a photo by: {before}")
    show(f"  gives {', '.join(OUTPUTS)}; classes and preprocessing are in the metadata")
    show(f"  onnxruntime agrees with Python's prediction to {made.difference:.1g}")
    return 0

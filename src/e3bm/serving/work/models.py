"""Fits and model files: this runs in a work process, which may be ended at any moment."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from e3bm.fewshot.extractor import FeatureExtractor
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.fitted_head import FitOptions
from e3bm.fewshot.fitted_model import FittedModel, fit_model
from e3bm.fewshot.model_file import model_bytes, parse_origin, read_model
from e3bm.fewshot.support_set import feature_shots
from e3bm.progress import Progress
from e3bm.serving.exchange import RequestError, Upload
from e3bm.serving.work.photos import with_redrawn_pictures

SELF_CONTAINED = ("package", "run")
"""Kinds of backbones that need nothing but what is installed or inside of the model file."""


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model file that was read."""

    fitted: FittedModel
    extractor: FeatureExtractor
    """Its network is left out where the one of a backbone in use is meant."""
    in_use: int | None
    """Which of the backbones in use it has; None for one of its own."""

    def classifier(self, prior_path: Path | None, *backbones: FeatureExtractor) -> FewShotClassifier:
        """The classifier; a backbone in use is taken as it is, so that it is in memory once."""
        extractor = self.extractor
        if self.in_use is not None:
            known = backbones[self.in_use]
            same = (str(known.pipeline), known.views) == (str(extractor.pipeline), extractor.views)
            extractor = known if same else replace(extractor, network=known.network)
        return FewShotClassifier.of_fit(extractor, self.fitted, prior_path)


def fit_features(
    features: Mapping[str, np.ndarray], options: FitOptions, prior_path: Path | None, progress: Progress
) -> FittedModel:
    """Fit to the features of photos, by class."""
    shots = {name: feature_shots(name, rows) for name, rows in features.items()}
    return fit_model(shots, options, prior_path, progress=progress)


def open_model(upload: Upload, prior_path: Path | None, *backbones: FeatureExtractor) -> OpenedModel:
    """The classifier in an uploaded file; its backbone is one in use here, installed, or in the file itself.

    A file can also name a model of a hub, which may be any folder of this machine: no request decides that.
    """
    path = Path(upload.name)
    origin, _, _ = parse_origin(path, read_model(path, upload.content)[0])
    in_use = next((place for place, one in enumerate(backbones) if one.origin.digest == origin.digest), None)
    if in_use is None and origin.kind not in SELF_CONTAINED:
        raise RequestError(
            422,
            f"{upload.name} was made with the backbone '{origin.name}', which is not this server's; "
            "start the server with that model.",
        )
    backbone = None if in_use is None else backbones[in_use]
    found = FewShotClassifier.from_bytes(upload.content, name=upload.name, backbone=backbone, prior=prior_path)
    extractor = found.extractor if in_use is None else replace(found.extractor, network=None)
    return OpenedModel(with_redrawn_pictures(found.fitted), extractor, in_use)


def file_of_model(extractor: FeatureExtractor, fitted: FittedModel) -> bytes:
    """The .e3bm file, with the small pictures that the fit has."""
    return model_bytes(extractor, fitted, keep_support=True)


def onnx_of_model(extractor: FeatureExtractor, fitted: FittedModel) -> bytes:
    """The ONNX file; it passes through a folder that is gone at once."""
    from e3bm.fewshot.onnx_export import export_onnx

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(FewShotClassifier(extractor).with_fit(fitted), path)
        return path.read_bytes()

"""From photos to features: a pipeline and a frozen network, one photo at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.read.photos import Photo, photo_name, photo_pixels
from e3bm.errors import DataError, SettingsError
from e3bm.runs.assembly import weights_digest

OriginKind = Literal["package", "run", "module", "transformers"]


@dataclass(frozen=True)
class BackboneOrigin:
    """Where a network comes from, and the digest of its weights."""

    kind: OriginKind
    name: str
    digest: str
    settings: dict[str, Any] = field(default_factory=dict)
    """What it can be built from again; empty where that is not known."""


@dataclass(frozen=True, eq=False)
class FeatureExtractor:
    """Turns photos into features: a preprocessing and a frozen network.

    Photos pass one by one: the rounding of a convolution depends on how many there are, and a prediction must not
    depend on the photos that are asked about with it. On a CPU it is no slower.
    """

    network: nn.Module
    pipeline: Pipeline
    channels: int
    origin: BackboneOrigin

    def with_pipeline(self, pipeline: Pipeline) -> "FeatureExtractor":
        """The same network with another preprocessing."""
        return replace(self, pipeline=pipeline)

    def digest(self) -> str:
        """The sha256 of exactly these weights: of the file that they come from, or of the network itself."""
        return weights_digest(self.network) if self.origin.kind == "run" else self.origin.digest

    def features_or_errors(
        self, photos: Sequence[Photo], names: Sequence[str] = ()
    ) -> Iterator[Float32[np.ndarray, " D"] | DataError]:
        """The features of every photo in turn, or a DataError that names the photo and says why it has none."""
        for place, photo in enumerate(photos):
            name = names[place] if names else photo_name(photo, f"photo {place + 1}")
            try:
                yield self.features_of(self.preprocess(photo))
            except DataError as error:
                yield DataError(f"{name} cannot be used: {error}.")

    def __call__(self, photos: Sequence[Photo], names: Sequence[str] = ()) -> Float32[np.ndarray, "N D"]:
        """The features of all photos; one that cannot be read is an error."""
        if not photos:
            raise DataError("No photo was given; give one or more.")
        rows = []
        for row in self.features_or_errors(photos, names):
            if isinstance(row, DataError):
                raise row
            rows.append(row)
        return np.stack(rows)

    @torch.inference_mode()
    def preprocess(self, photo: Photo) -> Float[Tensor, "1 C H W"]:
        """What the network sees of a photo."""
        pixels = torch.tensor(photo_pixels(photo, self.channels))
        return self.pipeline(pixels.permute(2, 0, 1).unsqueeze(0))

    @torch.inference_mode()
    def features_of(self, image: Float[Tensor, "1 C H W"]) -> Float32[np.ndarray, " D"]:
        """The features of a preprocessed image."""
        found = self.network(image)
        if not isinstance(found, Tensor) or found.shape[0] != 1 or not found.is_floating_point():
            shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise DataError(f"the backbone gave {shown}, where one row of features was expected")
        row: np.ndarray = found.flatten().float().numpy()
        if not np.isfinite(row).all():
            raise DataError("the backbone gave features that are not finite")
        return row


def parse_pipeline(text: str) -> Pipeline:
    """The preprocessing that a text describes; SettingsError where it is random."""
    pipeline = Pipeline.parse(text)
    if pipeline.draws:
        raise SettingsError(f"The preprocessing of photos must not be random; '{text}' is.")
    return pipeline

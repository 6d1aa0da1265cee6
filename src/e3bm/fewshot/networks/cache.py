"""Networks as ONNX graphs in the user's cache folder: exported once, checked against torch, opened by onnxruntime.

A file is named after the digest of the weights that it was made from and ends with the sha256 of the rest, as an entry
of ONNX's own metadata, so that a damaged one is noticed and made again. It is whole or absent, whoever writes it at the
same time.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from platformdirs import user_cache_path

from e3bm.array_types import Float32
from e3bm.errors import E3BMError
from e3bm.fewshot.networks.graph import network_graph
from e3bm.storage import write_whole

if TYPE_CHECKING:
    from e3bm.fewshot.networks.packaged import PackagedWeights

DIGEST_ENTRY = b"\x72\x4a\x0a\x06sha256\x12\x40"
"""What the bytes of a metadata entry `sha256` of 64 letters begin with: fields 14 of a model, 1 and 2 of an entry."""
ENTRY_BYTES = len(DIGEST_ENTRY) + 64
CLOSE = 1e-5
CLOSE_INT8 = 0.1
"""How far features of unit length may be from torch's, in any number; in 8 bits they were 0.04 away at most."""
TRIED = 3
THREADS_VARIABLE = "OMP_NUM_THREADS"


NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""onnxruntime reports how it is used unless this variable is set when it is imported."""


def quiet_runtime() -> Any:
    """The package onnxruntime, told to keep and send nothing about its use; ImportError where it is not installed."""
    os.environ.setdefault(NO_TELEMETRY, "1")
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # where somebody else has imported it before
    return onnxruntime


class CannotExport(Exception):
    """Why there is no graph of a network, in a few words."""


def cached_network(
    weights: "PackagedWeights", digest: str
) -> Callable[[Float32[np.ndarray, "1 C H W"]], Float32[np.ndarray, " D"]]:
    """A network run by onnxruntime; it is exported first where the cache does not have it."""
    try:
        onnxruntime = quiet_runtime()
    except ImportError:
        raise CannotExport("onnxruntime is not installed") from None
    path = cache_file(weights, digest)
    graph = str(path) if is_whole(path) else _export(weights, digest)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.enable_mem_pattern = False  # 10 MB less, at the same speed
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of another library, on a machine that we do not know
        raise CannotExport(f"onnxruntime cannot open {path.name} ({_first_line(error)})") from error

    _give_back_memory()

    def run(image: Float32[np.ndarray, "1 C H W"]) -> Float32[np.ndarray, " D"]:
        found: np.ndarray = session.run(None, {"images": image})[0][0]
        return found

    return run


def _give_back_memory() -> None:
    """Return to the system what opening a graph has left behind: 20 MB that glibc would keep for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # other C libraries have none
        trim(0)


def threads() -> int:
    """How many threads one photo may use; 0 leaves it to onnxruntime."""
    asked = os.environ.get(THREADS_VARIABLE, "")
    return int(asked) if asked.isdecimal() else 0


def cache_file(weights: "PackagedWeights", digest: str) -> Path:
    """Where the graph of these weights is kept."""
    return user_cache_path("e3bm", appauthor=False, opinion=False) / "networks" / f"{weights.name}-{digest[:16]}.onnx"


def is_cached(weights: "PackagedWeights", digest: str) -> bool:
    """Whether there is a file; whether it is whole shows when it is opened."""
    return cache_file(weights, digest).is_file()


def is_whole(path: Path) -> bool:
    """Whether there is a file, and it is what was written."""
    try:
        content = memoryview(path.read_bytes())
    except OSError:
        return False
    return content[-ENTRY_BYTES:] == _digest_entry(content[:-ENTRY_BYTES])


def _digest_entry(content: "bytes | memoryview") -> bytes:
    return DIGEST_ENTRY + sha256(content).hexdigest().encode()


def _export(weights: "PackagedWeights", digest: str) -> str | bytes:
    """The graph of the installed weights, checked: the file that it is kept in, or itself where it cannot be kept."""
    try:
        import onnx
    except ImportError:
        raise CannotExport("onnx, which the first export needs, is not installed") from None
    from e3bm.fewshot.networks.packaged import PackagedNetwork

    module = PackagedNetwork(weights, digest).module()
    try:
        content = network_graph(onnx, module, weights.ranges())
        difference = _difference(module, content, weights)
    except E3BMError:
        raise
    except Exception as error:  # of another library, on a machine that we do not know
        raise CannotExport(f"the export failed ({_first_line(error)})") from error
    if not difference <= (CLOSE_INT8 if weights.int8 else CLOSE):
        raise CannotExport(f"onnxruntime differs from torch by {difference:.1g} here")
    path = cache_file(weights, digest)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content, _digest_entry(content))
    except OSError:  # the next process exports again
        return content
    return str(path)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__


def _difference(module: Any, content: bytes, weights: "PackagedWeights") -> float:
    """The largest difference between torch and onnxruntime in features of unit length, on smooth random pictures."""
    import torch

    from e3bm.data.pixels.pipeline import Pipeline
    from e3bm.fewshot.prior.head_arrays import unit_rows

    session = quiet_runtime().InferenceSession(content, providers=["CPUExecutionProvider"])
    pipeline, largest = Pipeline.parse(weights.pipeline), 0.0
    random = np.random.default_rng(0)
    for _ in range(TRIED):
        coarse = random.integers(0, 256, (7, 9, 3), dtype=np.uint8)
        image = pipeline.photo(coarse)  # enlarged: white noise would be unlike anything that a network knows
        with torch.inference_mode():
            expected = module(torch.from_numpy(image)).numpy()
        found = session.run(None, {"images": image})[0]
        largest = max(largest, float(np.abs(unit_rows(found) - unit_rows(expected)).max()))
    return largest

"""The rows of photos: features through onnxruntime against torch, one prediction, start and memory of a server.

Features are CPU time on one core, both engines taking turns, of photos that must be resized and of photos whose short
side is what the network asks for (256 pixels); tables have the steps on the way there, and the kinds of
layers of the network against what this machine's matrix product reaches. A prediction is
the CPU time of the whole command, whose modules are compiled as pip leaves them. A server is asked over HTTP: it has
started when it answers, and its memory is that of all its processes after one prediction, pages that several of them
share counted once (PSS).
"""

import io
import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.machine import sgemm_flops
from benchmarks.rows import Row, Table
from benchmarks.timing import compare, relative_spread, taking_turns

PHOTOS = 20
MEGABYTE = 1_000_000
PREDICT_SECONDS, START_SECONDS, SERVER_MEGABYTES = 0.5, 1.0, 200.0
TIMES_AS_FAST, PHOTOS_A_SECOND = 2.2, 90.0
SIDES = {"341 x 256, of a data set": 256, "533 x 400, of a chat": 400, "4000 x 3000, of a phone": 3000}
ENGINE_SIDES = {"photos": 400, "photos that need no resize": 256}
ONE_CORE = {"OMP_NUM_THREADS": "1"}
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def photo(number: int, side: int = 400) -> bytes:
    """A smooth picture as a JPEG file of the size that a phone sends in a chat."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    file = io.BytesIO()
    coarse.resize((side * 4 // 3, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def as_installed(bytecode: Path) -> dict[str, str]:
    """The environment of a program on one core whose modules are compiled, as pip leaves them."""
    kept = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    return {**kept, **ONE_CORE, "PYTHONPYCACHEPREFIX": str(bytecode)}


@contextmanager
def fitted_model() -> Iterator[tuple[Path, Path]]:
    """A model file and a photo for it, in a folder of their own."""
    from e3bm import FewShotClassifier

    with tempfile.TemporaryDirectory() as folder:
        model, asked = Path(folder) / "model.e3bm", Path(folder) / "photo.jpg"
        photos = {name: [photo(10 * place + number) for number in range(5)] for place, name in enumerate("abcd")}
        FewShotClassifier().fit(photos).save(model)
        asked.write_bytes(photo(99))
        yield model, asked


def engine_rows(photos_of: str, side: int, quick: bool) -> list[Row]:
    """Milliseconds a photo, from bytes to features, through either engine; and photos a second through ours."""
    from e3bm.fewshot.networks.choice import choose_backbone
    from e3bm.fewshot.networks.packaged import ENGINE_VARIABLE

    extractor, photos = choose_backbone("lite0"), [photo(number, side) for number in range(3 if quick else PHOTOS)]

    def through(engine: str) -> None:
        os.environ[ENGINE_VARIABLE] = engine
        try:
            extractor(photos)
        finally:
            del os.environ[ENGINE_VARIABLE]

    os.environ.update(ONE_CORE)
    count = len(photos)
    result = compare(
        lambda: through("torch"),
        lambda: through("onnxruntime"),
        slow_units=count,
        fast_units=count,
        repeats=2 if quick else 7,
    )
    name, second = f"{photos_of} to features, onnxruntime: photos a second (CPU)", 1000 / result.fast_ms
    return [
        Row.of(f"{photos_of} to features, onnxruntime against torch", result, TIMES_AS_FAST),
        Row.at_least(name, second, 1.0, PHOTOS_A_SECOND, "photos/s", spread=result.spread),
    ]


def predict_row(model: Path, asked: Path, quick: bool) -> Row:
    """CPU seconds of `e3bm predict MODEL PHOTO`."""
    words = [sys.executable, "-m", "e3bm", "predict", str(model), str(asked)]
    environment = as_installed(model.parent / "bytecode")
    seconds = []
    for _ in range(2 if quick else 8):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, capture_output=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    middle = statistics.median(seconds[1:])
    spread = relative_spread(seconds[1:], middle)
    name = "`e3bm predict` of one photo: seconds (CPU)"
    return Row.at_most(name, middle, 1.0, PREDICT_SECONDS, "s", spread=spread)


def server_rows(model: Path, asked: Path, quick: bool) -> list[Row]:
    """Seconds until `e3bm serve MODEL` answers, and megabytes after it has answered /predict."""
    seconds, memory = [], []
    for _ in range(1 if quick else 5):
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "e3bm", "serve", str(model), "--port", "0"],
            stdout=subprocess.PIPE, text=True, env=as_installed(model.parent / "bytecode"), start_new_session=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[2]
            urllib.request.urlopen(f"{address}health").read()
            seconds.append(time.perf_counter() - begun)
            _predict(address, asked.read_bytes())
            memory.append(_memory(process.pid) / MEGABYTE)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    start, size = statistics.median(seconds), statistics.median(memory)
    return [
        Row.at_most(
            "`e3bm serve MODEL` until it answers: seconds (clock)", start, 1.0, START_SECONDS, "s",
            spread=relative_spread(seconds, start),
        ),
        Row.at_most(
            "`e3bm serve MODEL` after a prediction, all processes: MB", size, 1.0, SERVER_MEGABYTES, "MB",
            spread=relative_spread(memory, size),
        ),
    ]  # fmt: skip


def _predict(address: str, content: bytes) -> None:
    edge = "photo-edge"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="photos"; filename="a.jpg"\r\n\r\n'
    body = head.encode() + content + f"\r\n--{edge}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={edge}"}
    urllib.request.urlopen(urllib.request.Request(f"{address}predict", body, headers)).read()


def _memory(leader: int) -> int:
    """The memory of all processes of a session."""
    total = 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and os.getsid(int(process.name)) == leader:
                lines = (process / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except OSError:
            continue  # it has ended
    return total


def rows(quick: bool) -> list[Row]:
    """All of them."""
    with fitted_model() as (model, asked):
        engines = [row for name, side in ENGINE_SIDES.items() for row in engine_rows(name, side, quick)]
        return [*engines, predict_row(model, asked, quick), *server_rows(model, asked, quick)]


def tables(quick: bool) -> list[Table]:
    """Where the time of a photo goes, step by step, and that of the network, by kind of layer."""
    columns = [_steps(photo(0, side // 4 if quick else side), 2 if quick else 7) for side in SIDES.values()]
    lines = tuple((step, *(column[step] for column in columns)) for step in columns[0])
    about = "Milliseconds of CPU time on one core, EfficientNet-Lite0, all steps taking turns; medians."
    return [Table("Where the time of a photo goes", about, ("step", *SIDES), lines), _layers(quick)]


def _steps(content: bytes, repeats: int) -> dict[str, float]:
    import torch

    from e3bm.data.pixels.pipeline import CentreCrop, Pipeline, Resize
    from e3bm.data.read.photos import photo_image, photo_pixels
    from e3bm.fewshot.networks.packaged import LITE0, PackagedNetwork

    pipeline, network = Pipeline.parse(LITE0.pipeline), PackagedNetwork(LITE0, LITE0.digest())
    resize, crop = pipeline.steps
    assert isinstance(resize, Resize)
    assert isinstance(crop, CentreCrop)
    whole, pixels, module = photo_image(content), photo_pixels(content), network.module()
    small = resize.photo_middle(whole, crop)
    image = pipeline.normalisation.photo(small)

    @torch.inference_mode()
    def plain() -> None:
        module(torch.from_numpy(image))

    works = {
        "decode (this package)": lambda: photo_image(content),
        "decode, and copy the pixels into an array": lambda: photo_pixels(content),
        "resize all of an array, then take the middle": lambda: crop.photo(resize.photo(pixels)),
        "resize the middle alone (this package)": lambda: resize.photo_middle(whole, crop),
        "normalise": lambda: pipeline.normalisation.photo(small),
        "network in onnxruntime (this package)": lambda: network(image),
        "network in torch": plain,
    }
    spent = taking_turns(works, repeats)
    return {name: float(f"{1000 * statistics.median(seconds):.4g}") for name, seconds in spent.items()}


def _layers(quick: bool) -> Table:
    """The network's layers as onnxruntime runs them: their arithmetic, and how fast it is done."""
    from e3bm.fewshot.networks.cache import cache_file, quiet_runtime
    from e3bm.fewshot.networks.packaged import LITE0, PackagedNetwork

    digest = LITE0.digest()
    PackagedNetwork(LITE0, digest).runner()  # exported by now, if it can be
    runtime, image = quiet_runtime(), np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling, options.log_severity_level = 1, True, 3
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "layers")
        session = runtime.InferenceSession(str(cache_file(LITE0, digest)), options, providers=["CPUExecutionProvider"])
        for _ in range(3 if quick else 40):
            session.run(None, {"images": image})
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: dict[str, list[float]] = {}
    layers: dict[str, tuple[str, float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent.setdefault(event["name"], []).append(event["dur"] / 1e6)
            layers[event["name"]] = _kind_and_operations(event["args"])
    best, lines = sgemm_flops(), []
    for kind in dict.fromkeys(kind for kind, _ in layers.values()):
        names = [name for name, (other, _) in layers.items() if other == kind]
        operations = sum(layers[name][1] for name in names)
        seconds = sum(statistics.median(spent[name]) for name in names)
        numbers = operations / 1e6, 1e3 * seconds, operations / seconds / 1e9, operations / seconds / best
        lines.append((kind, str(len(names)), *(float(f"{number:.3g}") for number in numbers)))
    about = "One image on one thread by onnxruntime's own profile (clock time, medians of each layer)."
    columns = ("layers", "number", "millions of operations", "ms", "GFLOP/s", "share of sgemm")
    return Table("Where the time of the network goes", about, columns, tuple(lines))


def _kind_and_operations(about: dict[str, Any]) -> tuple[str, float]:
    """What kind of layer an event of a profile is about, and its multiplications and additions."""
    if about["op_name"] != "Conv":
        return "all others", 0.0
    (weight,), (result,) = about["input_type_shape"][1].values(), about["output_type_shape"][0].values()
    kind = "pointwise" if weight[2:] == [1, 1] else "depthwise" if weight[1] == 1 else "first convolution"
    return kind, 2.0 * math.prod(weight) * math.prod(result[2:])

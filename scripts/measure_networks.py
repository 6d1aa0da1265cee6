"""Networks by accuracy, trust and milliseconds: lite0, lite2, both, and the first two in 8-bit integers.

Photos are the tuning half of the birds and miniImageNet's training classes 2, 4, 6, ..., in the folder that
E3BM_TEST_DATA names; no temperature or threshold was fitted on them, and every classifier meets the same support sets.
``--ranges`` finds the ranges of the 8-bit networks first, on photos of miniImageNet's training classes 1, 3, 5, ...
(which nothing here is measured on), and writes them into the package.

    python scripts/measure_networks.py --data times birds mini --out results/classifier/networks.jsonl [--ranges]

Data that a file has already is replaced, other data stays.
"""

import argparse
import csv
import io
import json
import os
import platform
import subprocess
import time
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from classifier_measure.compare import our_prior
from classifier_measure.episodes import episodes, hash_of
from classifier_measure.tables import BIRDS, MINI_IMAGENET, Table
from classifier_measure.trust import claims, unknown

from e3bm.fewshot.fitted_head import FitOptions, fit_head
from e3bm.fewshot.networks.choice import choose_backbone
from e3bm.fewshot.networks.graph import network_graph
from e3bm.fewshot.networks.packaged import LITE0, LITE2, RANGES_FILE, PackagedNetwork
from e3bm.fewshot.prior.head_arrays import unit_rows

NETWORKS = ("lite0", "lite2", "lite0+lite2", "lite0-int8", "lite2-int8")
CALIBRATION_PHOTOS, MINI_PHOTOS = 3, 30  # of a class
ROUNDS = 5
TIMES = "times"
CELLS = {"birds": (5,), "mini": (5, 12)}
SHOTS = (1, 5)
OURS = "E3BM"
TRUST = ("says", "ece", "kept_known", "kept_known_ci", "rejected_unknown")


def mini_imagenet(split: str) -> dict[str, list[bytes]]:
    """The photos of every class of a split."""
    found: dict[str, list[bytes]] = {}
    with zipfile.ZipFile(Path(os.environ["E3BM_TEST_DATA"]) / MINI_IMAGENET) as archive:
        for line in csv.DictReader(io.StringIO(archive.read(f"split/{split}.csv").decode())):
            found.setdefault(line["label"], []).append(archive.read("images/" + line["filename"]))
    return dict(sorted(found.items()))


def tuning_birds() -> dict[str, list[bytes]]:
    """Species 1, 3, 5, ... in the order of their names."""
    with zipfile.ZipFile(Path(os.environ["E3BM_TEST_DATA"]) / BIRDS) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        species = sorted({name.split("/")[0] for name in names})[::2]
        return {one: [archive.read(name) for name in names if name.split("/")[0] == one] for one in species}


def ranges_of(name: str, photos: list[bytes]) -> list[tuple[float, float]]:
    """The least and the largest number of every map in the order of the graph, over all photos."""
    extractor, weights = choose_backbone(name), {"lite0": LITE0, "lite2": LITE2}[name]
    graph = onnx.load_from_string(network_graph(onnx, PackagedNetwork(weights, weights.digest()).module()))
    clipped = {node.input[0] for node in graph.graph.node if node.op_type == "Clip"}
    is_map = lambda node: node.op_type in ("Clip", "Add") or (node.op_type == "Conv" and node.output[0] not in clipped)
    maps = [node.output[0] for node in graph.graph.node if is_map(node)]
    value = onnx.helper.make_tensor_value_info
    graph.graph.output.extend(value(one, onnx.TensorProto.FLOAT, None) for one in maps)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    low = np.full(len(maps) + 1, np.inf)
    high = -low
    for photo in photos:
        images = extractor.preprocess(photo)
        every = [images, *session.run(maps, {"images": images})]
        low, high = np.minimum(low, [one.min() for one in every]), np.maximum(high, [one.max() for one in every])
    return [(float(f"{a:.5g}"), float(f"{b:.5g}")) for a, b in zip(low, high, strict=True)]


def write_ranges() -> None:
    photos = [photo for some in list(mini_imagenet("train").values())[::2] for photo in some[:CALIBRATION_PHOTOS]]
    found = {weights.digest(): ranges_of(name, photos) for name, weights in (("lite0", LITE0), ("lite2", LITE2))}
    lines = ",\n".join(f' "{digest}": {json.dumps(ranges)}' for digest, ranges in found.items())
    RANGES_FILE.write_text(f"{{\n{lines}\n}}\n")


def features(name: str, classes: dict[str, list[bytes]]) -> tuple[np.ndarray, np.ndarray]:
    rows = [choose_backbone(name)(photos) for photos in classes.values()]
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(some) for some in rows])


def right_answers(table: Table, ways: int, shots: int, count: int) -> dict[str, list[float]]:
    """Accuracy in percent of every support set: by our classifier, and by centred cosine."""
    prior, found = our_prior(table), {OURS: list[float](), "centred cosine": list[float]()}
    for one in episodes(table, ways, shots, count):
        support, query = (table.features[rows].astype(np.float32) for rows in (one.support, one.query))
        head = fit_head(prior, support, one.support_labels, ways, FitOptions())
        found[OURS].append(100 * float((head.scores(query).argmax(1) == one.query_labels).mean()))
        centre = unit_rows(support).mean(0)
        known, asked = (unit_rows(unit_rows(rows) - centre) for rows in (support, query))
        means = unit_rows(np.stack([known[one.support_labels == way].mean(0) for way in range(ways)]))
        found["centred cosine"].append(100 * float(((asked @ means.T).argmax(1) == one.query_labels).mean()))
    return found


def milliseconds(photos: list[bytes]) -> dict[str, float]:
    """CPU time a photo on one thread, from its bytes to its features, all networks taking turns; medians."""
    extractors = {name: choose_backbone(name) for name in NETWORKS}
    spent: dict[str, list[float]] = {name: [] for name in NETWORKS}
    for _ in range(ROUNDS + 1):
        for name, extractor in extractors.items():
            begin = time.process_time()
            extractor(photos)
            spent[name].append(1000 * (time.process_time() - begin) / len(photos))
    return {name: float(np.median(some[1:])) for name, some in spent.items()}


def half(values: np.ndarray) -> float:
    return round(float(1.96 * values.std(ddof=1) / len(values) ** 0.5), 2)


def cells_of(data: str, count: int) -> list[dict[str, object]]:
    """A line for every network, cell and classifier."""
    classes = tuning_birds() if data == "birds" else dict(list(mini_imagenet("train").items())[1::2])
    classes = {name: photos[:MINI_PHOTOS] for name, photos in classes.items()}
    plain: dict[tuple[object, ...], np.ndarray] = {}
    lines: list[dict[str, object]] = []
    for network in NETWORKS:
        table = Table(data, *features(network, classes), CELLS[data], kinds=choose_backbone(network).kinds)
        for ways, shots in ((ways, shots) for ways in CELLS[data] for shots in SHOTS):
            trust = claims(table, ways, shots, count) | unknown(table, ways, shots, count)
            for classifier, some in right_answers(table, ways, shots, count).items():
                values = np.array(some)
                more = values - plain.setdefault((ways, shots, classifier), values)
                line: dict[str, object] = {
                    "data": data, "network": network, "ways": ways, "shots": shots, "classifier": classifier,
                    "support_sets": count, "accuracy": round(float(values.mean()), 2), "interval": half(values),
                    "more_than_lite0": round(float(more.mean()), 2), "more_interval": half(more),
                    "episodes": hash_of(table, ways, shots, count),
                }  # fmt: skip
                if classifier == OURS:
                    line |= {name: trust[name] for name in TRUST if name in trust}
                lines.append(line)
                print(line, flush=True)
    return lines


def times() -> list[dict[str, object]]:
    """A line with the milliseconds of all networks, and where they were measured."""
    found = milliseconds([photo for photos in tuning_birds().values() for photo in photos[:2]])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    line: dict[str, object] = {
        "data": TIMES, "milliseconds_a_photo": {name: round(some, 2) for name, some in found.items()},
        "commit": commit.stdout.strip(), "machine": platform.machine(), "onnxruntime": onnxruntime.__version__,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    return [line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="*", choices=[TIMES, *CELLS], default=[TIMES, *CELLS])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--ranges", action="store_true")
    options = parser.parse_args()
    if options.ranges:
        write_ranges()
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for data in options.data:
        made = times() if data == TIMES else cells_of(data, options.episodes)
        lines = [line for line in lines if line["data"] != data] + made
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()

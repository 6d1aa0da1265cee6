"""2,000 damaged files of every kind that is read: the only outcomes are the answer of the whole file, or one sentence.

Files of ours carry digests, so that random damage never gives another answer. A file that lies with digests that fit,
one of a former version without any, and files of others may say something else; a sentence or an answer it stays.
"""

import io
import os
import pickle
import shutil
import tarfile
import zipfile
from random import Random

import mutations
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from e3bm import FewShotClassifier
from e3bm.data.layouts.base import KnownClasses
from e3bm.data.layouts.folders import ClassFolders
from e3bm.data.layouts.pickles import NpzImages, PngPickles, SplitPickles
from e3bm.data.read.archives import open_tree
from e3bm.data.read.decode import decode
from e3bm.data.read.decode_pool import pixels_of
from e3bm.data.store.features import FeatureCache
from e3bm.data.store.packed import PackedImages, PackedWriter
from e3bm.errors import DataError, E3BMError
from e3bm.fewshot.prior.file import SHIPPED, load_prior
from e3bm.runs.folder.answers import keep_result
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.run import read_run, read_what_is_there
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.folder.tensor_files import read_tensor_file, tensor_file
from e3bm.runs.kept.group_files import KeptRun
from e3bm.runs.kept.store import KeptResults
from e3bm.runs.settings import TrainSettings
from photo_models import PIPELINE, network, picture, support
from result_records import result_of

LIES = {
    ".json": mutations.lie_in_json, ".jsonl": mutations.lie_in_lines, ".safetensors": mutations.lie_in_tensors,
    ".e3bm": mutations.lie_in_tensors, ".npy": mutations.lie_in_array,
}  # fmt: skip


class Subject:
    """Files, what they say, and how often they are damaged."""

    def __init__(self, folder, look, count, *, ours=True, only=None):
        self.folder, self.look, self.count, self.ours = folder, look, count, ours
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        self.files = {path: path.read_bytes() for path in found if only is None or path.name in only}
        self.answer = self.outcome()
        assert self.answer[0] == "answer", self.answer

    def outcome(self):
        try:
            return "answer", self.look()
        except E3BMError as error:
            if "\n" in str(error):
                raise ValueError("more than one sentence") from error
            return "sentence", str(error)

    def restore(self):
        for path, content in self.files.items():
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def model():
    made = nn.Linear(3, 2)
    nn.init.constant_(made.weight, 1.0)
    return made


def a_run(folder):
    run = RunFolder(folder)
    run.create("train", TrainSettings(), {"data set": "a" * 64}, (3, 84))
    for step in range(1, 6):
        run.append("metrics", {"step": step, "split": "val", "accuracy": 40.0 + step, "ci": 0.5, "best": True})
        run.append("schedules", {"step": step, "rates": [0.1, 0.2], "weights": [0.0, 1.0]})
        run.append("test_log", {"time": "now", "dataset": "glyphs", "episodes": 6})
    keep_result(folder, result_of("run", "MTL", episodes=6), [3, 1, 4, 1, 5, 9])
    made = model()
    optimiser = torch.optim.Adam(made.parameters())
    for best in (True, False):
        Checkpoints(folder).save(made, {"step": 5, "best": 45.0, "optimiser": optimiser.state_dict()}, best=best)

    def look():
        seen = read_what_is_there(folder)  # a report goes on, whatever it finds
        _ = (seen.title, seen.best, seen.progress, seen.seconds, seen.finished)
        found = read_run(folder)
        answers = [found.answers(result) for result in found.results]
        fresh = model()
        place = Checkpoints(folder).resume(fresh, torch.optim.Adam(fresh.parameters()))
        which = Checkpoints(folder).tested()
        weights = {name: value.tolist() for name, value in Checkpoints(folder).weights(which).items()}
        logs = (found.environment, found.metrics, found.schedules, found.test_log)
        return repr((found.written, found.inputs, found.input_shape, logs, found.results, answers, place, weights))

    return Subject(folder, look, 520)


def a_data_set(folder):
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    with PackedWriter(folder, (8, 8, 3), "tiny") as writer:
        writer.append(images, np.arange(60) % 3)
        writer.finish(["ant", "bee", "cat"], {"train": [0], "val": [1], "test": [2]})

    def look():
        found = PackedImages.open(folder)
        pixels = found.gather(np.arange(len(found)))
        assert np.array_equal(pixels, images)  # whatever else was damaged
        return found.name, found.digest, found.class_names, found.splits, found.labels.tolist(), pixels.tobytes()

    return Subject(folder, look, 240)


def cached_features(folder):
    table = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    FeatureCache(folder).keep("key", table)

    def look():
        found = FeatureCache(folder).read("key")
        return table.tobytes() if found is None else found.tobytes()  # what is damaged is computed again

    return Subject(folder, look, 60)


def a_model_file(folder):
    folder.mkdir()
    texts = {"kind": "backbone", "backbone": "conv4", "width": "0.25"}
    (folder / "net.safetensors").write_bytes(tensor_file(network().state_dict(), texts))
    FewShotClassifier(folder / "net.safetensors", pipeline=PIPELINE).fit(support()).save(folder / "model.e3bm")
    (folder / "net.safetensors").unlink()
    asked = picture("sky", 9)

    def look():
        return FewShotClassifier.from_bytes((folder / "model.e3bm").read_bytes()).predict(asked)

    return Subject(folder, look, 240)


def a_prior(folder):
    folder.mkdir()
    shutil.copy(SHIPPED, folder / "prior.safetensors")

    def look():
        found = load_prior.__wrapped__(folder / "prior.safetensors")
        states = [part.state_dict() for part in (found.inductive, found.together)]
        return repr((found.trust, found.training, [{k: v.tolist() for k, v in each.items()} for each in states]))

    return Subject(folder, look, 120)


def weights(folder):
    folder.mkdir()
    content = tensor_file({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}, {"kind": "backbone", "width": "1"})
    (folder / "net.safetensors").write_bytes(content)

    def look():
        texts, tensors = read_tensor_file(folder / "net.safetensors")
        known = {name: texts.get(name) for name in ("kind", "width")}
        return known, {name: value.tolist() for name, value in tensors.items()}

    return Subject(folder, look, 120)


def kept_results(folder):
    record = KeptRun(
        name="mtl-s0",
        config={"version": 2, "kind": "train", "settings": TrainSettings().model_dump(mode="json"), "inputs": {}},
        environment={"python": "3", "command": ["e3bm"], "commit": "abc"},
        results=(result_of("run", "MTL", episodes=6).as_json(),),
        answers=(np.arange(6),),
        metrics=({"step": 1, "split": "val", "accuracy": 50.0},),
        weights={"weight": np.arange(6, dtype=np.float32)},
        checkpoint={"which": "best", "step": 1},
    )
    KeptResults(folder).write({"fc100": [record]}, [{"name": "fc100", "digest": "d" * 64}])

    def look():
        results = KeptResults(folder)
        kept = results.group("fc100")
        answers = [run.answers(result) for run in kept.runs for result in run.results]
        found = kept.weights("mtl-s0") or {}
        return repr((kept.records, answers, {name: value.tolist() for name, value in found.items()}, results.indexes()))

    return Subject(folder, look, 200)


def read_all(layouts, path):
    tree = open_tree(path)
    try:
        for layout in layouts:
            listing = layout.find(tree, KnownClasses())
            if listing is not None:
                pixels = []
                for payload in listing.records.read():
                    try:
                        pixels.append(pixels_of(payload, 3).shape)
                    except DataError as error:
                        pixels.append(str(error))
                return listing.class_names, listing.labels.tolist(), pixels
        raise DataError("It is of no known form.")
    finally:
        tree.close()


def png(number):
    buffer = io.BytesIO()
    Image.fromarray(np.full((9, 9, 3), number, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def pickled_sets(folder):
    folder.mkdir()
    images = np.zeros((4, 9, 9, 3), np.uint8)
    for split in ("train", "val", "test"):
        data = {"data": images, "labels": [0, 0, 1, 1]}
        (folder / f"own_{split}.pickle").write_bytes(pickle.dumps(data, protocol=4))
    return Subject(folder, lambda: read_all([SplitPickles()], folder), 150, ours=False)


def encoded_sets(folder):
    folder.mkdir()
    for split in ("train", "val"):
        encoded = [np.frombuffer(png(number), np.uint8) for number in range(3)]
        (folder / f"{split}_images_png.pkl").write_bytes(pickle.dumps(encoded))
        (folder / f"{split}_labels.pkl").write_bytes(pickle.dumps({"labels": range(3)}, protocol=2))
    return Subject(folder, lambda: read_all([PngPickles()], folder), 100, ours=False)


def npz_sets(folder):
    folder.mkdir()
    np.savez(folder / "train_images.npz", images=np.zeros((3, 9, 9, 3), np.uint8))
    (folder / "train_labels.pkl").write_bytes(pickle.dumps({"labels": np.arange(3)}, protocol=2))
    return Subject(folder, lambda: read_all([NpzImages()], folder), 90, ours=False)


def archives(folder):
    folder.mkdir()
    with tarfile.open(folder / "set.tar", "w") as tar, zipfile.ZipFile(folder / "set.zip", "w") as archive:
        for number in range(4):
            name, content = f"class{number % 2}/image{number}.png", png(number)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            archive.writestr(name, content)

    def look():
        found, sentences = [], []
        for name in ("set.tar", "set.zip"):
            try:
                found.append(read_all([ClassFolders()], folder / name))
            except DataError as error:
                sentences.append(error)
        if sentences:
            raise sentences[0]
        return found

    return Subject(folder, look, 80, ours=False)


def images(folder):
    folder.mkdir()
    picture_ = Image.fromarray(picture("grass", 1))
    for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        picture_.save(folder / f"photo.{form.lower()}", form)

    def look():
        sentences = []
        for path in sorted(folder.iterdir()):
            try:
                decode(path.read_bytes())
            except DataError as error:
                sentences.append(error)
        if sentences:
            raise sentences[0]
        return "all decoded"

    return Subject(folder, look, 80, ours=False)


KINDS = (
    a_run, a_data_set, cached_features, a_model_file, a_prior, weights, kept_results, pickled_sets, encoded_sets,
    npz_sets, archives, images,
)  # fmt: skip
TOTAL = 2000


def _without_end(content):
    """A line that was cut, and then ended: former versions did so."""
    return content.removesuffix(b"\n")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_answer_or_a_sentence(kind, tmp_path):
    subject = kind(tmp_path / "files")
    random = Random(f"{kind.__name__} {os.environ.get('E3BM_TEST_SEED', '0')}")
    paths = sorted(subject.files)
    told = {"answer": 0, "sentence": 0}
    for number in range(subject.count):
        path = paths[number % len(paths)]
        lie = LIES.get(path.suffix) if random.random() < 0.35 else None
        mutate = lie or random.choice(mutations.DAMAGES)
        changed = mutate(random, subject.files[path])
        path.write_bytes(changed)
        try:
            kind_of, said = subject.outcome()
        except Exception as error:
            kept = tmp_path / f"{number}{path.suffix}"
            kept.write_bytes(changed)
            how = f"{path.name} after {mutate.__name__} ({number}), kept as {kept}"
            raise AssertionError(f"{how}: {error!r}") from error
        # A log that ends earlier is what a killed run leaves.
        cut = path.suffix == ".jsonl" and _without_end(subject.files[path]).startswith(_without_end(changed))
        if kind_of == "answer" and subject.ours and lie is None and not cut:
            assert (kind_of, said) == subject.answer, f"{path.name} after {mutate.__name__} ({number})"
        told[kind_of] += 1
        subject.restore()
    assert told["sentence"] > 0 or kind is cached_features
    assert subject.outcome() == subject.answer


def test_there_are_two_thousand(tmp_path):
    assert sum(kind(tmp_path / kind.__name__).count for kind in KINDS) >= TOTAL

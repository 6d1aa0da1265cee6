"""A test of a run: which weights, which episodes, what is refused, and what its result calls itself."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.store.packed import PackedImages, PackedWriter
from e3bm.errors import CheckpointError, DataError, SettingsError
from e3bm.progress import Silent
from e3bm.runs.evaluation.evaluate import Evaluation
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TestSettings
from e3bm.runs.training import train as training
from e3bm.runs.training.train import run_train
from small_runs import settings, write_backbone, write_inputs

SHORT = {"optimiser__steps": 3, "validation__every": 1, "optimiser__theta": 0.1}
FEW = TestSettings(episodes=4)


class Heard(Silent):
    """What was said."""

    def __init__(self):
        self.said = []

    def say(self, sentence):
        self.said.append(sentence)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data of our own: some tests change them."""
    place = tmp_path_factory.mktemp("data")
    write_inputs(place)
    return place


@pytest.fixture
def run(folder, tmp_path):
    return run_train(settings(folder, "mtl", **SHORT), tmp_path / "run").path


def test_the_best_weights_are_tested(folder, tmp_path, monkeypatch):
    """Not the last: its best validation was after the first step, and a run that ends there has the same result."""
    accuracies, summary = iter([90.0, 20.0, 10.0]), Evaluation.summary
    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "summary", lambda self: summary(self) | {"accuracy": next(accuracies)})
        longer = run_train(settings(folder, "mtl", **SHORT), tmp_path / "longer").path
    shorter = run_train(settings(folder, "mtl", **{**SHORT, "optimiser__steps": 1}), tmp_path / "shorter").path
    found, expected = (run_test([path], FEW)[0] for path in (longer, shorter))
    assert (found.checkpoint, found.nll, found.accuracy) == ("best", expected.nll, expected.accuracy)


def test_it_says_which_weights_it_used_and_takes_the_last_only_when_asked(run):
    told = Heard()
    best = run_test([run], FEW, told)[0]
    assert any("run: weights of its best checkpoint, step " in sentence for sentence in told.said)
    (run / "checkpoints" / "best.json").unlink()
    before = (run / "results.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"best checkpoint of .* is lost.*--checkpoint last"):
        run_test([run], FEW)
    assert (run / "results.json").read_bytes() == before
    last = run_test([run], FEW.but(checkpoint="last"), told)[0]
    assert (best.checkpoint, last.checkpoint) == ("best", "last")
    assert told.said[-1] == "run: weights of its last checkpoint, step 3"


def test_damaged_pixels_give_no_result(run, folder):
    """20 images of the test classes are zeroed; the description of the data says nothing of it."""
    path = folder / "small" / "images.u8"
    whole, packed = path.read_bytes(), PackedImages.open(path.parent)
    size = packed.images[0].nbytes
    try:
        with path.open("r+b") as file:
            for position in np.concatenate([packed.indices_of(number) for number in packed.splits["test"]])[:20]:
                file.seek(int(position) * size)
                file.write(bytes(size))
        shutil.rmtree(folder / "features", ignore_errors=True)  # those of the whole pixels would do as well
        with pytest.raises(DataError, match=r"images\.u8 is damaged: the pixels of images"):
            run_test([run], FEW)
    finally:
        path.write_bytes(whole)


def test_the_list_of_a_test_is_that_of_its_seed_and_split(run, monkeypatch):
    drawn, batch = set(), EpisodeSampler.batch
    monkeypatch.setattr(
        EpisodeSampler, "batch", lambda self, wanted: drawn.add((self.stream, self.seed)) or batch(self, wanted)
    )
    results = [run_test([run], FEW.but(**changes))[0] for changes in ({}, {"seed": 5}, {"split": "val"})]
    assert drawn == {("test/test", 1234), ("test/test", 5), ("test/val", 1234)}
    assert len({result.episodes_hash for result in results}) == 3


def test_every_use_of_the_test_classes_is_written_down_and_no_other(run):
    run_test([run], FEW.but(split="val"))
    assert list(RunFolder(run).lines("test_log")) == []
    (result,) = run_test([run], FEW)
    (line,) = RunFolder(run).lines("test_log")
    assert (line["dataset"], line["episodes"], line["episodes_hash"]) == ("small", 4, result.episodes_hash)


def test_spoilt_episodes_are_not_tested_on(run, monkeypatch):
    batch = EpisodeSampler.batch
    spoil = lambda episode: replace(episode, query=(episode.support[-1], *episode.query[1:]))
    monkeypatch.setattr(EpisodeSampler, "batch", lambda self, wanted: [spoil(each) for each in batch(self, wanted)])
    with pytest.raises(DataError, match="in its support and in its queries"):
        run_test([run], FEW)


def test_other_weights_under_the_name_of_the_backbone_are_refused(tmp_path):
    write_inputs(tmp_path / "data")
    run = run_train(settings(tmp_path / "data", "mtl", **SHORT), tmp_path / "run").path
    backbone = tmp_path / "data" / "backbone.safetensors"
    content = bytearray(backbone.read_bytes())
    content[-1] ^= 1
    backbone.write_bytes(content)
    with pytest.raises(CheckpointError, match="its pre-trained backbone changed"):
        run_test([run], FEW)


@pytest.mark.parametrize(
    ("method", "changes", "setting"),
    [
        ("mtl", {}, "inductive"),
        ("mtl", {"hyperprior__setting": "transductive"}, "inductive"),  # nothing is generated: nobody looks
        ("mtl+e3bm", {}, "inductive"),
        ("mtl+e3bm", {"hyperprior__setting": "transductive"}, "transductive"),
        ("sib", {}, "transductive"),
    ],
)
def test_who_sees_the_queries_together_says_so(folder, tmp_path, method, changes, setting):
    run = run_train(settings(folder, method, **{**SHORT, "optimiser__theta": 1e-3}, **changes), tmp_path / "run").path
    assert run_test([run], FEW)[0].setting == setting


def test_classes_that_were_trained_on_are_found_in_another_data_set(folder, run):
    ours = PackedImages.open(folder / "small")
    names = [ours.class_names[number] if number in (0, 1) else f"new {number}" for number in range(19)]
    with PackedWriter(folder / "other", ours.image_shape, "other") as writer:
        writer.append(np.asarray(ours.images), ours.labels)
        writer.finish(names, {"test": range(5), "val": range(5, 10), "train": range(10, 19)})
    with pytest.raises(DataError, match="2 classes of the test split of 'other' were trained on in 'small'"):
        run_test([run], FEW.but(dataset="other"))
    assert run_test([run], FEW.but(dataset="other", allow_seen=True))[0].seen_classes == 2
    assert run_test([run], FEW)[0].seen_classes == 0


def test_nothing_is_chosen_on_the_test_classes(folder, tmp_path):
    with pytest.raises(SettingsError, match="Selecting on the test classes is refused"):
        run_train(settings(folder, "mtl", validation__split="test"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_splits_that_share_a_class_are_not_trained_on(folder, tmp_path, monkeypatch):
    """Our own files never have such splits; a data set of another kind may."""
    opened = training.open_data

    def overlapping(wanted):
        data = opened(wanted)
        splits = data.images.splits | {"val": (*data.images.splits["val"], data.images.splits["train"][0])}
        return replace(data, images=replace(data.images, splits=splits))

    monkeypatch.setattr(training, "open_data", overlapping)
    with pytest.raises(DataError, match="splits must not overlap"):
        run_train(settings(folder, "mtl"), tmp_path / "run")


def test_another_backbone_under_the_same_name_is_not_trained_on(tmp_path):
    write_inputs(tmp_path / "data")
    wanted = settings(tmp_path / "data", "mtl", **SHORT)
    run_train(wanted, tmp_path / "run")
    write_backbone(tmp_path / "data" / "backbone.safetensors", seed=6)
    with pytest.raises(CheckpointError, match="its pre-trained backbone changed"):
        run_train(wanted, tmp_path / "run")

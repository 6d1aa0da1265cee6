"""Training sees the training classes, validation the validation classes, and neither anything of the test classes.

The splits of a small data set are poisoned one after another: their images are replaced by noise. What a run makes of
the clean and of the poisoned data tells what it has looked at, whichever line of the code looked.
"""

import numpy as np
import pytest

from e3bm.data.episodes.classification import ClassificationBatches
from e3bm.data.episodes.sampler import EpisodeSampler
from e3bm.data.store.packed import PackedImages
from e3bm.interruption import Interrupted, time_limit
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train import run_train
from small_runs import assert_equal, assert_same_run, lines, pretrain_settings, settings, write_inputs

CLEAN, SPLITS = "clean", ("train", "val", "test")
FEW = {"optimiser__steps": 2, "validation__every": 1}
UNMOVED = dict.fromkeys(("optimiser__theta", "optimiser__encoder", "optimiser__weight_decay"), 0.0)


def train(folder, run, method, **changes):
    run_train(settings(folder, method, **{**FEW, **changes}), run)


def pretrain(folder, run, **changes):
    run_pretrain(pretrain_settings(folder, epochs=1, **changes), run)


KINDS = {
    "frozen": lambda folder, run: train(folder, run, "mtl+e3bm"),
    "scaled": lambda folder, run: train(folder, run, "mtl-scaled", data__augment=True),
    "full": lambda folder, run: train(folder, run, "maml", method__epochs=1),
    "pretrained": pretrain,
    "whitened": lambda folder, run: pretrain(folder, run, backbone__whitened=True),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the clean data, and one for each poisoned split."""
    folders = {name: tmp_path_factory.mktemp(name) for name in (CLEAN, *SPLITS)}
    for name, folder in folders.items():
        write_inputs(folder, "" if name == CLEAN else name)
    return folders


@pytest.fixture(scope="module", params=KINDS)
def runs(request, data, tmp_path_factory):
    """A run of every kind on every one of them."""
    folder = tmp_path_factory.mktemp(request.param)
    for name, place in data.items():
        KINDS[request.param](place, folder / name)
    return folder


def told(run, split):
    """What a run logged of one split."""
    return [line for line in lines(run, "metrics") if line["split"] == split]


def test_the_test_classes_have_no_influence_on_anything(runs):
    assert_same_run(runs / "test", runs / CLEAN)


def test_the_validation_classes_have_no_influence_on_what_is_trained(runs):
    clean, poisoned = Checkpoints(runs / CLEAN), Checkpoints(runs / "val")
    assert_equal(poisoned.weights("last"), clean.weights("last"))
    assert_equal(poisoned.state("last")["optimiser"], clean.state("last")["optimiser"])
    assert told(runs / "val", "train") == told(runs / CLEAN, "train")
    assert lines(runs / "val", "schedules") == lines(runs / CLEAN, "schedules")


def test_what_is_kept_after_one_validation_owes_nothing_to_the_validation_classes(data, tmp_path):
    """With one validation there is nothing to choose from; whitening afterwards is by the training images alone."""
    for name in (CLEAN, "val"):
        pretrain(data[name], tmp_path / name, backbone__whitened=True)
    found, expected = (Checkpoints(tmp_path / name).weights("best") for name in ("val", CLEAN))
    assert any("trunk" in name for name in expected)
    assert_equal(found, expected)


def test_validation_is_on_the_validation_classes(runs):
    assert told(runs / "val", "val") != told(runs / CLEAN, "val")


def test_training_is_on_the_training_classes(runs):
    """So that the tests above cannot pass because nothing is looked at."""
    assert told(runs / "train", "train") != told(runs / CLEAN, "train")
    with pytest.raises(AssertionError):
        assert_equal(Checkpoints(runs / "train").weights("last"), Checkpoints(runs / CLEAN).weights("last"))


@pytest.mark.parametrize("kind", ["frozen", "full", "pretrained"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_a_test_looks_at_the_classes_it_names_and_at_no_others(data, tmp_path, kind, split):
    KINDS[kind](data[CLEAN], tmp_path / "run")
    found, factors = {}, set()
    for name, folder in data.items():
        # No factor is judged on the validation classes, which it is fitted on.
        wanted = TestSettings(episodes=4, split=split, folder=folder, calibrate=3 if split == "test" else 0)
        (result,) = run_test([tmp_path / "run"], wanted)
        found[name] = result.accuracy, result.nll, result.ece, result.episodes_hash
        if split == "test":
            factors.add(result.metrics["score_factor"])
    assert len({found[name] for name in found if name != split}) == 1
    assert found[split][:3] != found[CLEAN][:3]
    assert len(factors) == (split == "test")  # fitted on the validation classes of the data that the run was trained on
    assert found[split][3] == found[CLEAN][3]  # which images are asked for does not depend on their pixels


@pytest.mark.parametrize("kind", ["frozen", "pretrained"])
def test_confidence_is_calibrated_on_the_validation_classes(data, tmp_path, kind):
    """Weights do not depend on test and validation images, so the factor tells whose answers it was fitted to."""
    factors = {}
    for name in (CLEAN, "val", "test"):
        KINDS[kind](data[name], tmp_path / name)
        (result,) = run_test([tmp_path / name], TestSettings(episodes=2, calibrate=4, checkpoint="last"))
        factors[name] = result.metrics["score_factor"]
    assert factors["test"] == factors[CLEAN] != factors["val"]


@pytest.fixture
def read(monkeypatch):
    """The positions of all images whose pixels are read."""
    positions, gather = set(), PackedImages.gather

    def spy(self, wanted):
        positions.update(np.asarray(wanted).tolist())
        return gather(self, wanted)

    monkeypatch.setattr(PackedImages, "gather", spy)
    return positions


def splits_of(folder, positions):
    """The splits that images belong to."""
    images = PackedImages.open(folder / "small")
    home = {number: split for split, members in images.splits.items() for number in members}
    return {home[int(label)] for label in images.labels[list(positions)]}


@pytest.mark.parametrize("kind", KINDS)
def test_no_pixel_of_the_test_classes_is_read_before_the_test(tmp_path, read, kind):
    write_inputs(tmp_path / "data")
    KINDS[kind](tmp_path / "data", tmp_path / "run")
    assert splits_of(tmp_path / "data", read) == {"train", "val"}
    read.clear()
    run_test([tmp_path / "run"], TestSettings(episodes=3))
    assert splits_of(tmp_path / "data", read) == {"test"}


def test_what_has_nothing_to_train_reads_the_validation_classes_alone(tmp_path, read):
    write_inputs(tmp_path / "data")
    train(tmp_path / "data", tmp_path / "run", "nearest_mean")
    assert splits_of(tmp_path / "data", read) == {"val"}


@pytest.mark.parametrize("method", ["maml", "mtl-scaled"])
def test_validation_and_test_images_are_not_augmented(small_data, tmp_path, method):
    """With learning rates of zero the model stays the same: only its training tasks may change by augmentation."""
    results = {}
    for augment in (False, True):
        run = tmp_path / str(augment)
        train(small_data, run, method, data__augment=augment, method__epochs=1, backbone__batchnorm="batch", **UNMOVED)
        (results[augment],) = run_test([run], TestSettings(episodes=4))
    plain, augmented = (told(tmp_path / str(augment), "val") for augment in (False, True))
    assert augmented == plain
    assert told(tmp_path / "True", "train") != told(tmp_path / "False", "train")
    assert (results[True].accuracy, results[True].nll) == (results[False].accuracy, results[False].nll)


@pytest.fixture
def asked(monkeypatch):
    """The numbers of the episodes that are drawn, by the stream they come from."""
    numbers, batch = {}, EpisodeSampler.batch

    def spy(self, wanted):
        numbers.setdefault(self.stream, []).extend(wanted)
        return batch(self, wanted)

    monkeypatch.setattr(EpisodeSampler, "batch", spy)
    return numbers


@pytest.mark.parametrize("method", ["mtl", "maml"])
def test_every_step_has_episodes_of_its_own_and_every_validation_the_same(small_data, tmp_path, asked, method):
    wanted = settings(small_data, method, method__epochs=1, optimiser__steps=6, optimiser__tasks=3, validation__every=3)
    with time_limit(0.0), pytest.raises(Interrupted, match="after step 1 of 6"):
        run_train(wanted, tmp_path / "run")
    first = list(asked["training/train"])
    assert first[:3] == [0, 1, 2]
    assert len(set(first)) == len(first)
    asked.clear()
    run_train(wanted, tmp_path / "run")
    assert asked["training/train"] == list(range(3, 18))  # taken up where it was stopped
    assert asked["validation/val"] == 2 * list(range(5))
    assert asked.keys() == {"training/train", "validation/val"}


def test_pretraining_sees_every_batch_once_an_epoch(small_data, tmp_path, monkeypatch):
    seen, batch = [], ClassificationBatches.batch

    def spy(self, epoch, index):
        seen.append((epoch, index))
        return batch(self, epoch, index)

    monkeypatch.setattr(ClassificationBatches, "batch", spy)
    run_pretrain(pretrain_settings(small_data, epochs=2), tmp_path / "run")
    assert seen == [(epoch, index) for epoch in (0, 1) for index in range(4)]


def test_another_seed_trains_on_other_episodes_and_validates_on_the_same(small_data, tmp_path):
    """Seeds are compared on one list of validation episodes; with rates of zero the model is the same, too."""
    for seed in (0, 1):
        train(small_data, tmp_path / str(seed), "mtl", seed=seed, method__start="prototype", **UNMOVED)
    assert told(tmp_path / "0", "train") != told(tmp_path / "1", "train")
    assert told(tmp_path / "0", "val") == told(tmp_path / "1", "val")

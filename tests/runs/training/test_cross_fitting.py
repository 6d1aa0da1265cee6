"""Cross-fitted tasks: what is trained sees only classes that the backbone of their features has not seen."""

import shutil

import pytest
import torch

from e3bm.data.episodes.folds import class_folds
from e3bm.errors import CheckpointError, SettingsError
from e3bm.progress import Silent
from e3bm.runs.assembly import build_backbone
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.run import read_run
from e3bm.runs.settings import TestSettings
from e3bm.runs.tasks import feature_tasks, open_data
from e3bm.runs.training import pretrain
from e3bm.runs.training.cross_fitting import CrossFitted
from e3bm.runs.training.pretrain import run_folds, run_pretrain
from e3bm.runs.training.train import run_train
from small_runs import assert_equal, lines, pretrain_settings, settings

FREE = {"mtl": {"method__start": "prototype"}, "sib": {"method__feature_weight": False}}


@pytest.fixture(scope="module")
def folded(small_data, tmp_path_factory):
    """A pre-training with two folds."""
    folder = tmp_path_factory.mktemp("folds") / "backbone"
    wanted = pretrain_settings(small_data, epochs=1)
    run_pretrain(wanted, folder)
    run_folds(wanted, folder, 2)
    return folder


def wanted(folder, backbone, method="mtl+e3bm", **changes):
    free = FREE.get(method.partition("+")[0], {})
    return settings(folder, method, **({"tasks": "cross-fitted", "backbone__pretrained": backbone} | free | changes))


@pytest.mark.parametrize("folds", [-1, 1, 99])
def test_folds_that_classes_cannot_have_are_refused_before_anything_is_trained(small_data, tmp_path, folds):
    with pytest.raises(SettingsError, match=rf"can be divided into 2 to \d+ parts, found {folds}\."):
        run_pretrain(pretrain_settings(small_data), tmp_path / "run", folds=folds)
    assert not (tmp_path / "run").exists()


def test_a_fold_never_sees_the_classes_it_leaves_out(small_data, folded, tmp_path, monkeypatch):
    seen = []

    class Spy(pretrain.ClassificationBatches):
        def __init__(self, images, split, *rest, **more):
            super().__init__(images, split, *rest, **more)
            seen.append((split, self.classes))

    monkeypatch.setattr(pretrain, "ClassificationBatches", Spy)
    data = open_data(pretrain_settings(small_data).data)
    first, second = class_folds(data.images, 2)
    runs = run_folds(pretrain_settings(small_data, epochs=1), tmp_path / "run", 2)
    assert seen == [("train", tuple(sorted(second))), ("train", tuple(sorted(first)))]
    for run, kept in zip(runs, ("1-of-2", "2-of-2"), strict=True):
        assert_equal(
            Checkpoints(run.path).weights("last"), Checkpoints(folded / "folds" / kept).weights("last")
        )  # the same settings give the same fold
    assert Checkpoints(runs[0].path).weights("last")["weight"].shape[0] == len(second)


def test_features_are_those_of_the_fold_that_left_the_class_out(small_data, folded):
    run = wanted(small_data, folded)
    data = open_data(run.data)
    fitted = CrossFitted.of(run, data)
    tasks = fitted.tasks(run, data, Silent(), Engine())
    episodes = fitted.sampler.batch(range(12))
    batch = tasks.load(range(12))
    homes = set()
    for number, episode in enumerate(episodes):
        (home,) = [fold for fold in fitted.folds if set(episode.classes) <= set(fold.unseen)]
        homes.add(home.folder.name)
        backbone = build_backbone(run.backbone.but(pretrained=home.folder), *data.input_shape)
        own = feature_tasks(data, fitted.sampler, backbone, Silent(), torch.float32, Engine(), keep=False)
        expected = own.features[own._row_of[torch.tensor(episode.support)]]
        torch.testing.assert_close(batch.support[number], expected)
    assert homes == {"1-of-2", "2-of-2"}


def test_training_episodes_with_uneven_queries(small_data, folded):
    even, uneven = (
        CrossFitted.of(run, open_data(run.data)).sampler.batch(range(20))
        for run in (wanted(small_data, folded), wanted(small_data, folded).but(query_shares=2))
    )
    counts = [[episode.query_labels.count(label) for label in range(3)] for episode in uneven]
    assert len({tuple(row) for row in counts}) > 1
    assert [sum(row) for row in counts] == [len(episode.query_labels) for episode in even]
    assert [episode.support for episode in uneven] == [episode.support for episode in even]


def test_related_classes_are_for_cross_fitted_tasks(small_data, folded):
    with pytest.raises(SettingsError, match="related classes are for cross-fitted tasks"):
        wanted(small_data, folded).but(tasks="all", related=0.5)


def test_no_backbone_was_trained_on_the_classes_of_its_tasks(small_data, tmp_path, monkeypatch):
    """As a spy saw the folds being trained, not as they say of themselves."""
    seen = []

    class Spy(pretrain.ClassificationBatches):
        def __init__(self, images, split, *rest, **more):
            super().__init__(images, split, *rest, **more)
            seen.append(set(self.classes))

    monkeypatch.setattr(pretrain, "ClassificationBatches", Spy)
    run_folds(pretrain_settings(small_data, epochs=1), tmp_path / "run", 2)
    trained_on = dict(zip(("1-of-2", "2-of-2"), seen, strict=True))
    run = wanted(small_data, tmp_path / "run")
    fitted = CrossFitted.of(run, open_data(run.data))
    assert {fold.folder.name for fold in fitted.folds} == trained_on.keys()
    for fold in fitted.folds:
        assert not set(fold.unseen) & trained_on[fold.folder.name]
        assert fold.unseen


@pytest.mark.parametrize("method", ["mtl+e3bm", "sib", "sib+e3bm"])
def test_it_is_trained_on_folds_and_used_on_the_backbone_of_all_classes(small_data, folded, tmp_path, method):
    run = run_train(wanted(small_data, folded, method), tmp_path / "cross")
    plain = run_train(wanted(small_data, folded, method, tasks="all"), tmp_path / "all")
    assert lines(run.path, "metrics") != lines(plain.path, "metrics")
    inputs = read_run(run.path).inputs
    assert {"folds", "pre-trained backbone"} <= inputs.keys()
    assert inputs["pre-trained backbone"] == read_run(plain.path).inputs["pre-trained backbone"]
    rows = run_test([run.path, plain.path], TestSettings(episodes=10))
    assert rows[0].episodes_hash == rows[1].episodes_hash
    assert rows[0].system != rows[1].system
    # At test the folds are not needed any more.
    shutil.copytree(folded, tmp_path / "backbone", ignore=shutil.ignore_patterns("folds"))
    elsewhere = run_test([run.path], TestSettings(episodes=10), places=[tmp_path / "backbone"])
    assert elsewhere[0].accuracy == rows[0].accuracy


def test_a_network_that_is_trained_on_begins_with_one_fold(small_data, folded, tmp_path):
    method = {"backbone__adapt": "full", "backbone__batchnorm": "batch", "method__start": "zero"}
    with pytest.raises(
        SettingsError, match=r"set backbone.pretrained to one of them, such as .*1-of-2, or tasks to all"
    ):
        run_train(wanted(small_data, folded, "maml", **method), tmp_path / "refused")
    one = wanted(small_data, folded / "folds" / "1-of-2", "maml", **method)
    data = open_data(one.data)
    assert set(CrossFitted.of(one, data).sampler.classes) == set(class_folds(data.images, 2)[0])
    run = run_train(one, tmp_path / "maml")
    assert read_run(run.path).finished


@pytest.mark.parametrize(
    ("method", "changes", "reason"),
    [
        ("mtl+e3bm", {"method__start": "learned"}, "learned start of MTL's head .* set method.start to prototype"),
        ("sib", {"method__feature_weight": True}, "set method.feature_weight off"),
        ("mtl+e3bm", {"hyperprior__summary": "class_mean"}, "set hyperprior.summary to stats"),
        ("mtl+e3bm", {"hyperprior__summary": "rms", "hyperprior__embedding": True}, "reads features one by one"),
    ],
)
def test_what_belongs_to_one_backbone_is_refused(small_data, folded, tmp_path, method, changes, reason):
    with pytest.raises(SettingsError, match=f"features of other backbones than the test, but .*{reason}"):
        run_train(wanted(small_data, folded, method, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_folds_that_are_not_there(small_data, folded, pretrained_run, tmp_path):
    for source, reason in ((pretrained_run, "there: none"), (small_data / "backbone.safetensors", "there: none")):
        with pytest.raises(SettingsError, match=f"need folds of .*{reason}.*e3bm pretrain --folds K"):
            run_train(wanted(small_data, source), tmp_path / "run")
    # What could not use them is refused at once, not after their training.
    with pytest.raises(SettingsError, match=r"other backbones than the test, but .* set method.start to prototype"):
        run_train(wanted(small_data, pretrained_run, method__start="learned"), tmp_path / "run")
    full = {"backbone__adapt": "full", "backbone__batchnorm": "batch", "method__start": "zero"}
    with pytest.raises(SettingsError, match=r"need one fold, and there is none; .*--left-out 1 K.* set backbone"):
        run_train(wanted(small_data, pretrained_run, "maml", **full), tmp_path / "run")
    shutil.copytree(folded, tmp_path / "two")
    run_folds(pretrain_settings(small_data, epochs=1), tmp_path / "two", 3)
    with pytest.raises(SettingsError, match=r"parts of one division .there: 1-of-2, 1-of-3, 2-of-2"):
        run_train(wanted(small_data, tmp_path / "two"), tmp_path / "run")


def test_parts_without_a_fold_are_not_drawn_from(small_data, folded, tmp_path):
    shutil.copytree(folded, tmp_path / "backbone")
    shutil.move(tmp_path / "backbone" / "folds" / "2-of-2", tmp_path / "aside")
    half = wanted(small_data, tmp_path / "backbone", optimiser__steps=6)
    data = open_data(half.data)
    assert set(CrossFitted.of(half, data).sampler.classes) == set(class_folds(data.images, 2)[0])
    run_train(half, tmp_path / "run")
    # A fold that comes later does not change a run that began without it.
    shutil.move(tmp_path / "aside", tmp_path / "backbone" / "folds" / "2-of-2")
    with pytest.raises(CheckpointError, match="its folds changed"):
        run_train(half, tmp_path / "run")


def test_a_fold_that_is_not_finished(small_data, folded, tmp_path):
    shutil.copytree(folded, tmp_path / "run")
    unfinished = tmp_path / "run" / "folds" / "2-of-2" / "metrics.jsonl"
    unfinished.write_text("".join(f"{line}\n" for line in unfinished.read_text().splitlines()[:1]))
    with pytest.raises(SettingsError, match="2-of-2 has not finished its training"):
        run_train(wanted(small_data, tmp_path / "run"), tmp_path / "other")


def test_a_network_is_trained_with_a_hyperprior_of_new_classes(small_data, folded, tmp_path):
    """What a fold's new classes taught Psi is used, unchanged, where the network of all classes is trained."""
    fold = folded / "folds" / "1-of-2"
    run_train(wanted(small_data, fold, "maml+e3bm"), tmp_path / "psi")
    still = {f"optimiser__{name}": 0.0 for name in ("psi_rate", "psi_weight", "base_rate", "base_weight")}
    taken = {"hyperprior__start_from": tmp_path / "psi", "backbone__pretrained": folded}
    run_train(settings(small_data, "maml+e3bm", **taken, **still), tmp_path / "maml")
    learned, used = Checkpoints(tmp_path / "psi").weights("best"), Checkpoints(tmp_path / "maml").weights("last")
    same = {name for name in learned if torch.equal(used[name], learned[name])}
    psi = {name for name in learned if name.startswith("hyperprior.")}
    assert psi
    assert psi <= same < set(learned)  # Psi is the same, the network another one
    shutil.rmtree(tmp_path / "psi")  # a finished run has its own copy
    result, *_ = run_test([tmp_path / "maml"], TestSettings(episodes=4, folder=small_data))
    assert 0 <= result.accuracy <= 100


def test_a_hyperprior_of_another_form_is_refused(small_data, folded, tmp_path):
    run_train(wanted(small_data, folded / "folds" / "1-of-2", "maml+e3bm"), tmp_path / "psi")
    taken = {"hyperprior__start_from": tmp_path / "psi", "backbone__pretrained": folded}
    with pytest.raises(SettingsError, match="of another form"):
        run_train(settings(small_data, "maml+e3bm", hyperprior__hidden=4, **taken), tmp_path / "maml")
    missing = taken | {"hyperprior__start_from": tmp_path / "none"}
    with pytest.raises(SettingsError, match="holds no trained run"):
        run_train(settings(small_data, "maml+e3bm", **missing), tmp_path / "maml")
    with pytest.raises(SettingsError, match="start_from needs generated"):
        settings(small_data, "maml", **taken)
    assert not (tmp_path / "maml").exists()

"""Several seeds that answer together, and runs that moved together with what they refer to."""

import shutil
from dataclasses import replace

import pytest
import torch

import small_runs
from e3bm.core.adapt import AdaptationTrace
from e3bm.core.learner import Learner
from e3bm.errors import SettingsError
from e3bm.runs.evaluation.ensemble import AveragedLearners, make_ensemble
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.answers import read_answers
from e3bm.runs.folder.run import beside, read_run
from e3bm.runs.settings import TestSettings
from e3bm.runs.training.train import run_train

TEST = TestSettings(episodes=10)


@pytest.fixture(scope="module")
def members(small_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("members")
    return [
        run_train(small_runs.settings(small_data, "maml", seed=seed, optimiser__steps=4), folder / f"maml-s{seed}").path
        for seed in range(2)
    ]


class Says(Learner):
    """A model that always gives the same trace."""

    def __init__(self, trace: AdaptationTrace) -> None:
        super().__init__()
        self.trace = trace

    @property
    def epochs(self):
        return 5

    def forward(self, batch, *, every_epoch=False, epochs=None):
        return self.trace if every_epoch else replace(self.trace, epoch_scores=None)


def trace(seed: int) -> AdaptationTrace:
    random = torch.Generator().manual_seed(seed)
    values = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)
    return AdaptationTrace(values(2, 3, 4), values(2, 5), values(2, 5), values(2, 5), values(2, 5, 3, 4))


def test_probabilities_are_averaged_not_scores():
    first, second = trace(0), trace(1)
    found = AveragedLearners([Says(first), Says(second)])(None, every_epoch=True)
    expected = (first.scores.softmax(-1) + second.scores.softmax(-1)) / 2
    torch.testing.assert_close(found.scores.exp(), expected, rtol=0, atol=1e-12)
    expected = (first.epoch_scores.softmax(-1) + second.epoch_scores.softmax(-1)) / 2
    torch.testing.assert_close(found.epoch_scores.exp(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.rates, (first.rates + second.rates) / 2)
    assert AveragedLearners([Says(first), Says(second)])(None).epoch_scores is None


def test_one_model_twice_is_that_model():
    torch.testing.assert_close(
        AveragedLearners([Says(trace(0)), Says(trace(0))])(None).scores, trace(0).scores.log_softmax(-1)
    )


def test_an_ensemble_is_tested_on_the_same_episodes_and_paired_with_its_members(members, tmp_path):
    ensemble = make_ensemble(members, tmp_path / "both")
    rows = run_test([*members, ensemble.path], TEST)
    together = next(row for row in rows if row.run == "both")
    assert together.method == "2x MAML"
    assert together.episodes_hash == rows[0].episodes_hash
    assert together.paired_with == "MAML (maml-s0)"
    assert together.parameters == 2 * rows[0].parameters
    assert read_run(ensemble.path).results[0].accuracy == together.accuracy
    assert [line["episodes_hash"] for line in read_run(ensemble.path).test_log] == [together.episodes_hash]


def test_only_runs_that_differ_in_their_seed_make_an_ensemble(members, small_data, tmp_path):
    other = run_train(
        small_runs.settings(small_data, "maml", method__rate=0.1, optimiser__steps=4), tmp_path / "other"
    ).path
    ensemble = make_ensemble([members[0], other], tmp_path / "mixed")
    with pytest.raises(SettingsError, match="differ in their seed only"):
        run_test([ensemble.path], TEST)
    with pytest.raises(SettingsError, match="not a run of `e3bm train`"):
        make_ensemble([members[0], ensemble.path], tmp_path / "nested")


def test_runs_that_moved_together_find_one_another(members, tmp_path):
    ensemble = make_ensemble(members, tmp_path / "old" / "both")
    before = run_test([ensemble.path], TEST)
    for path in [*members, ensemble.path]:
        shutil.copytree(path, tmp_path / "new" / path.name)
    shutil.rmtree(ensemble.path)
    assert beside(tmp_path / "new" / "both", tmp_path / "gone" / "maml-s1") == tmp_path / "new" / "maml-s1"
    assert beside(tmp_path / "new" / "both", tmp_path / "gone" / "else") == tmp_path / "gone" / "else"
    after = run_test([tmp_path / "new" / "both"], TEST)
    assert after[0].accuracy == before[0].accuracy


def test_right_answers_of_every_episode_are_kept(members):
    (row,) = run_test([members[0]], TEST)
    right = read_answers(members[0], row)
    assert len(right) == 10
    assert 100 * sum(right) / (10 * row.ways * row.queries) == pytest.approx(row.accuracy)
    assert row.settings_digest == read_run(members[0]).settings_digest
    assert read_answers(members[0], row.but(split="val")) is None

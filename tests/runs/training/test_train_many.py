import pytest

import small_runs
from e3bm.errors import CheckpointError, SettingsError
from e3bm.interruption import Interrupted
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.kept.pack import add_runs, unpack
from e3bm.runs.settings import TestSettings
from e3bm.runs.training import train_many as module
from e3bm.runs.training.train_many import Job, finished, seconds_of, train_many


class Listener:
    """Remembers what was said."""

    def __init__(self):
        self.said = []
        self.titles = []

    def begin(self, title, total, done=0):
        self.titles.append(title)

    def advance(self, done, **numbers): ...

    def end(self): ...

    def say(self, sentence):
        self.said.append(sentence)


@pytest.mark.parametrize(
    ("words", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("45", 45), ("0.5h", 1800)]
)
def test_times_as_people_write_them(words, seconds):
    assert seconds_of(words) == seconds


@pytest.mark.parametrize("words", ["", "soon", "3d", "m", "-5m"])
def test_other_words_are_no_times(words):
    with pytest.raises(SettingsError, match=r"is not a duration; write 90s, 30m, 2h or 1h30m\."):
        seconds_of(words)


def test_finished_runs_are_passed_over(small_data, tmp_path):
    jobs = [Job(tmp_path / str(seed), small_runs.settings(small_data, "mtl", seed=seed)) for seed in range(2)]
    listener = Listener()
    assert train_many(jobs, progress=listener) == [job.folder for job in jobs]
    assert listener.titles.count("meta-train MTL") == 2
    again = Listener()
    train_many(jobs, progress=again)
    assert again.titles == []
    with pytest.raises(CheckpointError, match="other settings: seed was 0, now 5"):
        finished(Job(jobs[0].folder, jobs[0].settings.but(seed=5)))


def test_every_run_has_its_share_of_the_time(small_data, tmp_path):
    settings = small_runs.settings(small_data, "mtl", optimiser__steps=2000, validation__every=1000)
    jobs = [Job(tmp_path / str(seed), settings.but(seed=seed)) for seed in range(2)]
    listener = Listener()
    assert train_many(jobs, seconds=0.6, progress=listener) == [job.folder for job in jobs]
    assert [sentence.split(":")[0] for sentence in listener.said] == ["0", "1"]
    assert all("the time is up. Stopped after step" in sentence for sentence in listener.said)
    # Neither came to a validation: what is tested then is the last checkpoint, and the result says so.
    assert not any(Checkpoints(job.folder).has("best") for job in jobs)
    row = run_test([jobs[0].folder], TestSettings(episodes=4))[0]
    assert row.checkpoint == "last"
    add_runs([jobs[0].folder], tmp_path / "results")
    (kept,) = unpack("small/0", tmp_path / "results", tmp_path / "out")
    assert run_test([kept], TestSettings(episodes=4))[0].accuracy == row.accuracy
    listener = Listener()
    train_many(jobs, seconds=0.0, progress=listener)
    assert listener.said == ["No time is left for 0.", "No time is left for 1."]


def test_a_run_that_needs_another_waits_for_it(small_data, tmp_path):
    learns = small_runs.settings(small_data, "mtl", hyperprior__weight="learned", optimiser__steps=3)
    source = tmp_path / "learns"
    uses = learns.but(hyperprior=learns.hyperprior.but(weight="frozen", frozen_from=source))
    jobs = [Job(tmp_path / "uses", uses, source), Job(source, learns)]
    listener = Listener()
    train_many(jobs, seconds=0.0, progress=listener)
    assert listener.said == ["No time is left for learns.", "uses waits for learns, which is not finished."]
    assert train_many(jobs) == [tmp_path / "uses", source]


def test_a_request_to_stop_is_not_the_end_of_the_time(small_data, tmp_path, monkeypatch):
    def stop(*arguments):
        raise Interrupted("Stopped.")

    monkeypatch.setattr(module, "run_train", stop)
    with pytest.raises(Interrupted):
        train_many([Job(tmp_path / "run", small_runs.settings(small_data, "mtl"))], seconds=100.0)


@pytest.mark.slow
def test_two_processes_give_the_same_runs(small_data, tmp_path):
    settings = [small_runs.settings(small_data, "mtl", seed=seed) for seed in range(2)]
    for name, workers in (("one", 1), ("two", 2)):
        jobs = [Job(tmp_path / name / str(number), each) for number, each in enumerate(settings)]
        assert len(train_many(jobs, workers=workers)) == 2
    for number in range(2):
        small_runs.assert_same_run(tmp_path / "two" / str(number), tmp_path / "one" / str(number))

"""The commit is told where there is one, the release elsewhere."""

import subprocess

from e3bm.runs.folder import environment


def test_commit_in_a_checkout(monkeypatch):
    answers = {"rev-parse": "0123456789ab", "status": ""}
    monkeypatch.setattr(environment, "_git", lambda folder, command, *rest: answers[command])
    assert environment.commit() == "0123456789ab"
    answers["status"] = " M src/e3bm/engine.py"
    assert environment.commit() == "0123456789ab+"


def test_without_git_the_release_is_told(monkeypatch):
    def fail(*words):
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(environment, "_git", fail)
    assert environment.commit().startswith("release ")


def test_processes_and_command_are_noted(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/e3bm", "train", "--run", "x"])
    found = environment.describe_environment()
    assert found["world_size"] == 4
    assert found["command"] == ["e3bm", "train", "--run", "x"]

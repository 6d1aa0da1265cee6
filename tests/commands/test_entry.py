"""The console script: a reader that goes away, and an interruption."""

import subprocess
import sys

import pytest

from e3bm.cli.commands import predict, prepare
from e3bm.cli.main import COMMANDS, CONTINUING, main


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["--version"]])
def test_a_reader_that_has_gone_is_no_error(words):
    command = [sys.executable, "-m", "e3bm", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        started.stdout.close()  # before anything is written: every write breaks the pipe
        complaints = started.stderr.read()
        assert (complaints, started.wait()) == (b"", 0)


def test_only_commands_that_continue_promise_it(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    assert set(CONTINUING) <= set(COMMANDS)
    monkeypatch.setattr(predict, "run", interrupted)
    assert main(["predict", "model.e3bm", "photo.png"]) == 130
    assert capsys.readouterr().err == "e3bm: interrupted; nothing was saved.\n"
    monkeypatch.setattr(prepare, "run", interrupted)
    assert main(["prepare", "cub"]) == 130
    assert capsys.readouterr().err == "e3bm: interrupted; run the same command again to continue.\n"

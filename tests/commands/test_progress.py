"""What a person sees of long work: a bar on a terminal, lines elsewhere, nothing from processes that do not lead."""

import io
import sys

import pytest
from rich.console import Console

from e3bm.cli import console
from e3bm.cli.console import BarProgress, LineProgress, progress_here
from e3bm.progress import Progress, Silent, stage


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("kind", [Silent, BarProgress, LineProgress])
def test_all_are_progress(kind):
    assert isinstance(kind(), Progress)


def test_lines_have_numbers_and_the_time_left(clock, capsys):
    progress = LineProgress()
    progress.begin("meta-train MTL", 100)
    progress.advance(1, loss=1.5)
    clock[0] += 10
    progress.advance(20, loss=1.25, accuracy=60.0, tasks_per_second=32.0)
    clock[0] += 30
    progress.advance(100, loss=0.5)
    progress.end()
    assert capsys.readouterr().err.splitlines() == [
        "meta-train MTL: 100 to do",
        "meta-train MTL: 20/100 loss 1.25 accuracy 60 tasks/s 32, 40 s left",
        "meta-train MTL: 100/100 loss 0.5 accuracy 60 tasks/s 32 in 40 s",
    ]


def test_the_first_steps_say_nothing_of_the_time_left(clock, capsys):
    progress = LineProgress()
    progress.begin("features", 60)
    for step in range(1, 4):
        clock[0] += 6
        progress.advance(step)
    assert capsys.readouterr().err.splitlines() == [
        "features: 60 to do",
        "features: 1/60",
        "features: 2/60",
        "features: 3/60, 342 s left",
    ]


def test_a_continued_run_counts_its_own_steps_for_the_time_left(clock, capsys):
    progress = LineProgress()
    progress.begin("meta-train MTL", 100, 80)
    clock[0] += 10
    progress.advance(90)
    told = capsys.readouterr().err
    assert "continuing after 80 of 100" in told
    assert "90/100, 10 s left" in told


def test_a_bar_has_numbers_and_the_time_left():
    progress = BarProgress()
    progress.console = Console(file=io.StringIO(), force_terminal=True, width=160)
    with stage(progress, "meta-train [mine]", 10, 2):
        progress.advance(4)
        progress.bar.refresh()
        assert ":" not in progress.console.file.getvalue().rsplit("4/10", 1)[1]  # too early for an estimate
        for step in range(3, 8):
            progress.advance(step, loss=1.25, tasks_per_second=32.0)
        progress.bar.refresh()
    drawn = progress.console.file.getvalue()
    assert "meta-train [mine]" in drawn
    assert "7/10" in drawn
    assert "loss 1.25 tasks/s 32" in drawn
    assert ":" in drawn.rsplit("tasks/s 32", 1)[1]  # h:mm:ss
    assert drawn.endswith("\x1b[?25h") or "\x1b[?25h" in drawn  # the cursor is back


def test_failing_work_ends_its_bar():
    progress = BarProgress()
    progress.console = Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(ValueError, match="broken"), stage(progress, "work", 10):
        raise ValueError("broken")
    assert progress.bar is None
    assert "\x1b[?25h" in progress.console.file.getvalue()


def test_bars_on_a_terminal_and_lines_elsewhere(monkeypatch, capsys):
    assert isinstance(progress_here(), LineProgress)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(progress_here(), BarProgress)
    monkeypatch.setenv("RANK", "1")
    quiet = progress_here()
    quiet.begin("work", 3)
    quiet.say("something")
    quiet.end()
    assert capsys.readouterr().err == ""

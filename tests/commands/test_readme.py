"""Every command that the README shows is run, with tiny numbers."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from e3bm.cli.main import COMMANDS, main

README = Path(__file__).resolve().parents[2] / "README.md"
TINY = {
    "pretrain": "--epochs 1 --backbone.width 0.125 --batch 512 --validation.episodes 5",
    "train": "--backbone.width 0.125 --optimiser.steps 3 --optimiser.tasks 2 --validation.episodes 5 --method.epochs 3",
    "test": "--episodes 5",
}
PLACEHOLDERS = ("PATH", "NAME", "DIR")
LASTING = ("serve",)  # runs until it is stopped: tests/serving starts it


def commands():
    found = re.findall(r"`e3bm ([^`]+)`", README.read_text())
    runnable = [shlex.split(words) for words in found if not any(place in words for place in PLACEHOLDERS)]
    return [words for words in runnable if words[0] not in LASTING]


def draw_photos(folder):
    """Two classes of plain pictures."""
    for number, name in enumerate(("crow", "magpie")):
        (folder / name).mkdir(parents=True)
        for shade in range(3):
            Image.new("RGB", (40, 40), (250 * number, 60 * shade, 120)).save(folder / name / f"{shade}.png")


def test_the_readme_names_only_commands_that_exist():
    named = {words.split()[0] for words in re.findall(r"`e3bm ([^`]+)`", README.read_text())}
    assert named - {"--help"} <= set(COMMANDS)


@pytest.mark.slow
def test_the_readme_commands_work_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("E3BM_DATA", str(tmp_path / "data"))
    for folder in ("photos", "labelled", "new"):
        draw_photos(tmp_path / folder)
    shutil.copy(tmp_path / "new" / "magpie" / "0.png", tmp_path / "new" / "17.jpg")
    (tmp_path / "results").symlink_to(README.parent / "results")
    shown = commands()
    assert len(shown) >= 7
    for words in shown:
        try:
            code = main([*words, *shlex.split(TINY.get(words[0], "") if "--help" not in words else "")])
        except SystemExit as stop:  # --help ends the program itself
            code = stop.code
        assert code == 0, f"e3bm {' '.join(words)}: {capsys.readouterr().err}"
    assert (tmp_path / "runs" / "report" / "index.html").exists()

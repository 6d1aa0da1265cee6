"""What docs/data_sets.md and docs/how_to/own_data_set.md show is run."""

import re
import shlex
from pathlib import Path

import pytest

from e3bm.cli.main import main
from e3bm.data.read.prepare import prepare
from e3bm.data.source import SOURCES, registered_sources

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


@pytest.fixture
def workplace(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("E3BM_DATA", str(tmp_path / "data"))
    write.tree(tmp_path / "fc100", write.split_folders(write.small("fc100", per_class=1)), "zip")
    drawings = write.alphabet_folders(write.small("omniglot", per_class=1))
    for part in ("images_background", "images_evaluation"):
        write.tree(tmp_path / part, {name: one for name, one in drawings.items() if name.startswith(part)}, "zip")
    species = ("crow", "jay", "magpie", "rook", "raven", "jackdaw", "chough", "nutcracker")
    small = write.small("fc100", per_class=3)
    files = {
        f"{name}/{k}.png": write.png(small.pixels(sorted(small.split_of)[n], k))
        for n, name in enumerate(species)
        for k in range(3)
    }
    return write.tree(tmp_path / "photos", files)


@pytest.mark.parametrize("page", ["data_sets.md", "how_to/own_data_set.md"])
def test_commands(workplace, page, capsys):
    commands = [line for block in blocks(page, "bash") for line in block.splitlines() if line.startswith("e3bm ")]
    assert len(commands) >= 2
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, f"{command}: {capsys.readouterr().err}"


def test_python(workplace, tmp_path, monkeypatch):
    monkeypatch.setattr(SOURCES, "_entries", dict(SOURCES._entries))
    for block in blocks("how_to/own_data_set.md", "python"):
        exec(compile(block, "own_data_set.md", "exec"), {"__name__": "docs"})
    assert "corvids" in registered_sources()
    for other in ("chough", "nutcracker"):
        for path in (workplace / other).iterdir():
            path.unlink()
        (workplace / other).rmdir()
    result = prepare("corvids", workplace, folder=tmp_path / "data", workers=1)
    assert result.splits["test"] == {"classes": 2, "images": 6}
    assert not result.notes


def test_the_table_of_data_sets_is_the_registry():
    text = (DOCS / "data_sets.md").read_text("utf-8")
    for name in registered_sources():
        assert name == "folder" or f"| `{name}` |" in text
        for download in registered_sources()[name]().card.downloads:
            assert download.url in text or download.url.rpartition("/")[2] in text

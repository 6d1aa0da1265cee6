"""Documentation that names code must be right about it."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(set(re.findall(r"`(e3bm\.[A-Za-z0-9_.]+)`", (ROOT / "docs" / "paper_to_code.md").read_text())))


def resolve(name):
    """Import the longest module prefix, then follow attributes."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_in_paper_to_code_exists(name):
    assert resolve(name) is not None


METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda page: page.stem)
def test_a_methods_page_knows_its_code_its_settings_and_its_presets(page):
    from e3bm.methods import METHODS
    from e3bm.paper.presets import find_preset

    text, settings = page.read_text(), METHODS[page.stem].settings
    assert text.startswith(f"# {settings.title}\n")
    for name in re.findall(r"`(e3bm\.[A-Za-z0-9_.]+)`", text):
        assert resolve(name) is not None
    for option in settings.model_fields:
        assert option == "name" or f"`{option}`" in text, option
    commands = re.findall(r"--preset (\S+)", text)
    assert commands
    for preset in commands:
        assert find_preset(preset).train.method.name == page.stem


def test_the_page_covers_every_equation_and_algorithm():
    text = (ROOT / "docs" / "paper_to_code.md").read_text()
    for number in range(1, 15):
        assert f"Eq. {number}," in text, f"equation {number} is missing"
    assert "Algorithm 1" in text
    assert "Algorithm 2" in text


def test_relative_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_api_reference_says_what_the_docstrings_say(tmp_path):
    # In a process of its own: other tests register names that the page would then list.
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build_api_reference.py"), str(tmp_path / "api.md")], check=True
    )
    expected = (tmp_path / "api.md").read_text()
    assert (ROOT / "docs" / "api.md").read_text() == expected, "run: python scripts/build_api_reference.py"


def test_the_curves_of_the_study_are_those_of_its_runs(tmp_path):
    subprocess.run([sys.executable, str(ROOT / "scripts" / "study_figures.py"), str(tmp_path)], check=True)
    drawn = {path.name: path for path in tmp_path.glob("*.png")}
    kept = {path.name: path for path in (ROOT / "docs" / "images").glob("study_*.png")}
    assert drawn
    assert drawn.keys() == kept.keys(), "run: python scripts/study_figures.py"
    for name, path in drawn.items():
        ours, theirs = (np.asarray(Image.open(each).convert("L"), dtype=float) for each in (path, kept[name]))
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).mean() < 0.1, f"{name} shows other numbers"

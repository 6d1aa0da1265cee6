"""The map of the house names every room, and nothing that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "e3bm"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_MODULES = 12
# One file per command, method or data set: as many as there are.
OPEN_ENDED = {"cli.commands", "methods", "data.sources"}


def packages() -> list[str]:
    return sorted(
        ".".join(path.parent.relative_to(PACKAGE).parts)
        for path in PACKAGE.rglob("__init__.py")
        if path.parent != PACKAGE
    )


def rooms() -> str:
    return PAGE.split("## Rooms")[1].split("\n## ")[0]


def test_every_package_and_top_level_module_is_on_the_map():
    modules = [path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")]
    missing = [name for name in (*packages(), *modules) if f"`{name}`" not in rooms()]
    assert missing == []


def test_everything_on_the_map_exists():
    for name in re.findall(r"`([a-z_.]+)`", rooms()):
        if name.startswith("make"):
            continue
        place = PACKAGE / name.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), name
    for name in re.findall(r"`((?:core|data|methods|paper|cli|runs|fewshot)/[a-z_/.]+)`", PAGE):
        assert (PACKAGE / name).exists(), name


def test_concepts_come_before_modules():
    assert PAGE.index("## Concepts") < PAGE.index("## One picture") < PAGE.index("## Rooms")


def test_no_corridor_is_too_long():
    for name in packages():
        folder = PACKAGE / name.replace(".", "/")
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert name in OPEN_ENDED or len(modules) <= MOST_MODULES + 2, f"{name} has {len(modules)} modules"


def test_every_room_says_what_it_holds():
    for name in packages():
        text = (PACKAGE / name.replace(".", "/") / "__init__.py").read_text()
        assert text.startswith('"""'), name


def test_json_is_read_in_one_place():
    """Whoever reads JSON otherwise has no limit of depth, size and encoding."""
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "json_files.py"]
    assert [str(path) for path in others if re.search(r"\bjson\.loads?\(", path.read_text())] == []

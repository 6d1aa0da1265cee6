"""Links every name of code in docs/paper_to_code.md and docs/methods to the lines that define it."""

import ast
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "paper_to_code.md", *sorted((ROOT / "docs" / "methods").glob("*.md")))
NAME = re.compile(r"\[?`(?P<name>e3bm\.[A-Za-z0-9_.]+)`(?:\]\([^)]*\))?")


def linked(page: Path) -> str:
    """The text of a page with its links as they should be."""
    up = "../" * len(page.parent.relative_to(ROOT).parts)
    return NAME.sub(lambda found: f"[`{found['name']}`]({up}{place_of(found['name'])})", page.read_text())


def place_of(name: str) -> str:
    """The file of a name and its lines: src/e3bm/methods/can.py#L10-L20; of a module the file alone."""
    parts = name.split(".")
    cut = next(cut for cut in range(len(parts), 0, -1) if _file(".".join(parts[:cut])) is not None)
    path = _file(".".join(parts[:cut]))
    assert path is not None
    place = path.relative_to(ROOT).as_posix()
    if cut == len(parts):
        return place
    body: list[ast.stmt] = _parsed(path).body
    for attribute in parts[cut:]:
        found = next((each for each in body if attribute in _defined(each)), None)
        if found is None:
            raise SystemExit(f"{name} is not defined in {place}; name it where it is.")
        body = getattr(found, "body", [])
    return f"{place}#L{found.lineno}" + (f"-L{found.end_lineno}" if found.end_lineno != found.lineno else "")


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a meaning."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@cache
def _file(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin).resolve() if spec and spec.origin else None


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for page in PAGES:
        target = out / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(linked(page))

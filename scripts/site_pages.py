"""Hooks of the documentation site: its first page is the README, and links out of docs/ become names of files."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
BENCH = "results/bench/bench.png"
OUTSIDE = {"index.md": "README.md", "changes.md": "CHANGELOG.md"}
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)]*)?\)")
SHIM = re.compile(r"https://[^\"]*iframe-worker/shim")
PICTURE = re.compile(r"(!\[[^\]]*\]\()([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """A page for each method; their list needs no second copy here."""
    pages = [f"methods/{path.name}" for path in sorted((ROOT / "docs/methods").glob("*.md")) if path.stem != "README"]
    for entry in config["nav"]:
        if "Methods" in entry:
            entry["Methods"] = ["methods/README.md", *pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Pages that stand outside docs/ in the repository."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, BENCH, abs_src_path=str(ROOT / BENCH)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Every link of a page as the site has it."""
    here = PurePosixPath(OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent
    inside = here.relative_to("docs") if here.parts[:1] == ("docs",) else PurePosixPath()
    up = "../" * len(inside.parts)

    def picture(found: re.Match[str]) -> str:
        path = _plain(here / found[2])
        return f"{found[1]}{up}{path.relative_to('docs') if path.parts[:1] == ('docs',) else path})"

    return LINK.sub(lambda found: site_link(found, here, up), PICTURE.sub(picture, markdown))


def site_link(found: re.Match[str], here: PurePosixPath, up: str) -> str:
    """A link from a page in the folder ``here`` of the repository: to a page of the site, or the name of a file."""
    text, target, anchor = found[1], found[2], found[3] or ""
    if "://" in target or target.startswith("mailto:"):
        return found[0]
    path = _plain(here / target)
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists() and path.parts[:1] == ("docs",):
        path /= "README.md"
    pages = {source: page for page, source in OUTSIDE.items()}
    name = pages.get(str(path)) or (str(path.relative_to("docs")) if path.parts[:1] == ("docs",) else None)
    if name is None or not (ROOT / path).is_file():
        return f"{text} (`{path}`)" if text.strip("`") != str(path) else f"`{path}`"
    return f"[{text}]({up}{name}{anchor})"


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """No script from elsewhere: the theme's help for pages opened from a file is ours."""
    return SHIM.sub("../" * page.url.count("/") + "search_from_files.js", output)


def on_post_template(output: str, **_: Any) -> str:
    """The same for pages that the theme adds."""
    return SHIM.sub("search_from_files.js", output)


def _plain(path: PurePosixPath) -> PurePosixPath:
    """The same path without its ``..``."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)

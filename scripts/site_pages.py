"""Hooks of the documentation site: its first page is the README, and links out of docs/ become names of files.

The notebook is a page, too, and the search leaves out tables of numbers.
"""

import json
import re
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
BENCH = "results/bench/bench.png"
NOTEBOOK, CHANGES = "docs/notebook.ipynb", "CHANGELOG.md"
OUTSIDE = {"index.md": "README.md", "changes.md": CHANGES, "notebook.md": NOTEBOOK}
LAST_IN_SEARCH = "---\nsearch:\n  boost: 0.1\n---\n\n"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)]*)?\)")
SHIM = re.compile(r"https://[^\"]*iframe-worker/shim")
PICTURE = re.compile(r"(!\[[^\]]*\]\()([^)\s]+)\)")
TABLE, TAG = re.compile(r"<table>(.*?)</table>", re.DOTALL), re.compile(r"<[^>]*>")
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
NO_WORDS = re.compile(r"[^A-Za-z]*")
MOST_ROWS = 5
"""Rows of numbers that the search still shows."""
MOST_LETTERS = 30
"""In a cell, on average; a table of more has something to read."""


def on_config(config: Any) -> Any:
    """A page for each method; their list needs no second copy here."""
    pages = [f"methods/{path.name}" for path in sorted((ROOT / "docs/methods").glob("*.md")) if path.stem != "README"]
    for entry in config["nav"]:
        if "Methods" in entry:
            entry["Methods"] = ["methods/README.md", *pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Pages that stand outside docs/ in the repository, and the notebook in place of its file."""
    for page, source in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source == NOTEBOOK:
            text = notebook_page(json.loads(text))
        files.append(File.generated(config, page, content=LAST_IN_SEARCH + text if source == CHANGES else text))
    files.remove(files.get_file_from_path(PurePosixPath(NOTEBOOK).name))
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
        place = f"{path}{anchor}"
        return f"{text} (`{place}`)" if text.strip("`") != place else f"`{place}`"
    return f"[{text}]({up}{name}{anchor})"


def notebook_page(book: dict[str, Any]) -> str:
    """A notebook as Markdown: its texts, its code, and what that gave."""
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += map(_output, cell.get("outputs", []))
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    """What a cell gave, in the first of the forms that a page shows."""
    data = output.get("data", {})
    if "image/png" in data:
        drawn = "".join(data["image/png"].split())
        return f'<img alt="What the code above draws" src="data:image/png;base64,{drawn}">'
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        return f"<div>{re.sub(r'<table[^>]*>', '<table>', html)}</div>"
    return f"<pre><code>{escape(''.join(output.get('text', data.get('text/plain', '')))).rstrip()}</code></pre>"


def on_page_content(html: str, **_: Any) -> str:
    """What the search finds is prose."""
    return without_numbers(html)


def without_numbers(html: str) -> str:
    """A page whose long tables of numbers are left out of the search; they would fill its answers."""

    def marked(found: re.Match[str]) -> str:
        cells = [TAG.sub("", cell).strip() for cell in CELL.findall(found[1])]
        numbers = sum(NO_WORDS.fullmatch(cell) is not None for cell in cells)
        prose = sum(map(len, cells)) > MOST_LETTERS * len(cells)
        if found[1].count("<tr>") <= MOST_ROWS + 1 or 3 * numbers <= len(cells) or prose:
            return found[0]
        return found[0].replace("<table>", "<table data-search-exclude>", 1)

    return TABLE.sub(marked, html)


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

"""One page that holds everything: no script, no file or address outside it, every string from a file escaped."""

import json
import shlex
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from e3bm.errors import some_of
from e3bm.report.drawing import GRID, INK, MUTED, RAMP, SERIES, Drawing
from e3bm.report.figures import TASK, Section, figures
from e3bm.report.result_words import asked_words, by_protocol, data_words
from e3bm.report.series import arms_of
from e3bm.report.tables import details_table, results_table, runs_table
from e3bm.report.verdict import NO_PAIR, verdicts
from e3bm.runs.folder.files import storage_errors
from e3bm.runs.folder.run import Run, find_run_folders, read_what_is_there
from e3bm.runs.kept.store import kept_runs
from e3bm.runs.result import Result

# The look of a report page: rules from page.css, colours for light and for dark, shared with the figures.


LIGHT = {"paper": "#ffffff", "ink": INK, "muted": MUTED, "grid": GRID, "soft": "#f4f6f9", "warn": "#9a4b00"}
DARK = {
    "paper": "#15181d",
    "ink": "#e7eaee",
    "muted": "#a2abb7",
    "grid": "#333a44",
    "soft": "#1e232a",
    "warn": "#ffb169",
}
DARK_SERIES = ("#5fb0ea", "#ff9350", "#3fcf9f", "#e39ad0", "#f0bd45", "#9bd3f7", "#c99c90", "#b3bac4")
DARK_RAMP = ("#b48ef0", "#7fa8f0", "#45c7c3", "#8bdc6c", "#f7d354")


def stylesheet() -> str:
    """Colour variables and rules; a printed page is light."""
    light, dark = _variables(LIGHT, SERIES, RAMP), _variables(DARK, DARK_SERIES, DARK_RAMP)
    colours = (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
    return colours + files("e3bm.report").joinpath("page.css").read_text(encoding="utf-8")


def _variables(named: dict[str, str], series: tuple[str, ...], ramp: tuple[str, ...]) -> str:
    named = named | {f"series{i + 1}": colour for i, colour in enumerate(series)}
    named = named | {f"ramp{i + 1}": colour for i, colour in enumerate(ramp)}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
ICON = "data:,"  # or a browser asks its server for one


def page(title: str, runs: Sequence[Run], results: Sequence[Result], sections: Sequence[Section]) -> str:
    """The whole HTML document."""
    parts = [(section.title, _section(section)) for section in sections]
    parts.insert(sum(section.title == TASK for section in sections), ("Results", _results(runs, results)))
    parts.append(("What was run", _runs(runs)))
    return document(title, _summary(runs, results), parts, _footer(runs, results), _verdicts(runs, results))


def document(title: str, opening: str, parts: Sequence[tuple[str, str]], footer: str = "", verdict: str = "") -> str:
    """A page with an opening sentence and parts, a heading and HTML each; verdict and footer are HTML, too."""
    links = "".join(f'<a href="#part{i}">{escape(name)}</a> ' for i, (name, _) in enumerate(parts))
    body = "".join(
        f'<section id="part{i}"><h2>{escape(name)}</h2>{html}</section>' for i, (name, html) in enumerate(parts)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="{ICON}"><title>{escape(title)}</title><style>{stylesheet()}</style></head>\n'
        f"<body><header><h1>{escape(title)}</h1>{verdict}<p>{escape(opening)}</p><nav>{links}</nav></header>\n"
        f"<main>{body}</main>\n{footer}</body></html>\n"
    )


def _verdicts(runs: Sequence[Run], results: Sequence[Result]) -> str:
    """What the page is about, first."""
    if not results:
        return ""
    found = verdicts(results, arms_of([run for run in runs if run.kind == "train"]))
    if not found:
        return f"<p class='verdict'>{escape(NO_PAIR)}</p>"
    cautions = dict.fromkeys(verdict.caution for verdict in found)
    said = "".join(
        f"<p><strong>{escape(verdict.answer)}</strong></p>" + "".join(f"<p>{escape(s)}</p>" for s in verdict.sentences)
        for verdict in found
    )
    return f"<div class='verdict'>{said}<p class='note'>{escape(' '.join(cautions))}</p></div>"


def _summary(runs: Sequence[Run], results: Sequence[Result]) -> str:
    opening = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    if not results:
        return f"{opening}; none has been tested yet."
    firsts = [group[0] for group in by_protocol(results).values()]
    kinds = [f"{data_words(first)} ({first.task}, {first.episodes} episodes)" for first in firsts]
    shown = some_of(kinds, 4, between="; ")
    return f"{opening}, {len(results)} test result{'s' * (len(results) != 1)}: {shown}."


def _runs(runs: Sequence[Run]) -> str:
    missing = [f"{run.name}: {', '.join(run.missing)}." for run in runs if run.missing]
    return runs_table(runs).html() + _missing(missing)


def _results(runs: Sequence[Run], results: Sequence[Result]) -> str:
    if not results:
        return _missing(["There are no test results: no results.json in any of these runs. Run e3bm test on them."])
    intervals = (
        "<p>Accuracy is the mean over episodes with its 95 % interval; NLL and ECE say how far the probabilities "
        "can be trusted (lower is better).</p>"
    )
    untested = [f"{run.name} has not been tested yet." for run in runs if run.kind == "train" and not run.results]
    return f"{intervals}{results_table(results).html()}{details_table(results).html()}{_missing(untested)}"


def _section(section: Section) -> str:
    """Figures in a grid; what several of them share as a caption stands once, above them."""
    alike: dict[str, list[Drawing]] = {}
    for drawing in section.drawings:
        alike.setdefault(drawing.caption, []).append(drawing)
    html, single = "", ""
    for caption, drawings in alike.items():
        if len(drawings) == 1:
            single += _figure(drawings[0], f"{drawings[0].name}-caption", escape(caption))
            continue
        html, single = html + _grid(section, single), ""
        name = f"{drawings[0].name}-captions"
        html += f'<p class="caption" id="{name}">{escape(caption)}</p>'
        html += _grid(section, "".join(_figure(drawing, name) for drawing in drawings))
    return html + _grid(section, single) + _missing(section.missing)


def _grid(section: Section, figures: str) -> str:
    return f"<div class='figures across{section.columns}'>{figures}</div>" if figures else ""


def _figure(drawing: Drawing, described_by: str, caption: str = "") -> str:
    own = f'<figcaption id="{described_by}">{caption}</figcaption>' if caption else ""
    return f'<figure role="img" aria-labelledby="{described_by}">{drawing.inline()}{own}</figure>'


def figure_html(drawing: Drawing) -> str:
    """A figure inside a page, with its caption."""
    return _figure(drawing, f"{drawing.name}-caption", escape(drawing.caption))


def _missing(sentences: Sequence[str]) -> str:
    return "".join(f"<p class='missing'>{escape(sentence)}</p>" for sentence in sentences)


def _footer(runs: Sequence[Run], results: Sequence[Result]) -> str:
    hashes: dict[str, list[str]] = {}
    for result in results:
        what = f"{data_words(result)}, {asked_words(result)}"
        known = hashes.setdefault(result.episodes_hash, [])
        known += [what] if what not in known else []
    entries = [
        f"<dt>Episodes {escape('; '.join(words))}</dt><dd><code>{escape(key)}</code></dd>"
        for key, words in hashes.items()
    ]
    entries += [f"<dt>Command of {escape(run.name)}</dt><dd><code>{escape(_command(run))}</code></dd>" for run in runs]
    versions: dict[str, list[str]] = {}
    for run in runs:
        versions.setdefault(_versions(run), []).append(run.name)
    for words, names in versions.items():
        whose = "" if len(versions) == 1 else f" of {', '.join(names)}"
        entries.append(f"<dt>Versions{escape(whose)}</dt><dd>{escape(words)}</dd>")
    opened = [f"{run.name} {len(run.test_log)}" for run in runs if run.test_log]
    if opened:
        entries.append(f"<dt>Times the test split was opened</dt><dd>{escape(', '.join(opened))}</dd>")
    settings = "".join(
        f"<details><summary>All settings of {escape(run.name)}</summary>"
        f"<pre>{escape(json.dumps(run.written, indent=2, sort_keys=True, ensure_ascii=False))}</pre></details>"
        for run in runs
        if run.written
    )
    return f"<footer><h2>Where these numbers come from</h2><dl>{''.join(entries)}</dl>{settings}</footer>"


def _command(run: Run) -> str:
    command = run.environment.get("command")
    if isinstance(command, list):
        return shlex.join(map(str, command))
    return str(command) if command else "not recorded"


def _versions(run: Run) -> str:
    packages: Any = run.environment.get("packages")
    parts = [f"{name} {version}" for name, version in packages.items()] if isinstance(packages, dict) else []
    python, commit = run.environment.get("python"), run.environment.get("commit")
    parts = ([f"Python {python}"] if python else []) + parts + ([f"commit {commit}"] if commit else [])
    machine = [str(run.environment[key]) for key in ("platform", "processor") if run.environment.get(key)]
    return ", ".join(parts + machine) or "not recorded"


# `e3bm report`: run folders in, one self-contained page and its figures out.


def report(
    runs: Sequence[Path], out: Path, *, title: str = "E3BM report", results: Sequence[Result] | None = None
) -> Path:
    """Write ``out/index.html`` and every figure as PNG and SVG beside it; give the path of the page.

    A folder that holds runs stands for all of them, and so does a group of kept results. ``results`` replaces those
    found in the runs, for instance by results over several seeds.
    """
    read: list[Run] = []
    for path in map(Path, runs):
        kept = kept_runs(path)
        read += kept or [read_what_is_there(folder) for folder in find_run_folders([path])]
    distinct = {run.path.resolve(): run for run in read}
    return write_report(list(distinct.values()), out, title=title, results=results)


def write_report(runs: Sequence[Run], out: Path, *, title: str, results: Sequence[Result] | None = None) -> Path:
    """The same for runs that were read already."""
    shown = [result for run in runs for result in run.results] if results is None else list(results)
    sections = figures(runs, shown)
    index = out / "index.html"
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        for drawing in (drawing for section in sections for drawing in section.drawings):
            (out / f"{drawing.name}.svg").write_text(drawing.svg, encoding="utf-8")
            (out / f"{drawing.name}.png").write_bytes(drawing.png)
        index.write_text(page(title, runs, shown, sections), encoding="utf-8", errors="replace")
    return index

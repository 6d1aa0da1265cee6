"""A table that can be shown as Markdown, plain text or HTML; it holds strings and prints nothing."""

import html
import re
import textwrap
import unicodedata
from dataclasses import dataclass, replace

CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")
GAP = "  "  # between columns of a text
WORDS = re.compile(r"\S+ ± \S+(?: \*)?\s*|\S+\s*")  # a number and its interval are one
LONG_WORD = 20  # letters from which a line may also end after a hyphen


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str
    strong: bool = False  # an interval that excludes zero
    flag: bool = False  # a label that the reader must not overlook
    number: bool = False  # right-aligned


@dataclass(frozen=True)
class Table:
    """Columns, rows, a caption above and notes below."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """GitHub's table syntax; strong cells are bold."""
        numeric = self._numeric()
        lines = [f"{_markdown(self.caption)}\n"] if self.caption else []
        lines.append("| " + " | ".join(map(_markdown, self.columns)) + " |")
        lines.append("|" + "|".join("---:" if right else "---" for right in numeric) + "|")
        for row in self.rows:
            cells = (f"**{_markdown(cell.text)}**" if cell.strong else _markdown(cell.text) for cell in row)
            lines.append("| " + " | ".join(cells) + " |")
        lines += [f"\n{_markdown(note)}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def text(self, width: int | None = None) -> str:
        """Aligned columns for a terminal or a log; words of a wider table go on in the next line, numbers never."""
        table = [[_one_line(cell.text) for cell in row] for row in self.rows]
        names = [_one_line(column) for column in self.columns]
        numeric = self._numeric()
        columns = list(zip(names, *table, strict=True))
        widths = [max(map(_width, column)) for column in columns]
        if width is not None:
            least = [
                max(_width(part.rstrip()) for part in (*_words(name), *(cells if right else _words(" ".join(cells)))))
                for (name, *cells), right in zip(columns, numeric, strict=True)
            ]
            widths = _narrowed(widths, least, width - len(GAP) * (len(widths) - 1))
        lines = _wrapped(self.caption, width) if self.caption else []
        lines += [*_aligned(names, widths, numeric), GAP.join("-" * each for each in widths)]
        lines += [line for row in table for line in _aligned(row, widths, numeric)]
        lines += [line for note in self.notes for line in _wrapped(note, width)]
        return "\n".join(lines) + "\n"

    def without(self, *columns: str) -> "Table":
        """The same table without some columns."""
        left = [place for place, name in enumerate(self.columns) if name not in columns]
        rows = tuple(tuple(row[place] for place in left) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in left), rows=rows)

    def html(self) -> str:
        """A table element inside a box that scrolls sideways on a small screen; every string is escaped."""
        numeric = self._numeric()
        caption = f"<p class='tablecaption'>{html.escape(self.caption)}</p>" if self.caption else ""
        head = "".join(
            f"<th scope='col'{_class('number' if right else '')}>{html.escape(name)}</th>"
            for name, right in zip(self.columns, numeric, strict=True)
        )
        body = "".join(
            f"<tr>{''.join(_html_cell(cell, i == 0) for i, cell in enumerate(row))}</tr>" for row in self.rows
        )
        notes = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in self.notes)
        label = html.escape(self.caption or "table", quote=True)
        return (
            f"{caption}<div class='scroll' role='region' tabindex='0' aria-label=\"{label}\"><table>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}"
        )

    def _numeric(self) -> list[bool]:
        return [bool(self.rows) and all(row[i].number for row in self.rows) for i in range(len(self.columns))]


def _html_cell(cell: Cell, first: bool) -> str:
    attribute = _class(" ".join(["flag"] * cell.flag + ["number"] * cell.number))
    inside = f"<strong>{html.escape(cell.text)}</strong>" if cell.strong else html.escape(cell.text)
    return f"<th scope='row'{attribute}>{inside}</th>" if first else f"<td{attribute}>{inside}</td>"


def _class(names: str) -> str:
    return f" class='{names}'" if names else ""


def _aligned(cells: list[str], widths: list[int], numeric: list[bool]) -> list[str]:
    """The lines of a row: as many as its longest cell needs."""
    parts = [_filled(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for place in range(max(map(len, parts))):
        padded = []
        for part, width, right in zip(parts, widths, numeric, strict=True):
            text = part[place] if place < len(part) else ""
            space = " " * (width - _width(text))
            padded.append(space + text if right else text + space)
        lines.append(GAP.join(padded).rstrip())
    return lines


def _narrowed(widths: list[int], least: list[int], room: int) -> list[int]:
    """Narrower columns, always the one whose longest cell then has the fewest lines, as far as words allow."""
    narrow = list(widths)
    while sum(narrow) > room:
        able = [place for place, width in enumerate(narrow) if width > least[place]]
        if not able:
            break
        narrow[min(able, key=lambda place: widths[place] / (narrow[place] - 1))] -= 1
    return narrow


def _words(text: str) -> list[str]:
    """What a line may end after, with the spaces behind it: words, and the parts of long names that hyphens join."""
    parts = (
        re.split(r"(?<=\w-)(?=\w)", word) if len(word.rstrip()) > LONG_WORD else [word] for word in WORDS.findall(text)
    )
    return [part for word in parts for part in word] or [""]


def _filled(text: str, width: int) -> list[str]:
    """The text in lines of at most this width, as far as its words allow."""
    lines = [""]
    for word in _words(text):
        if lines[-1] and _width((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _wrapped(text: str, width: int | None) -> list[str]:
    """A caption or a note."""
    line = _one_line(text)
    return [line] if width is None else textwrap.wrap(line, max(width, 20)) or [""]


def _one_line(text: str) -> str:
    """Control characters could move a terminal's cursor or break a row."""
    return "".join(" " if unicodedata.category(character) in CONTROLS else character for character in text)


def _markdown(text: str) -> str:
    escaped = html.escape(_one_line(text), quote=False)
    return "".join("\\" + character if character in "\\|*_`[]" else character for character in escaped)


def _width(text: str) -> int:
    """Terminal columns: wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )

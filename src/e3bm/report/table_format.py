"""A table that can be shown as Markdown, plain text or HTML; it holds strings and prints nothing."""

import html
import unicodedata
from dataclasses import dataclass

CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")


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

    def text(self) -> str:
        """Aligned columns for a terminal or a log."""
        table = [[_one_line(cell.text) for cell in row] for row in self.rows]
        names = [_one_line(column) for column in self.columns]
        widths = [max(map(_width, column)) for column in zip(names, *table, strict=True)]
        numeric = self._numeric()
        lines = [_one_line(self.caption)] if self.caption else []
        lines += [_aligned(names, widths, numeric), "  ".join("-" * width for width in widths)]
        lines += [_aligned(row, widths, numeric) for row in table]
        lines += [_one_line(note) for note in self.notes]
        return "\n".join(lines) + "\n"

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


def _aligned(cells: list[str], widths: list[int], numeric: list[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, numeric, strict=True):
        space = " " * (width - _width(cell))
        padded.append(space + cell if right else cell + space)
    return "  ".join(padded).rstrip()


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

"""What the docs show of the data set: a contact sheet and the table of typefaces with their licences."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from glyph_build.typefaces import Typeface

CELL, COLUMNS, TITLE = 32, 32, 30
COMPARED = "AagR7&жЉѢβΩξ"
PAPER, LABEL = 48, 255


def contact_sheet(path: Path) -> None:
    """Every class once, split by split, each in another typeface; below, some classes in as many as fit a row."""
    from e3bm.data.sources.glyphs import GlyphArrays, load_glyphs

    def one_of(glyphs: GlyphArrays, number: int) -> int:
        members = np.flatnonzero(glyphs.labels == number)
        return int(members[(7 * number) % len(members)])

    glyphs = load_glyphs()
    panels = []
    for split, numbers in glyphs.splits.items():
        scripts = ", ".join(dict.fromkeys(glyphs.scripts[number] for number in numbers))
        panels.append((f"{split}: {len(numbers)} classes ({scripts})", [one_of(glyphs, number) for number in numbers]))
    rows: list[int] = []
    for character in COMPARED:
        members = np.flatnonzero(glyphs.labels == glyphs.characters.index(character))
        rows += members[np.linspace(0, len(members) - 1, COLUMNS).round().astype(int)].tolist()
    panels.append((f"one class a row: {COLUMNS} typefaces each", rows))
    height = sum(TITLE + CELL * -(-len(positions) // COLUMNS) for _, positions in panels)
    sheet = Image.new("L", (CELL * COLUMNS + 4, height + 4), PAPER)
    pen, font, top = ImageDraw.Draw(sheet), ImageFont.load_default(16), 0
    for title, positions in panels:
        pen.text((4, top + 6), title, fill=LABEL, font=font)
        top += TITLE
        for place, position in enumerate(positions):
            corner = (4 + CELL * (place % COLUMNS), top + CELL * (place // COLUMNS))
            sheet.paste(Image.fromarray(glyphs.images[position, :, :, 0]), corner)
        top += CELL * -(-len(positions) // COLUMNS)
    sheet.save(path, optimize=True)


def licence_table(typefaces: list[Typeface], path: Path) -> None:
    """Every family that has a drawing in the data set, with package, version, licence and copyright."""
    from e3bm.data.sources.glyphs import load_glyphs

    glyphs = load_glyphs()
    drawings = np.bincount(glyphs.typefaces, minlength=len(typefaces))
    lines = [
        "# Typefaces behind `glyphs`",
        "",
        "Written by `python scripts/build_glyphs.py documents`. The images are drawings made with these typefaces;",
        "no font file is part of this project. The full licence text of a family is in its package.",
        "",
        "| family | images | package | licence | copyright |",
        "|---|---|---|---|---|",
    ]
    for face, count in zip(typefaces, drawings, strict=True):
        if count:
            notice = face.copyright.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| {face.family} | {count} | {face.package} {face.version} | {face.licence} | {notice} |")
    path.write_text("\n".join(lines) + "\n", "utf-8")

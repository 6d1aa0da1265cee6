"""Builds the embedded data set `glyphs` from pinned typeface packages; `--help` lists the steps.

python scripts/build_glyphs.py build       draw, choose and pack; writes into src/e3bm/data/sources
python scripts/build_glyphs.py check       the same, but compares with the files that are there
python scripts/build_glyphs.py documents   the contact sheet and the licence table in docs
python scripts/build_glyphs.py probe       nearest class mean on raw pixels, 5-way 1-shot, on the test classes
python scripts/build_glyphs.py discover    renews the list of typefaces from a package index
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import PIL
from glyph_build import lookalikes, packing
from glyph_build.characters import candidates
from glyph_build.documents import contact_sheet, licence_table
from glyph_build.drawing import Face
from glyph_build.typefaces import discover, fetch, read_list, write_list
from PIL import features

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_FOLDER = ROOT / "src" / "e3bm" / "data" / "sources"
TYPEFACES = PACKAGE_FOLDER / "glyphs_typefaces.json"


def build() -> dict[str, bytes]:
    """From the pinned list to the content of the data files."""
    typefaces = read_list(TYPEFACES)
    drawn: dict[str, dict[int, np.ndarray]] = {character: {} for character in candidates()}
    with tempfile.TemporaryDirectory() as temporary:
        fetch(typefaces, Path(temporary))
        for number, typeface in enumerate(typefaces):
            face = Face(typeface, Path(temporary))
            if not face.legible:
                print(f"{typeface.family}: left out, x-height {face.x_height:.2f} of the capital height")
                continue
            if face.capitals_only:
                print(f"{typeface.family}: capitals only")
            for character, drawings in drawn.items():
                drawing = face.draw(character)
                if drawing is not None:
                    drawings[number] = drawing
    classes, left_out = lookalikes.choose_classes(drawn)
    own = lookalikes.without_shared_forms(drawn, classes, left_out)
    unlike = {character: lookalikes.without_repeats(drawings) for character, drawings in own.items()}
    enough = {
        character: lookalikes.limited(character, drawings)
        for character, drawings in unlike.items()
        if len(drawings) >= lookalikes.FEWEST_TYPEFACES
    }
    print(f"{len(enough)} classes, {sum(map(len, enough.values()))} images; {len(left_out)} look-alikes left out")
    versions = {"pillow": PIL.__version__, "freetype": str(features.version("freetype2"))}
    return packing.pack(enough, left_out, versions, TYPEFACES)


def check(files: dict[str, bytes]) -> None:
    """Ends with an error where a rebuilt file differs from the one in the package."""
    different = [name for name, content in files.items() if (PACKAGE_FOLDER / name).read_bytes() != content]
    if different:
        raise SystemExit(f"Rebuilding gave other bytes for {', '.join(different)}; expected those in the package.")
    print("rebuilt files equal those in the package")


def probe(episodes: int = 2000, ways: int = 5, queries: int = 15) -> None:
    """How far raw pixels go: each query to the nearest of the five single support images, on the test classes."""
    from e3bm.data.sources.glyphs import load_glyphs

    glyphs = load_glyphs()
    pixels = glyphs.images.reshape(len(glyphs.images), -1).astype(np.float32) / 255
    members = {number: np.flatnonzero(glyphs.labels == number) for number in glyphs.splits["test"]}
    random = np.random.default_rng(0)
    accuracies = np.empty(episodes)
    for episode in range(episodes):
        chosen = random.choice(glyphs.splits["test"], ways, replace=False)
        drawn = np.stack([random.choice(members[number], 1 + queries, replace=False) for number in chosen])
        support, query = pixels[drawn[:, 0]], pixels[drawn[:, 1:]].reshape(ways * queries, -1)
        distances = ((query[:, None] - support[None]) ** 2).sum(-1)
        accuracies[episode] = (distances.argmin(1) == np.repeat(np.arange(ways), queries)).mean()
    interval = 1.96 * accuracies.std(ddof=1) / np.sqrt(episodes)
    print(f"{ways}-way 1-shot, {episodes} tasks: {100 * accuracies.mean():.2f} +- {100 * interval:.2f} %")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["build", "check", "documents", "probe", "discover"])
    parser.add_argument("--index", help="address of a package index's simple listing, for discover")
    arguments = parser.parse_args()
    if arguments.step == "build":
        packing.write(build(), PACKAGE_FOLDER)
    elif arguments.step == "check":
        check(build())
    elif arguments.step == "documents":
        contact_sheet(ROOT / "docs" / "images" / "glyphs.png")
        licence_table(read_list(TYPEFACES), ROOT / "docs" / "glyphs_licences.md")
    elif arguments.step == "probe":
        probe()
    elif arguments.index is None:
        parser.error("discover needs --index")
    else:
        with tempfile.TemporaryDirectory() as temporary:
            write_list(discover(arguments.index, Path(temporary)), TYPEFACES)


if __name__ == "__main__":
    main()

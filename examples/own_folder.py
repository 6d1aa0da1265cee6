"""A folder of photos in, a classifier out: fit, predict, add a class, save, load.

The photos here are characters of the embedded typefaces, written as PNG files; put your own folder in their place.
"""

import tempfile
from pathlib import Path

import torch
from PIL import Image

from e3bm import FewShotClassifier, open_dataset
from e3bm.errors import E3BMError

SHOTS, ASKED = 5, 10
LETTERS = ("GREEK SMALL LETTER LAMDA", "GREEK SMALL LETTER XI", "GREEK SMALL LETTER ZETA", "GREEK SMALL LETTER PSI")


def write_photos(folder: Path) -> dict[str, list[Path]]:
    """A subfolder for each class, as a user has it; more photos of each beside, to ask about."""
    glyphs = open_dataset("glyphs")
    asked = {}
    for name in LETTERS:
        places = glyphs.indices_of(glyphs.class_names.index(name))[: SHOTS + ASKED]
        files = []
        for number, place in enumerate(places):
            part = folder / ("photos" if number < SHOTS else "asked") / name
            part.mkdir(parents=True, exist_ok=True)
            files.append(part / f"{number}.png")
            Image.fromarray(glyphs.images[place][..., 0]).resize((96, 96)).save(files[-1])
        asked[name] = files[SHOTS:]
    return asked


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        asked = write_photos(folder)
        try:
            model = FewShotClassifier().fit(folder / "photos")
        except E3BMError as error:  # without the extra 'pretrained'
            print(f"0 %: {error}")
            return
        print(f"{len(model.classes)} classes, {sum(model.counts.values())} photos")
        print(f"left-out accuracy {100 * model.left_out_accuracy:.0f} %")

        one = model.predict(asked[LETTERS[0]][0])
        print(f"one photo: {one.label}, {100 * one.confidence:.1f} %, unknown: {one.unknown}")

        model.forget_class(LETTERS[3])
        model.add_class(LETTERS[3], folder / "photos" / LETTERS[3])  # the same as before, to the last bit

        model.save(folder / "letters.e3bm")
        loaded = FewShotClassifier.load(folder / "letters.e3bm")
        right = [found.label == name for name, files in asked.items() for found in loaded.predict(files)]
        print(f"{100 * sum(right) / len(right):.0f} % of {len(right)} new photos are right")


if __name__ == "__main__":
    main()

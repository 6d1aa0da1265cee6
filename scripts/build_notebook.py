"""Writes docs/notebook.ipynb and executes it: `python scripts/build_notebook.py [PATH]`."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PAGE = Path(__file__).resolve().parents[1] / "docs" / "notebook.ipynb"
CELLS = [
    """# A classifier from five examples of each class
It needs the extras sklearn, pretrained and text, and pandas.
First features: 64 pixels of handwritten digits, five of each.""",
    """from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from e3bm import E3BMClassifier

pixels, digits = load_digits(return_X_y=True)
few, rest, few_labels, rest_labels = train_test_split(pixels, digits, train_size=50, stratify=digits, random_state=0)
model = E3BMClassifier().fit(few, few_labels)
print(f"{100 * model.score(rest, rest_labels):.0f} % of {len(rest)} other digits are right")""",
    """How sure it is should be how often it is right: the points lie near the diagonal.""",
    """plot = model.plot_reliability(rest, rest_labels)
plot.figure_.set_size_inches(4, 3)""",
    """What it says of single rows, as a frame of probabilities:""",
    """model.set_output(transform="pandas").transform(rest[:4]).round(2)""",
    """## Photos
`FewShotClassifier` takes a folder of photos, paths, or pictures in memory.
These are drawn: three shapes, five of each.""",
    """from numpy.random import default_rng
from PIL import Image, ImageDraw


def drawing(sides: int, number: int) -> Image.Image:
    random = default_rng([sides, number])
    paper, ink = random.integers(150, 256, 3).tolist(), random.integers(0, 110, 3).tolist()
    (x, y), radius = random.integers(60, 100, 2).tolist(), int(random.integers(30, 55))
    picture = Image.new("RGB", (160, 160), tuple(paper))
    ImageDraw.Draw(picture).regular_polygon((x, y, radius), sides, random.uniform(0, 360), tuple(ink))
    return picture


sides = {"triangle": 3, "square": 4, "circle": 40}
photos = {name: [drawing(count, number) for number in range(5)] for name, count in sides.items()}
sheet = Image.new("RGB", (5 * 64, 3 * 64))
for row, drawn in enumerate(photos.values()):
    for column, picture in enumerate(drawn):
        sheet.paste(picture.resize((64, 64)), (64 * column, 64 * row))
sheet""",
    """Five of each are enough for a classifier that says what to expect of it:""",
    """from e3bm import FewShotClassifier

shapes = FewShotClassifier().fit(photos)
shapes""",
    """Other drawings, and noise, which is none of these; about one drawing in twenty is called so, too:""",
    """noise = default_rng(0).integers(0, 256, (160, 160, 3), dtype="uint8")
shapes.predict([drawing(3, 20), drawing(4, 20), drawing(40, 20), noise])""",
    """## Sentences
A few sentences of each topic, with the same methods.""",
    """from e3bm import TextClassifier

topics = {
    "billing": ["I was charged twice.", "Where is my invoice?", "Please refund the payment."],
    "login": ["I forgot my password.", "The reset email never arrives.", "My account is locked."],
    "shipping": ["My parcel is late.", "Change the delivery address.", "The box was damaged."],
}
classifier = TextClassifier().fit(topics)
classifier""",
    """One sentence, then several:""",
    """classifier.predict("The courier lost my parcel.")""",
    """classifier.predict(["Send the bill again.", "I cannot sign in.", "Bake it for an hour."]).to_frame().round(2)""",
    """No, it is something else: corrections take milliseconds. And which sentences would be worth a label?""",
    """classifier.correct("I cannot sign in.", "login")
for one in classifier.suggest(["My password is wrong.", "Do you have a shop in Oslo?", "Refund my invoice."], 2):
    print(one.name, "-", one.reason)""",
]


def notebook() -> nbformat.NotebookNode:
    """The notebook without outputs."""
    book = nbformat.v4.new_notebook()
    for number, text in enumerate(CELLS):
        code = text.startswith(("from ", "plot ", "model.", "classifier.", "noise "))
        kind = nbformat.v4.new_code_cell if code else nbformat.v4.new_markdown_cell
        book.cells.append(kind(text, id=f"cell-{number}"))
    book.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return book


def executed() -> nbformat.NotebookNode:
    """The notebook with its outputs."""
    book = notebook()
    NotebookClient(book, timeout=300, kernel_name="python3").execute()
    for cell in book.cells:
        cell.metadata = {}
    book.metadata.pop("language_info", None)
    return book


if __name__ == "__main__":
    nbformat.write(executed(), Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)

"""Takes docs/images/serve_*.png, pictures of the page of `e3bm serve`: `python scripts/page_pictures.py [FOLDER]`.

It needs the extras serve and pretrained, playwright, and Chromium on the path.
"""

import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from e3bm.data.sources.glyphs import load_glyphs

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
CLASSES = {"letter g": "g", "ampersand": "&", "zhe": "Ж", "letter R": "R", "seven": "7", "omega": "Ω"}
ASKED = (("g", 8), ("∞", 3), ("Ж", 8), ("R", 8), ("7", 8))
WRONG = ("zhe", ("&", 9))  # a label that the page should doubt
SIZE = 112
WAIT = 60_000  # milliseconds
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def photo(character: str, number: int) -> dict:
    """A character in one of its typefaces, as the browser's file chooser takes files."""
    glyphs = load_glyphs()
    rows = (glyphs.labels == glyphs.characters.index(character)).nonzero()[0]
    names = {known: name.removeprefix("letter ") for name, known in CLASSES.items()}
    written = io.BytesIO()
    Image.fromarray(255 - glyphs.images[rows[number], ..., 0]).resize((SIZE, SIZE)).save(written, "PNG")
    name = f"{names.get(character, 'sign')}_{number:02d}.png"
    return {"name": name, "mimeType": "image/png", "buffer": written.getvalue()}


def teach(page: Page) -> None:
    """Give the page its classes and fit them."""
    for name, character in CLASSES.items():
        page.get_by_label("New class").fill(name)
        page.get_by_role("button", name="Add class").click()
        few = [photo(character, number) for number in range(5)]
        few += [photo(*WRONG[1])] if name == WRONG[0] else []
        page.get_by_label(f"Add photos of {name}", exact=True).set_input_files(few)
        page.get_by_role("article", name=name).get_by_text(f"{len(few)} photos").wait_for()
    page.get_by_role("button", name="Fit", exact=True).click()
    page.locator("#fit-state").get_by_text("Fitted to").wait_for()


def ask(page: Page, asked: tuple[tuple[str, int], ...]) -> None:
    """Ask about photos, and wait for the answers."""
    page.get_by_label("Choose photos to classify", exact=True).set_input_files([photo(*one) for one in asked])
    page.locator("#answers > li").nth(len(asked) - 1).wait_for()


def take(browser: Browser, address: str, folder: Path) -> None:
    """One picture of a desktop's window and one of a phone's."""
    desktop = browser.new_page(viewport={"width": 1280, "height": 1120})
    desktop.set_default_timeout(WAIT)
    desktop.goto(address)
    teach(desktop)
    ask(desktop, ASKED)
    desktop.evaluate("scrollTo(0, 0)")
    desktop.mouse.move(0, 0)
    desktop.screenshot(path=folder / "serve_desktop.png")
    phone = browser.new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    phone.set_default_timeout(WAIT)
    phone.goto(address)
    phone.get_by_role("article", name="omega").wait_for()
    ask(phone, (ASKED[0], ASKED[2]))
    phone.locator("#doubts img").first.wait_for()
    phone.wait_for_timeout(1000)  # the page itself scrolls to new answers
    phone.locator("#ask").evaluate("place => place.scrollIntoView({ behavior: 'instant' })")
    phone.screenshot(path=folder / "serve_phone.png")


def main() -> None:
    """Start a server, take the pictures, and stop the server."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    command = [sys.executable, "-m", "e3bm", "serve", "--port", "0"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        try:
            address = next(line for line in server.stdout if "http://" in line).split()[2]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=SWITCHES, timeout=WAIT)
            take(browser, address, folder)
            browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()

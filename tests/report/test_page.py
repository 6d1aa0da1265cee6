import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from e3bm.report.figures import figures
from e3bm.report.page import page
from e3bm.runs.folder.run import read_what_is_there

VOID = {"meta", "link", "br"}
EVIL = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\ud800"


class Reader(HTMLParser):
    """Tags and attributes of a page, and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(paths: list[Path], title: str = "A report") -> tuple[str, Reader]:
    runs = [read_what_is_there(path) for path in paths]
    rows = [row for run in runs for row in run.results]
    html = page(title, runs, rows, figures(runs, rows))
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return html, reader


def check_self_contained(html: str, reader: Reader) -> None:
    assert "script" not in reader.tags
    assert "img" not in reader.tags
    assert "://" not in html
    for tag, name, value in reader.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name != "src"
        if name == "href":
            assert value == "data:," or value.startswith(("#", "data:image/png;base64,")), value
    identifiers = [value for _, name, value in reader.attributes if name == "id"]
    assert len(set(identifiers)) == len(identifiers)
    links = [value[1:] for _, name, value in reader.attributes if name == "href" and value.startswith("#")]
    assert set(links) <= set(identifiers)


def test_a_page_holds_everything_and_needs_nothing(pair, pretrained):
    html, reader = page_of([*pair, pretrained])
    check_self_contained(html, reader)
    assert reader.tags.count("svg") == reader.tags.count("figcaption") == 16
    text = " ".join(reader.words)
    for words in (
        "+1.75 ± 0.40 * vs MTL",
        "E3BM helps here.",
        "+0.40 %",
        "+5.0 %",
        "0123456789abcdef0123",
        "Python 3",
        "Command of mtl-e3bm",
    ):
        assert words in text, words
    assert '"weight_start": "equal"' in text  # all settings are there
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_strings_from_files_cannot_become_markup(make_run, pair):
    evil = make_run("evil", name=EVIL, data={"dataset": EVIL})
    results = json.loads((pair[1] / "results.json").read_text())
    mild = EVIL.removesuffix("\ud800")  # half a character is refused with its result
    for key in ("method", "dataset", "split", "episodes_hash", "paired_with", "hyperprior", "commit", "backbone"):
        results[0][key] = mild
    results[0] |= {"run": "evil", "checkpoint": mild}
    broken = results[0] | {"method": EVIL, "setting": EVIL, "seeds": [EVIL], "ways": EVIL}
    (evil / "results.json").write_text(json.dumps([*results, broken]))
    environment = {"command": [EVIL], "python": EVIL, "commit": EVIL, "packages": {EVIL: EVIL}, "platform": EVIL}
    (evil / "environment.json").write_text(json.dumps(environment))
    html, reader = page_of([evil, *pair], title=EVIL)
    check_self_contained(html, reader)
    assert "<script" not in html
    assert "onerror=alert(2)>" not in html
    assert any("<script>alert(1)</script>" in words for words in reader.words)


def test_a_run_with_nothing_in_it_still_makes_a_page(make_run):
    path = make_run("empty", results=[])
    for file in path.iterdir():
        file.unlink()
    (path / "config.json").write_text("not json")
    _, reader = page_of([path])
    text = " ".join(reader.words)
    assert "config.json is empty or damaged, environment.json is missing, metrics.jsonl is missing" in text
    assert "There are no test results" in text
    assert "none has been tested yet" in text


def test_an_untested_run_is_named_among_results(make_run):
    _, reader = page_of([make_run("done"), make_run("young", results=[], epochs=7)])
    assert "young has not been tested yet." in " ".join(reader.words)


def test_the_verdict_comes_before_everything_else(pair):
    html, _ = page_of(pair)
    places = [
        html.index(words) for words in ("E3BM helps here.", "test results:", "<nav>", "<h2>The task", "<h2>Results")
    ]
    assert places == sorted(places)


def test_a_caption_stands_once_however_many_figures_share_it(make_run, pair):
    html, reader = page_of([*pair, make_run("sib", "sib"), make_run("maml", "maml")])
    check_self_contained(html, reader)
    words = [word for word in reader.words if word.startswith(("Reliability on", "Accuracy of each epoch", "Loss on"))]
    assert len(words) == len(set(words)) == 3
    identifiers = {value for _, name, value in reader.attributes if name == "id"}
    described = [value for tag, name, value in reader.attributes if (tag, name) == ("figure", "aria-labelledby")]
    assert len(described) == reader.tags.count("figure")
    assert set(described) <= identifiers

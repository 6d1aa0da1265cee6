"""Real sentences with classes that need no download of a data set: topics of a chat corpus, docstrings of Python."""

import importlib
import inspect
import re
from hashlib import sha256
from pathlib import Path

CHAT_PACKAGE = "chatterbot_corpus"
MOST = 60  # sentences of a class
FEWEST = 40
FEWEST_OF_HALVES = 20  # so that a half has as many classes as a task of 10 ways with 10 strange classes needs
SHORTEST, LONGEST = 12, 300  # characters
MODULES = """
    argparse asyncio ast bdb calendar collections concurrent.futures configparser ctypes curses datetime
    decimal difflib email fractions ftplib gettext heapq html http.client http.server imaplib importlib inspect
    io ipaddress json locale logging mailbox mimetypes multiprocessing numbers optparse os pathlib pdb pickle
    plistlib poplib pstats pydoc queue random re sched shelve shutil smtplib socket socketserver sqlite3 ssl
    statistics string subprocess symtable tarfile tempfile threading tkinter tokenize traceback turtle types
    typing unittest urllib.parse urllib.request uuid venv warnings weakref webbrowser xml.dom.minidom
    xmlrpc.client zipfile zoneinfo
"""


def chat_topics() -> dict[str, list[str]]:
    """What is said about a topic in the English part of the ChatterBot corpus (PyPI: chatterbot-corpus)."""
    import yaml

    folder = Path(str(importlib.import_module(CHAT_PACKAGE).__file__)).parent / "data" / "english"
    found = {}
    for path in sorted(folder.glob("*.yml")):
        talks = yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]
        found[path.stem] = [str(turn) for talk in talks for turn in talk]
    return usable(found)


def docstring_half(*, untouched: bool) -> dict[str, list[str]]:
    """Every second module in the order of their names' hashes; no choice was made on the untouched half."""
    modules = docstring_modules(FEWEST_OF_HALVES)
    hashed = sorted(modules, key=lambda name: sha256(name.encode()).digest())
    return {name: modules[name] for name in hashed[int(untouched) :: 2]}


def docstring_modules(fewest: int = FEWEST) -> dict[str, list[str]]:
    """First paragraphs of docstrings in modules of Python's own library, by module."""
    return usable({name: docstrings_of(name) for name in MODULES.split()}, fewest)


def docstrings_of(name: str) -> list[str]:
    """First paragraphs of docstrings of what a module, or another one of its package, defines and it offers."""
    module, texts = importlib.import_module(name), []
    for _, member in inspect.getmembers(module):
        if str(getattr(member, "__module__", "")).partition(".")[0] != name.partition(".")[0]:
            continue
        texts.append(inspect.getdoc(member) or "")
        if inspect.isclass(member):
            texts += [inspect.getdoc(method) or "" for _, method in inspect.getmembers(member, inspect.isfunction)]
    return [re.split(r"\n\s*\n", text.strip())[0] for text in texts]


def usable(classes: dict[str, list[str]], fewest: int = FEWEST) -> dict[str, list[str]]:
    """Distinct sentences of readable length that belong to one class only; classes with enough of them."""
    cleaned = {name: [" ".join(text.split()) for text in texts] for name, texts in classes.items()}
    owners: dict[str, set[str]] = {}
    for name, texts in cleaned.items():
        for text in texts:
            owners.setdefault(text.lower(), set()).add(name)
    kept = {}
    for name, texts in cleaned.items():
        own = [
            text for text in dict.fromkeys(texts) if SHORTEST <= len(text) <= LONGEST and len(owners[text.lower()]) == 1
        ]
        if len(own) >= fewest:
            # Evenly over the file: neighbours are often variants of one sentence.
            kept[name] = [own[len(own) * place // MOST] for place in range(MOST)] if len(own) > MOST else own
    return kept

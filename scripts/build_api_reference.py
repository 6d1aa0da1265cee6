"""Writes docs/api.md from the docstrings and signatures of the names that `import e3bm` offers.

python scripts/build_api_reference.py [FILE]        (a test compares the page with what this makes)
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import e3bm

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# API reference

Every name that `import e3bm` offers, made from the docstrings by `scripts/build_api_reference.py`. Deeper modules are
described in [architecture](architecture.md) and, equation by equation, in [paper_to_code](paper_to_code.md).
"""


def build_page() -> str:
    """The whole page."""
    return HEAD + "".join(_section(title, names) for title, names in _sections().items())


def _sections() -> dict[str, list[str]]:
    """The names under the comments of the table they are listed in."""
    source = inspect.getsource(e3bm)
    table = source[source.index("_PLACES = {") : source.index("\n}\n")]
    sections: dict[str, list[str]] = {}
    for line in table.splitlines():
        if comment := re.match(r"\s+# (.+)", line):
            sections[comment[1]] = []
        elif name := re.match(r'\s+"(\w+)":', line):
            sections[list(sections)[-1]].append(name[1])
    return sections


def _section(title: str, names: list[str]) -> str:
    return f"\n## {title}\n" + "".join(_entry(name, getattr(e3bm, name)) for name in names)


def _entry(name: str, thing: Any) -> str:
    module = inspect.getmodule(thing)
    where = f"`{module.__name__}`" if module is not None and module.__name__.startswith("e3bm") else ""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        known = ", ".join(f"`{one}`" for one in thing)
        return f"\n### {name}\n\n{_text(type(thing))}\n\nKnown: {known}.\n"
    fields = getattr(thing, "model_fields", None)
    signature = "(...)" if fields else _signature(thing)
    parts = [f"\n### {name}\n", where, "", f"```\n{name}{signature}\n```", "", _text(thing)]
    members = _fields(thing) if fields else []
    members += _methods(thing) if inspect.isclass(thing) else []
    return "\n".join([*parts, *([""] if members else []), *members]) + "\n"


def _fields(settings: Any, indent: str = "") -> list[str]:
    """Every setting with its sentence; a group's own settings below it."""
    lines = []
    for name, field in settings.model_fields.items():
        group = hasattr(field.annotation, "model_fields")
        lines.append(f"{indent}- `{name}`: {' '.join((field.description or _first(field.annotation)).split())}")
        lines += _fields(field.annotation, indent + "  ") if group else []
    return lines


def _methods(owner: type) -> list[str]:
    """Public methods that the class itself defines, with their first sentence."""
    found = []
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if isinstance(plain, property):
            found.append(f"- `{name}`: {_first(plain)}")
        elif inspect.isfunction(plain) and plain.__doc__:
            found.append(f"- `{name}{_signature(plain)}`: {_first(plain)}")
    return found


def _signature(thing: Any) -> str:
    """Parameters without the long forms of annotations."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls")
    ]
    plain = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return re.sub(r"<factory>|<class '([\w.]+)'>|<[^<>]* at 0x[0-9a-f]+>", r"...", str(plain))


def _text(thing: Any) -> str:
    """The docstring; what scikit-learn's form lists by name becomes a block."""
    words, *lists = re.split(r"\n(?=\w+\n-{4,}\n)", inspect.cleandoc(thing.__doc__ or ""))
    blocks = [re.sub(r"\n-{4,}\n", r"\n", part.strip()) for part in lists]
    return "\n".join([words.strip(), *(f"\n```\n{block}\n```" for block in blocks)])


def _first(thing: Any) -> str:
    return _text(thing).split("\n\n", maxsplit=1)[0].replace("\n", " ")


if __name__ == "__main__":
    Path(*sys.argv[1:] or [PAGE]).write_text(build_page())

"""What `--help` shows of an option: words that a person reads instead of the spelling of a type."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, StructConstructorSpec

WORDS = {"INT": "NUMBER", "FLOAT": "NUMBER", "STR": "TEXT"}
SAID_BY_ITSELF = ("None", "", "''", "False", "True")
"""Defaults that tell nothing: the help of an option says what happens where it is not set."""
MARKERS = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName)
Found = TypeVar("Found")


class _Words(tuple[str, ...]):
    """`tuple[str, ...]` under a plain name, which tyro understands without importing a type checker."""


Words = Annotated[
    _Words, PrimitiveConstructorSpec("*", "TEXT ...", _Words, lambda words: isinstance(words, tuple), list)
]
"""Any number of words of a command line."""


def plain_value(spelling: str) -> str:
    """What stands after an option, from tyro's spelling of its type: `{None}|PATH` is `PATH`.

    Lists are `PATH ...`, choices `{a,b}`; that None can be typed, to undo what a preset says, is not shown.
    """
    text = re.sub(r"\{None\}\||\|\{None\}", "", spelling)
    text = re.sub(r"(?<=[{,])None(,|(?=\}))", "", text).replace(",}", "}")
    text = re.sub(r"\[(\S+) \[\1 \.\.\.\]\]", r"\1 ...", text)
    text = re.sub(r"\{([A-Z ]+)\}", r"\1", text).replace("|", " or ")
    return re.sub(r"\{.*?\}|\b[A-Z]+\b", lambda word: WORDS.get(word[0], word[0]), text)  # choices stay as they are


def _one_paragraph(text: str | Callable[[], str | None] | None) -> str | Callable[[], str | None] | None:
    """The help of an option without the line breaks of its source."""
    if callable(text):
        return lambda: " ".join((text() or "").split())
    return None if text is None else " ".join(text.split())


def _default_hint(default: str) -> str:
    return "" if default in SAID_BY_ITSELF else f"(default: {default})"


def registry() -> ConstructorRegistry:
    """For `tyro.cli`: its own rules, with plain words for values and without defaults that say nothing."""
    ours = ConstructorRegistry()
    asking: list[Any] = []

    def tyros_own(find: Callable[[Any], Found], about: Any) -> Found | None:
        """What tyro itself finds; its parts of parts stay as they are, because its complaints are made of them."""
        if asking:
            return None
        asking.append(about)
        try:
            return find(about)
        finally:
            asking.pop()

    @ours.primitive_rule
    def value(about: tyro.constructors.PrimitiveTypeInfo) -> Any:
        found = tyros_own(ConstructorRegistry.get_primitive_spec, about)
        if not isinstance(found, PrimitiveConstructorSpec):
            return found
        return replace(found, metavar=plain_value(found.metavar))

    @ours.struct_rule
    def options(about: tyro.constructors.StructTypeInfo) -> Any:
        found = tyros_own(ConstructorRegistry.get_struct_spec, about)
        if not isinstance(found, StructConstructorSpec):
            return found
        hinted: Any = lambda kind: Annotated[kind, tyro.conf.arg(help_behavior_hint=_default_hint)]
        fields = [
            replace(field, type=hinted(field.type), helptext=_one_paragraph(field.helptext)) for field in found.fields
        ]
        return replace(found, fields=tuple(fields))

    return ours

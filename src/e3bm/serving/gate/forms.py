"""Photos out of a multipart request, in memory.

The whole body is there before it is looked at, within the limits of its bytes; its parts are counted before any is
parsed, and a part has a head of a few hundred bytes. Nothing of a photo reaches the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from e3bm.serving.exchange import RequestError, Upload

MOST_FIELDS = 8
LARGEST_FIELD = 1_000
LARGEST_HEAD = 2_000
LONGEST_BOUNDARY = 70  # RFC 2046
FORM = "multipart/form-data"
TRUE, FALSE = ("true", "1", "on", "yes"), ("false", "0", "off", "no")


@dataclass(frozen=True)
class Form:
    """What a form held: the files of one field, and the words of the others."""

    files: tuple[Upload, ...]
    fields: dict[str, str]

    def flag(self, name: str) -> bool:
        """A field that is true or false; false where it is not there."""
        word = self.fields.get(name, "false").strip().lower()
        if word not in (*TRUE, *FALSE):
            raise RequestError(422, f"The field '{name}' is true or false, found '{word[:20]}'.")
        return word in TRUE

    def number(self, name: str) -> float | None:
        """A field that is a number; None where it is not there. Whoever uses it knows its bounds."""
        word = self.fields.get(name, "").strip()
        if not word:
            return None
        try:
            return float(word)
        except ValueError:
            raise RequestError(422, f"The field '{name}' is a number such as 0.95, found '{word[:20]}'.") from None


@dataclass(frozen=True)
class _Part:
    name: str
    filename: str | None
    content: bytes


async def read_form(request: Request, field: str, most: int, *others: str) -> Form:
    """The files of ``field``, one to ``most``, and the fields ``others``; RequestLimits bounds the bytes."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary", b"")
    if kind != FORM.encode() or not boundary:
        raise RequestError(415, f"Send files as {FORM} in the field '{field}'.")
    if len(boundary) > LONGEST_BOUNDARY:
        raise _unreadable()
    try:
        body = await request.body()
    except ClientDisconnect:
        raise RequestError(400, "The client left before its request was complete.") from None
    return _form(body, boundary, field, most, others)


def _form(body: bytes, boundary: bytes, field: str, most: int, known: tuple[str, ...]) -> Form:
    parts = _parts(body, boundary, most)
    files = [part for part in parts if part.filename is not None]
    others = [part for part in parts if part.filename is None]
    if len(files) > most:
        raise RequestError(413, f"A request may have {most} files at most; send the others in another one.")
    if len(others) > MOST_FIELDS:
        raise RequestError(413, f"A form may have at most {MOST_FIELDS} fields in addition to its files.")
    if any(len(part.content) > LARGEST_FIELD for part in others):
        raise RequestError(413, f"A field that is not a file may have at most {LARGEST_FIELD} bytes.")
    uploads = tuple(Upload(_display_name(part.filename or ""), part.content) for part in files if part.name == field)
    strangers = [part.name for part in parts if part.name not in ((field,) if part.filename is not None else known)]
    if strangers:
        more = f", and the field{'s' * (len(known) > 1)} {', '.join(map(repr, known))}" if known else ""
        taken = f"files in the field '{field}'{more}"
        raise RequestError(422, f"There is no field '{_display_name(strangers[0])}' here; this form takes {taken}.")
    if not uploads:
        raise RequestError(422, f"There is no file in the field '{field}'; send one or more.")
    return Form(uploads, {part.name: part.content.decode("utf-8", "replace") for part in others})


def _parts(body: bytes, boundary: bytes, most: int) -> list[_Part]:
    """The parts of a form, between lines that begin with the boundary."""
    delimiter = b"\r\n--" + boundary
    whole = b"\r\n" + body  # the first line may be a boundary, too
    # Counted before anything is taken apart; the last delimiter ends the form.
    if whole.count(delimiter) > most + MOST_FIELDS + 1:
        raise RequestError(
            413, f"A request may have {most} files at most, and {MOST_FIELDS} fields beside them; send fewer."
        )
    _, *pieces = whole.split(delimiter)
    if not pieces:
        raise _unreadable()
    ends = [place for place, piece in enumerate(pieces) if piece.startswith(b"--")]
    if not ends:
        raise RequestError(400, "The form ends too early; its last boundary is missing.")
    return [_part(piece) for piece in pieces[: ends[0]]]


def _part(piece: bytes) -> _Part:
    """A part: the rest of the boundary's line, a head, an empty line, and the content."""
    end = piece.find(b"\r\n\r\n", 0, LARGEST_HEAD)
    if end < 0 or not piece.startswith(b"\r\n"):
        raise _unreadable()
    for line in piece[:end].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            kind, options = parse_options_header(value.strip())
            if kind == b"form-data" and b"name" in options:
                filename = options.get(b"filename")
                shown = None if filename is None else filename.decode("utf-8", "replace")
                return _Part(options[b"name"].decode("utf-8", "replace"), shown, piece[end + 4 :])
    raise _unreadable()


def form_schema(field: str, *, many: bool, **others: dict[str, Any]) -> dict[str, Any]:
    """How the form looks in the OpenAPI document."""
    file = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": file, "minItems": 1} if many else file
    schema = {"type": "object", "required": [field], "properties": {field: files, **others}}
    return {"requestBody": {"required": True, "content": {FORM: {"schema": schema}}}}


def form_fields(extra: Mapping[str, Any]) -> dict[str, str]:
    """The fields that a route's part of the OpenAPI document has, each with 'file' or 'words'."""
    schema = extra.get("requestBody", {}).get("content", {}).get(FORM, {}).get("schema", {})
    files = schema.get("required", ())
    return {name: "file" if name in files else "words" for name in schema.get("properties", {})}


def _unreadable() -> RequestError:
    return RequestError(400, f"The form cannot be read; it is not well-formed {FORM}.")


def _display_name(name: str) -> str:
    """The last part of a file's name, short and printable."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:80] or "the file"

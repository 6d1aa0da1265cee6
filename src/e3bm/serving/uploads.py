"""Photos out of a multipart request, in memory: the framework's own reader may put large parts on disk."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from e3bm.serving.refusals import Refusal, sentence_of

NEVER_TO_DISK = 0
MOST_FIELDS = 8
LARGEST_FIELD = 10_000


@dataclass(frozen=True)
class Upload:
    """One file of a request; its name is only ever shown."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Form:
    """What a form held: the files of one field, and the words of the others."""

    files: tuple[Upload, ...]
    fields: dict[str, str]

    def switch(self, name: str) -> bool:
        """A field that is yes or no."""
        word = self.fields.get(name, "false").strip().lower()
        if word not in ("true", "false", "1", "0", "on", "off", "yes", "no"):
            raise Refusal(422, f"The field '{name}' is true or false, found '{word[:20]}'.")
        return word in ("true", "1", "on", "yes")


async def read_form(request: Request, field: str, most: int) -> Form:
    """The files of ``field``, at least one and at most so many."""
    kind, _ = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data":
        raise Refusal(415, f"Send files as multipart/form-data in the field '{field}'.")
    async with aclosing(request.stream()) as stream:
        parser = MultiPartParser(
            request.headers, stream, max_files=most, max_fields=MOST_FIELDS, max_part_size=LARGEST_FIELD
        )
        # Zero is how a spooled file is told to stay in memory; the gate bounds how much that can be.
        parser.spool_max_size = NEVER_TO_DISK
        try:
            data = await parser.parse()
        except MultiPartException as error:
            raise Refusal(400, f"The form cannot be read: {sentence_of(error.message)}") from None
        except ClientDisconnect:
            raise Refusal(400, "The client left before its request was whole.") from None
    files, fields = [], {}
    for name, value in data.multi_items():
        if not isinstance(value, UploadFile):
            fields[name] = value
        elif name == field:
            files.append(Upload(shown_name(value.filename), await value.read()))
    await data.close()
    if not files:
        raise Refusal(422, f"There is no file in the field '{field}'; send one or more.")
    return Form(tuple(files), fields)


def form_schema(field: str, *, many: bool, **others: dict[str, Any]) -> dict[str, Any]:
    """How the form looks in the OpenAPI document."""
    file = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": file, "minItems": 1} if many else file
    schema = {"type": "object", "required": [field], "properties": {field: files, **others}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def shown_name(name: str | None) -> str:
    """The last part of a file's name, short and printable."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:80] or "the file"

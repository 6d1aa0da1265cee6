"""Photos out of a multipart request, in memory: Starlette's parser, told never to put a part on disk."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from e3bm.serving.errors import RequestError

MOST_FIELDS = 8
LARGEST_FIELD = 1_000
TRUE, FALSE = ("true", "1", "on", "yes"), ("false", "0", "off", "no")


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

    def flag(self, name: str) -> bool:
        """A field that is true or false; false where it is not there."""
        word = self.fields.get(name, "false").strip().lower()
        if word not in (*TRUE, *FALSE):
            raise RequestError(422, f"The field '{name}' is true or false, found '{word[:20]}'.")
        return word in TRUE


class _MemoryParser(MultiPartParser):
    """Starlette's parser, which keeps parts in memory and refuses a form whose end is missing."""

    spool_max_size = 0  # no limit: RequestLimits bounds the bytes of a request, and photos must not reach the disk

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None], most_files: int) -> None:
        super().__init__(
            headers,
            self._until_the_end(stream),
            max_files=most_files,
            max_fields=MOST_FIELDS,
            max_part_size=LARGEST_FIELD,
        )
        self._ended = False

    def on_end(self) -> None:
        self._ended = True

    async def _until_the_end(self, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The same pieces; raising inside of ``parse`` makes it close the parts that it has begun."""
        async for piece in stream:
            yield piece
        if not self._ended:
            raise RequestError(400, "The form ends too early; its last boundary is missing.")


async def read_form(request: Request, field: str, most: int) -> Form:
    """The files of ``field``, at least one and at most ``most``; RequestLimits bounds their bytes."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise RequestError(415, f"Send files as multipart/form-data in the field '{field}'.")
    async with aclosing(request.stream()) as stream:
        try:
            parsed = await _MemoryParser(request.headers, stream, most).parse()
        except MultiPartException as error:
            raise _form_error(error.message, most) from None
        except ClientDisconnect:
            raise RequestError(400, "The client left before its request was whole.") from None
        except ValueError:  # from decoding with a charset that the request names
            raise _form_error("", most) from None
    try:
        files = [part for part in parsed.getlist(field) if isinstance(part, UploadFile)]
        uploads = tuple([Upload(_display_name(part.filename or ""), await part.read()) for part in files])
    finally:
        await parsed.close()
    if not uploads:
        raise RequestError(422, f"There is no file in the field '{field}'; send one or more.")
    return Form(uploads, {name: part for name, part in parsed.items() if isinstance(part, str)})


def form_schema(field: str, *, many: bool, **others: dict[str, Any]) -> dict[str, Any]:
    """How the form looks in the OpenAPI document."""
    file = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": file, "minItems": 1} if many else file
    schema = {"type": "object", "required": [field], "properties": {field: files, **others}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def _form_error(message: str, most: int) -> RequestError:
    """Limits of the parser are 413; everything else that it complains about is a form that cannot be read."""
    if message.startswith("Too many files"):
        return RequestError(413, f"A request may have {most} files at most; send the others in another one.")
    if message.startswith("Too many fields"):
        return RequestError(413, f"A form may have {MOST_FIELDS} fields beside its files at most.")
    if message.startswith("Part exceeded"):
        return RequestError(413, f"A field that is no file may have {LARGEST_FIELD} bytes at most.")
    return RequestError(400, "The form cannot be read; it is not well-formed multipart/form-data.")


def _display_name(name: str) -> str:
    """The last part of a file's name, short and printable."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:80] or "the file"

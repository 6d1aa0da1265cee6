"""Photos out of a multipart request, in memory: the framework's own reader may put large parts on disk."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from e3bm.serving.errors import RequestError

MOST_FIELDS = 8
LARGEST_FIELD = 1_000


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
            raise RequestError(422, f"The field '{name}' is true or false, found '{word[:20]}'.")
        return word in ("true", "1", "on", "yes")


class PartReader:
    """Collects the parts of a form as the parser finds them."""

    def __init__(self, field: str, most: int) -> None:
        self.field, self.most = field, most
        self.files: list[Upload] = []
        self.fields: dict[str, str] = {}
        self.whole = False
        self._header, self._value = b"", b""
        self._name, self._content = "", bytearray()
        self._file_name: str | None = None

    def callbacks(self) -> Any:
        """What the parser calls."""
        names = ("part_begin", "part_data", "part_end", "header_begin", "header_field", "header_value", "header_end")
        return {f"on_{name}": getattr(self, f"_{name}") for name in (*names, "end")}

    def _part_begin(self) -> None:
        self._name, self._file_name, self._content = "", None, bytearray()

    def _header_begin(self) -> None:
        self._header, self._value = b"", b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            self._file_name = options[b"filename"].decode("utf-8", "replace") if b"filename" in options else None

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]
        if self._file_name is None and len(self._content) > LARGEST_FIELD:
            raise RequestError(413, f"A field that is no file may have {LARGEST_FIELD} bytes at most.")

    def _part_end(self) -> None:
        if self._file_name is None:
            self.fields[self._name] = self._content.decode("utf-8", "replace")
            if len(self.fields) > MOST_FIELDS:
                raise RequestError(413, f"A form may have {MOST_FIELDS} fields beside its files at most.")
        elif self._name == self.field:
            self.files.append(Upload(shown_name(self._file_name), bytes(self._content)))
            if len(self.files) > self.most:
                raise RequestError(
                    413, f"A request may have {self.most} files at most; send the others in another one."
                )
        self._content = bytearray()

    def _end(self) -> None:
        self.whole = True


async def read_form(request: Request, field: str, most: int) -> Form:
    """The files of ``field``, at least one and at most so many; the gate bounds how many bytes they can be."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise RequestError(415, f"Send files as multipart/form-data in the field '{field}'.")
    reader = PartReader(field, most)
    try:
        parser = MultipartParser(options[b"boundary"], reader.callbacks())
        async with aclosing(request.stream()) as stream:
            async for piece in stream:
                parser.write(piece)
        parser.finalize()
    except FormParserError:
        raise RequestError(400, "The form cannot be read; it is not well-formed multipart/form-data.") from None
    except ClientDisconnect:
        raise RequestError(400, "The client left before its request was whole.") from None
    if not reader.whole:
        raise RequestError(400, "The form ends too early; its last boundary is missing.")
    if not reader.files:
        raise RequestError(422, f"There is no file in the field '{field}'; send one or more.")
    return Form(tuple(reader.files), reader.fields)


def form_schema(field: str, *, many: bool, **others: dict[str, Any]) -> dict[str, Any]:
    """How the form looks in the OpenAPI document."""
    file = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": file, "minItems": 1} if many else file
    schema = {"type": "object", "required": [field], "properties": {field: files, **others}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def shown_name(name: str) -> str:
    """The last part of a file's name, short and printable."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:80] or "the file"

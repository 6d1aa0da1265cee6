"""Files that are either whole or absent, whatever happens in between."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e3bm.errors import CheckpointError


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """A full disk or an unwritable folder becomes a sentence."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"Cannot write in {folder}: {error.strerror or error}. What was saved before is intact; "
            "make room or choose another --run folder, then run the same command again."
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, then rename over."""
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or absent."""
    write_bytes(path, (json.dumps(value, indent=2, sort_keys=True, default=str) + "\n").encode())


def read_json(path: Path) -> Any:
    """What a JSON file holds; a damaged one is named."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"There is no file {path}.") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from None

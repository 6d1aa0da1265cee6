"""Downloads a data set's official files: only when asked, only over https, with the checksum compared.

The code is our own so that a later run can continue a partial download, no redirect can leave https, and a full disk
is noticed before the first byte is written.
"""

import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e3bm.data.source import Download
from e3bm.errors import DataError
from e3bm.progress import Progress, Silent, stage

LOOPBACK = ("127.0.0.1", "::1", "localhost")
BLOCK_BYTES, SECONDS_WITHOUT_ANSWER, ATTEMPTS = 1 << 18, 30.0, 3
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to an address that would be accepted as the first one: https, or this machine."""

    def redirect_request(self, *request: Any) -> urllib.request.Request | None:
        _check_address(request[-1])
        return super().redirect_request(*request)


def download_all(
    downloads: Sequence[Download], folder: Path, progress: Progress | None = None, pause: float = 1.0
) -> list[Path]:
    """Download the files into ``folder`` and give their paths; a file that is there with the right checksum is kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error.strerror}; choose another data folder.") from error
    return [_fetch(one, folder / one.file_name, progress or Silent(), pause) for one in downloads]


def _fetch(download: Download, target: Path, progress: Progress, pause: float) -> Path:
    _check_address(download.url)
    if target.is_file():
        _check_digest(target, download)
        return target
    part = target.with_name(target.name + ".part")
    for attempt in range(ATTEMPTS):
        try:
            _continue(download, part, progress)
            break
        except urllib.error.HTTPError as error:
            error.close()
            answered = f"{download.url} answered {error.code} ({error.reason})"
            raise DataError(f"{answered}; fetch the file by hand and give it as the source.") from error
        except NETWORK_ERRORS as error:
            if attempt == ATTEMPTS - 1:
                host, reason = urlsplit(download.url).hostname, getattr(error, "reason", None) or error
                raise DataError(
                    f"{host} cannot be reached ({reason}): there is no network or the server is down; run the same "
                    "command again later, or fetch the file by hand and give it as the source."
                ) from error
            time.sleep(pause * attempt)
        except OSError as error:
            raise DataError(f"{part} cannot be written: {error.strerror}; free some space and run it again.") from error
    _check_digest(part, download)
    part.replace(target)
    _tag_of(part).unlink(missing_ok=True)
    return target


def _continue(download: Download, part: Path, progress: Progress) -> None:
    """Download what is still missing of the file, or all of it if the server has another version by now."""
    have, tag = part.stat().st_size if part.is_file() else 0, _tag_of(part)
    request = urllib.request.Request(download.url, headers={"User-Agent": "e3bm", "Accept-Encoding": "identity"})
    if have and tag.is_file():
        # The server answers with the rest only if the file is still the one of which we have the beginning.
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", tag.read_text("ascii"))
    opener = urllib.request.build_opener(_SafeRedirects)
    with opener.open(request, timeout=SECONDS_WITHOUT_ANSWER) as answer:
        start = have if answer.status == 206 and _starts_at(answer.headers, have) else 0
        size = int(answer.headers.get("Content-Length") or 0)
        total = start + size if size else 0
        if total and total - start > shutil.disk_usage(part.parent).free:
            raise OSError(28, "No space left on device")
        _remember_tag(tag, answer.headers)
        title = f"downloading {download.file_name} (bytes)"
        with part.open("r+b") if start else part.open("wb") as file, stage(progress, title, total, start):
            file.seek(start)
            file.truncate()
            while block := answer.read(BLOCK_BYTES):
                file.write(block)
                progress.advance(file.tell())
        if total and part.stat().st_size != total:
            raise ConnectionError(f"it broke off after {part.stat().st_size:,} of {total:,} bytes")


def _starts_at(headers: Any, place: int) -> bool:
    return str(headers.get("Content-Range", "")).startswith(f"bytes {place}-")


def _tag_of(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _remember_tag(tag: Path, headers: Any) -> None:
    """Keep the server's mark of this version of the file; a weak mark does not prove that two files are equal."""
    mark = headers.get("ETag") or headers.get("Last-Modified") or ""
    if mark and not mark.startswith("W/") and mark.isascii():
        tag.write_text(mark, "ascii")
    else:
        tag.unlink(missing_ok=True)


def _check_digest(path: Path, download: Download) -> None:
    if not download.checksum:
        return
    algorithm, _, expected = download.checksum.partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    if digest.hexdigest() != expected:
        path.unlink()
        raise DataError(
            f"{path.name} has the {algorithm} checksum {digest.hexdigest()}, expected {expected}; it was removed, "
            "so run the same command again or fetch it by hand."
        )


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise DataError(f"{url} is not an https address; nothing was fetched.")

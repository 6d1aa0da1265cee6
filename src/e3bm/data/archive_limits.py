"""What no archive of images does: names that escape, sizes that explode, content that is cut short."""

import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

from e3bm.errors import DataError

# Pixels never shrink this much; what does is a few bytes made to fill a memory.
LARGEST_RATIO, RATIO_MATTERS_FROM = 200, 64 << 20
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, NotImplementedError)


def refuse_bomb(path: Path, name: str, packed: int, full: int) -> None:
    """Stop where a few bytes would grow as no image does."""
    if full > RATIO_MATTERS_FROM and full > LARGEST_RATIO * max(packed, 1):
        raise DataError(
            f"'{name}' in {path} would grow from {packed:,} to {full:,} bytes, as no image does; "
            "the archive is refused as a decompression bomb."
        )


def check_length(path: Path, name: str, content: bytes, size: int) -> bytes:
    """The content, if it is as long as the archive says."""
    if len(content) != size:
        raise DataError(f"'{name}' in {path} is cut short: {len(content)} of {size} bytes; fetch the archive again.")
    return content


def damaged(path: Path, kind: str, error: BaseException) -> DataError:
    """The error for an archive that is cut short or is something else."""
    return DataError(f"{path} is damaged or not a {kind} file ({str(error).rstrip('.')}); fetch it again.")

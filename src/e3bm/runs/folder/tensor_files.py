"""Files of tensors: safetensors with texts beside them and one digest of everything, checked when they are read.

Whatever is wrong with such a file, or with one that only looks like it, is a CheckpointError; nothing in it is run.
Tensors are torch's, or NumPy's where torch is not needed for anything else: a file and its digest are the same.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy

from e3bm.errors import CheckpointError
from e3bm.json_files import parse_json

if TYPE_CHECKING:
    import hashlib

    from torch import Tensor

DIGEST = "sha256"
LARGEST_HEADER = 64 << 20


def tensor_file(tensors: "Mapping[str, Tensor]", texts: Mapping[str, str]) -> bytes:
    """The content of a file of tensors with texts about them and the digest of both."""
    import safetensors.torch

    # Contiguous copies: safetensors refuses tensors that share memory.
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return safetensors.torch.save(copies, {**texts, DIGEST: content_digest(texts, copies)})


def read_tensor_file(
    path: Path, what: str = "weights file", *, former: bool = True
) -> "tuple[dict[str, str], dict[str, Tensor]]":
    """The texts and tensors of a file; ``former`` takes one without a digest: of a former version, or of others."""
    try:
        texts, tensors = parse_tensor_file(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"There is no {what} {path}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not a readable {what}: {error}.") from None
    digest = texts.pop(DIGEST, None)
    if not (former and digest is None) and digest != content_digest(texts, tensors):
        raise CheckpointError(f"{path} is damaged: its content is not what was saved; restore it from a copy.")
    return texts, tensors


def parse_tensor_file(content: bytes) -> "tuple[dict[str, str], dict[str, Tensor]]":
    """The texts and tensors that a file's bytes hold; ValueError where they hold none."""
    import safetensors.torch

    return _parsed(content, safetensors.torch.load)


def parse_array_file(content: bytes) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The same with the tensors as arrays, without torch."""
    return _parsed(content, safetensors.numpy.load)


def _parsed(content: bytes, load: Callable[[bytes], dict[str, Any]]) -> tuple[dict[str, str], dict[str, Any]]:
    try:
        tensors = load(content)
    except Exception as error:  # of a parser in another language and of torch or NumPy, for types that they do not have
        raise ValueError(str(error).partition("\n")[0].removesuffix(".") or type(error).__name__) from None
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]
    if header.strip() != header.strip(b" "):
        raise ValueError("its header does not end as it was written")
    about = parse_json(header, LARGEST_HEADER).get("__metadata__", {})
    # By name: the library gives them in any order.
    return {str(name): str(text) for name, text in sorted(about.items())}, dict(sorted(tensors.items()))


def content_digest(texts: Mapping[str, str], tensors: "Mapping[str, Tensor]") -> str:
    """A name for exactly these texts and tensors."""
    digest = sha256()
    for name in sorted(texts):
        digest.update(f"{name} {len(texts[name])} {texts[name]}".encode())
    update_by_tensors(digest, tensors)
    return digest.hexdigest()


def update_by_arrays(digest: "hashlib._Hash", arrays: Mapping[str, np.ndarray]) -> None:
    """Take names, types, shapes and numbers of arrays into a digest, which is that of equal tensors."""
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(f"{name} torch.{value.dtype.name} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())


def update_by_tensors(digest: "hashlib._Hash", tensors: "Mapping[str, Tensor]") -> None:
    """Take names, types, shapes and numbers of tensors into a digest."""
    import torch

    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():  # as bytes: NumPy does not have all types that torch has
            digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())

"""The one form in which a model holds its numbers, whether it was fitted, loaded or unpickled.

The last bits of a matrix product depend on where its numbers lie in memory: on their strides, and on whether they
begin at a multiple of what the processor reads at once. What a fit leaves are views into larger tensors, and a tensor
of a file lies wherever the file's header ends; equal numbers in both would still give unequal predictions.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from e3bm.array_types import Float

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNMENT = 64


def canonical(value: "Float[Tensor, '*shape']", dtype: "torch.dtype") -> "Float[Tensor, '*shape']":
    """A copy on the CPU, row after row, at the start of memory of its own: torch aligns that to 64 bytes."""
    import torch

    return torch.empty(value.shape, dtype=dtype).copy_(value.detach())


def canonical_array(value: Float[np.ndarray, "*shape"], dtype: Any) -> Float[np.ndarray, "*shape"]:
    """The same as an array of NumPy, which by itself aligns less."""
    kind = np.dtype(dtype)
    memory = np.empty(value.size * kind.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    found: np.ndarray = memory[start : start + value.size * kind.itemsize].view(kind).reshape(value.shape)
    found[...] = value
    return found

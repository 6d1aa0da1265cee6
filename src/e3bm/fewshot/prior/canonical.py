"""The one form in which a model holds its numbers, whether it was fitted, loaded or unpickled.

The last bits of a matrix product depend on where its numbers lie in memory: on their strides, and on whether they
begin at a multiple of what the processor reads at once. What a fit leaves are views into larger tensors, and a tensor
of a file lies wherever the file's header ends; equal numbers in both would still give unequal predictions.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def canonical(value: Float[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """A copy on the CPU, row after row, at the start of memory of its own: torch aligns that to 64 bytes."""
    return torch.empty(value.shape, dtype=dtype).copy_(value.detach())


def canonical_array(value: Float[np.ndarray, "*shape"], dtype: type[np.floating]) -> Float[np.ndarray, "*shape"]:
    """The same for numbers that are only kept: NumPy aligns less, so what is multiplied is a ``canonical`` copy."""
    return np.array(value, dtype=dtype, order="C")

"""Many linear systems, one for each task."""

import torch
from jaxtyping import Float
from torch import Tensor

# With 150 unknowns or more, torch's batched LU fails or hangs on several threads (seen in torch 2.13 with MKL).
LARGE = 128


def solve_each(systems: Float[Tensor, "T N N"], rights: Float[Tensor, "T N"]) -> Float[Tensor, "T N"]:
    """The solution of every task's system; large ones are solved one by one, at no cost at their size."""
    if systems.shape[-1] < LARGE:
        together: Tensor = torch.linalg.solve(systems, rights)
        return together
    return torch.stack([torch.linalg.solve(system, right) for system, right in zip(systems, rights, strict=True)])

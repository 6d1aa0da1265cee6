"""The recorded numbers of published systems: tensors in float64, and the tasks they were computed on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from e3bm.core.episode import TaskBatch

FOLDER = Path(__file__).parent / "systems"


def load(name):
    return {key: torch.from_numpy(np.asarray(value)) for key, value in np.load(FOLDER / f"{name}.npz").items()}


def tasks(data):
    """The recorded batch, with leaves for the derivatives."""
    return TaskBatch(
        data["support"].clone().requires_grad_(),
        data["support_labels"].long(),
        data["query"].clone().requires_grad_(),
        data["query_labels"].long(),
        int(data["ways"]),
    )


def padded(batch):
    """The same tasks with a padded example in the middle of each support, which must not matter."""
    wide = lambda values, filler: torch.cat([values[:, :4], filler, values[:, 4:]], 1)
    mask = wide(batch.mask, torch.zeros(len(batch), 1, dtype=torch.bool))
    support = wide(batch.support, torch.full_like(batch.support[:, :1], 0.7))
    labels = wide(batch.support_labels, torch.ones(len(batch), 1, dtype=torch.long))
    return replace(batch, support=support, support_labels=labels, support_mask=mask)


def close(found, expected, atol=1e-10):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)

"""What the tests of the backbones share."""

from collections.abc import Iterator

import pytest
import torch
from jaxtyping import config


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """Users run without the checks of shapes and types that the tests switch on: their errors must be ours."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)

"""Shape annotations are checked in tests; every test runs on one thread and draws the same random numbers.

`make test-elsewhere` changes threads, numbers and order: E3BM_TEST_THREADS, E3BM_TEST_SEED and pytest --random-order.
Shapes depend on none of these, so it does without their checks: E3BM_TEST_SHAPES=0.
"""

import os
import sys
from pathlib import Path

from jaxtyping import install_import_hook

# Before anything of the package is imported.
if os.environ.get("E3BM_TEST_SHAPES", "1") == "1":
    install_import_hook(["e3bm.core", "e3bm.methods", "e3bm.backbones", "e3bm.core.episode"], "beartype.beartype")
sys.path.insert(0, str(Path(__file__).parent))  # for small_runs

import pytest
import torch

torch.set_num_threads(int(os.environ.get("E3BM_TEST_THREADS", "1")))
SEED = int(os.environ.get("E3BM_TEST_SEED", "0"))


# Before a test and again between its fixtures and itself: what it draws depends neither on the tests that ran before
# it nor on whether it was the one to make a shared fixture.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    torch.manual_seed(SEED)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    torch.manual_seed(SEED)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """The folder of the data sets and backbones of small_runs."""
    return tmp_path_factory.mktemp("small_data")


@pytest.fixture(scope="session")
def pretrained_run(small_data, tmp_path_factory):
    """A backbone of ours: the folder of a pre-training of one epoch."""
    from e3bm.runs.training.pretrain import run_pretrain
    from small_runs import pretrain_settings

    folder = tmp_path_factory.mktemp("runs") / "pretrain"
    run_pretrain(pretrain_settings(small_data, epochs=1), folder)
    return folder

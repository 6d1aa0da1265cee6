"""Every example runs as a user would run it, with warnings as errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NEED_A_MODEL = ("onnx_photo",)  # run by tests/fewshot/test_without_torch.py
FOLDER = Path(__file__).resolve().parents[1] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in NEED_A_MODEL)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(path.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "%" in done.stdout

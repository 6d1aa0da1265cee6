"""Every example runs as a user would run it, with warnings as errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NEED_A_MODEL = ("onnx_photo", "onnx_two_networks")  # run by tests/fewshot/test_without_torch.py
FOLDER = Path(__file__).resolve().parents[1] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in NEED_A_MODEL)


@pytest.mark.parametrize("name", NEED_A_MODEL)
def test_an_example_that_needs_a_model_says_so_in_one_line(name):
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "birds.onnx"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"usage: python {name}.py birds.onnx PHOTO...\n"


def test_a_model_is_used_elsewhere_in_fifteen_lines():
    code = (FOLDER / "onnx_photo.py").read_text().split('"""')[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


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

"""The tutorial runs top to bottom, as it is printed but for numbers that only say how long and how wide."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
SMALLER = {
    '"name": "conv4_64"': '"name": "conv4_64", "width": 0.125',
    'name="conv4_64"': 'name="conv4_64", width=0.125',
    '"epochs": 2,': '"epochs": 1,',
    '"steps": 150, "tasks": 8': '"steps": 20, "tasks": 2',
    '"every": 75': '"every": 10',
    "episodes=200": "episodes=40",
    "tasks, 200": "tasks, 40",
}


@pytest.mark.slow
def test_tutorial_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), flags=re.DOTALL)
    assert len(blocks) > 5
    script = tmp_path / "tutorial.py"
    text = "\n".join(blocks)
    for printed, smaller in SMALLER.items():
        assert printed in text
        text = text.replace(printed, smaller)
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "E3BM_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "MTL+E3BM" in done.stdout
    for picture in ("episode.png", "inner_epochs.png", "alpha_and_v.png"):
        assert (tmp_path / picture).stat().st_size > 5000
    assert (tmp_path / "tutorial" / "report" / "index.html").exists()

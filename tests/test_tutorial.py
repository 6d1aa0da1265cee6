"""The tutorial runs top to bottom, as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"


@pytest.mark.slow
def test_tutorial_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), flags=re.DOTALL)
    assert len(blocks) > 5
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(blocks))
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

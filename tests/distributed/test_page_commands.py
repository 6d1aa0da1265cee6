"""The commands of the page on many machines, as they stand there, with tiny numbers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from e3bm.paper.presets import find_preset
from small_runs import flags, words

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "many_machines.md").read_text()
COMMANDS = [
    command
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for command in block.replace("\\\n", " ").splitlines()
]
STANDALONE = [command for command in COMMANDS if "--standalone" in command]


def test_the_page_has_commands_for_presets_that_exist():
    assert len(STANDALONE) == 3
    for name in re.findall(r"--preset (\S+)", PAGE):
        find_preset(name)


@pytest.mark.slow
def test_the_commands_of_one_machine(tmp_path):
    tiny = " ".join(words(flags(tmp_path, "maml", optimiser__steps=2)))
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": paths, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    for written in STANDALONE:
        command = re.sub(r"--preset \S+", tiny, written).replace("--episodes 600", "--episodes 4")
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "maml" / "results.json").exists()

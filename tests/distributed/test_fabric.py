"""Two processes that Lightning Fabric brought together train and test as those of torch do."""

import pytest

from e3bm.runs.folder.checkpoint import Checkpoints
from small_runs import assert_equal, flags, words


@pytest.mark.slow
def test_fabric_and_torch_give_the_same(tmp_path, torchrun):
    pytest.importorskip("lightning_fabric", reason="the extra e3bm[fabric] is not installed")
    for engine in ("torch", "fabric"):
        dotted = flags(tmp_path, "mtl-scaled+e3bm", machine__engine=engine)
        torchrun("-m", "e3bm", "train", "--run", tmp_path / engine, *words(dotted))
    assert_equal(Checkpoints(tmp_path / "fabric").weights("last"), Checkpoints(tmp_path / "torch").weights("last"))
    # Two runs in one process: it joins once.
    tested = ["test", tmp_path / "fabric", tmp_path / "torch", "--episodes", "6"]
    assert torchrun("-m", "e3bm", *tested).stdout.count("MTL+E3BM") >= 2

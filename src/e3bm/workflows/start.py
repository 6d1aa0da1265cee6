"""How a training begins: its run folder, looked at by all processes and written by one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from e3bm.engine import Engine
from e3bm.settings import PretrainSettings, TrainSettings
from e3bm.tracking.files import held
from e3bm.tracking.run_folder import RunFolder


@contextmanager
def opened(
    folder: Path,
    kind: str,
    settings: TrainSettings | PretrainSettings,
    inputs: Mapping[str, str],
    engine: Engine,
    tensorboard: bool,
) -> Iterator[RunFolder]:
    """The run folder, begun or continued, and kept from other trainings."""
    run = RunFolder(folder)
    run.check(kind, settings, inputs)
    engine.wait()  # nobody writes before all have looked, so that all come to the same answer
    if engine.leads:
        run.create(kind, settings, inputs)
    with held(folder) if engine.leads else nullcontext():
        engine.wait()
        if not tensorboard or not engine.leads:
            yield run
            return
        from e3bm.tracking.tensorboard import TensorBoard

        with TensorBoard(folder) as mirror:
            yield RunFolder(folder, [mirror])

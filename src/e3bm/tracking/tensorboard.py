"""The same numbers in TensorBoard, for those who like to watch there (the extra `e3bm[tensorboard]`)."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from e3bm.errors import SettingsError


class TensorBoard:
    """Shows every metrics and schedules line of a run as scalars in the run's folder ``tensorboard``."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingsError("TensorBoard is not installed; `pip install 'e3bm[tensorboard]'` adds it.") from None
        self.folder = run / "tensorboard"
        self._open = SummaryWriter
        self._writer: Any = None

    def __call__(self, name: str, record: Mapping[str, Any]) -> None:
        if name not in ("metrics", "schedules"):
            return
        step = record["step"]
        if self._writer is None:
            # A continued run takes some steps again: what was shown of them before is hidden.
            self._writer = self._open(str(self.folder), purge_step=step)
        group = record.get("split", "schedule")
        for key, value in record.items():
            if isinstance(value, list):
                for epoch, each in enumerate(value, 1):
                    self._writer.add_scalar(f"{group}/{key}/{epoch:03d}", each, step)
            elif isinstance(value, int | float) and key != "step":
                self._writer.add_scalar(f"{group}/{key}", value, step)
        self._writer.flush()

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()

"""What was measured, in one file: results/classifier/measured.json.xz, by data set."""

import json
import lzma
from pathlib import Path
from typing import Any

from e3bm.runs.folder.files import in_turn, write_bytes

Part = dict[str, Any]
"""rows: what tables show; episodes: right answers and mean -log p of every episode, from which rows are made; trust:
its numbers; log: environment, command, parts and the digest of the prior of every call."""


def read(path: Path) -> dict[str, Part]:
    """All that is kept, by data set."""
    return dict(json.loads(lzma.decompress(path.read_bytes()))) if path.exists() else {}


def change(path: Path, name: str, **parts: Any) -> None:
    """Replace parts of what is kept of one data set."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(path.parent):
        kept = read(path)
        kept[name] = {"rows": [], "trust": {}, "log": [], "episodes": {}} | kept.get(name, {}) | parts
        text = json.dumps(kept, separators=(",", ":")) + "\n"
        write_bytes(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))

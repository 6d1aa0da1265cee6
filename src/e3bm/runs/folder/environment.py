"""Where a run happened: versions, machine and the commit of the code."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import e3bm

PACKAGES = ("e3bm", "torch", "numpy", "pillow", "safetensors", "pydantic")


def describe_environment() -> dict[str, Any]:
    """Everything that may explain a difference between two runs."""
    import platform  # a prediction asks this module who leads, and nothing else

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def is_leader() -> bool:
    """Whether this process writes and talks: the only one, or the first of those that torchrun or SLURM started."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def commit() -> str:
    """The code's commit, with '+' when there are changes beside it; the release number outside a checkout."""
    package = Path(e3bm.__file__).resolve().parent
    if not (package.parents[1] / "pyproject.toml").exists():
        return f"release {_version('e3bm')}"
    try:
        name = _git(package, "rev-parse", "--short=12", "HEAD")
        changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", str(package))
    except (OSError, subprocess.SubprocessError):
        return f"release {_version('e3bm')}"
    return name + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )

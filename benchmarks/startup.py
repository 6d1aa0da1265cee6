"""The start-up row: `e3bm --help` answers within a second because nothing heavy is imported."""

import statistics
import subprocess
import sys

from benchmarks.rows import Row
from benchmarks.timing import Work, relative_spread, wall_seconds

TARGET_SECONDS = 1.0
PROGRAM = (
    "import sys\n"
    "from e3bm.cli.main import main\n"
    "try:\n"
    "    main(['--help'])\n"
    "except SystemExit:\n"
    "    pass\n"
    "sys.exit(3 if 'torch' in sys.modules else 0)\n"
)


def help_command() -> Work:
    """The command in a process of its own; it fails where torch was imported."""
    return lambda: subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True)


def rows(quick: bool) -> list[Row]:
    """Seconds on the clock; the target is one second."""
    command = help_command()
    command()
    seconds = [wall_seconds(command) for _ in range(1 if quick else 7)]
    middle = statistics.median(seconds)
    spread = relative_spread(seconds, middle)
    name = "`e3bm --help`, without importing torch: seconds (clock)"
    return [Row.at_most(name, middle, 1.0, TARGET_SECONDS, "s", spread=spread)]

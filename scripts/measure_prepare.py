"""Prepare FC100 from its zip, as in the folder that E3BM_TEST_DATA names, and write down how long it took."""

import argparse
import json
import os
import platform
import resource
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from e3bm.data.read.prepare import prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/data"), help="folder of the small result file")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    source = Path(os.environ["E3BM_TEST_DATA"]) / "fc100.zip"
    with tempfile.TemporaryDirectory() as folder:
        first = prepare("fc100", source, folder=Path(folder), workers=options.workers)
        again = prepare("fc100", source, folder=Path(folder), workers=options.workers)
    own, child = (resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    record = {
        "command": f"python scripts/measure_prepare.py --workers {options.workers}",
        "what": "prepare('fc100', fc100.zip), then the same again",
        "splits": first.splits,
        "seconds": round(first.seconds, 1),
        "seconds_when_nothing_changed": round(again.seconds, 1),
        "peak_rss_mb": {"main process": own, "largest decoding process": child},
        "load_of_the_machine_at_the_end": os.getloadavg()[0],
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "commit": asked.stdout.strip(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "fc100_prepare.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

"""Prepare as many images as tieredImageNet has, and write down how long it took and how much memory.

The images are generated: 779,165 drawings of 32 x 32 pixels whose first pixels tell their number, in one tar file laid
out as train|val|test/<class>/<image>.png with the real class names and split sizes. They are removed afterwards.
"""

import argparse
import io
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from PIL import Image

from e3bm.cli.console import LineProgress
from e3bm.data.read.prepare import prepare
from e3bm.data.sources.tiered_imagenet import TieredImageNet
from e3bm.data.store.packed import PackedImages

SIDE = 32
CHECKED_IMAGES = 2_000


def plan(share: float) -> Iterator[tuple[str, str, int]]:
    """(split, class, images) with the published totals, divided evenly over the classes of a split."""
    source = TieredImageNet()
    split_of = source.known_classes().split_of
    for split, count in source.card.published.items():
        names = sorted(name for name, home in split_of.items() if home == split)
        total = round((count.images or 0) * share)
        for place, name in enumerate(names):
            yield split, name, total * (place + 1) // len(names) - total * place // len(names)


def drawing(number: int) -> np.ndarray:
    """A picture that cannot be mistaken for another: its number in three pixels, the rest a gradient of it."""
    row = (np.arange(SIDE) * (1 + number % 7) + number).astype(np.uint8)
    image = np.stack(
        [np.tile(row, (SIDE, 1)), np.tile(row[:, None], (1, SIDE)), np.full((SIDE, SIDE), number % 251)], -1
    )
    image[0, 0] = [number & 255, number >> 8 & 255, number >> 16 & 255]
    return image.astype(np.uint8)


def generate(path: Path, share: float) -> int:
    """Write the tar file; the number of images in it."""
    number = 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for split, name, images in plan(share):
            for k in range(images):
                buffer = io.BytesIO()
                Image.fromarray(drawing(number)).save(buffer, "PNG", compress_level=1)
                member = tarfile.TarInfo(f"tiered_imagenet/{split}/{name}/{k:05d}.png")
                member.size = buffer.tell()
                buffer.seek(0)
                archive.addfile(member, buffer)
                number += 1
    return number


def measured_preparation(source: Path, out: Path, workers: int) -> None:
    """What the measured process does: prepare, print progress to stderr and a result to stdout."""
    share = float(os.environ["E3BM_SHARE"])
    result = prepare(
        "tieredimagenet",
        source,
        out,
        image_size=SIDE,
        workers=workers,
        allow_other_counts=share < 1,
        progress=LineProgress(),
    )
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"splits": result.splits, "seconds": result.seconds, "own_kb": own, "largest_child_kb": children}))


def check(out: Path) -> int:
    """Compare packed images with what was drawn; how many were compared."""
    packed = PackedImages.open(out, verify=True)
    first: dict[str, int] = {}
    number = 0
    for _, name, images in plan(float(os.environ["E3BM_SHARE"])):
        first[name] = number
        number += images
    for place in np.linspace(0, len(packed) - 1, CHECKED_IMAGES).astype(int):
        label = int(packed.labels[place])
        k = int(place - packed.indices_of(label)[0])
        expected = drawing(first[packed.class_names[label]] + k)
        if not np.array_equal(packed.images[place], expected):
            raise SystemExit(f"image {place} is not what was drawn")
    return CHECKED_IMAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/data"), help="folder of the two small result files")
    parser.add_argument(
        "--work", type=Path, default=None, help="folder for the large files; a temporary one by default"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="part of the images, for a trial")
    parser.add_argument("--measured", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measured:
        measured_preparation(*options.measured, options.workers)
        return
    os.environ["E3BM_SHARE"] = str(options.share)
    work = Path(tempfile.mkdtemp(dir=options.work))
    try:
        started = time.monotonic()
        images = generate(work / "tiered.tar", options.share)
        generated = time.monotonic() - started
        command = [sys.executable, __file__, "--workers", str(options.workers), "--measured", "SOURCE", "OUT"]
        paths = {"SOURCE": str(work / "tiered.tar"), "OUT": str(work / "tieredimagenet")}
        words = [paths.get(word, word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        total_mb = (found["own_kb"] + options.workers * found["largest_child_kb"]) / 1024
        asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        record = {
            "command": "python scripts/tiered_sized_run.py"
            + (f" --share {options.share}" if options.share < 1 else ""),
            "what": "prepare('tieredimagenet', one tar of PNG files in split folders)",
            "settings": {"image_size": SIDE, "workers": options.workers, "on_broken": "stop"},
            "images": images,
            "splits": found["splits"],
            "seconds": round(found["seconds"], 1),
            "images_per_second": round(images / found["seconds"]),
            "peak_rss_mb": {
                "main process": round(found["own_kb"] / 1024),
                "largest decoding process": round(found["largest_child_kb"] / 1024),
                "all processes at most": round(total_mb),
            },
            "limit_mb": 2048,
            "met": total_mb < 2048,
            "tar_bytes": (work / "tiered.tar").stat().st_size,
            "packed_bytes": (work / "tieredimagenet" / "images.u8").stat().st_size,
            "images_compared_with_what_was_drawn": check(work / "tieredimagenet"),
            "generating_seconds": round(generated, 1),
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "commit": asked.stdout.strip(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "log": done.stderr.splitlines(),
        }
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "tiered_sized.json").write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(record, indent=1))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()

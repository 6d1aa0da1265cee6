"""Many trainings after or beside one another, within a time budget: finished ones are passed over."""

import multiprocessing
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e3bm.errors import SettingsError
from e3bm.interruption import Interrupted, end_with, time_is_over, time_limit
from e3bm.progress import Progress, Silent
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.run import read_run
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TrainSettings
from e3bm.runs.system import system_of
from e3bm.runs.training.train import run_train

LOOK_EVERY = 0.5  # seconds between looks at what the workers have logged
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


@dataclass(frozen=True)
class Job:
    """A training, and the folder of another one that must be finished before."""

    folder: Path
    settings: TrainSettings
    after: Path | None = None


def train_many(
    jobs: Sequence[Job], *, seconds: float | None = None, workers: int = 1, progress: Progress | None = None
) -> list[Path]:
    """Train what is not finished; give the folders that can be tested.

    With a budget every unfinished training has an equal share of the time that is left, so that the arms of a
    comparison are treated alike; what a short one leaves over goes to the others.
    """
    progress, started = progress or Silent(), time.monotonic()
    left = lambda: None if seconds is None else seconds - (time.monotonic() - started)
    first = [job for job in jobs if job.after is None and not finished(job)]
    later = [job for job in jobs if job.after is not None and not finished(job)]
    for batch, others in ((first, len(later)), (later, 0)):
        ready = [job for job in batch if job.after is None or _all_steps(job.after)]
        for job in batch:
            if job not in ready:
                progress.say(f"{job.folder.name} waits for {job.after and job.after.name}, which is not finished.")
        if workers > 1 and len(ready) > 1:
            _beside_one_another(ready, _share(left(), -(-len(ready) // workers) + others), workers, progress)
        else:
            _after_one_another(ready, others, left, progress)
    return [job.folder for job in jobs if Checkpoints(job.folder).has("last")]


def finished(job: Job) -> bool:
    """Whether the folder holds this training with all its steps; how it was run then does not matter any more."""
    if not RunFolder(job.folder).exists:
        return False
    run = read_run(job.folder)
    same = run.system == system_of(job.settings) and run.setting("seed") == job.settings.seed
    if not (same and _all_steps(job.folder)):
        RunFolder(job.folder).check("train", job.settings, {})
        return False
    return True


def seconds_of(words: str) -> float:
    """A time as people write it: 90s, 30m, 1h30m; a number alone is seconds."""
    text = words.strip().lower()
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text)
    if not text or parts is None:
        raise SettingsError(f"'{words}' is not a duration; write 90s, 30m, 2h or 1h30m.")
    return sum(float(amount) * unit for amount, unit in zip(parts.groups(), UNITS.values(), strict=True) if amount)


def _after_one_another(jobs: Sequence[Job], others: int, left: Any, progress: Progress) -> None:
    for number, job in enumerate(jobs):
        share = _share(left(), len(jobs) - number + others)
        if share is not None and share <= 0:
            progress.say(f"No time is left for {job.folder.name}.")
            continue
        _train(job, share, progress)


def _train(job: Job, seconds: float | None, progress: Progress | None = None) -> None:
    with time_limit(seconds):
        try:
            run_train(job.settings, job.folder, progress)
        except Interrupted as stop:
            if not time_is_over():
                raise
            (progress or Silent()).say(f"{job.folder.name}: the time is up. {stop}")


def _share(left: float | None, parts: int) -> float | None:
    return None if left is None else left / max(1, parts)


def _beside_one_another(jobs: Sequence[Job], share: float | None, workers: int, progress: Progress) -> None:
    """One process each; their steps are counted in the files they write."""
    if share is not None and share <= 0:
        progress.say(f"No time is left for {', '.join(job.folder.name for job in jobs)}.")
        return
    progress.begin(f"meta-train {len(jobs)} models", sum(job.settings.optimiser.steps for job in jobs))
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawned, initializer=end_with, initargs=(os.getpid(),)) as pool:
        waiting: set[Future[None]] = {pool.submit(_train, job, share) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=LOOK_EVERY)
                for future in done:
                    future.result()
                progress.advance(sum(_steps(job.folder) for job in jobs), models_done=len(jobs) - len(waiting))
        except BaseException:
            # The others save what they have and stop; nobody would wait for them.
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
        finally:
            progress.end()


def _steps(folder: Path) -> int:
    return max((line["step"] for line in RunFolder(folder).lines("metrics")), default=0)


def _all_steps(folder: Path) -> bool:
    checkpoints = Checkpoints(folder)
    if not RunFolder(folder).exists or not checkpoints.has("last"):
        return False
    wanted = read_run(folder).setting("optimiser.steps")
    return bool(checkpoints.pointer("last").step >= wanted)

"""What `e3bm reproduce` does for rows that results/ does not have yet: pre-train, train, test, keep."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from e3bm.errors import SettingsError
from e3bm.interruption import Interrupted, time_is_over, time_limit
from e3bm.paper.ablate import PLAIN, arm_title
from e3bm.paper.presets import ABLATIONS, LEARNED_BY, SMALL_DATA, Preset, ablation_settings, find_preset, presets
from e3bm.paper.tables import PaperRow
from e3bm.progress import Progress
from e3bm.runs.evaluation.ensemble import make_ensemble
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.folder.checkpoint import Checkpoints
from e3bm.runs.folder.run import read_run
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.kept.pack import add_runs, unpack
from e3bm.runs.kept.store import open_results
from e3bm.runs.settings import PretrainSettings, TestSettings
from e3bm.runs.system import system_of
from e3bm.runs.training.pretrain import run_pretrain
from e3bm.runs.training.train_many import Job, train_many

Scale = Literal["small", "small-whitened", "small-pretrained", "small-scaled", "paper"]
VARIANTS = {"whitened": ("mtl", "sib"), "pretrained": ("maml",), "scaled": ("mtl",)}
KEPT = "kept"  # inside the folder of runs: backbones that came out of the results
BACKBONE_NAMES = {
    "4CONV": "conv4",
    "ResNet-12": "resnet12",
    "ResNet-18": "resnet18",
    "ResNet-25": "resnet25",
    "WRN-28-10": "wrn28_10",
}


@dataclass(frozen=True)
class Effort:
    """How much may be done."""

    seconds: float | None = None
    """Time for training; None: as long as it takes."""
    seeds: int = 1
    scale: Scale = "small"
    """Presets for two cores or one of their variants, or the paper's own."""
    runs: Path = Path("runs")
    """Where trainings are kept while they are not finished."""
    episodes: int | None = None
    """Test episodes; None: as the preset says."""
    workers: int = 1


@dataclass(frozen=True)
class Part:
    """A preset that is to be trained: with every seed, or with as many as it has members."""

    preset: Preset
    arm: str | None = None

    @property
    def name(self) -> str:
        return self.preset.name

    @property
    def folder(self) -> str:
        return self.preset.train.data.dataset


def run_missing(
    rows: Sequence[PaperRow],
    arms: Sequence[tuple[PaperRow, str]],
    results: Path,
    effort: Effort,
    progress: Progress,
) -> None:
    """Train what rows and ablation arms need, test it on the same episodes, and keep it in results."""
    parts = [Part(find_preset(preset_name(row, effort.scale))) for row in rows]
    for row, arm in arms:
        base = preset_name(row, effort.scale)
        parts.append(Part(find_preset(base.removesuffix(row.kind) + arm), None if arm == PLAIN.name else arm))
    if not parts:
        progress.say("Nothing is missing.")
        return
    started = time.monotonic()
    left = lambda: None if effort.seconds is None else effort.seconds - (time.monotonic() - started)
    backbones = _backbones(parts, results, effort, left, progress)
    parts = [part for part in parts if part.preset.pretrain is None or backbones.get(_backbone_key(part))]
    jobs = {job.folder: job for part in parts for job in _jobs(part, backbones, effort)}
    ready = train_many(list(jobs.values()), seconds=left(), workers=effort.workers, progress=progress)
    _test_and_keep(parts, ready, backbones, results, effort, progress)


def preset_name(row: PaperRow, scale: Scale, *, check: bool = True) -> str:
    """The preset of a printed row; one for two cores must exist unless that is not to be checked."""
    size, _, variant = scale.partition("-")
    word = row.system.preset
    if variant and word not in VARIANTS[variant]:
        known = " and ".join(name.upper() for name in VARIANTS[variant])
        raise SettingsError(f"--scale {scale} is for {known}, not for {row.method}; name a row with --row.")
    place = f"{row.system.backbone or BACKBONE_NAMES[row.backbone]}-{row.dataset}" if scale == "paper" else row.dataset
    several = "5x" if row.method.startswith("5x") else ""
    name = f"{size}-{several}{word}{f'-{variant}' if variant else ''}-{place}-{row.shots}shot"
    # Presets of several seeds and of methods without an inner loop have no kinds of hyperprior.
    name = name if name in presets() else f"{name}-{row.kind}"
    if check and size == "small" and name not in presets():
        raise SettingsError(
            f"There is no preset of {row.method} for two cores on {row.dataset}, only on {' and '.join(SMALL_DATA)}; "
            "say --scale paper, which takes days, or name other rows with --row."
        )
    return name


def studied_arms() -> tuple[str, ...]:
    """The arms of Figure 4, the method alone once."""
    return (*(name for name, schedules in ABLATIONS.items() if schedules != ("constant", "last")), PLAIN.name)


def backbone_name(settings: PretrainSettings) -> str:
    """The run folder of a pre-training: resnet12-half-s0."""
    width = {1.0: "", 0.5: "-half"}.get(settings.backbone.width, f"-x{settings.backbone.width:g}")
    return f"{settings.backbone.name}{width}{'-whitened' * settings.backbone.whitened}-s{settings.seed}"


def _backbone_key(part: Part) -> str:
    assert part.preset.pretrain is not None
    return f"{part.folder}/{backbone_name(part.preset.pretrain)}"


def _backbones(
    parts: Sequence[Part], results: Path, effort: Effort, left: Callable[[], float | None], progress: Progress
) -> dict[str, Path]:
    """The pre-trained backbones by name: from results or runs where they are, else trained now."""
    found: dict[str, Path] = {}
    for part in parts:
        if part.preset.pretrain is None or _backbone_key(part) in found:
            continue
        key = _backbone_key(part)
        if _is_kept(key, results):
            unpack(key, results, (effort.runs / KEPT / key).parent)
        places = [place / key for place in (effort.runs, effort.runs / KEPT)]
        ready = [place for place in places if _is_pretrained(place, part.preset.pretrain)]
        if ready:
            found[key] = ready[0]
            continue
        with time_limit(left()):
            try:
                run_pretrain(part.preset.pretrain, effort.runs / key, progress)
            except Interrupted as stop:
                if not time_is_over():
                    raise
                progress.say(f"{key}: the time is up, and what builds on it has to wait. {stop}")
                continue
        found[key] = effort.runs / key
    return found


def _is_pretrained(folder: Path, wanted: PretrainSettings) -> bool:
    """Whether a folder holds this backbone with all its epochs."""
    if not RunFolder(folder).exists or not Checkpoints(folder).has("best"):
        return False
    run = read_run(folder)
    return run.system == system_of(wanted) and run.finished


def _is_kept(key: str, results: Path) -> bool:
    """Whether results keep a run of that name with its weights."""
    group, _, name = key.partition("/")
    kept = open_results(results)
    return group in kept.groups and kept.group(group).weights(name) is not None


def _jobs(part: Part, backbones: dict[str, Path], effort: Effort) -> Iterator[Job]:
    preset = part.preset
    seeds = preset.members if preset.members > 1 else effort.seeds
    for seed in range(seeds):
        settings = preset.train.but(seed=seed)
        if preset.pretrain is not None:
            settings = settings.but(backbone__pretrained=backbones[_backbone_key(part)])
        if part.arm is not None:
            settings = settings.but(name=arm_title(part.arm, settings.method.name.upper()))
        name, learned = _member_name(preset), None
        if part.arm in LEARNED_BY:
            stem = preset.name.removesuffix(part.arm)
            learned = effort.runs / part.folder / f"{stem}{LEARNED_BY[part.arm]}-s{seed}"
            settings = ablation_settings(settings, part.arm, learned)
        yield Job(effort.runs / part.folder / f"{name}-s{seed}", settings, learned)


def _member_name(preset: Preset) -> str:
    """Members of an ensemble are ordinary runs of the method alone."""
    return preset.name if preset.members == 1 else preset.name.replace("-5x", "-") + "-plain"


def _test_and_keep(
    parts: Sequence[Part],
    ready: Sequence[Path],
    backbones: dict[str, Path],
    results: Path,
    effort: Effort,
    progress: Progress,
) -> None:
    """Everything of one test protocol together, so that differences are paired."""
    protocols: dict[TestSettings, list[Path]] = {}
    for part in parts:
        test = part.preset.test
        shots = {"ways": 5, "shots": test.shots or part.preset.train.episode.shots, "queries": test.queries or 15}
        runs = protocols.setdefault(test.but(episodes=effort.episodes or test.count, **shots), [])
        folders = [job.folder for job in _jobs(part, backbones, effort) if job.folder in ready]
        if part.preset.members > 1 and len(folders) == part.preset.members:
            folders.append(make_ensemble(folders, effort.runs / part.folder / part.name).path)
        if part.preset.pretrain is not None and not backbones[_backbone_key(part)].is_relative_to(effort.runs / KEPT):
            runs.insert(0, backbones[_backbone_key(part)])
        runs += folders
    for protocol, runs in protocols.items():
        distinct = list(dict.fromkeys(runs))
        if not distinct:
            continue
        run_test(distinct, protocol, progress)
        add_runs(distinct, results)

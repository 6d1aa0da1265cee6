"""A printed number and what we reached: which of our runs stands beside which row, and what is said of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from e3bm.paper.ablate import PLAIN, arm_of
from e3bm.paper.presets import Preset, presets
from e3bm.paper.run_missing import BACKBONE_NAMES, Scale, preset_name
from e3bm.paper.tables import PAPER_DATASETS, PaperRow, paper_rows
from e3bm.runs.folder.run import EnsembleSettings, Run, duration
from e3bm.runs.kept.entries import Entry, baseline_entry
from e3bm.runs.result import Result
from e3bm.runs.settings import PretrainSettings, TrainSettings
from e3bm.runs.system import kind_of

BACKBONES = {
    "4CONV": ("conv4",),
    "ResNet-12": ("resnet12", "resnet12_flat", "resnet12_can", "resnet12_tadam"),
    "ResNet-18": ("resnet18",),
    "ResNet-25": ("resnet25",),
    "WRN-28-10": ("wrn28_10_sib", "wrn28_10"),
}
SCALES: tuple[Scale, ...] = ("small", "paper")
OWN_PIXELS = {"miniimagenet": 84, "tieredimagenet": 84, "fc100": 32}
# Of our result, under the same names in JSON.
LABELS = (
    "paired_with", "paired_difference", "paired_ci", "episodes", "episodes_hash", "seed", "seed_std", "queries",
    "hyperprior", "batchnorm", "transductive_batchnorm", "order", "epochs", "commit", "seconds", "train_seconds",
    "split", "nll", "ece",
)  # fmt: skip


@dataclass(frozen=True)
class Ours:
    """What a system of ours reached, how, and from which runs."""

    result: Result
    seeds: tuple[int, ...]
    budget: str
    adapted: str
    """What became of the backbone: frozen, scale_shift, full, full_pretrained, or none where it stands alone."""
    runs: tuple[str, ...]
    command: str | None
    distance: str | None = None
    """How far its backbone, images and training are from the published ones, in words."""


@dataclass(frozen=True)
class Row:
    """A printed number with what we have beside it; either may be missing."""

    table: str | None
    method: str
    backbone: str
    dataset: str
    ways: int
    shots: int
    setting: str | None
    paper_hyperprior: str | None = None
    paper: float | None = None
    paper_ci: float | None = None
    published_code: float | None = None
    published_code_ci: float | None = None
    ours: Ours | None = None
    preset: str | None = None
    """What would run it here, where it was not: a preset for two cores, or else that of the published recipe."""

    def as_json(self) -> dict[str, Any]:
        """Plain values: the printed ones, ours, and the labels of our result."""
        values = {name: value for name, value in vars(self).items() if name != "ours"}
        our = self.ours
        result = our.result.as_json() if our else {}
        return values | {
            "ours": result.get("accuracy"),
            "ci": result.get("ci"),
            **{label: result.get(label) for label in LABELS},
            "seeds": list(our.seeds) if our else None,
            "our_backbone": result.get("backbone"),
            "budget": our.budget if our else None,
            "adapted": our.adapted if our else None,
            "distance": our.distance if our else None,
            "run": ", ".join(our.runs) if our else None,
            "command": our.command if our else None,
            "log": our.runs[0] if our else None,
        }


def table_rows(row: PaperRow, found: Sequence[Entry]) -> list[Row]:
    """A printed number with each of our runs of its system, or alone."""
    beside = entries_for(row, found)
    numbers = [replace(our_numbers(entry, found), distance=distance(entry.runs[0], row)) for entry in beside]
    return [_printed(row, ours) for ours in numbers] or [_printed(row, None)]


def _printed(row: PaperRow, ours: Ours | None) -> Row:
    return Row(
        table=row.table,
        method=row.method,
        backbone=row.backbone,
        dataset=row.dataset,
        ways=ours.result.ways if ours else 5,
        shots=row.shots,
        setting=ours.result.setting if ours else row.setting,
        paper_hyperprior=row.kind,
        paper=row.accuracy,
        paper_ci=row.ci,
        published_code=row.published_code,
        published_code_ci=row.published_code_ci,
        ours=ours,
        preset=None if ours else _preset_for(row),
    )


def _preset_for(row: PaperRow) -> str | None:
    names = (preset_name(row, scale, check=False) for scale in SCALES)
    return next((name for name in names if name in presets()), None)


def figure_rows(wanted: Sequence[PaperRow], found: Sequence[Entry]) -> list[Row]:
    """Figure 4: every arm of the rate and weight ablations of MTL; the paper prints curves, no numbers."""
    rows = []
    for place, arm, entry in figure_entries(wanted, found):
        name = f"MTL ({'a4, v5' if arm == PLAIN.name else arm})"
        rows.append(_unprinted("F4", name, place.backbone, entry, found))
    return sorted(rows, key=lambda row: (row.dataset, row.shots, row.method))


def figure_entries(wanted: Sequence[PaperRow], found: Sequence[Entry]) -> list[tuple[PaperRow, str, Entry]]:
    """The arms of Figure 4 that we have; the method alone is one where an ablation has it as its baseline."""
    chosen = []
    for place in wanted:
        arms = [(place, arm, entry) for entry in found if (arm := ablation_arm(entry, place)) is not None]
        compared = {entry.first.baseline for _, arm, entry in arms if arm != PLAIN.name}
        chosen += [each for each in arms if each[1] != PLAIN.name or each[2].first.system in compared]
    return chosen


def feature_rows(dataset: str | None, shots: int | None, found: Sequence[Entry]) -> list[Row]:
    """What the features of our backbones reach alone: not in the paper, but under every number of ours."""
    return [
        _unprinted(None, entry.first.method, entry.first.backbone, entry, found)
        for entry in found
        if isinstance(entry.runs[0].settings, PretrainSettings)
        and dataset in (None, entry.first.dataset)
        and shots in (None, entry.first.shots)
    ]


def entries_for(row: PaperRow, found: Sequence[Entry]) -> list[Entry]:
    """Our runs of a printed system: those on its backbone, or else all that we have."""
    ours = [entry for entry in found if is_system(entry, row)]
    return [entry for entry in ours if row.backbone in _nearest_backbones(entry, row)] or ours


def ablation_arm(entry: Entry, place: PaperRow) -> str | None:
    """Which arm of Figure 4 for this data set and number of shots an entry is, if any."""
    settings, first = entry.runs[0].settings, entry.first
    if not isinstance(settings, TrainSettings) or settings.method.name != "mtl":
        return None
    return arm_of(settings) if (first.dataset, first.shots) == (place.dataset, place.shots) else None


def is_finished(entry: Entry, seeds: int) -> bool:
    """Whether all seeds have had all their steps; an ensemble is finished when it was tested."""
    if isinstance(entry.runs[0].settings, EnsembleSettings):
        return True
    return set(range(seeds)) <= set(entry.seeds) and all(run.finished for run in entry.runs)


def our_numbers(entry: Entry, found: Sequence[Entry]) -> Ours:
    """What a system of ours reached, how, and against what."""
    run = entry.runs[0]
    result = entry.together(baseline_entry(entry, found))
    command = run.environment.get("command")
    budget = "; ".join(dict.fromkeys(map(_budget, entry.runs)))
    return Ours(
        result=result,
        seeds=tuple(entry.seeds),
        budget=budget + (f", {duration(result.train_seconds)}" if result.train_seconds else ""),
        adapted=_adapted(run.trained),
        runs=tuple(str(each.path) for each in entry.runs),
        command=" ".join(map(str, command)) if isinstance(command, list) else command,
    )


def _adapted(trained: TrainSettings | None) -> str:
    """What became of the backbone: frozen, scale_shift, full, or full from pre-trained weights."""
    if trained is None:
        return "none"
    backbone = trained.backbone
    return "full_pretrained" if backbone.adapt == "full" and backbone.pretrained is not None else backbone.adapt


def is_system(entry: Entry, row: PaperRow) -> bool:
    """Whether an entry is the printed method with the printed hyperprior, data and shots, on whatever backbone."""
    run, first = entry.runs[0], entry.first
    if run.trained is None or (first.dataset, first.shots, first.ways) != (row.dataset, row.shots, 5):
        return False
    members = len(run.settings.members) if isinstance(run.settings, EnsembleSettings) else 1
    wanted = 5 if row.method.startswith("5x") else 1
    method, system = run.trained.method, row.system
    options = method.model_dump().items() >= dict(system.options).items()
    return method.name in system.methods and options and (kind_of(run.trained), members) == (row.kind, wanted)


def _nearest_backbones(entry: Entry, row: PaperRow) -> list[str]:
    """The same backbone where the table has the system with it, else whatever it has."""
    settings = entry.runs[0].trained
    alike = [
        other.backbone
        for other in paper_rows(row.table, dataset=row.dataset, shots=row.shots, unprinted=row.accuracy is None)
        if (other.method, other.kind) == (row.method, row.kind)
    ]
    same = [name for name in alike if settings and settings.backbone.name in BACKBONES.get(name, ())]
    return same or alike or [row.backbone]


def _unprinted(table: str | None, method: str, backbone: str, entry: Entry, found: Sequence[Entry]) -> Row:
    """A row of ours that the paper has no number for."""
    first = entry.first
    shots = first.shots if isinstance(first.shots, int) else first.shots[1]
    ours = our_numbers(entry, found)
    return Row(table, method, backbone, first.dataset, first.ways, shots, first.setting, ours=ours)


def distance(run: Run, row: PaperRow) -> str:
    """How far a run is from the published recipe of a row: backbone, networks, shots, pixels of a side, and tasks."""
    published, ours = _published(row), run.trained
    if published is None or ours is None:
        return "no published recipe is known here"
    theirs = published.train
    words = []
    if ours.backbone.name != theirs.backbone.name:
        words.append(f"{ours.backbone.title} for {theirs.backbone.title}")
    elif ours.backbone.width != theirs.backbone.width:
        words.append(f"{ours.backbone.width / theirs.backbone.width:.3g} of the width")
    begun = ours.backbone.pretrained is not None
    words += ["pre-trained first"] if begun and published.pretrain is None else []
    if ours.backbone.adapt != theirs.backbone.adapt:
        words.append(f"{ours.backbone.adapt} instead of {theirs.backbone.adapt}")
    networks = [getattr(each.method, "networks", None) for each in (ours, theirs)]
    words += [f"{networks[0]} for {networks[1]} networks"] * (networks[0] != networks[1])
    if ours.episode.shots != theirs.episode.shots:
        words.append(f"{_shots(ours)} for {_shots(theirs)} shots in training")
    asked = {str(result.shots) for result in run.results if result.dataset == row.dataset}
    words += [f"one training for {' and '.join(sorted(asked))} shots"] * (len(asked) > 1)
    pixels = run.input_shape.image_size if run.input_shape else ours.data.image_size or OWN_PIXELS[row.dataset]
    words += [f"{pixels} for {theirs.data.image_size} px"] * (pixels != theirs.data.image_size)
    members = len(run.settings.members) if isinstance(run.settings, EnsembleSettings) else 1
    done = run.progress[0] if isinstance(run.settings, TrainSettings) else ours.optimiser.steps
    share = (done or 0) * ours.optimiser.tasks * members / _tasks(published)
    return ", ".join([*words, f"{100 * share:.2g} % of the tasks"])


def _shots(trained: TrainSettings) -> str:
    shots = trained.episode.shots
    return str(shots) if isinstance(shots, int) else "–".join(map(str, shots))


def _tasks(preset: Preset) -> int:
    return preset.train.optimiser.steps * preset.train.optimiser.tasks * preset.members


def _published(row: PaperRow) -> Preset | None:
    """The preset of record of a printed row, or else of its system on other data."""
    backbone, known = row.system.backbone or BACKBONE_NAMES[row.backbone], presets()
    word = f"5x{row.system.preset}" if row.method.startswith("5x") else row.system.preset
    for data in (row.dataset, *PAPER_DATASETS):
        name = f"paper-{word}-{backbone}-{data}-{row.shots}shot"
        for found in (name, f"{name}-{row.kind}"):
            if found in known:
                return known[found]
    return None


def _budget(run: Run) -> str:
    """Steps and tasks of training, in words."""
    if isinstance(run.settings, EnsembleSettings):
        return f"{len(run.settings.members)} runs together"
    done, wanted = run.progress
    tasks = run.settings.optimiser.tasks if isinstance(run.settings, TrainSettings) else None
    unit = "epochs" if tasks is None else f"steps x {tasks} tasks"
    reached = "?" if done is None else f"{done:,g}"
    return f"{reached} {unit}" if done == wanted else f"{reached} of {wanted:,g} {unit}"

"""A printed number and what we reached: which of our runs stands beside which row, and what is said of it."""

from collections.abc import Sequence

from e3bm.paper.ablate import PLAIN, arm_of
from e3bm.paper.collect import Entry, Row, baseline_of
from e3bm.paper.tables import PaperRow, paper_rows
from e3bm.report.tables import duration
from e3bm.runs.evaluation.comparison import kind_of
from e3bm.runs.evaluation.ensemble import EnsembleSettings
from e3bm.runs.settings import PretrainSettings, TrainSettings

BACKBONES = {
    "4CONV": ("conv4",),
    "ResNet-12": ("resnet12",),
    "ResNet-25": ("resnet25",),
    "WRN-28-10": ("wrn28_10_sib", "wrn28_10"),
}
LABELS = (
    "ways", "queries", "setting", "hyperprior", "batchnorm", "transductive_batchnorm", "order", "epochs", "commit",
    "seconds", "split", "nll", "ece",
)  # fmt: skip
WITHOUT_A_RUN: Row = dict.fromkeys(
    (
        "ours", "ci", "paired_with", "paired_difference", "paired_ci", "episodes", "episodes_hash", "budget", "run",
        "our_backbone", "adapted", "seed", "seeds", "seed_std", "train_seconds", "command", "log", *LABELS,
    )
)  # fmt: skip


def table_rows(row: PaperRow, found: Sequence[Entry]) -> list[Row]:
    """A printed number with each of our runs of its system, or alone."""
    printed: Row = {
        "table": row.table,
        "method": row.method,
        "backbone": row.backbone,
        "dataset": row.dataset,
        "shots": row.shots,
        "paper_hyperprior": row.kind,
        "paper": row.accuracy,
        "paper_ci": row.ci,
        "published_code": row.published_code,
        "published_code_ci": row.published_code_ci,
    }
    ours = [printed | our_numbers(entry, found) for entry in entries_for(row, found)]
    return ours or [printed | WITHOUT_A_RUN | {"setting": row.setting, "ways": 5}]


def figure_rows(wanted: Sequence[PaperRow], found: Sequence[Entry]) -> list[Row]:
    """Figure 4: every arm of the rate and weight ablations of MTL; the paper prints curves, no numbers."""
    rows = []
    for place, arm, entry in figure_entries(wanted, found):
        name = f"MTL ({'a4, v5' if arm == PLAIN.name else arm})"
        rows.append(_unprinted("F4", name, place.backbone, entry) | our_numbers(entry, found))
    return sorted(rows, key=lambda row: (row["dataset"], row["shots"], row["method"]))


def figure_entries(wanted: Sequence[PaperRow], found: Sequence[Entry]) -> list[tuple[PaperRow, str, Entry]]:
    """The arms of Figure 4 that we have; the method alone is one where an ablation has it as its baseline."""
    chosen = []
    for place in wanted:
        arms = [(place, arm, entry) for entry in found if (arm := ablation_arm(entry, place)) is not None]
        compared = {entry.runs[0].baseline for _, arm, entry in arms if arm != PLAIN.name}
        chosen += [each for each in arms if each[1] != PLAIN.name or each[2].runs[0].group in compared]
    return chosen


def feature_rows(dataset: str | None, shots: int | None, found: Sequence[Entry]) -> list[Row]:
    """What the features of our backbones reach alone: not in the paper, but under every number of ours."""
    return [
        _unprinted(None, first["method"], first["backbone"], entry) | our_numbers(entry, found)
        for entry in found
        if isinstance(entry.runs[0].settings, PretrainSettings)
        and (first := entry.rows[0])
        and dataset in (None, first["dataset"])
        and shots in (None, first["shots"])
    ]


def entries_for(row: PaperRow, found: Sequence[Entry]) -> list[Entry]:
    """Our runs of a printed system; one on another backbone stands beside the only row that its system has."""
    return [entry for entry in found if is_system(entry, row) and row.backbone in _nearest_backbones(entry, row)]


def ablation_arm(entry: Entry, place: PaperRow) -> str | None:
    """Which arm of Figure 4 for this data set and number of shots an entry is, if any."""
    settings, first = entry.runs[0].settings, entry.rows[0]
    if not isinstance(settings, TrainSettings) or settings.method.name != "mtl":
        return None
    return arm_of(settings) if (first["dataset"], first["shots"]) == (place.dataset, place.shots) else None


def is_finished(entry: Entry, seeds: int) -> bool:
    """Whether all seeds have had all their steps; an ensemble is finished when it was tested."""
    if isinstance(entry.runs[0].settings, EnsembleSettings):
        return True
    progress = [run.record.progress for run in entry.runs]
    return set(range(seeds)) <= set(entry.seeds) and all(
        done is not None and wanted is not None and done >= wanted for done, wanted in progress
    )


def our_numbers(entry: Entry, found: Sequence[Entry]) -> Row:
    """What a system of ours reached, how, and against what."""
    run, first, numbers = entry.runs[0], entry.rows[0], entry.numbers()
    seconds = [part for part in (each.record.seconds for each in entry.runs) if part is not None]
    command = run.record.environment.get("command")
    return {
        "ours": numbers["accuracy"],
        "ci": numbers["ci"],
        **entry.paired(baseline_of(entry, found)),
        "episodes": first["episodes"],
        "episodes_hash": first["episodes_hash"],
        "budget": "; ".join(dict.fromkeys(_budget(each.settings, each.record.progress) for each in entry.runs))
        + (f", {duration(sum(seconds))}" if seconds else ""),
        "run": ", ".join(str(each.path) for each in entry.runs),
        "our_backbone": first["backbone"],
        "adapted": _adapted(run.trained),
        "seed": first["seed"],
        "seeds": numbers["seeds"],
        "seed_std": numbers["seed_std"],
        "train_seconds": sum(seconds),
        "command": " ".join(map(str, command)) if isinstance(command, list) else command,
        "log": str(run.path / "log.txt"),
        **{label: first.get(label) for label in LABELS},
    }


def _adapted(trained: TrainSettings | None) -> str:
    """What became of the backbone: frozen, scale_shift, full, or full from pre-trained weights."""
    if trained is None:
        return "none"
    backbone = trained.backbone
    return "full_pretrained" if backbone.adapt == "full" and backbone.pretrained is not None else backbone.adapt


def is_system(entry: Entry, row: PaperRow) -> bool:
    """Whether an entry is the printed method with the printed hyperprior, data and shots, on whatever backbone."""
    run, first = entry.runs[0], entry.rows[0]
    if run.trained is None or (first["dataset"], first["shots"], first["ways"]) != (row.dataset, row.shots, 5):
        return False
    members = len(run.settings.members) if isinstance(run.settings, EnsembleSettings) else 1
    wanted = 5 if row.method.startswith("5x") else 1
    return (run.trained.method.name, kind_of(run.trained), members) == (row.base_method, row.kind, wanted)


def _nearest_backbones(entry: Entry, row: PaperRow) -> list[str]:
    """The same backbone where the table has the system with it, else whatever it has."""
    settings = entry.runs[0].trained
    alike = [
        other.backbone
        for other in paper_rows(row.table, dataset=row.dataset, shots=row.shots)
        if (other.method, other.kind) == (row.method, row.kind)
    ]
    same = [name for name in alike if settings and settings.backbone.name in BACKBONES.get(name, ())]
    return same or alike or [row.backbone]


def _unprinted(table: str | None, method: str, backbone: str, entry: Entry) -> Row:
    first = entry.rows[0]
    place = {
        "table": table,
        "method": method,
        "backbone": backbone,
        "dataset": first["dataset"],
        "shots": first["shots"],
    }
    return place | dict.fromkeys(("paper_hyperprior", "paper", "paper_ci", "published_code", "published_code_ci"))


def _budget(
    settings: TrainSettings | PretrainSettings | EnsembleSettings, progress: tuple[float | None, float | None]
) -> str:
    """Steps and tasks of training, in words."""
    if isinstance(settings, EnsembleSettings):
        return f"{len(settings.members)} runs together"
    done, wanted = progress
    unit = "epochs" if isinstance(settings, PretrainSettings) else f"steps x {settings.optimiser.tasks} tasks"
    reached = "?" if done is None else f"{done:,g}"
    return f"{reached} {unit}" if done == wanted else f"{reached} of {wanted:,g} {unit}"

"""Table S3: printed parameters and minutes beside our counts and measured ratios."""

from pathlib import Path
from typing import Any

from e3bm.errors import SettingsError
from e3bm.presets import find_preset
from e3bm.report.paper_tables import PaperCost, paper_costs
from e3bm.tracking.environment import describe_environment
from e3bm.tracking.files import read_json, write_json
from e3bm.tracking.progress import Progress
from e3bm.workflows.cost import cost
from e3bm.workflows.cost_of_preset import preset_cost
from e3bm.workflows.side_by_side import WITHOUT_A_RUN

COSTS_FOLDER = "costs"
PRESETS = {
    "ResNet-25": "paper-mtl-resnet25-miniimagenet-1shot-lstm-inductive",
    "WRN-28-10": "paper-sib-wrn28_10-miniimagenet-1shot-lstm-transductive",
    "ResNet-12": "paper-mtl-resnet12-miniimagenet-1shot-lstm-inductive",
}
# What E3BM adds is counted for the parametrisation that comes nearest to the printed totals.
COUNTED = {
    ("MTL", "ResNet-25"): ("MTL", "resnet25"),
    ("MTL+E3BM", "ResNet-25"): ("MTL+E3BM (lstm-inductive)", "resnet25"),
    ("SIB", "WRN-28-10"): ("SIB", "wrn28_10_sib"),
    ("SIB+E3BM", "WRN-28-10"): ("SIB+E3BM (lstm-transductive)", "wrn28_10_sib"),
    ("ProtoNets", "ResNet-12"): ("ResNet-12", "resnet12"),
    ("MatchNets", "ResNet-12"): ("ResNet-12", "resnet12"),
    ("ProtoNets", "ResNet-25"): ("ResNet-25", "resnet25"),
    ("ProtoNets", "WRN-28-10"): ("WRN-28-10", "wrn28_10"),
}


def cost_rows(results: Path, row: str | None, measure: bool, progress: Progress) -> list[dict[str, Any]]:
    """One row per printed system; ``paper`` and ``ours`` are parameters in thousands, truncated as printed."""
    chosen = [each for each in paper_costs() if (row or "").lower() in each.method.lower()]
    if not chosen:
        known = dict.fromkeys(each.method for each in paper_costs())
        raise SettingsError(f"S3 has no such row; it has {', '.join(known)}.")
    if measure:
        for backbone in dict.fromkeys(each.backbone for each in chosen):
            _measure(results, PRESETS[backbone], progress)
    counts = {(found.system, found.backbone): found.parameters for found in reversed(cost())}
    return [_row(each, counts[COUNTED[each.method, each.backbone]], results) for each in chosen]


def _row(printed: PaperCost, parameters: int, results: Path) -> dict[str, Any]:
    path = results / COSTS_FOLDER / f"{PRESETS[printed.backbone]}.json"
    measured = read_json(path) if path.exists() else {"rows": [], "environment": {}}
    timed: dict[str, Any] = next((found for found in measured["rows"] if found["system"] == printed.method), {})
    alone = {each.method: each for each in paper_costs() if each.backbone == printed.backbone}.get(
        printed.method.removesuffix("+E3BM"), printed
    )
    return {
        "table": "S3",
        "method": printed.method,
        "backbone": printed.backbone,
        "dataset": "miniimagenet",
        "shots": 1,
        "paper": printed.parameters_k,
        "published_code": None,
        **WITHOUT_A_RUN,
        "ways": 5,
        "ours": parameters // 1000,
        "parameters": parameters,
        "paper_minutes": printed.minutes,
        "paper_time_percent": round(100 * (printed.minutes / alone.minutes - 1), 1) if alone != printed else None,
        "time_percent": timed.get("time_percent"),
        "seconds_per_100_epochs": timed.get("seconds_per_100_epochs"),
        "commit": measured["environment"].get("commit"),
        "run": str(path) if timed else None,
    }


def _measure(results: Path, name: str, progress: Progress) -> None:
    path = results / COSTS_FOLDER / f"{name}.json"
    if path.exists():
        return
    progress.say(f"Timing {name}: one task at a time, which takes minutes.")
    rows = preset_cost(find_preset(name), repeats=3, training=False, progress=progress)
    write_json(path, {"preset": name, "environment": describe_environment(), "rows": rows})

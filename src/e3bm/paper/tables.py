"""The numbers that the paper prints, and those that the published code states, as data of this project."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from e3bm.errors import SettingsError
from e3bm.json_files import parse_json

AccuracyTable = Literal["T1", "T2", "S1", "S2"]
PAPER_DATASETS = ("miniimagenet", "tieredimagenet", "fc100")
SHOTS = (1, 5)
# Where a table does not say which hyperprior a row has, the text does: the LSTM, transductive for SIB.
UNSTATED_KINDS = {
    "MAML+E3BM": "lstm-inductive",
    "MTL+E3BM": "lstm-inductive",
    "SIB+E3BM": "lstm-transductive",
}


@dataclass(frozen=True)
class System:
    """What a system of the tables is called here."""

    methods: tuple[str, ...]
    """Methods that are the printed system; several where the table does not say which form it is."""
    preset: str
    """The word for it in the names of presets."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method that make it the printed system."""
    backbone: str | None = None
    """Its backbone in names of published presets, where the table states one that its authors did not have."""


SYSTEMS = {
    "MatchNets": System(("matching_nets", "matching_nets_fce"), "matching_nets"),
    "ProtoNets": System(("proto_nets",), "proto_nets"),
    "MAML": System(("maml",), "maml"),
    "MAML++": System(("maml_plus_plus",), "mamlpp"),
    "TADAM": System(("tadam",), "tadam"),
    "MetaOptNet": System(("meta_opt_net",), "meta_opt_net", {"learner": "svm"}),
    "CAN": System(("can",), "can"),
    "CAN+T": System(("can_t",), "can_t"),
    "CTM": System(("ctm",), "ctm"),
    "MTL": System(("mtl",), "mtl"),
    "LEO": System(("leo",), "leo"),
    "Robust20-dist": System(("robust_ensemble",), "robust"),
    "EGNN": System(("egnn",), "egnn", {"graph": "transductive"}, backbone="conv4"),
    "SIB": System(("sib",), "sib"),
}


@dataclass(frozen=True)
class PaperRow:
    """One printed accuracy, in percent."""

    table: str
    method: str
    backbone: str
    dataset: str
    shots: int
    setting: str
    accuracy: float | None
    """None: the table has the system, but no number for these data."""
    ci: float | None
    hyperprior: str | None
    """FC or LSTM where the table says so."""
    plus_time: float | None
    """Percent of extra time over the plain method."""
    published_code: float | None
    """What the published code states for the same system, where it states something."""
    published_code_ci: float | None

    @property
    def alone(self) -> str:
        """The method without E3BM, one model of it."""
        return self.method.removesuffix("+E3BM").removeprefix("5x ")

    @property
    def system(self) -> System:
        """What it is called here, without E3BM."""
        return SYSTEMS[self.alone]

    @property
    def kind(self) -> str:
        """The hyperprior by our name: plain, or generator and setting."""
        if not self.method.endswith("+E3BM"):
            return "plain"
        return f"{self.hyperprior.lower()}-{self.setting}" if self.hyperprior else UNSTATED_KINDS[self.method]


@dataclass(frozen=True)
class PaperCost:
    """One row of Table S3: 100 epochs, miniImageNet, 5-way 1-shot, on a V100."""

    method: str
    backbone: str
    parameters_k: int
    """Thousands, truncated."""
    minutes: float


def paper_rows(
    table: str,
    *,
    dataset: str | None = None,
    shots: int | None = None,
    method: str | None = None,
    unprinted: bool = False,
) -> list[PaperRow]:
    """The printed accuracies of a table, in its order; ``method`` is a part of a name, whatever its case.

    ``unprinted``: also the places of systems that the table has, but without a number for these data.
    """
    if table not in get_args(AccuracyTable):
        raise SettingsError(
            f"There is no table of accuracies '{table}'; there are {', '.join(get_args(AccuracyTable))}."
        )
    if dataset is not None and dataset not in PAPER_DATASETS:
        raise SettingsError(f"The paper has no results on '{dataset}'; it has {', '.join(PAPER_DATASETS)}.")
    if shots is not None and shots not in SHOTS:
        raise SettingsError(f"The paper has 1-shot and 5-shot results, none with {shots} shots.")
    return [
        row
        for row in _all_rows(table)
        if (unprinted or row.accuracy is not None)
        and dataset in (None, row.dataset)
        and shots in (None, row.shots)
        and (method or "").lower() in row.method.lower()
    ]


def paper_costs() -> list[PaperCost]:
    """Table S3."""
    return [
        PaperCost(entry["method"], entry["backbone"], entry["parameters_k"], entry["minutes"])
        for entry in _document()["costs"]
    ]


def paper_claims() -> dict[str, float]:
    """Averages that the text states, each with its number."""
    return {entry["claim"]: entry["value"] for entry in _document()["claims"]}


def paper_settings() -> dict[str, Any]:
    """Hyper-parameters that the text states."""
    settings: dict[str, Any] = _document()["settings"]
    return settings


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = parse_json((files("e3bm.paper") / "tables.json").read_bytes())
    return document


@cache
def _all_rows(table: str) -> tuple[PaperRow, ...]:
    rows = []
    for entry in _document()["accuracy"][table]:
        for dataset in PAPER_DATASETS:
            for place, shots in enumerate(SHOTS):
                value = _number(entry, "accuracy", dataset, place)
                code, code_ci = _published(entry, dataset, place)
                rows.append(
                    PaperRow(
                        table, entry["method"], entry["backbone"], dataset, shots, entry["setting"], value,
                        _number(entry, "ci", dataset, place), entry.get("hyperprior"),
                        _number(entry, "plus_time", dataset, place), code, code_ci,
                    )
                )  # fmt: skip
    return tuple(rows)


def _published(entry: dict[str, Any], dataset: str, place: int) -> tuple[float | None, float | None]:
    for other in _document()["published_code"]:
        if all(other[key] == entry[key] for key in ("method", "backbone", "setting")):
            return _number(other, "accuracy", dataset, place), _number(other, "ci", dataset, place)
    return None, None


def _number(entry: dict[str, Any], what: str, dataset: str, place: int) -> float | None:
    found: float | None = entry.get(what, {}).get(dataset, [None, None])[place]
    return found

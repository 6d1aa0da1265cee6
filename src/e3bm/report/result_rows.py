"""Reading result rows: the words for a protocol, its labels, and which row is whose baseline."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from e3bm.report.run_data import Record, finite

NONE = "–"
PROTOCOL = ("dataset", "split", "ways", "shots", "queries", "episodes", "episodes_hash")


def protocol_of(row: Record) -> tuple[str, ...]:
    """Rows with the same protocol answered the same episodes and may be compared."""
    return tuple(str(row.get(key)) for key in PROTOCOL)


def by_protocol(rows: Sequence[Record]) -> dict[tuple[str, ...], list[Record]]:
    """Rows that may be compared, in order of appearance."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        groups.setdefault(protocol_of(row), []).append(row)
    return groups


def data_words(row: Record) -> str:
    """Data set and split, and what the model was trained on where that was something else."""
    trained = row.get("trained_on")
    elsewhere = f" (trained on {trained})" if trained not in (None, row.get("dataset")) else ""
    return f"{row.get('dataset', 'unnamed data')} {row.get('split', '')}".strip() + elsewhere


def task_words(ways: Any, shots: Any, queries: Any = None) -> str:
    """5-way 1-shot, Q=15."""
    if ways is None and shots is None:
        return NONE
    if isinstance(shots, list | tuple):
        shots = "–".join(map(str, shots))
    return f"{ways}-way {shots}-shot" + (f", Q={queries}" if queries is not None else "")


def episodes_words(row: Record) -> str:
    """Number of episodes and the hash of their list."""
    if row.get("episodes") is None:
        return NONE
    digest = str(row.get("episodes_hash") or "")[:12]
    return f"{row['episodes']} episodes ({f'hash {digest}' if digest else 'no hash'})"


def seed_words(row: Record) -> str:
    """One seed or several, with the spread of accuracy between them."""
    seeds, spread = row.get("seeds"), row.get("seed_std")
    if isinstance(seeds, list) and seeds:
        return ", ".join(map(str, seeds)) + (f" (std {spread:.2f})" if finite(spread) else "")
    return NONE if row.get("seed") is None else str(row["seed"])


def batch_statistics(row: Record) -> bool:
    """Whether queries share their BatchNorm statistics, which makes a result transductive in fact."""
    stated = row.get("transductive_batchnorm")
    return stated if isinstance(stated, bool) else row.get("batchnorm") == "batch"


def family_of(row: Record, families: Mapping[str, str] = MappingProxyType({})) -> str:
    """The base method: what is known of the row's run, else what stands before the plus sign."""
    return families.get(str(row.get("run"))) or str(row.get("method", "")).split("+")[0].strip().lower()


def is_plain(row: Record) -> bool:
    """Whether a row is a method alone; rows without a word on their schedules go by their hyperprior."""
    schedules = row.get("schedules")
    return row.get("hyperprior") == "none" if schedules is None else schedules == "alpha constant, v last"


def names_of(row: Record) -> tuple[str, ...]:
    """The names by which another row may call this one its partner."""
    return str(row.get("run")), str(row.get("method")), f"{row.get('method')} ({row.get('run')})"


def baseline_of(
    row: Record, rows: Sequence[Record], families: Mapping[str, str] = MappingProxyType({})
) -> Record | None:
    """The same method alone, on the same episodes and backbone; the same seed if there is one."""
    if is_plain(row):
        return None
    alike = [
        other
        for other in rows
        if is_plain(other)
        and protocol_of(other) == protocol_of(row)
        and other.get("backbone") == row.get("backbone")
        and family_of(other, families) == family_of(row, families)
    ]
    named = [other for other in alike if row.get("paired_with") in names_of(other)]
    same_seed = [other for other in named or alike if other.get("seed") == row.get("seed")]
    return next(iter(same_seed or named or alike), None)


def partner_words(row: Record, rows: Sequence[Record]) -> str:
    """What a difference is against: the method alone where that says enough, else what the row says."""
    partner = str(row.get("paired_with"))
    known = [other for other in rows if partner in names_of(other)[::2] and protocol_of(other) == protocol_of(row)]
    method = str(known[0].get("method")) if known else partner
    called_so = {str(other.get("run")) for other in rows if str(other.get("method")) == method}
    return method if len(called_so) == 1 else partner


def excludes_zero(row: Record) -> bool:
    """Whether the 95 % interval of the paired difference leaves zero out."""
    difference, interval = row.get("paired_difference"), row.get("paired_ci")
    return finite(difference, interval) and abs(float(difference or 0)) > float(interval or 0)

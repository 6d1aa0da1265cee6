"""What can go wrong for a user. Each message says what was found, what was expected and what to do."""

from collections.abc import Sequence


class E3BMError(Exception):
    """The family of errors that a user can mend; everything else is a defect of ours."""


class SettingsError(E3BMError):
    """A setting or a name that does not exist or contradicts another."""


class DataError(E3BMError):
    """Images, features, labels or files that cannot be used as they are."""


class CheckpointError(E3BMError):
    """A run folder or model file that is damaged or belongs to other settings."""


class DivergenceError(E3BMError):
    """Numbers that stopped being finite."""


class PeerError(E3BMError):
    """Another process of the same run that is gone or does not answer."""


def some_of(names: Sequence[str], most: int = 3, *, between: str = ", ") -> str:
    """`a, b, c and 5 more`: the first of many names; whoever names things that have commas puts `; ` between them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{between.join(names[:most])}{more}"


def install_command(extra: str) -> str:
    """What to type so that an extra's packages are there, however e3bm itself was installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = [line.replace("'", '"') for line in requires("e3bm") or []]
    except PackageNotFoundError:  # used from its source folder, without being installed
        return f"pip install '.[{extra}]' in the folder of e3bm's pyproject.toml"

    def packages(of: str) -> list[str]:
        names = [line.partition(";")[0].strip() for line in lines if f'extra == "{of}"' in line]
        own = [part for name in names if name.startswith("e3bm[") for part in name[5:-1].split(",")]
        others = [name for name in names if not name.startswith("e3bm[")]
        return [*(name for part in own for name in packages(part)), *others]

    return "pip install " + " ".join(f"'{name}'" if set(name) & set("<>=! ") else name for name in packages(extra))

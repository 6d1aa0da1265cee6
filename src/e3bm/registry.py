"""Names to factories: how methods, backbones and data sets are found, ours and other people's."""

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from e3bm.errors import SettingsError

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """A named collection that other packages extend through the entry-point group ``e3bm.<kind>``."""

    def __init__(self, kind: str) -> None:
        self.kind, self.noun = kind, kind.removesuffix("s")
        self._entries: dict[str, Entry] = {}
        self._broken: dict[str, str] = {}  # plug-ins that could not be loaded, and why
        self._plugins_loaded = False

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Decorator: make an entry known under ``name``."""

        def add(entry: Entry) -> Entry:
            if name in self._entries:
                raise SettingsError(f"The {self.noun} '{name}' is registered twice; choose another name.")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            self._load_plugins()
        if name in self._broken:
            raise SettingsError(f"The {self.noun} '{name}' cannot be loaded: {self._broken[name]}.")
        if name not in self._entries:
            near = get_close_matches(name, self._entries, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise SettingsError(
                f"There is no {self.noun} named '{name}'; known: {', '.join(sorted(self._entries))}.{hint}"
            )
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._load_plugins()
        return name in self._entries

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        from importlib.metadata import entry_points

        for point in entry_points(group=f"e3bm.{self.kind}"):
            if point.name in self._entries:
                continue
            try:
                self._entries[point.name] = point.load()
            except Exception as error:  # somebody else's code: it must not break what does not need it
                self._broken[point.name] = f"its entry point {point.value} fails with {type(error).__name__}: {error}"

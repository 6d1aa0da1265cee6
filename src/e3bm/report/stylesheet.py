"""The look of a report page: rules from page.css, colours for light and for dark, shared with the figures."""

from importlib.resources import files

from e3bm.report.drawing import GRID, INK, MUTED, RAMP, SERIES

LIGHT = {"paper": "#ffffff", "ink": INK, "muted": MUTED, "grid": GRID, "soft": "#f4f6f9", "warn": "#9a4b00"}
DARK = {
    "paper": "#15181d",
    "ink": "#e7eaee",
    "muted": "#a2abb7",
    "grid": "#333a44",
    "soft": "#1e232a",
    "warn": "#ffb169",
}
DARK_SERIES = ("#5fb0ea", "#ff9350", "#3fcf9f", "#e39ad0", "#f0bd45", "#9bd3f7", "#c99c90", "#b3bac4")
DARK_RAMP = ("#b48ef0", "#7fa8f0", "#45c7c3", "#8bdc6c", "#f7d354")


def stylesheet() -> str:
    """Colour variables and rules; a printed page is light."""
    light, dark = _variables(LIGHT, SERIES, RAMP), _variables(DARK, DARK_SERIES, DARK_RAMP)
    colours = (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
    return colours + files("e3bm.report").joinpath("page.css").read_text(encoding="utf-8")


def _variables(named: dict[str, str], series: tuple[str, ...], ramp: tuple[str, ...]) -> str:
    named = named | {f"series{i + 1}": colour for i, colour in enumerate(series)}
    named = named | {f"ramp{i + 1}": colour for i, colour in enumerate(ramp)}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())

"""Named settings: the `paper` and the `e3bm` configuration of every method, and the presets built from them.

`paper` is what the paper or its published code says; `e3bm` is ours. docs/deviations.md has the reasons.
To add a preset, yield it where its family lives: `published.py`, `small.py` (for two cores), or one of the other
systems of the tables in `feature_systems.py`, `inner_systems.py`, `image_systems.py` and `metric_systems.py`;
`configurations.py` has the inner loops and hyperpriors they share. A new family is a file of its own, listed below.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from e3bm.errors import SettingsError
from e3bm.paper.presets.configurations import (
    ABLATIONS,
    KINDS,
    LEARNED_BY,
    METHOD_SETTINGS,
    PAPER_PSI_RATE,
    PAPER_SUMMARIES,
    Configuration,
    Kind,
    Preset,
    ablation_settings,
    hyperprior_settings,
    method_settings,
)
from e3bm.paper.presets.feature_systems import feature_system_presets
from e3bm.paper.presets.image_systems import ctm_presets, robust_presets, tadam_presets
from e3bm.paper.presets.inner_systems import inner_system_presets
from e3bm.paper.presets.metric_systems import metric_system_presets
from e3bm.paper.presets.published import omniglot_presets, paper_presets, paper_variants
from e3bm.paper.presets.small import SMALL_DATA, small_presets, small_variants


@cache
def presets() -> Mapping[str, Preset]:
    """All presets by name; made once."""
    paper, small = list(paper_presets()), list(small_presets())
    rows = [*paper, *small, *paper_variants(paper), *small_variants(small), *feature_system_presets()]
    rows += [*omniglot_presets(), *inner_system_presets(rows), *tadam_presets(), *ctm_presets(), *robust_presets()]
    rows += metric_system_presets()
    return MappingProxyType({preset.name: preset for preset in rows})


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    known = presets()
    if name not in known:
        from difflib import get_close_matches

        # First the same name with a word less or more: methods without an inner loop have no -plain, others have.
        same = [other for other in known if name.startswith(f"{other}-") or other.startswith(f"{name}-")]
        near = list(dict.fromkeys([*same, *get_close_matches(name, known, n=3)]))[:3]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise SettingsError(f"There is no preset '{name}'; `e3bm presets` lists the {len(known)} there are.{hint}")
    return known[name]


__all__ = [
    "ABLATIONS",
    "KINDS",
    "LEARNED_BY",
    "METHOD_SETTINGS",
    "PAPER_PSI_RATE",
    "PAPER_SUMMARIES",
    "SMALL_DATA",
    "Configuration",
    "Kind",
    "Preset",
    "ablation_settings",
    "find_preset",
    "hyperprior_settings",
    "method_settings",
    "presets",
]

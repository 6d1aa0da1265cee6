"""The rows of the paper that are another row with something changed, for published and small presets alike."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from e3bm.presets.configurations import ABLATIONS, KINDS, LEARNED_BY, Kind, ablation_settings
from e3bm.presets.preset import Preset


def kind_of(preset: Preset) -> Kind:
    """The kind of hyperprior that the preset's name ends in."""
    return next(kind for kind in KINDS if preset.name.endswith(kind))


def five_seeds(preset: Preset) -> Iterator[Preset]:
    """5x MAML, five seeds that answer together, for a row that is MAML alone."""
    if preset.train.method.name == "maml" and kind_of(preset) == "plain":
        name = preset.name.removesuffix("-plain").replace("-maml-", "-5xmaml-")
        about = preset.about.replace("MAML (plain)", "5x MAML, the mean of five seeds,")
        yield replace(preset, name=name, about=about, members=5)


def ablation_arms(preset: Preset) -> Iterator[Preset]:
    """Figure 4, which has MTL+E3BM (LSTM, inductive) as in Table 1."""
    train, kind = preset.train, kind_of(preset)
    if train.method.name != "mtl" or kind != "lstm-inductive" or train.method.head != "linear":
        return
    rename = lambda word: preset.name.removesuffix(kind) + word
    for arm, (rate, weight) in ABLATIONS.items():
        learned = Path("runs") / train.data.dataset / f"{rename(LEARNED_BY[arm])}-s0" if arm in LEARNED_BY else None
        about = preset.about.replace("MTL+E3BM (lstm-inductive)", f"MTL, ablation ({arm}): alpha {rate}, v {weight},")
        yield replace(preset, name=rename(arm), about=about, train=ablation_settings(train, arm, learned))

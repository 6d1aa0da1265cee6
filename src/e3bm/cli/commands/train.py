"""`e3bm train`."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import create_model

from e3bm.cli.console import check_pretrained, parse, progress_here, settings_of_preset
from e3bm.errors import SettingsError
from e3bm.runs.settings import HyperpriorSettings, TrainSettings
from e3bm.settings import InnerLoopSettings, MethodSettings, read_settings


@dataclass(frozen=True)
class Options:
    """Where the run is kept, and its settings."""

    run: Path
    """Run folder; naming the folder of an unfinished run continues it."""
    settings: Annotated[TrainSettings, tyro.conf.arg(name="")]
    tensorboard: bool = False
    """Also log to TensorBoard, in the folder `tensorboard` of the run."""
    json: bool = False
    """Print the best validation as JSON."""


def run(words: Sequence[str]) -> int:
    from e3bm.methods import METHODS

    about = "Meta-train a method, with or without E3BM; the best accuracy on validation classes is kept."
    about += " `--preset NAME` takes the defaults from a preset; `e3bm presets` lists them."
    about += f" Methods: {', '.join(METHODS)}; `--method.name NAME --help` shows the options of one."
    default, rest = settings_of_preset(words, "train", TrainSettings())
    chosen = _method_named(rest)
    method = default.method
    if chosen not in (None, method.name):
        method = read_settings(METHODS[str(chosen)].settings, {})
    kind, start = _options_with(method, default)
    _check_own(method, rest)
    parsed = parse(kind, rest, "train", about, start)
    settings = read_settings(TrainSettings, parsed.settings.model_dump())
    check_pretrained(words, settings)
    from e3bm.cli.console import show_best
    from e3bm.runs.training.train import run_train

    folder = run_train(settings, parsed.run, progress_here(), tensorboard=parsed.tensorboard)
    show_best(folder, parsed.run, parsed.json, "accuracy", f"test it with: e3bm test {parsed.run}")
    return 0


def _method_named(words: Sequence[str]) -> str | None:
    """The value of --method.name, which decides which other flags there are."""
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word.partition("=")[0] == "--method.name":
            return word.partition("=")[2] or following
    return None


def _check_own(method: MethodSettings, words: Sequence[str]) -> None:
    """Refuse options that the method does not have, with those that it has."""
    own = [_flag(name, value) for name, value in method if name != "name"]
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--method.") and flag not in ("--method.name", *own):
            near = get_close_matches(flag, own, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            has = f"it has {', '.join(own)}" if own else "it has none"
            raise SettingsError(f"{method.title} has no option {flag}; {has}.{hint}")
        if flag.startswith("--hyperprior.") and not isinstance(method, InnerLoopSettings):
            raise SettingsError(
                f"{method.title} has no inner loop, so there is no alpha and no v to set; leave out {flag}."
            )


def _flag(name: str, value: Any) -> str:
    """The option of a method's setting; what is on by default has an option that switches it off."""
    return f"--method.{'no-' if value is True else ''}{name.replace('_', '-')}"


def _options_with(method: MethodSettings, default: TrainSettings) -> tuple[type[Options], Options]:
    """The options of a run of this method: its own settings as flags, and no hyperprior where there are no epochs."""
    fields: dict[str, Any] = {"method": (type(method), method)}
    values: dict[str, Any] = {**dict(default), "method": method}
    if not isinstance(method, InnerLoopSettings):
        fields["hyperprior"] = (Annotated[HyperpriorSettings, tyro.conf.Suppress], HyperpriorSettings())
        values["hyperprior"] = HyperpriorSettings()
    settings = create_model("TrainSettings", __base__=TrainSettings, **fields)
    annotations = {"settings": Annotated[settings, tyro.conf.arg(name="")]}
    kind: type[Options] = dataclass(frozen=True)(type("Options", (Options,), {"__annotations__": annotations}))
    # Not validated yet: flags may still bring together what contradicts each other so far.
    return kind, kind(run=tyro.MISSING, settings=settings.model_construct(**values))

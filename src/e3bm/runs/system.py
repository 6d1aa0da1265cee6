"""Which runs are one system with several seeds, and which system is another one's baseline: one rule for all tables."""

from collections.abc import Sequence
from pathlib import Path

from e3bm.runs.result import Result
from e3bm.runs.settings import (
    HYPERPRIOR_RATES,
    DataSettings,
    HyperpriorSettings,
    MachineSettings,
    OptimiserSettings,
    PretrainSettings,
    TrainSettings,
)

ELSEWHERE = Path("elsewhere")


def system_of(settings: TrainSettings | PretrainSettings) -> str:
    """The same for runs that differ only in seed, name and place; a seed may have a backbone or a source of its own."""
    data: DataSettings = settings.data.but(folder=None)
    if isinstance(settings, PretrainSettings):
        return settings.but(seed=0, data=data, machine=MachineSettings(), checkpoint_every=1).digest()
    sources = ("frozen_from", "start_from")
    named = [name for name in sources if getattr(settings.hyperprior, name) is not None]
    hyperprior = settings.hyperprior.but(**dict.fromkeys(named, ELSEWHERE))
    backbone = settings.backbone.but(pretrained=None)
    precision = settings.machine.precision
    machine = MachineSettings(precision=precision)
    changes = {"data": data, "hyperprior": hyperprior, "backbone": backbone, "machine": machine}
    if is_alone(settings):
        # Learning rates of what a method alone does not have make no difference to it.
        unused = {name: OptimiserSettings.model_fields[name].default for name in HYPERPRIOR_RATES}
        changes |= {"hyperprior": HyperpriorSettings(), "optimiser": settings.optimiser.but(**unused)}
    return settings.but(seed=0, name="", checkpoint_every=1, **changes).digest()


def baseline_system_of(settings: TrainSettings | PretrainSettings) -> str:
    """The system of the same method alone: constant alpha, only the last epoch votes; features stand for themselves."""
    if isinstance(settings, PretrainSettings):
        return system_of(settings)
    return system_of(settings.but(hyperprior=HyperpriorSettings()))


def is_alone(settings: TrainSettings) -> bool:
    """Whether this is a method alone, without E3BM."""
    return (settings.hyperprior.rate, settings.hyperprior.weight) == ("constant", "last")


def kind_of(settings: TrainSettings) -> str | None:
    """The hyperprior by the name that presets have for it; None for an ablation."""
    hyperprior = settings.hyperprior
    match hyperprior.rate, hyperprior.weight:
        case "constant", "last":
            return "plain"
        case "generated", "generated":
            return f"{hyperprior.generator}-{hyperprior.setting}"
    return None


def baseline_of(result: Result, among: Sequence[Result]) -> Result | None:
    """The result that another one is compared with: its baseline system on the same episodes, with the same seeds if
    there are any; None for a method alone."""
    if not result.baseline or result.baseline == result.system:
        return None
    alike = [other for other in among if other.system == result.baseline and other.protocol == result.protocol]
    with_seed = [other for other in alike if (other.seed, other.seeds) == (result.seed, result.seeds)]
    together = [other for other in alike if result.seeds and other.seeds]
    return next(iter(with_seed or together or alike), None)

"""Which runs are one system with several seeds, and which system is another one's baseline."""

from pathlib import Path

from e3bm.presets import PSI_GROUPS
from e3bm.settings import (
    DataSettings,
    HyperpriorSettings,
    MachineSettings,
    OptimiserSettings,
    PretrainSettings,
    TrainSettings,
)

ELSEWHERE = Path("elsewhere")


def group_of(settings: TrainSettings | PretrainSettings) -> str:
    """The same for runs that differ only in seed, name and place; a seed may have a backbone or a source of its own."""
    data: DataSettings = settings.data.but(folder=None)
    if isinstance(settings, PretrainSettings):
        return settings.but(seed=0, data=data, machine=MachineSettings(), checkpoint_every=1).digest()
    hyperprior = settings.hyperprior
    if hyperprior.frozen_from is not None:
        hyperprior = hyperprior.but(frozen_from=ELSEWHERE)
    backbone = settings.backbone.but(pretrained=None)
    precision = settings.machine.precision
    machine = MachineSettings(precision=precision)
    changes = {"data": data, "hyperprior": hyperprior, "backbone": backbone, "machine": machine}
    if (hyperprior.rate, hyperprior.weight) == ("constant", "last"):
        # Learning rates of what a plain method does not have make no difference to it.
        unused = {name: OptimiserSettings.model_fields[name].default for name in PSI_GROUPS}
        changes |= {"hyperprior": HyperpriorSettings(), "optimiser": settings.optimiser.but(**unused)}
    return settings.but(seed=0, name="", checkpoint_every=1, **changes).digest()


def baseline_group_of(settings: TrainSettings) -> str:
    """The group of the same method alone: constant alpha, only the last epoch votes."""
    return group_of(settings.but(hyperprior=HyperpriorSettings()))


def kind_of(settings: TrainSettings) -> str | None:
    """The hyperprior by the name that presets have for it; None for an ablation."""
    hyperprior = settings.hyperprior
    match hyperprior.rate, hyperprior.weight:
        case "constant", "last":
            return "plain"
        case "generated", "generated":
            return f"{hyperprior.generator}-{hyperprior.setting}"
    return None

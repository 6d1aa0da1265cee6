"""What a preset is."""

from dataclasses import dataclass

from e3bm.settings import PretrainSettings, TestSettings, TrainSettings


@dataclass(frozen=True)
class Preset:
    """Everything a row of results needs: how its backbone is made, how it is trained, how it is tested."""

    name: str
    about: str
    train: TrainSettings
    pretrain: PretrainSettings | None
    test: TestSettings
    members: int = 1
    """How many runs with seeds of their own answer together, as in 5x MAML."""

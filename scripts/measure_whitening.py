"""Which part of whitened features gains what: nearest class mean on validation classes of FC100, part by part.

python scripts/measure_whitening.py runs/fc100/resnet12-half-s0 results/study/whitening.json
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from e3bm.backbones import WhitenedBackbone, whitening_of
from e3bm.backbones.whitened import FLOOR, POWER
from e3bm.data.store.features import FeatureTasks
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.progress import Silent
from e3bm.runs.assembly import build_backbone, load_backbone
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import evaluate
from e3bm.runs.evaluation.metrics import paired_difference
from e3bm.runs.folder.environment import describe_environment
from e3bm.runs.folder.files import write_json
from e3bm.runs.folder.run import read_run
from e3bm.runs.settings import EpisodeSettings, PretrainSettings
from e3bm.runs.tasks import episode_sampler, feature_tasks, open_data

EPISODES = 2000
POWERS = (0.0, -0.125, -0.25, -0.375, -0.5)  # 0: centred only; -0.5: whitened


def main(run: Path, out: Path) -> None:
    torch.set_num_threads(1)
    settings = read_run(run).settings
    assert isinstance(settings, PretrainSettings)
    data = open_data(settings.data)
    backbone = build_backbone(settings.backbone, *data.input_shape)
    load_backbone(backbone, run)
    networks = {
        "one view": backbone,
        "mirrored": WhitenedBackbone(backbone, moves=((0, 0),)),
        "mirrored and moved": WhitenedBackbone(backbone),
    }
    tables = {
        views: tuple(_table(data, network.eval(), split, settings) for split in ("train", "val"))
        for views, network in networks.items()
    }
    rows = []
    for shots in (1, 5):
        sampler = episode_sampler(data, "val", EpisodeSettings(ways=5, shots=shots, queries=15), 0, "validation")
        positions = np.unique(np.concatenate([data.images.indices_of(number) for number in sampler.classes]))
        first = None
        for views, (training, validation) in tables.items():
            for power in (None, *POWERS):
                changed = validation if power is None else _whitened(training, validation, power)
                learner = NearestMean(ReadyFeatures(changed.shape[1]))
                tasks = FeatureTasks(changed.float().numpy(), positions, sampler, torch.float32)
                found = evaluate(learner, tasks, EPISODES)
                first = found.accuracy if first is None else first
                difference = paired_difference(found.accuracy, first)
                rows.append(
                    {
                        "features": views, "power": power, "shots": shots, **found.summary(),
                        "paired_difference": difference[0], "paired_ci": difference[1],
                        "episodes": EPISODES, "split": "val",
                    }
                )  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
    about = describe_environment() | {"floor": FLOOR, "power": POWER, "data": data.images.digest}
    write_json(out, {"environment": about, "rows": rows})


def _table(data, network, split: str, settings: PretrainSettings) -> torch.Tensor:
    sampler = episode_sampler(data, split, settings.episode, 0, "validation")
    return feature_tasks(data, sampler, network, Silent(), torch.float64, Engine()).features


def _whitened(training: torch.Tensor, validation: torch.Tensor, power: float) -> torch.Tensor:
    found = whitening_of(training, power)
    return (validation - found.centre) @ found.matrix


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

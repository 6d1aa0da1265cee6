"""Methods on features from their settings: options arrive, and a small training and test run from end to end."""

import math

import pytest
import torch
from tests.methods.feature_tasks import FEATURES, close, task_batch

from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import DirectLearner, InnerLoopMethod, MetaLearner
from e3bm.core.schedules import Constant, LastOnly
from e3bm.errors import SettingsError
from e3bm.methods import (
    METHODS,
    LaplacianShot,
    LogisticRegression,
    MapRounds,
    MatchingNets,
    MatchingNetsFce,
    MetaOptNet,
    MetaOptNetDescent,
    Parts,
    ProtoNets,
    PtMap,
    ReadyFeatures,
    RidgeRegression,
    SoftKMeans,
    Tim,
)
from e3bm.progress import Silent
from e3bm.runs.evaluation.test import run_test
from e3bm.runs.settings import TestSettings, TrainSettings
from e3bm.runs.training.train import run_train
from e3bm.settings import read_settings
from small_runs import flags, lines, nested

# Options other than the defaults, and the same given to the class itself.
OPTIONS = {
    "proto_nets": ({"scale": 2.0, "divided": True}, lambda e: ProtoNets(e, scale=2.0, divided=True)),
    "matching_nets": ({"scale": 3.0, "rule": "summed"}, lambda e: MatchingNets(e, scale=3.0, rule="summed")),
    "matching_nets_fce": ({"scale": 3.0, "rule": "summed"}, lambda e: MatchingNetsFce(e, scale=3.0, rule="summed")),
    "meta_opt_net": (
        {"penalty": 0.3, "scale": 2.0, "looks_at_test": 2},
        lambda e: MetaOptNet(e, penalty=0.3, scale=2.0, looks_at_test=2),
    ),
    "meta_opt_net_descent": ({"penalty": 3.0, "scale": 2.0}, lambda e: MetaOptNetDescent(e, penalty=3.0, scale=2.0)),
    "ridge_regression": (
        {"penalty": 0.3, "unit_length": False, "scale": 3.0},
        lambda e: RidgeRegression(e, penalty=0.3, unit_length=False, scale=3.0),
    ),
    "logistic_regression": (
        {"inverse_penalty": 3.0, "unit_length": False},
        lambda e: LogisticRegression(e, inverse_penalty=3.0, unit_length=False),
    ),
    "laplacian_shot": (
        {"agreement": 0.3, "neighbours": 3, "rectified": False},
        lambda e: LaplacianShot(e, agreement=0.3, neighbours=3, rectified=False),
    ),
    "soft_k_means": ({"scale": 3.0, "unit_length": True}, lambda e: SoftKMeans(e, scale=3.0, unit_length=True)),
    "map_rounds": ({"scale": 3.0}, lambda e: MapRounds(e, scale=3.0)),
    "pt_map": (
        {"power": 0.3, "scale": 3.0, "tolerance": 1e-3},
        lambda e: PtMap(e, power=0.3, scale=3.0, tolerance=1e-3),
    ),
    "tim": (
        {"temperature": 10.0, "support": 0.5, "evenness": 0.5, "sureness": 0.3},
        lambda e: Tim(e, temperature=10.0, support=0.5, evenness=0.5, sureness=0.3),
    ),
}
TRANSDUCTIVE = {"laplacian_shot", "soft_k_means", "map_rounds", "pt_map", "tim"}
EPOCHS_AND_RATES = {
    "matching_nets_fce": (3, 1.0),
    "meta_opt_net_descent": (20, 0.1),
    "soft_k_means": (1, 1.0),
    "map_rounds": (20, 0.2),
    "pt_map": (20, 0.2),
    "tim": (150, 1.0),
}
# What is trained: the backbone, the method's own parameters on frozen features, or only rates and votes.
FULL = {"backbone.adapt": "full", "backbone.batchnorm": "running"}
E3BM = {"hyperprior.rate": "generated", "hyperprior.weight": "generated"}
RUNS = {
    "proto_nets": {**FULL, "method.learned_scale": True},
    "matching_nets": FULL,
    "matching_nets_fce": {"method.epochs": 2, **E3BM},
    "meta_opt_net": {**FULL, "method.smoothing": 0.1, "method.looks_at_test": 3},
    "meta_opt_net_descent": {"method.epochs": 3, "method.order": "first", **E3BM},
    "ridge_regression": FULL,
    "logistic_regression": FULL,
    "laplacian_shot": FULL,
    "soft_k_means": {"method.epochs": 2, **E3BM},
    "map_rounds": {"method.epochs": 3, **E3BM},
    "pt_map": {"method.epochs": 3, **E3BM},
    "tim": {"method.epochs": 3, **E3BM},
}


def learner(method):
    if not isinstance(method, InnerLoopMethod):
        return DirectLearner(method).double().eval()
    return MetaLearner(method, Hyperprior(Constant(0.5), LastOnly()), 2).double().eval()


@pytest.mark.parametrize("name", OPTIONS)
def test_options_arrive(name):
    options, make = OPTIONS[name]
    own, encoder = METHODS[name].settings, ReadyFeatures(FEATURES)
    batch, parts = task_batch(), Parts(encoder, None, FEATURES)
    scores = []
    for build in (
        lambda: METHODS[name].from_settings(read_settings(own, options), parts),
        lambda: make(encoder),
        lambda: METHODS[name].from_settings(own(), parts),
    ):
        torch.manual_seed(0)
        scores.append(learner(build())(batch).scores.detach())
    close(scores[0], scores[1])
    assert float((scores[0] - scores[2]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", OPTIONS)
def test_what_it_says_of_itself(name):
    own = METHODS[name].settings
    assert own.transductive == (name in TRANSDUCTIVE)
    if name in EPOCHS_AND_RATES:
        assert (own().epochs, own().rate) == EPOCHS_AND_RATES[name]


@pytest.mark.parametrize("name", ["matching_nets_fce", *sorted(TRANSDUCTIVE - {"laplacian_shot"})])
def test_rounds_have_no_first_order(name):
    with pytest.raises(SettingsError, match="order"):
        read_settings(METHODS[name].settings, {"order": "first"})


@pytest.mark.parametrize("name", RUNS)
def test_a_small_run(small_data, tmp_path, name):
    wanted = flags(small_data, "mtl") | {"method.name": name, "optimiser.steps": 4} | RUNS[name]
    for foreign in ("method.rate", "method.epochs"):
        if foreign not in RUNS[name]:
            del wanted[foreign]
    run = tmp_path / name
    run_train(read_settings(TrainSettings, nested(wanted)), run)
    losses = [line["loss"] for line in lines(run, "metrics") if "loss" in line]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)
    (row,) = run_test([run], TestSettings(episodes=4, queries=2, folder=small_data))
    assert row.method.startswith(METHODS[name].settings.title)
    assert row.setting == ("transductive" if name in TRANSDUCTIVE else "inductive")
    assert 0 <= row.accuracy <= 100


@pytest.mark.parametrize("name", ["map_rounds", "laplacian_shot"])
def test_what_has_nothing_to_train_is_validated_once_and_tested_like_any_other(small_data, tmp_path, name):
    wanted = flags(small_data, "mtl") | {"method.name": name, "method.rate": 0.2}
    if name == "laplacian_shot":
        del wanted["method.rate"], wanted["method.epochs"]
    run = tmp_path / "run"
    said = Told()
    run_train(read_settings(TrainSettings, nested(wanted)), run, said)
    (sentence,) = said.sentences
    title = METHODS[name].settings.title
    assert sentence.startswith(f"{title} has nothing to train on a frozen backbone; it is validated as it is.")
    (line,) = lines(run, "metrics")
    assert (line["step"], line["split"], line["best"]) == (0, "val", True)
    run_train(read_settings(TrainSettings, nested(wanted)), run, said)  # nothing is left to do
    assert len(said.sentences) == len(lines(run, "metrics")) == 1
    (row,) = run_test([run], TestSettings(episodes=4, queries=2, folder=small_data))
    assert row.method == METHODS[name].settings.title


class Told(Silent):
    """Remembers what a person is told."""

    def __init__(self):
        self.sentences = []

    def say(self, sentence):
        self.sentences.append(sentence)

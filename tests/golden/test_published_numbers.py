"""Scores and meta-gradients of the published code, recorded once in float64, met to 1e-10."""

from pathlib import Path

import numpy as np
import pytest
import torch

from e3bm.core.context import ClassMean, Context
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import InnerLoopMethod, MetaLearner, meta_loss
from e3bm.core.schedules import Generated
from e3bm.methods import Mtl, ReadyFeatures, Sib

HERE = Path(__file__).parent
FEATURES, WAYS = 24, 5


def load(name):
    return {key: torch.from_numpy(np.asarray(value)) for key, value in np.load(HERE / f"{name}.npz").items()}


def task(data):
    query = data["query"].clone().requires_grad_()
    batch = TaskBatch(
        data["support"][None], data["support_labels"][None].long(), query[None], data["query_labels"][None].long(), WAYS
    )
    return batch, query


def fc_hyperprior(rate, weight, fractions):
    """Two separate layers per epoch; that of the rates comes first."""
    epochs = len(rate["prior"])
    generator = FcGenerator(Context(ClassMean(FEATURES), embedding=FEATURES), epochs, 2)
    hyperprior = Hyperprior(
        Generated([0.0] * epochs), Generated([0.0] * epochs), generator, mixing="residual", fractions=fractions
    )
    hyperprior.double()
    with torch.no_grad():
        hyperprior.rate.values.copy_(rate["prior"])
        hyperprior.weight.values.copy_(weight["prior"])
        for place, part in enumerate((rate, weight)):
            generator.weight[place].copy_(part["weight"])
            generator.bias[place].copy_(part["bias"])
    return hyperprior


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("start", ["las", "equ"])
def test_mtl_with_cosine_head(shots, start):
    data = load(f"mtl_cosine_fc_{shots}shot_{start}")
    batch, query = task(data)
    part = lambda name: {key: data[f"{name}_{key}"] for key in ("prior", "weight", "bias")}
    hyperprior = fc_hyperprior(part("alpha"), part("v"), (float(data["alpha_mix"]), float(data["v_mix"])))
    method = Mtl(
        ReadyFeatures(FEATURES),
        head="cosine",
        start="prototype",
        temperature=float(data["temperature"]),
        second_order=False,
    )
    learner = MetaLearner(method, hyperprior, 20).double()
    trace = learner(batch)
    close(trace.scores[0], data["scores"])
    meta_loss(trace.scores, batch.query_labels).backward()
    close(query.grad, data["grad_query"])
    close(hyperprior.rate.values.grad, data["grad_alpha_prior"])
    close(hyperprior.weight.values.grad, data["grad_v_prior"])
    for place, name in enumerate(("alpha", "v")):
        close(hyperprior.generator.weight[place].grad, data[f"grad_{name}_weight"])
        close(hyperprior.generator.bias[place].grad, data[f"grad_{name}_bias"])


@pytest.mark.parametrize("shots", [1, 5])
def test_mtl_with_linear_head(shots):
    data = load(f"mtl_linear_fc_{shots}shot")
    batch, query = task(data)
    part = lambda name: {key: data[f"{name}_{key}"] for key in ("prior", "weight", "bias")}
    hyperprior = fc_hyperprior(part("alpha"), part("v"), (float(data["alpha_mix"]), float(data["v_mix"])))
    learner = MetaLearner(Mtl(ReadyFeatures(FEATURES), second_order=False), hyperprior, 20).double()
    start = learner.method.initialiser
    with torch.no_grad():
        start.weight.copy_(data["head_weight"])
        start.bias.copy_(data["head_bias"])
    trace = learner(batch)
    close(trace.scores[0], data["scores"])
    close(trace.rates[0], data["alpha"])
    close(trace.weights[0], data["v"])
    meta_loss(trace.scores, batch.query_labels).backward()
    close(query.grad, data["grad_query"])
    close(start.weight.grad, data["grad_head_weight"])
    close(start.bias.grad, data["grad_head_bias"])


SIB_NAMES = {
    "bias": "bias",
    "scale": "scale_cls",
    "initial_weight": "wnLayerFavg.weight",
    "gradient_net.first.weight": "dni.layer1.0.weight",
    "gradient_net.first.bias": "dni.layer1.0.bias",
    "gradient_net.first_norm.weight": "dni.layer1.2.weight",
    "gradient_net.first_norm.bias": "dni.layer1.2.bias",
    "gradient_net.second.weight": "dni.layer2.0.weight",
    "gradient_net.second.bias": "dni.layer2.0.bias",
    "gradient_net.second_norm.weight": "dni.layer2.2.weight",
    "gradient_net.second_norm.bias": "dni.layer2.2.bias",
    "gradient_net.third.weight": "dni.layer3.weight",
    "gradient_net.third.bias": "dni.layer3.bias",
}


class OpenSib(InnerLoopMethod):
    """SIB as the recording ran it: with gradients of the query features."""

    def __init__(self, sib):
        super().__init__()
        self.sib = sib

    def begin(self, batch):
        return self.sib.problem(batch, batch.support, batch.query)


def published_sib(data):
    sib = Sib(ReadyFeatures(FEATURES)).double()
    parameters = dict(sib.named_parameters())
    with torch.no_grad():
        for ours, theirs in SIB_NAMES.items():
            parameters[ours].copy_(data[f"param_{theirs}"].reshape(parameters[ours].shape))
    return sib


def priors(data, kind):
    return torch.cat([data[f"{kind}.hyperprior_initialization_vars.{epoch}"] for epoch in range(3)])


def check_sib(data, sib, hyperprior):
    batch, query = task(data)
    trace = MetaLearner(OpenSib(sib), hyperprior, 3)(batch)
    close(trace.scores[0], data["scores"])
    meta_loss(trace.scores, batch.query_labels).backward()
    close(query.grad, data["grad_query"])
    for name, parameter in sib.named_parameters():
        close(parameter.grad.flatten(), data[f"grad_{SIB_NAMES[name]}"].flatten())
    close(hyperprior.rate.values.grad, priors(data, "grad_hyperprior_basestep_model"))
    close(hyperprior.weight.values.grad, priors(data, "grad_hyperprior_combination_model"))


def test_sib_with_layers():
    data = load("sib_fc_2shot")
    names = ("hyperprior_basestep_model", "hyperprior_combination_model")
    rate, weight = (
        {
            "prior": priors(data, f"param_{name}"),
            "weight": data[f"param_{name}.fc_w"],
            "bias": data[f"param_{name}.fc_b"],
        }
        for name in names
    )
    hyperprior = fc_hyperprior(rate, weight, (float(data["alpha_mix"]), float(data["v_mix"])))
    check_sib(data, published_sib(data), hyperprior)
    for place, name in enumerate(names):
        close(hyperprior.generator.weight[place].grad, data[f"grad_{name}.fc_w"])
        close(hyperprior.generator.bias[place].grad, data[f"grad_{name}.fc_b"])


def test_sib_with_lstm():
    data = load("sib_lstm_2shot")
    names = ("hyperprior_basestep_model", "hyperprior_combination_model")
    generator = LstmGenerator(
        Context(ClassMean(FEATURES), embedding=FEATURES), 2, hidden=1, readout=False, separate=True
    )
    hyperprior = Hyperprior(
        Generated([0.0] * 3),
        Generated([0.0] * 3),
        generator,
        mixing="residual",
        fractions=(float(data["alpha_mix"]), float(data["v_mix"])),
    ).double()
    tensors = {
        "weight_ih_l0": generator.input_weight,
        "weight_hh_l0": generator.hidden_weight,
        "bias_ih_l0": generator.input_bias,
        "bias_hh_l0": generator.hidden_bias,
    }
    with torch.no_grad():
        hyperprior.rate.values.copy_(priors(data, f"param_{names[0]}"))
        hyperprior.weight.values.copy_(priors(data, f"param_{names[1]}"))
        for key, cells in tensors.items():
            for name, tensor in zip(names, cells, strict=True):
                tensor.copy_(data[f"param_{name}.lstm.{key}"].view(tensor.shape))
    check_sib(data, published_sib(data), hyperprior)
    for key, cells in tensors.items():
        for name, tensor in zip(names, cells, strict=True):
            close(tensor.grad.flatten(), data[f"grad_{name}.lstm.{key}"].flatten())

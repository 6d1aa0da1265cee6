"""LEO against numbers of the authors' code, in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch

from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior
from e3bm.core.learner import InnerLoopMethod, MetaLearner
from e3bm.core.schedules import Constant, LastOnly
from e3bm.methods import ReadyFeatures
from e3bm.methods.leo import Leo

GOLDEN = Path(__file__).parent / "systems" / "leo.npz"


@pytest.fixture(scope="module")
def data():
    return {name: torch.from_numpy(np.asarray(value)) for name, value in np.load(GOLDEN).items()}


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


class Recorded:
    """The noise of the recording; copies come first here."""

    def __init__(self, data):
        self.latents, self.weights = data["noise_latents"], data["noise_weights"]

    def normal(self, use, number, *shape):
        found = self.latents if use == "codes" else self.weights[:, number]
        assert found.transpose(1, 2).shape[1:] == shape
        return found.transpose(1, 2)

    def kept(self, use, number, share, *shape):
        raise AssertionError("the recording has no dropout")


class Recording(InnerLoopMethod):
    """LEO on the recorded features as they are: their derivatives are among the numbers."""

    def __init__(self, leo, noise):
        super().__init__()
        self.leo, self.noise = leo, noise

    def begin(self, batch):
        self.problem = self.leo.problem(batch, batch.support, batch.query, self.noise)
        return self.problem


def published(data):
    leo = Leo(
        ReadyFeatures(6),
        latents=3,
        latent_steps=int(data["inner_steps"]),
        dropout=0.0,
        divergence=float(data["kl_weight"]),
        encoder_penalty=float(data["encoder_penalty_weight"]),
        decay=float(data["l2_penalty_weight"]),
        orthogonality=float(data["orthogonality_penalty_weight"]),
    ).double()
    with torch.no_grad():
        for name, parameter in named(leo).items():
            parameter.copy_(data[f"weight/{name}"])
    return leo


def named(leo):
    coder = leo.coder
    return {
        "encoder": coder.encoder,
        "decoder": coder.decoder,
        **{f"relation{number}": matrix for number, matrix in enumerate(coder.relation)},
        "latent_rates": leo.latent_rates,
        "weight_rates": leo.weight_rates,
    }


@pytest.mark.parametrize("case", ["evaluation", "evaluation_no_finetuning", "training"])
def test_scores_terms_and_gradients(data, case):
    leo, noise = published(data), Recorded(data) if case == "training" else None
    steps = int(data["inner_steps"]) + (0 if "no_finetuning" in case else int(data["finetuning_steps"]))
    support, query = (data[part].clone().requires_grad_() for part in ("support", "query"))
    batch = TaskBatch(support, data["support_labels"], query, data["query_labels"], int(data["ways"]))
    recording = Recording(leo, noise)
    trace = MetaLearner(recording, Hyperprior(Constant(1.0), LastOnly()).double(), steps)(batch)
    close(trace.scores, data[f"{case}/scores"])
    close((trace.scores.argmax(-1) == batch.query_labels).double().mean(1), data[f"{case}/accuracy"])
    close(trace.divergence, data[f"{case}/kl"])
    close(trace.moved, data[f"{case}/encoder_penalty"])
    close(leo.decay * leo.coder.half_squares(), data[f"{case}/l2_term"])
    close(leo.orthogonality * leo.coder.correlation(), data[f"{case}/orthogonality_term"])
    loss = leo.training_loss(trace, batch, 0.0)
    close(loss, data[f"{case}/loss"])
    values = {**named(leo), "support": support, "query": query}
    for name, found in zip(values, torch.autograd.grad(loss, list(values.values()), allow_unused=True), strict=True):
        expected = data[f"{case}/grad/{name}"]
        close(torch.zeros_like(expected) if found is None else found, expected)


@pytest.mark.parametrize("case", ["evaluation", "evaluation_no_finetuning", "training"])
def test_codes_and_weights_on_the_way(data, case):
    noise = Recorded(data) if case == "training" else None
    batch = TaskBatch(data["support"], data["support_labels"], data["query"], data["query_labels"], int(data["ways"]))
    problem = published(data).problem(batch, batch.support, batch.query, noise)
    state = problem.start()
    close(state.latents.expand_as(data[f"{case}/latents"]), data[f"{case}/latents"])
    one, weights = torch.ones(2, dtype=torch.float64), []
    for _ in range(int(data["inner_steps"]) + (0 if "no_finetuning" in case else int(data["finetuning_steps"]))):
        weights.append(state.weights)
        state = problem.step(state, problem.direction(state), one)
    weights.append(state.weights)
    after = int(data["inner_steps"])  # "decoded" in the recording: after the last latent step
    for found, name in ((weights[after], "decoded_weights"), (state.weights, "final_weights")):
        expected = data[f"{case}/{name}"]
        close(found.expand_as(expected), expected)

"""Evaluation does not depend on how it is done: batch size, mode of the model, what is asked for beside."""

import pytest
import torch

from e3bm.backbones.normalisation import commit_statistics, pop_statistics
from e3bm.core.learner import DirectLearner
from e3bm.methods import NearestMean, ReadyFeatures
from e3bm.progress import Silent
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import TaskSource, evaluate
from e3bm.runs.tasks import episode_sampler, open_data
from e3bm.runs.training.train import build_tasks
from small_runs import settings


def model_and_tasks(folder, method, **changes):
    wanted = settings(folder, method, machine__precision="float64", **changes)
    data = open_data(wanted.data)
    torch.manual_seed(0)
    backbone = build_backbone(wanted.backbone, *data.input_shape)
    sampler = episode_sampler(data, "val", wanted.episode, 0, "validation")
    tasks = build_tasks(wanted, data, backbone, sampler, Silent(), Engine())
    return build_learner(wanted, backbone, classes=data.classes), tasks, backbone


@pytest.mark.parametrize("method", ["maml+e3bm", "mtl+e3bm", "mtl-scaled", "sib"])
def test_the_batch_size_does_not_matter(small_data, method):
    learner, tasks, _ = model_and_tasks(small_data, method)
    assert isinstance(tasks, TaskSource)
    results = [evaluate(learner, tasks, 7, batch=batch, every_epoch=True) for batch in (1, 3, 16)]
    for other in results[1:]:
        torch.testing.assert_close(other.metrics["nll"], results[0].metrics["nll"], rtol=1e-10, atol=1e-10)
        for name in ("accuracy", "rates", "weights", "epoch_accuracy"):
            torch.testing.assert_close(getattr(other, name), getattr(results[0], name), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(other.reliability.sums(), results[0].reliability.sums(), rtol=1e-10, atol=1e-10)


def test_nothing_is_changed_by_looking(small_data):
    """Running statistics, parameters, gradients and the mode are what they were, also in the middle of training."""
    learner, tasks, _ = model_and_tasks(small_data, "mtl-scaled+e3bm")
    learner.train()
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    evaluate(learner, tasks, 3)
    assert learner.training
    assert all(torch.equal(value, before[name]) for name, value in learner.state_dict().items())
    assert all(parameter.grad is None for parameter in learner.parameters())
    learner.eval()
    evaluate(learner, tasks, 3)
    assert not learner.training


def test_the_last_learner_of_a_plain_method_is_the_method(small_data):
    learner, tasks, _ = model_and_tasks(small_data, "mtl")
    found = evaluate(learner, tasks, 6, every_epoch=True)
    assert found.epoch_accuracy.shape == (3,)
    assert float(found.epoch_accuracy[-1]) == pytest.approx(float(found.accuracy.mean()))
    assert found.weights.tolist() == [0.0, 0.0, 1.0]
    assert evaluate(learner, tasks, 6).epoch_accuracy is None


def test_a_plain_method_may_be_tested_with_more_updates(small_data):
    learner, tasks, _ = model_and_tasks(small_data, "maml")
    assert evaluate(learner, tasks, 2, epochs=5, every_epoch=True).epoch_accuracy.shape == (5,)


def test_progress_counts_episodes(small_data):
    learner, tasks, _ = model_and_tasks(small_data, "sib")
    seen = []
    evaluate(learner, tasks, 7, batch=3, advance=seen.append)
    assert seen == [3, 6, 7]


def test_the_summary_is_of_the_episodes(small_data):
    _, tasks, backbone = model_and_tasks(small_data, "mtl")
    found = evaluate(DirectLearner(NearestMean(ReadyFeatures(backbone.feature_size))), tasks, 9)
    summary = found.summary()
    assert summary.keys() == {"accuracy", "ci", "nll", "ece"}
    assert summary["accuracy"] == pytest.approx(float(found.accuracy.mean()))
    assert len(found.accuracy) == len(found.metrics["nll"]) == 9
    assert float(found.reliability.count.sum()) == 9 * 6


@pytest.mark.parametrize("method", ["mtl-scaled", "tadam"])
def test_in_the_middle_of_training_a_model_is_evaluated_as_it_is_tested(small_data, method):
    """With running statistics; the numbers of training mode would be others."""
    learner, tasks, _ = model_and_tasks(small_data, method)
    tested = evaluate(learner.eval(), tasks, 4)
    validated = evaluate(learner.train(), tasks, 4)
    assert torch.equal(validated.metrics["nll"], tested.metrics["nll"])
    with torch.no_grad():
        trained = learner.train()(tasks.load(range(4)))
    found = torch.nn.functional.cross_entropy(trained.scores.flatten(0, 1), tasks.load(range(4)).query_labels.flatten())
    assert float(found) != pytest.approx(float(tested.metrics["nll"].mean()), rel=1e-3)


@pytest.mark.parametrize("method", ["mtl-scaled", "maml_plus_plus", "tadam"])
def test_evaluation_sets_no_statistics_aside(small_data, method):
    """Nothing of the validation tasks waits for the next training step to move the running statistics by."""
    learner, tasks, _ = model_and_tasks(small_data, method)
    learner.train()
    before = {name: value.clone() for name, value in learner.named_buffers()}
    evaluate(learner, tasks, 3)
    waiting = pop_statistics(learner)
    assert waiting
    assert [len(calls) for calls in waiting] == [0] * len(waiting)
    commit_statistics(learner, waiting)
    assert all(torch.equal(value, before[name]) for name, value in learner.named_buffers())


def test_every_episode_is_evaluated_once_and_in_order(small_data):
    """The accuracy of episode i stands in place i: results are paired episode by episode."""
    learner, tasks, _ = model_and_tasks(small_data, "mtl")
    together = evaluate(learner, tasks, 8, batch=3)
    with torch.no_grad():
        for number in range(8):
            alone = tasks.load([number])
            right = (learner.eval()(alone).scores.argmax(-1) == alone.query_labels).double().mean()
            assert float(together.accuracy[number]) == pytest.approx(100 * float(right), abs=1e-9)


def test_no_graph_is_kept(small_data):
    """In any method: what is evaluated has no gradients outside of the inner loop."""
    learner, tasks, _ = model_and_tasks(small_data, "mtl+e3bm")
    kept = []
    learner.register_forward_hook(lambda module, inputs, trace: kept.append(trace.scores.requires_grad))
    evaluate(learner, tasks, 3, batch=1)
    assert kept == [False] * 3

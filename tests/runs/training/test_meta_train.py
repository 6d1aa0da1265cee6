"""Meta-training: what is logged, what is kept, and what stops it."""

import math
from contextlib import contextmanager

import pytest
import torch

from e3bm.errors import CheckpointError, DivergenceError
from e3bm.interruption import Interrupted, time_limit
from e3bm.progress import Silent
from e3bm.runs.assembly import build_backbone, build_learner
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import Evaluation
from e3bm.runs.folder.checkpoint import Checkpoints, Continuation
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.tasks import episode_sampler, open_data
from e3bm.runs.training import train as training
from e3bm.runs.training.meta_train import meta_step
from e3bm.runs.training.optimisers import build_optimiser
from e3bm.runs.training.train import build_tasks, run_train
from small_runs import assert_equal, assert_same_run, lines, settings


def prepared(folder, method, **changes):
    """Settings, a model, its tasks and its optimiser."""
    wanted = settings(folder, method, machine__precision="float64", **changes)
    data = open_data(wanted.data)
    torch.manual_seed(wanted.seed)
    backbone = build_backbone(wanted.backbone, *data.input_shape)
    learner = build_learner(wanted, backbone)
    sampler = episode_sampler(data, "train", wanted.episode, wanted.seed, "training")
    tasks = build_tasks(wanted, data, backbone, sampler, Silent(), Engine())
    return wanted, learner, tasks, build_optimiser(learner, wanted.optimiser, wanted.method.learning_rates())


class Watching(Silent):
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def begin(self, title, total, done=0):
        self.told.append((title, total, done))

    def advance(self, done, **numbers):
        self.told.append((done, numbers))

    def end(self):
        self.told.append("end")


def test_what_is_logged(small_data, tmp_path):
    run = run_train(settings(small_data, "mtl+e3bm", optimiser__steps=20), tmp_path / "run")
    metrics, schedules = list(run.lines("metrics")), list(run.lines("schedules"))
    training = [line for line in metrics if line["split"] == "train"]
    validation = [line for line in metrics if line["split"] == "val"]
    assert [line["step"] for line in training] == [line["step"] for line in schedules] == [10, 20]
    assert [line["step"] for line in validation] == [4, 8, 12, 16, 20]
    assert training[0].keys() == {"step", "split", "loss", "accuracy", "tasks_per_second", "seconds"}
    assert validation[0].keys() == {"step", "split", "accuracy", "ci", "loss", "best", "seconds"}
    assert schedules[0].keys() == {"step", "rates", "weights", "base_rates", "base_weights"}
    assert {len(value) for key, value in schedules[0].items() if key != "step"} == {3}
    assert sum(schedules[0]["base_weights"]) == pytest.approx(1.0, abs=0.1)


def test_the_best_on_validation_is_kept(small_data, tmp_path):
    """Weights of `best` are those of the step with the best validation, the first of equals."""
    wanted = settings(small_data, "maml", optimiser__steps=12, validation__every=2)
    run = run_train(wanted, tmp_path / "run")
    found = [line for line in run.lines("metrics") if line["split"] == "val"]
    best = max(found, key=lambda line: line["accuracy"])
    assert [line["step"] for line in found if line["best"]][-1] == best["step"]
    assert Checkpoints(run.path).state("best")["step"] == best["step"]
    assert Checkpoints(run.path).state("last")["step"] == 12
    shorter = run_train(
        settings(small_data, "maml", optimiser__steps=best["step"], validation__every=2), tmp_path / "b"
    )
    assert_equal(Checkpoints(run.path).weights("best"), Checkpoints(shorter.path).weights("last"))


def test_a_finished_run_is_left_alone(small_data, tmp_path):
    wanted = settings(small_data, "sib")
    run_train(wanted, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors")}
    watching = Watching()
    run_train(wanted, tmp_path / "run", watching)
    assert ("meta-train SIB", 12, 12) in watching.told
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors")} == before


def test_progress_has_loss_accuracy_and_speed(small_data, tmp_path):
    watching = Watching()
    run_train(settings(small_data, "mtl"), tmp_path / "run", watching)
    steps = [entry for entry in watching.told if isinstance(entry, tuple) and isinstance(entry[1], dict)]
    last = [numbers for done, numbers in steps if done == 12]
    assert last[0].keys() == {"loss", "accuracy", "tasks_per_second"}
    assert last[1].keys() == {"validation"}
    assert watching.told[-1] == "end"


def test_the_seed_decides_everything_that_is_random(small_data, tmp_path):
    """Initial weights of a network that is trained from scratch too, whatever was drawn before."""
    torch.manual_seed(111)
    run_train(settings(small_data, "maml", optimiser__steps=1), tmp_path / "one")
    torch.manual_seed(222)
    torch.rand(7)
    run_train(settings(small_data, "maml", optimiser__steps=1), tmp_path / "same")
    assert_same_run(tmp_path / "same", tmp_path / "one")
    run_train(settings(small_data, "maml", optimiser__steps=1, seed=1), tmp_path / "other")
    one, other = Checkpoints(tmp_path / "one").weights("last"), Checkpoints(tmp_path / "other").weights("last")
    name = "method.backbone.blocks.0.conv.weight"
    assert float((one[name] - other[name]).abs().max()) > 0.01


def test_a_run_that_diverges_leaves_a_good_checkpoint(small_data, tmp_path):
    wanted = settings(small_data, "maml", optimiser__theta=1e20, optimiser__kind="sgd", optimiser__clip=None)
    with pytest.raises(DivergenceError):
        run_train(wanted.but(checkpoint_every=1), tmp_path / "run")
    weights = Checkpoints(tmp_path / "run").weights("last")
    assert all(bool(torch.isfinite(value.double()).all()) for value in weights.values())


def test_a_broken_gradient_is_not_applied(small_data):
    wanted, learner, tasks, optimiser = prepared(small_data, "mtl")
    before = [parameter.detach().clone() for parameter in learner.parameters()]
    handle = next(learner.parameters()).register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(DivergenceError, match="gradient of step 8 is not finite"):
        meta_step(learner, tasks.load(range(3)), optimiser, wanted, 7, Engine())
    handle.remove()
    assert all(torch.equal(parameter, old) for parameter, old in zip(learner.parameters(), before, strict=True))


def test_a_step_is_the_gradient_of_the_mean_loss(small_data):
    """By plain SGD without momentum's memory: the first step is lr x (1 + momentum) x gradient."""
    wanted, learner, tasks, _ = prepared(small_data, "mtl+e3bm", optimiser__kind="sgd", optimiser__clip=None)
    optimiser, batch = build_optimiser(learner, wanted.optimiser, wanted.method.learning_rates()), tasks.load(range(3))
    before = {name: parameter.detach().clone() for name, parameter in learner.named_parameters()}
    trace = learner(batch)
    losses = torch.stack(
        [torch.nn.functional.cross_entropy(s, y) for s, y in zip(trace.scores, batch.query_labels, strict=True)]
    )
    gradients = dict(
        zip(before, torch.autograd.grad(losses.mean(), list(learner.parameters()), allow_unused=True), strict=True)
    )
    schedules, (loss, accuracy) = meta_step(learner, batch, optimiser, wanted, 0, Engine())
    assert loss == pytest.approx(float(losses.detach().mean()), rel=1e-12)
    assert 0 <= accuracy <= 100
    torch.testing.assert_close(schedules[0], trace.rates.detach().mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(schedules[1], trace.weights.detach().mean(0), rtol=1e-12, atol=0)
    for name, parameter in learner.named_parameters():
        moved = 0.0 if gradients[name] is None else 1e-3 * 1.9 * gradients[name]
        torch.testing.assert_close(before[name] - parameter, torch.zeros_like(parameter) + moved, rtol=1e-9, atol=1e-15)


def test_the_kl_term_pulls_towards_the_base_values(small_data):
    def spread(coefficient):
        changes = {"hyperprior__kl": coefficient, "optimiser__psi_rate": 0.3, "optimiser__base_rate": 0.0}
        wanted, learner, tasks, optimiser = prepared(small_data, "mtl+e3bm", optimiser__base_weight=0.0, **changes)
        for step in range(6):
            batch = tasks.load(range(3 * step, 3 * step + 3))
            schedules, _ = meta_step(learner, batch, optimiser, wanted, step, Engine())
        return float((schedules[1] - learner.hyperprior.weight.base(3).detach()).abs().max())

    assert spread(1.0) < 0.2 * spread(0.0)


@pytest.mark.parametrize(("batchnorm", "moves"), [("running", False), ("batch", False), ("batch_then_running", True)])
def test_running_statistics_move_in_one_mode_only(small_data, batchnorm, moves):
    wanted, learner, tasks, optimiser = prepared(small_data, "mtl-scaled", backbone__batchnorm=batchnorm)
    statistics = lambda: {name: value.clone() for name, value in learner.named_buffers() if "running" in name}
    before = statistics()
    learner.train()
    meta_step(learner, tasks.load(range(3)), optimiser, wanted, 0, Engine())
    assert any(not torch.equal(value, before[name]) for name, value in statistics().items()) == moves


@pytest.mark.parametrize("method", ["mtl-scaled+e3bm", "mtl+e3bm"])
def test_bfloat16_around_the_backbone(small_data, tmp_path, method):
    """Weights stay float32; results are near those of float32 and not the same."""
    for precision in ("float32", "bfloat16"):
        run_train(settings(small_data, method, machine__precision=precision), tmp_path / precision)
    found, expected = (Checkpoints(tmp_path / name).weights("last") for name in ("bfloat16", "float32"))
    assert all(value.dtype in (torch.float32, torch.int64) for value in found.values())
    losses = [lines(tmp_path / name, "metrics")[-1]["loss"] for name in ("bfloat16", "float32")]
    assert losses[0] == pytest.approx(losses[1], rel=0.3)
    assert (losses[0] == losses[1]) == (method == "mtl+e3bm")  # a frozen backbone is not touched
    assert found.keys() == expected.keys()


def test_a_time_limit_stops_like_ctrl_c(small_data, tmp_path):
    wanted = settings(small_data, "mtl")
    with time_limit(0.0), pytest.raises(Interrupted, match="after step 1 of 12"):
        run_train(wanted, tmp_path / "run")
    run_train(wanted, tmp_path / "run")
    run_train(wanted, tmp_path / "undisturbed")
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed")


def test_processes_that_see_different_checkpoints_are_told_to_share_the_folder(small_data, tmp_path, monkeypatch):
    run_train(settings(small_data, "mtl"), tmp_path / "run")
    monkeypatch.setattr(Engine, "agree", lambda self, value: 5 if value == 12 else value)
    with pytest.raises(CheckpointError, match="must be one that all machines share"):
        run_train(settings(small_data, "mtl"), tmp_path / "run")


def test_validation_on_the_training_classes_where_there_are_no_others(small_data, tmp_path):
    run = run_train(settings(small_data, "mtl", validation__split="train"), tmp_path / "run")
    assert Checkpoints(run.path).has("best")


@pytest.mark.parametrize("bound", ["clip", "clip_each", "clip_elements"])
def test_a_step_is_bounded_as_the_settings_say(small_data, bound):
    """By SGD's first step, 1.9 x the learning rate x the gradient; the gradient itself is far longer."""
    unbounded = {"optimiser__kind": "sgd", "optimiser__clip": None}

    def moved(**changes):
        wanted, learner, tasks, optimiser = prepared(small_data, "maml", **{**unbounded, **changes})
        before = [parameter.detach().clone() for parameter in learner.parameters()]
        meta_step(learner, tasks.load(range(3)), optimiser, wanted, 0, Engine())
        each = [parameter.detach() - old for parameter, old in zip(learner.parameters(), before, strict=True)]
        length = {
            "clip": torch.cat([part.flatten() for part in each]).norm(),
            "clip_each": torch.stack([part.norm() for part in each]).max(),
            "clip_elements": torch.stack([part.abs().max() for part in each]).max(),
        }[bound]
        return float(length) / (1e-3 * 1.9)

    limit = 1e-4
    assert moved() > 10 * limit
    assert moved(**{f"optimiser__{bound}": limit}) == pytest.approx(limit, rel=1e-2)  # torch adds 1e-6 to a length


class OneOfTwo(Engine):
    """A process that keeps what it would have sent: the gradients of its share."""

    @contextmanager
    def summed_gradients(self, parameters):
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        with super().summed_gradients(trained):
            yield
        object.__setattr__(self, "sent", [parameter.grad.clone() for parameter in trained])

    def gather(self, mine, total, dim=0):
        return mine

    def agree(self, value):
        return value


def test_shares_of_any_size_add_up_to_the_gradient_of_the_whole(small_data):
    """Three tasks on two processes are two and one: their means must not count alike."""

    def gradients(numbers):
        wanted, learner, tasks, optimiser = prepared(small_data, "mtl", optimiser__clip=None)
        engine = OneOfTwo()
        meta_step(learner, tasks.load(numbers), optimiser, wanted, 0, engine)
        return engine.sent

    whole, first, second = gradients([0, 1, 2]), gradients([0, 2]), gradients([1])
    for all_of_it, one, other in zip(whole, first, second, strict=True):
        torch.testing.assert_close(one + other, all_of_it, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(first[0] * 3 / 2, second[0] * 3)


@pytest.mark.parametrize(("found", "best"), [((50.0, 50.0), [True, False]), ((40.0, 60.0), [True, True])])
def test_the_first_of_equals_stays_the_best(small_data, tmp_path, found, best):
    _, learner, _, optimiser = prepared(small_data, "mtl")
    place = Continuation(learner, optimiser, RunFolder(tmp_path / "run"), Engine(), 2)
    assert [place.judge(accuracy) for accuracy in found] == best
    assert place.best == max(found)


def test_a_worse_validation_does_not_replace_the_best(small_data, tmp_path, monkeypatch):
    """Whatever the order of accuracies, `best` is the first step with the highest."""
    accuracies = iter([40.0, 70.0, 30.0, 70.0, 60.0, 10.0])
    summary = Evaluation.summary
    monkeypatch.setattr(Evaluation, "summary", lambda self: summary(self) | {"accuracy": next(accuracies)})
    run_train(settings(small_data, "mtl", optimiser__steps=6, validation__every=1), tmp_path / "run")
    assert [line["best"] for line in lines(tmp_path / "run", "metrics") if line["split"] == "val"] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
    state = Checkpoints(tmp_path / "run").state("best")
    assert (state["step"], state["best"]) == (2, 70.0)


def test_a_step_owes_nothing_to_the_gradient_of_the_one_before(small_data):
    def last_gradient(*batches):
        wanted, learner, tasks, optimiser = prepared(small_data, "mtl", optimiser__kind="sgd", optimiser__theta=0.0)
        for numbers in batches:
            engine = OneOfTwo()
            meta_step(learner, tasks.load(numbers), optimiser, wanted, 0, engine)
        return engine.sent

    assert_equal(last_gradient([0, 1, 2], [3, 4, 5]), last_gradient([3, 4, 5]))


@pytest.mark.parametrize(("step", "factor"), [(0, 1.0), (4, 0.5), (9, 0.25)])
def test_a_step_is_as_long_as_the_schedule_has_it(small_data, step, factor):
    """SGD's first step at a later number: the learning rates are those of that number."""

    def moved(step):
        changes = {"kind": "sgd", "clip": None, "schedule": "step", "step_every": 4, "step_factor": 0.5}
        changes = {f"optimiser__{name}": value for name, value in changes.items()}
        wanted, learner, tasks, optimiser = prepared(small_data, "mtl", **changes)
        before = [parameter.detach().clone() for parameter in learner.parameters()]
        meta_step(learner, tasks.load(range(3)), optimiser, wanted, step, Engine())
        return [parameter.detach() - old for parameter, old in zip(learner.parameters(), before, strict=True)]

    for found, first in zip(moved(step), moved(0), strict=True):
        torch.testing.assert_close(found, factor * first, rtol=1e-6, atol=1e-15)


def test_training_is_in_training_mode_whatever_the_learner_was_in(small_data, tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(training, "build_learner", lambda *a, **b: build_learner(*a, **b).eval())
    step = lambda learner, *rest: modes.append(learner.training) or meta_step(learner, *rest)
    monkeypatch.setattr("e3bm.runs.training.meta_train.meta_step", step)
    run_train(settings(small_data, "mtl", optimiser__steps=3, validation__every=1), tmp_path / "run")
    assert modes == [True] * 3


def test_what_is_random_in_a_model_is_a_function_of_seed_and_step(small_data):
    """Methods of others may draw where they are: the same step draws the same, whatever was drawn before it."""

    def drawn(step, seed=0, before=0):
        wanted, learner, tasks, optimiser = prepared(small_data, "mtl", seed=seed)
        numbers = []
        learner.register_forward_pre_hook(lambda *_: numbers.append(float(torch.rand(()))))
        torch.rand(before)
        meta_step(learner, tasks.load(range(3)), optimiser, wanted, step, Engine())
        return numbers[0]

    assert drawn(2) == drawn(2, before=7)
    assert len({drawn(2), drawn(3), drawn(2, seed=1)}) == 3


def test_a_process_without_tasks_adds_nothing(small_data):
    """With more processes than tasks some have none; they take the others' step all the same."""

    class Follower(OneOfTwo):
        def agree(self, value):
            return 2  # of the leader's tasks, support and queries passed

        def gather(self, mine, total, dim=0):
            assert mine.shape[dim] == 0
            return mine.new_ones(*mine.shape[:dim], total, *mine.shape[dim + 1 :])

    wanted, learner, _, optimiser = prepared(small_data, "mtl-scaled")
    engine = Follower()
    _, (loss, _) = meta_step(learner.train(), None, optimiser, wanted, 0, engine)
    assert loss == 1.0  # the others'
    assert not any(gradient.any() for gradient in engine.sent)


def test_what_has_nothing_to_train_is_kept_as_the_best(small_data, tmp_path):
    run = run_train(settings(small_data, "nearest_mean"), tmp_path / "run")
    (line,) = run.lines("metrics")
    assert (line["step"], line["split"], line["best"]) == (0, "val", True)
    assert Checkpoints(run.path).state("best")["step"] == Checkpoints(run.path).state("last")["step"] == 12

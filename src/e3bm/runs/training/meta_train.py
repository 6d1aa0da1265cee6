"""Algorithm 1 of the paper: meta-training, for every method, with or without E3BM."""

import time

import torch
from torch import Tensor

from e3bm.backbones.normalisation import commit_statistics, pop_statistics
from e3bm.core.adapt import AdaptationTrace, Trace
from e3bm.core.episode import TaskBatch
from e3bm.core.familiarity import Familiarity
from e3bm.core.learner import Learner, MetaLearner
from e3bm.data.episodes.loader import prefetched
from e3bm.interruption import stop_politely
from e3bm.progress import Progress, stage
from e3bm.runs.engine import Engine
from e3bm.runs.evaluation.evaluate import TaskSource, evaluate
from e3bm.runs.evaluation.metrics import accuracies, negative_log_likelihoods
from e3bm.runs.folder.checkpoint import Checkpoints, Continuation
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.settings import TrainSettings
from e3bm.runs.training.optimisers import build_optimiser, check_gradients, clip_gradients, schedule_factor

LOG_EVERY = 10
TASKS_LOOKED_AT = 400  # training tasks whose range a hyperprior that minds it is told


def meta_train(
    learner: Learner,
    tasks: TaskSource,
    validation: TaskSource,
    settings: TrainSettings,
    run: RunFolder,
    engine: Engine,
    progress: Progress,
) -> None:
    """Train until the last step, from wherever the run folder stands; best on the validation classes is kept.

    A learner without parameters to train is validated once, as it is.
    """
    total = settings.optimiser.steps
    if not any(parameter.requires_grad for parameter in learner.parameters()):
        _keep_as_it_is(learner, validation, settings, run, engine, progress)
        return
    optimiser = build_optimiser(learner, settings.optimiser, settings.method.learning_rates())
    place = Continuation(learner, optimiser, run, engine, total)
    shares = (engine.mine(_numbers(settings, number)) for number in range(place.step, total))
    batches = prefetched((tasks.load(share) if share else None for share in shares), tasks.prefetch)
    learner.train()
    with stop_politely() as request, stage(progress, f"meta-train {settings.title}", total, place.step):
        while place.step < total:
            started = time.perf_counter()
            schedules, (loss, accuracy) = meta_step(learner, next(batches), optimiser, settings, place.step, engine)
            step = place.advance()
            seconds = time.perf_counter() - started
            numbers = {"loss": loss, "accuracy": accuracy, "tasks_per_second": settings.optimiser.tasks / seconds}
            progress.advance(step, **numbers)
            if engine.leads and (step % LOG_EVERY == 0 or step == total):
                run.append("metrics", {"step": step, "split": "train", **numbers, "seconds": seconds})
                if isinstance(learner, MetaLearner):
                    run.append("schedules", {"step": step, **_schedules(learner, schedules)})
            validated = step % settings.validation.every == 0 or step == total
            if validated:
                found = evaluate(
                    learner, validation, settings.validation.episodes, engine=engine, epochs=settings.test_epochs
                )
                summary = found.summary()
                best = place.judge(summary["accuracy"])
                if engine.leads:
                    line = {"accuracy": summary["accuracy"], "ci": summary["ci"], "loss": summary["nll"]}
                    run.append(
                        "metrics", {"step": step, "split": "val", **line, "best": best, "seconds": found.seconds}
                    )
                progress.advance(step, validation=summary["accuracy"])
            if validated or step % settings.checkpoint_every == 0:
                place.save()
            if engine.any(request.made):
                place.stop()
    if isinstance(learner, MetaLearner) and learner.hyperprior.familiarity is not None:
        _learn_how_tasks_look(learner, learner.hyperprior.familiarity, tasks, settings, run, engine)


def _learn_how_tasks_look(
    learner: MetaLearner,
    familiarity: Familiarity,
    tasks: TaskSource,
    settings: TrainSettings,
    run: RunFolder,
    engine: Engine,
) -> None:
    """After the last step: the best checkpoint notes the range of the training tasks, unless it has."""
    checkpoints = Checkpoints(run.path)
    checkpoints.load_weights(learner, "best")
    if familiarity.known:
        return
    count = settings.optimiser.tasks
    learner.eval()
    with torch.no_grad(), familiarity.watching() as seen:
        # Every process looks at all of them: the same numbers everywhere, and a few seconds.
        for start in range(0, TASKS_LOOKED_AT, count):
            learner(engine.place(tasks.load(range(start, min(start + count, TASKS_LOOKED_AT)))))
    familiarity.learn(torch.cat(seen))
    if engine.leads:
        checkpoints.put_best(learner)
    engine.wait()


def _keep_as_it_is(
    learner: Learner,
    validation: TaskSource,
    settings: TrainSettings,
    run: RunFolder,
    engine: Engine,
    progress: Progress,
) -> None:
    """Validate a learner that has nothing to train, and keep it like any other, as trained to the end."""
    checkpoints = Checkpoints(run.path)
    if checkpoints.has("best"):
        return
    progress.say(
        f"{settings.title} has nothing to train on a frozen backbone; it is validated as it is. "
        "backbone.adapt full would train its features."
    )
    with stage(progress, f"validate {settings.title}", settings.validation.episodes):
        found = evaluate(
            learner, validation, settings.validation.episodes, engine=engine, epochs=settings.test_epochs,
            advance=progress.advance,
        )  # fmt: skip
    summary = found.summary()
    if engine.leads:
        line = {"accuracy": summary["accuracy"], "ci": summary["ci"], "loss": summary["nll"]}
        run.append("metrics", {"step": 0, "split": "val", **line, "best": True, "seconds": found.seconds})
        state = {"step": settings.optimiser.steps, "best": summary["accuracy"], "optimiser": {}}
        checkpoints.save(learner, state, best=True)
    engine.wait()


def meta_step(
    learner: Learner,
    batch: TaskBatch | None,
    optimiser: torch.optim.Optimizer,
    settings: TrainSettings,
    step: int,
    engine: Engine,
) -> tuple[Tensor, tuple[float, float]]:
    """One meta-batch, of which this process holds its share: the same update whatever the number of processes.

    Gives the mean rates and weights [2, M] (M is 0 without an inner loop), and the mean loss and accuracy.
    """
    count, held, epochs = settings.optimiser.tasks, 0 if batch is None else len(batch), learner.epochs or 0
    progress = step / settings.optimiser.steps
    # Anything random inside the model is a function of the step alone, so that a resumed run repeats it.
    torch.manual_seed(settings.seed * 1_000_003 + step)
    optimiser.zero_grad(set_to_none=True)
    figures = torch.zeros(0, 2 + 2 * epochs, dtype=torch.double)
    learner.method.at(progress)  # in processes without tasks too: it may say what is trained
    trained = engine.summed_gradients(learner.parameters())
    if batch is None:
        with trained:
            pass  # nothing of ours: the others' sums
    else:
        batch = engine.place(batch)
        trace = learner(batch)
        loss = learner.training_loss(trace, batch, progress)
        with trained:
            (held / count * loss).backward()
        figures = _figures(trace, batch)
    check_gradients(optimiser, step)
    clip_gradients(optimiser, settings.optimiser)
    factor = schedule_factor(settings.optimiser, step) * learner.method.outer_factor(progress)
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor
    optimiser.step()
    _commit_batchnorm(learner, engine, held, count)
    means = engine.gather(figures, count).mean(0)
    return means[2:].view(2, epochs), (float(means[0]), float(means[1]))


def _numbers(settings: TrainSettings, step: int) -> range:
    """The episodes of a meta-batch."""
    return range(step * settings.optimiser.tasks, (step + 1) * settings.optimiser.tasks)


@torch.no_grad()
def _figures(trace: Trace, batch: TaskBatch) -> Tensor:
    """Per task: loss, accuracy and, where there are epochs, their rates and weights."""
    assert batch.query_labels is not None
    scores, labels = trace.scores.cpu(), batch.query_labels.cpu()
    each = torch.stack([negative_log_likelihoods(scores, labels), accuracies(scores, labels)], 1)
    if not isinstance(trace, AdaptationTrace):
        return each.double()
    return torch.cat([each, trace.rates.cpu().double(), trace.weights.cpu().double()], 1)


def _schedules(learner: MetaLearner, means: Tensor) -> dict[str, list[float]]:
    rates, weights = means.tolist()
    hyperprior, epochs = learner.hyperprior, len(rates)
    return {
        "rates": rates,
        "weights": weights,
        "base_rates": hyperprior.rate.base(epochs).tolist(),
        "base_weights": hyperprior.weight.base(epochs).tolist(),
    }


def _commit_batchnorm(learner: Learner, engine: Engine, mine: int, total: int) -> None:
    """Move running statistics by every task's, in task order, the same on all processes."""
    gathered = []
    for calls in pop_statistics(learner):
        # Support and query passes of a task are calls of their own; a process without tasks asks the leader.
        parts = engine.agree(len(calls) // max(mine, 1))
        by_task = calls.view(parts, mine, *calls.shape[1:])
        gathered.append(engine.gather(by_task, total, dim=1).flatten(0, 1) if parts else calls)
    commit_statistics(learner, gathered)

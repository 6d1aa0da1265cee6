"""Algorithm 1 of the paper: meta-training, for every method, with or without E3BM."""

import time

import torch

from e3bm.backbones.normalisation import commit_statistics, pop_statistics
from e3bm.core.learner import MetaLearner
from e3bm.core.losses import kl_to_base, meta_loss
from e3bm.core.trace import AdaptationTrace
from e3bm.data.prefetch import prefetched
from e3bm.engine import Engine
from e3bm.episode import TaskBatch
from e3bm.evaluation.evaluate import TaskSource, evaluate
from e3bm.evaluation.metrics import accuracies
from e3bm.interruption import Interrupted, stop_politely
from e3bm.settings import TrainSettings
from e3bm.tracking.checkpoint import Checkpoints
from e3bm.tracking.progress import Progress
from e3bm.tracking.run_folder import RunFolder
from e3bm.training.optimisers import build_optimiser, clip_gradients, schedule_factor

LOG_EVERY = 10


def meta_train(
    learner: MetaLearner,
    tasks: TaskSource,
    validation: TaskSource,
    settings: TrainSettings,
    run: RunFolder,
    engine: Engine,
    progress: Progress,
) -> None:
    """Train until the last step, from wherever the run folder stands; best on the validation classes is kept."""
    optimiser = build_optimiser(learner, settings.optimiser)
    checkpoints = Checkpoints(run.path)
    step, best = 0, float("-inf")
    if checkpoints.has("last"):
        checkpoints.load_weights(learner, "last")
        state = checkpoints.state("last")
        optimiser.load_state_dict(state["optimiser"])
        step, best = state["step"], state["best"]
    if engine.leads:
        run.rewind(step)
    total = settings.optimiser.steps
    progress.begin(f"meta-train {settings.title}", total, step)

    def save(is_best: bool) -> None:
        if engine.leads:
            state = {"step": step, "best": best, "optimiser": optimiser.state_dict()}
            checkpoints.save(learner, state, best=is_best)
        engine.wait()

    learner.train()
    shares = (engine.mine(_numbers(settings, number)) for number in range(step, total))
    batches = prefetched((tasks.load(share) if share else None for share in shares), tasks.prefetch)
    with stop_politely() as wish:
        while step < total:
            started = time.perf_counter()
            trace, losses = meta_step(learner, next(batches), optimiser, settings, step, engine)
            step += 1
            seconds = time.perf_counter() - started
            numbers = {"loss": losses[0], "accuracy": losses[1], "tasks_per_second": settings.optimiser.tasks / seconds}
            progress.advance(step, **numbers)
            if step % LOG_EVERY == 0 or step == total:
                _log(run, engine, learner, trace, settings, step, numbers | {"seconds": seconds})
            is_best = False
            if step % settings.validation.every == 0 or step == total:
                found = evaluate(
                    learner, validation, settings.validation.episodes, engine=engine, epochs=settings.method.test_epochs
                )
                summary = found.summary()
                is_best = summary["accuracy"] > best
                best = max(best, summary["accuracy"])
                if engine.leads:
                    line = {"accuracy": summary["accuracy"], "ci": summary["ci"], "loss": summary["nll"]}
                    run.append(
                        "metrics", {"step": step, "split": "val", **line, "best": is_best, "seconds": found.seconds}
                    )
                progress.advance(step, validation=summary["accuracy"])
            if is_best or step % settings.checkpoint_every == 0 or step == total:
                save(is_best)
            if engine.any(wish.stop) and step < total:
                save(False)
                progress.end()
                raise Interrupted(f"Stopped after step {step} of {total}; run the same command again to continue.")
    progress.end()


def meta_step(
    learner: MetaLearner,
    batch: TaskBatch | None,
    optimiser: torch.optim.Optimizer,
    settings: TrainSettings,
    step: int,
    engine: Engine,
) -> tuple[AdaptationTrace | None, tuple[float, float]]:
    """One meta-batch, of which this process holds its share: the same update whatever the number of processes."""
    count, held = settings.optimiser.tasks, 0 if batch is None else len(batch)
    # Anything random inside the model is a function of the step alone, so that a resumed run repeats it.
    torch.manual_seed(settings.seed * 1_000_003 + step)
    optimiser.zero_grad(set_to_none=True)
    trace, figures = None, torch.zeros(0, 2, dtype=torch.double)
    if batch is not None:
        trace = learner(batch)
        figures = _backward(learner, trace, batch, settings, held / count)
    engine.sum_gradients(learner.parameters())
    clip_gradients(optimiser, settings.optimiser)
    factor = schedule_factor(settings.optimiser, step)
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor
    optimiser.step()
    _commit_batchnorm(learner, engine, held, count)
    loss, accuracy = engine.gather(figures, count).mean(0).tolist()
    return trace, (loss, accuracy)


def _numbers(settings: TrainSettings, step: int) -> range:
    """The episodes of a meta-batch."""
    return range(step * settings.optimiser.tasks, (step + 1) * settings.optimiser.tasks)


def _backward(
    learner: MetaLearner, trace: AdaptationTrace, batch: TaskBatch, settings: TrainSettings, share: float
) -> torch.Tensor:
    assert batch.query_labels is not None
    loss = meta_loss(trace.scores, batch.query_labels)
    if settings.hyperprior.kl:
        loss = loss + settings.hyperprior.kl * kl_to_base(trace, learner.hyperprior)
    (share * loss).backward()
    with torch.no_grad():
        each = torch.nn.functional.cross_entropy(
            trace.scores.transpose(1, 2), batch.query_labels, reduction="none"
        ).mean(1)
        return torch.stack([each.double(), accuracies(trace.scores, batch.query_labels)], 1).cpu()


def _commit_batchnorm(learner: MetaLearner, engine: Engine, mine: int, total: int) -> None:
    """Move running statistics by every task's, in task order, the same on all processes."""
    layers = pop_statistics(learner)
    gathered = []
    for calls in layers:
        parts = len(calls) // max(mine, 1)
        parts = engine.agree(parts)
        if not parts:
            gathered.append(calls)
            continue
        by_task = calls.view(parts, mine, *calls.shape[1:])
        gathered.append(engine.gather(by_task, total, dim=1).flatten(0, 1))
    commit_statistics(learner, gathered)


def _log(
    run: RunFolder,
    engine: Engine,
    learner: MetaLearner,
    trace: AdaptationTrace | None,
    settings: TrainSettings,
    step: int,
    numbers: dict[str, float],
) -> None:
    if not engine.leads or trace is None:
        return
    run.append("metrics", {"step": step, "split": "train", **numbers})
    hyperprior, epochs = learner.hyperprior, settings.method.epochs
    run.append(
        "schedules",
        {
            "step": step,
            "rates": trace.rates.detach().mean(0).tolist(),
            "weights": trace.weights.detach().mean(0).tolist(),
            "base_rates": hyperprior.rate.base(epochs).tolist(),
            "base_weights": hyperprior.weight.base(epochs).tolist(),
        },
    )

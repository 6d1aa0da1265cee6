"""`e3bm train-prior`: features of many classes in, one prior for few-shot classifiers out."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from e3bm.core.adapt import AdaptationTrace
from e3bm.core.episode import TaskBatch
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.errors import CheckpointError, DivergenceError, SettingsError
from e3bm.fewshot.meta.pools import FeaturePool, TaskShapes, draw_batches, draw_tasks, query_labels, task_batch
from e3bm.fewshot.meta.settings import PriorSettings
from e3bm.fewshot.meta.train_trust import SHOTS, fit_trust
from e3bm.fewshot.meta.views import open_classes, open_pools, open_trust_pools
from e3bm.fewshot.prior.file import load_prior, save_prior
from e3bm.fewshot.prior.learner import build_prior
from e3bm.fewshot.prior.together import build_batch_prior
from e3bm.fewshot.trust import TrustPrior
from e3bm.progress import Progress, Silent, stage
from e3bm.runs.evaluation.metrics import accuracies, negative_log_likelihoods
from e3bm.runs.folder.checkpoint import misfit
from e3bm.runs.folder.environment import commit
from e3bm.runs.folder.files import held, read_json, write_bytes, write_json, write_lines
from e3bm.runs.folder.run_folder import RunFolder
from e3bm.runs.folder.tensor_files import read_tensor_file, tensor_file
from e3bm.runs.settings import OptimiserSettings
from e3bm.runs.training.optimisers import build_optimiser, schedule_factor

GROUPS = 4  # shapes in a meta-batch: one alone would pull the prior its way
CLIP = 0.5
WARM_UP = 50
VALIDATION_SHAPES = ((5, 1), (10, 2), (10, 5), (15, 10))
VALIDATION_TASKS = 20
BATCH_SHAPES = TaskShapes(queries=120)

Record = Callable[[dict[str, Any]], None]


def train_prior(
    learner: MetaLearner,
    pools: Sequence[FeaturePool],
    validation: Sequence[FeaturePool],
    settings: OptimiserSettings,
    *,
    seed: int,
    shapes: TaskShapes,
    record: Record,
    every: int = 250,
    advance: Callable[[int], None] = lambda step: None,
    draw: Callable[[np.random.Generator], TaskBatch] | None = None,
) -> None:
    """Meta-train a learner on tasks of every shape; the loss is the likelihood of the queries, in units of log W.

    ``record`` gets the training loss and, for each validation pool, accuracy and likelihood.
    """
    random = np.random.default_rng(seed)
    optimiser = build_optimiser(learner, settings)
    draw = draw or (lambda source: draw_tasks(pools, shapes, settings.tasks, source))
    recent: list[float] = []
    for step in range(1, settings.steps + 1):
        factor = schedule_factor(settings, step - 1) * min(1.0, step / WARM_UP)
        for group in optimiser.param_groups:
            group["lr"] = group["base_lr"] * factor
        optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(GROUPS):
            batch = draw(random)
            loss = relative_loss(learner(batch), batch) / GROUPS
            loss.backward()
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(learner.parameters(), CLIP))
        if not math.isfinite(norm):
            raise DivergenceError(f"The gradient of the prior is not finite at step {step}; lower the learning rates.")
        optimiser.step()
        recent.append(total)
        advance(step)
        if step % every == 0 or step == settings.steps:
            record({"step": step, "split": "train", "loss": sum(recent) / len(recent)})
            for line in validate(learner, validation):
                record({"step": step, "split": "val", **line})
            recent = []


def relative_loss(trace: AdaptationTrace, batch: TaskBatch) -> Tensor:
    """Mean cross-entropy over log W: 1 is a guess, whatever the number of ways."""
    return meta_loss(trace.scores, query_labels(batch)) / math.log(batch.ways)


@torch.no_grad()
def validate(learner: MetaLearner, pools: Sequence[FeaturePool], seed: int = 12345) -> list[dict[str, Any]]:
    """Accuracy and likelihood on fixed tasks of every validation pool and shape."""
    lines = []
    for pool in pools:
        for most, shots in VALIDATION_SHAPES:
            ways = min(most, len(pool.members))
            queries = min(10, min(map(len, pool.members)) - shots)
            batch = task_batch(pool, VALIDATION_TASKS, ways, shots, queries, np.random.default_rng(seed))
            scores, labels = learner(batch).scores, query_labels(batch)
            lines.append(
                {
                    "pool": pool.name,
                    "ways": ways,
                    "shots": shots,
                    "accuracy": float(accuracies(scores, labels).mean()),
                    "nll": float(negative_log_likelihoods(scores, labels).mean()),
                }
            )
    return lines


def run_train_prior(
    settings: PriorSettings, out: Path, folder: Path, progress: Progress | None = None
) -> dict[str, Any]:
    """Train what is not trained yet in this run folder, and write the prior; gives the last validation.

    Three parts follow one another, each kept when it is done: the prior itself, the part for unlabelled examples on
    top of it, and the numbers of trust. With a ``start`` only the last is done.
    """
    progress = progress or Silent()
    if out.suffix != ".safetensors":
        raise SettingsError(f"A prior is a .safetensors file; --out {out} is not one.")
    torch.set_num_threads(1)
    names = dict.fromkeys((*settings.datasets, *settings.trust_datasets))
    inputs = {name: open_classes(name, "train", settings).images.digest for name in names}
    run = RunFolder(folder)
    run.create("prior", settings, inputs)
    with held(folder):
        if settings.start is None:
            inductive, together = _trained_parts(run, settings, progress)
            started: dict[str, Any] = {}
        else:
            start = load_prior(settings.start)
            inductive, together = start.inductive, start.together
            started = {"start": {"digest": start.digest, **start.training}}
        trust = _trust(inductive, run, settings, progress)
        own = settings.model_copy(update={"start": None}).model_dump(mode="json")
        about = {"settings": own, "inputs": inputs, "commit": commit(), **started}
        save_prior(out, inductive, together, trust, about, votes=settings.votes)
    return _last(run) if settings.start is None else {}


def _trained_parts(run: RunFolder, settings: PriorSettings, progress: Progress) -> tuple[MetaLearner, MetaLearner]:
    training, validation = (open_pools(split, settings, progress) for split in ("train", "val"))
    inductive = build_prior(settings.votes, epochs=settings.epochs, seed=settings.seed)
    part = partial(_trained, run=run, pools=training, validation=validation, settings=settings, progress=progress)
    part("inductive", inductive, optimiser=settings.optimiser)
    inductive.requires_grad_(False)
    together = build_batch_prior(inductive, seed=settings.seed)
    part("together", together, optimiser=settings.batch_optimiser)
    return inductive, together


def _trained(
    name: str,
    learner: MetaLearner,
    *,
    run: RunFolder,
    pools: list[FeaturePool],
    validation: list[FeaturePool],
    settings: PriorSettings,
    progress: Progress,
    optimiser: OptimiserSettings,
) -> None:
    """Train a part, or take it from the run."""
    kept = run.path / f"{name}.safetensors"
    if kept.exists():
        try:
            learner.load_state_dict(read_tensor_file(kept)[1])
        except RuntimeError as error:
            raise CheckpointError(f"{kept} does not fit this run: {misfit(error)}") from None
        return
    _forget(run, name)
    began = time.monotonic()

    def record(line: dict[str, Any]) -> None:
        run.append("metrics", {"part": name, **line, "seconds": round(time.monotonic() - began, 1)})

    together = name == "together"
    draw = partial(draw_batches, pools, BATCH_SHAPES, optimiser.tasks) if together else None
    with stage(progress, f"{name} prior", optimiser.steps):
        train_prior(
            learner,
            pools,
            validation,
            optimiser,
            seed=settings.seed,
            shapes=TaskShapes(),
            record=record,
            every=settings.validate_every,
            advance=progress.advance,
            draw=draw,
        )
    write_bytes(kept, tensor_file(learner.state_dict(), {}))


def _trust(learner: MetaLearner, run: RunFolder, settings: PriorSettings, progress: Progress) -> TrustPrior:
    kept = run.path / "trust.json"
    if kept.exists():
        return TrustPrior.from_json(read_json(kept))
    pools = open_trust_pools(settings, progress)
    with stage(progress, "numbers of trust", len(pools) * sum(SHOTS.values()) * settings.trust_tasks):
        double = build_prior(settings.votes, epochs=settings.epochs).double().requires_grad_(False)
        double.load_state_dict(learner.state_dict())
        advance: Callable[[int], None] = progress.advance
        trust = fit_trust(double, pools, tasks=settings.trust_tasks, seed=settings.seed, advance=advance)
    write_json(kept, trust.as_json())
    return trust


def _forget(run: RunFolder, part: str) -> None:
    """Drop what an interrupted training of a part has logged, because the part begins again."""
    lines = [line for line in run.lines("metrics") if line.get("part") != part]
    write_lines(run.path / "metrics.jsonl", lines)


def _last(run: RunFolder) -> dict[str, Any]:
    lines = [line for line in run.lines("metrics") if line.get("split") == "val"]
    found = {}
    for part in ("inductive", "together"):
        own = [line for line in lines if line["part"] == part]
        last = [line for line in own if line["step"] == max(each["step"] for each in own)]
        found[part] = {key: sum(line[key] for line in last) / len(last) for key in ("accuracy", "nll")}
    return found

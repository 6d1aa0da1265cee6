"""Pre-training: a backbone learns all meta-training classes at once; the best few-shot features are kept."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from e3bm.backbones import Backbone
from e3bm.data.classification import ClassificationBatches, LabelledBatch
from e3bm.data.prefetch import prefetched
from e3bm.engine import Engine
from e3bm.interruption import Interrupted, stop_politely
from e3bm.settings import PretrainSettings
from e3bm.tracking.checkpoint import Checkpoints
from e3bm.tracking.progress import Progress
from e3bm.tracking.run_folder import RunFolder

LOG_EVERY = 10
PREFETCH = 2
ONE_CYCLE_RISE = 0.3  # share of the steps in which the learning rate rises
ONE_CYCLE_START = 25.0  # the peak over the first learning rate


class Classifier(nn.Module):
    """A backbone and a head over the training classes; the cosine head has a learned scale and no bias."""

    def __init__(self, backbone: Backbone, classes: int, kind: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.weight = nn.Parameter(torch.empty(classes, backbone.feature_size))
        nn.init.normal_(self.weight, std=backbone.feature_size**-0.5)
        self.bias = nn.Parameter(torch.zeros(classes)) if kind == "linear" else None
        self.scale = nn.Parameter(torch.tensor(10.0)) if kind == "cosine" else None

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N classes"]:
        features = self.backbone(images)
        if self.scale is not None:
            return self.scale * functional.linear(functional.normalize(features), functional.normalize(self.weight))
        return functional.linear(features, self.weight, self.bias)


def rate_at(settings: PretrainSettings, step: int, per_epoch: int) -> float:
    """The learning rate of a step: a pure function, so that a resumed run takes the same."""
    total = settings.epochs * per_epoch
    if settings.schedule == "one_cycle":
        rise = max(1.0, ONE_CYCLE_RISE * total)
        if step < rise:
            low = 1 / ONE_CYCLE_START
            return settings.rate * (low + (1 - low) * 0.5 * (1 - math.cos(math.pi * step / rise)))
        return settings.rate * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, total - rise)))
    rate = settings.rate * settings.step_factor ** (step // per_epoch // settings.step_every)
    if settings.schedule == "warmup_step" and step < settings.warmup:
        return rate * (step + 1) / settings.warmup
    return rate


def pretrain(
    model: Classifier,
    batches: ClassificationBatches,
    validate: Callable[[Backbone], tuple[float, float]],
    settings: PretrainSettings,
    run: RunFolder,
    engine: Engine,
    progress: Progress,
) -> None:
    """Train until the last epoch, from wherever the run folder stands; best few-shot accuracy on validation is kept."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain}]
    optimiser = torch.optim.SGD(
        groups,
        lr=settings.rate,
        momentum=0.9,
        nesterov=True,
    )
    checkpoints = Checkpoints(run.path)
    per_epoch = len(batches)
    total, step, best = settings.epochs * per_epoch, 0, float("-inf")
    if checkpoints.has("last"):
        checkpoints.load_weights(model, "last")
        state = checkpoints.state("last")
        optimiser.load_state_dict(state["optimiser"])
        step, best = state["step"], state["best"]
    if engine.leads:
        run.rewind(step)
    progress.begin(f"pretrain {settings.backbone.name}", total, step)

    def save(is_best: bool) -> None:
        if engine.leads:
            state = {"step": step, "best": best, "optimiser": optimiser.state_dict()}
            checkpoints.save(model, state, best=is_best)
        engine.wait()

    model.train()
    ahead = prefetched((batches.batch(*divmod(number, per_epoch)) for number in range(step, total)), PREFETCH)
    with stop_politely() as wish:
        while step < total:
            started = time.perf_counter()
            epoch = step // per_epoch
            torch.manual_seed(settings.seed * 1_000_003 + step)
            for group in optimiser.param_groups:
                group["lr"] = rate_at(settings, step, per_epoch)
            loss, accuracy = _step(model, next(ahead), optimiser, settings, engine)
            step += 1
            seconds = time.perf_counter() - started
            numbers = {"loss": loss, "accuracy": accuracy, "images_per_second": settings.batch / seconds}
            progress.advance(step, **numbers)
            if engine.leads and (step % LOG_EVERY == 0 or step == total):
                run.append("metrics", {"step": step, "epoch": epoch, "split": "train", **numbers, "seconds": seconds})
            is_best = False
            ended_epoch = step // per_epoch if step % per_epoch == 0 else 0
            if step == total or (ended_epoch and ended_epoch % settings.validation.every == 0):
                found, interval = validate(model.backbone)
                model.train()
                is_best, best = found > best, max(best, found)
                line = {
                    "step": step,
                    "epoch": epoch,
                    "split": "val",
                    "accuracy": found,
                    "ci": interval,
                    "best": is_best,
                }
                if engine.leads:
                    run.append("metrics", line)
                progress.advance(step, validation=found)
            if is_best or step % settings.checkpoint_every == 0 or step == total:
                save(is_best)
            if engine.any(wish.stop) and step < total:
                save(False)
                progress.end()
                raise Interrupted(f"Stopped after step {step} of {total}; run the same command again to continue.")
    progress.end()


def _step(
    model: Classifier,
    batch: LabelledBatch,
    optimiser: torch.optim.Optimizer,
    settings: PretrainSettings,
    engine: Engine,
) -> tuple[float, float]:
    """One step on this process's rows of a batch; BatchNorm statistics are those of its own rows."""
    optimiser.zero_grad(set_to_none=True)
    scores = model(batch.images)
    loss = functional.cross_entropy(scores, batch.labels, label_smoothing=settings.label_smoothing)
    (loss / engine.world).backward()
    engine.sum_gradients(model.parameters())
    optimiser.step()
    accuracy = 100.0 * float((scores.argmax(1) == batch.labels).double().mean())
    return float(loss.detach()), accuracy

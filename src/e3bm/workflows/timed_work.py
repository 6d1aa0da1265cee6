"""What is timed and weighed of a model: encoding, the epoch loop, a training step; each a call without arguments."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from e3bm.backbones import Backbone, encode, fold_batchnorm, pop_statistics
from e3bm.core.adapt import adapt_and_keep
from e3bm.core.learner import MetaLearner
from e3bm.core.losses import meta_loss
from e3bm.episode import TaskBatch
from e3bm.settings import EpisodeSettings

Work = Callable[[], object]


def encoding(backbone: Backbone, images: TaskBatch) -> Work:
    """Support and query of a task through a frozen backbone, as in `e3bm test`."""
    folded = fold_batchnorm(backbone)

    def work() -> None:
        with torch.inference_mode():
            encode(folded, images.support, "running")
            encode(folded, images.query, "running")

    return work


def beginning(learner: MetaLearner, batch: TaskBatch) -> Work:
    """What a method does once per task before its first epoch: with scale and shift, mostly encoding."""

    def work() -> None:
        learner.eval()
        with torch.no_grad():
            learner.method.begin(batch)

    return work


def adapting(learner: MetaLearner, batch: TaskBatch, every_epoch: bool = False) -> Work:
    """The epoch loop alone; what comes before it is the same for both arms and is timed by itself."""
    learner.eval()
    with torch.no_grad():
        problem = learner.method.begin(batch)

    def work() -> None:
        learner.eval()
        with torch.no_grad():
            adapt_and_keep(problem, learner.hyperprior, learner.epochs, every_epoch=every_epoch)

    return work


def at_test(model: nn.Module, batch: TaskBatch) -> Work:
    """A model that adapts nothing."""

    def work() -> None:
        with torch.no_grad():
            model(batch)

    return work


def training_step(learner: MetaLearner, batch: TaskBatch) -> Work:
    """One meta-gradient."""

    def work() -> None:
        learner.train()
        learner.zero_grad(set_to_none=True)
        _loss(learner, batch).backward()
        pop_statistics(learner)

    return work


def kept_bytes(learner: MetaLearner, batch: TaskBatch) -> int:
    """Bytes of distinct storage that autograd keeps between forward and backward."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    learner.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = _loss(learner, batch)
    pop_statistics(learner)
    del loss
    return sum(kept.values())


def _loss(learner: MetaLearner, batch: TaskBatch) -> Tensor:
    assert batch.query_labels is not None
    return meta_loss(learner(batch).scores, batch.query_labels)


def random_task(episode: EpisodeSettings, shape: tuple[int, ...]) -> TaskBatch:
    """A task of random examples: costs do not depend on what they are."""
    shots = episode.shots if isinstance(episode.shots, int) else episode.shots[1]
    random = torch.Generator().manual_seed(0)
    labels = lambda count: torch.arange(episode.ways).repeat_interleave(count).unsqueeze(0)
    examples = lambda count: torch.rand(1, episode.ways * count, *shape, generator=random)
    return TaskBatch(
        examples(shots), labels(shots), examples(episode.queries), labels(episode.queries), episode.ways
    )  # fmt: skip

"""E3BM in one screen: tasks, a method, a hyperprior, one training loop. Runs in seconds, needs no data."""

import torch

from e3bm.core.context import Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.hyperprior import Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Generated, LastOnly, equal_values
from e3bm.methods import Mtl, ReadyFeatures

WAYS, SHOTS, QUERIES, FEATURES, EPOCHS = 5, 5, 15, 32, 20


def tasks(count: int, seed: int) -> TaskBatch:
    """Few-shot tasks whose classes are noisy clusters; half of the features say nothing."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(count, WAYS, FEATURES, generator=random)
    centres[..., FEATURES // 2 :] = 0

    def draw(per_class: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(WAYS).repeat_interleave(per_class).expand(count, -1)
        noise = torch.randn(count, WAYS * per_class, FEATURES, generator=random)
        examples = centres.repeat_interleave(per_class, 1) + 1.5 * noise
        return examples / FEATURES**0.5, labels

    return TaskBatch(*draw(SHOTS), *draw(QUERIES), WAYS)


def accuracy(learner: MetaLearner) -> float:
    """Percent of right answers on 500 tasks that training never saw."""
    test = tasks(500, seed=10_000)
    with torch.no_grad():
        return 100 * float((learner(test).scores.argmax(-1) == test.query_labels).double().mean())


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = LstmGenerator(Context(Stats()), outputs=2)
    hyperpriors = {
        "MTL (last epoch only)": Hyperprior(Constant(0.5), LastOnly()),
        "MTL+E3BM": Hyperprior(Generated([0.5] * EPOCHS), Generated(equal_values(EPOCHS)), generator),
    }
    for name, hyperprior in hyperpriors.items():
        torch.manual_seed(0)
        learner = MetaLearner(Mtl(ReadyFeatures(FEATURES), start="prototype"), hyperprior, EPOCHS)
        optimiser = torch.optim.Adam(learner.parameters(), 1e-2)
        for step in range(100):
            batch = tasks(16, seed=step)
            loss = meta_loss(learner(batch).scores, batch.query_labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            trace = learner(tasks(1, seed=7))
        print(f"{name}: {accuracy(learner):.1f} % on new tasks")
        for part, values in (("rates  ", trace.rates[0]), ("weights", trace.weights[0])):
            print(
                f"   {part} of epochs 1, {EPOCHS // 2}, {EPOCHS}: "
                + ", ".join(f"{float(values[m]):.3f}" for m in (0, EPOCHS // 2 - 1, -1))
            )


if __name__ == "__main__":
    main()

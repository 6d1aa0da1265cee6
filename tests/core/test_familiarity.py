"""Trust in the generator: whole inside the range of training tasks, less outside, and the fixed values far away."""

import pytest
import torch

from e3bm.core.context import Context, Stats
from e3bm.core.episode import TaskBatch
from e3bm.core.familiarity import Familiarity
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner
from e3bm.core.schedules import Generated, equal_values
from e3bm.methods import Mtl, ReadyFeatures

EPOCHS, RATE = 3, 0.1


def tasks(scale=1.0, count=40):
    draw = torch.Generator().manual_seed(3)
    examples = lambda each: scale * torch.randn(count, 3 * each, 6, generator=draw, dtype=torch.double)
    labels = lambda each: torch.arange(3).repeat_interleave(each).expand(count, -1).contiguous()
    return TaskBatch(examples(2), labels(2), examples(4), labels(4), 3)


def learner(kind, setting):
    torch.manual_seed(0)
    transductive = setting == "transductive"
    context = Context(Stats(transductive), transductive=transductive)
    generator = FcGenerator(context, EPOCHS, 2) if kind == "fc" else LstmGenerator(context, 2, hidden=4)
    familiarity = Familiarity(Stats(transductive).seen, [RATE] * EPOCHS, equal_values(EPOCHS))
    hyperprior = Hyperprior(
        Generated([2 * RATE] * EPOCHS), Generated([0.5] * EPOCHS), generator, familiarity=familiarity
    )
    for parameter in hyperprior.generator.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return MetaLearner(Mtl(ReadyFeatures(6), start="prototype"), hyperprior, EPOCHS).double().eval()


@pytest.mark.parametrize("kind", ["fc", "lstm"])
@pytest.mark.parametrize("setting", ["inductive", "transductive"])
def test_far_away_the_fixed_values_are_used(kind, setting):
    model = learner(kind, setting)
    familiarity = model.hyperprior.familiarity
    near, far = tasks(), tasks(1e5)
    with torch.no_grad():
        before = model(near)
        with familiarity.watching() as seen:
            model(near)
        familiarity.learn(torch.cat(seen))
        after, away = model(near), model(far)
    trust = familiarity(torch.cat(seen))
    inside = trust == 1
    assert 0.95 <= inside.double().mean() < 1
    torch.testing.assert_close(after.rates[inside], before.rates[inside])
    torch.testing.assert_close(after.weights[inside], before.weights[inside])
    assert (after.rates[~inside] - RATE).abs().sum() < (before.rates[~inside] - RATE).abs().sum()
    torch.testing.assert_close(away.rates, torch.full_like(away.rates, RATE), rtol=0, atol=0.1 * RATE)
    torch.testing.assert_close(away.weights, torch.full_like(away.weights, 1 / EPOCHS), rtol=0, atol=0.05)


def test_one_epoch_at_a_time_and_all_together_are_one():
    """Second order goes epoch by epoch, a frozen start sees all epochs at once."""
    model = learner("lstm", "inductive")
    batch = tasks()
    with torch.no_grad(), model.hyperprior.familiarity.watching() as seen:
        model(batch)
    model.hyperprior.familiarity.learn(0.3 * torch.cat(seen))
    with torch.no_grad():
        together = model(batch)
    epoch_by_epoch = model(batch)
    torch.testing.assert_close(together.rates, epoch_by_epoch.rates.detach())
    torch.testing.assert_close(together.scores, epoch_by_epoch.scores.detach())


def test_trust_does_not_depend_on_units():
    values = torch.randn(200, 3, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    mixing = torch.tensor([[2.0, 0, 0], [1, 30, 0], [0, 0.1, 5]], dtype=torch.double)
    found = []
    for seen in (values, values @ mixing + 7):
        familiarity = Familiarity(3, [RATE], [1.0]).double()
        familiarity.learn(seen)
        found.append(familiarity(seen))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)  # up to the ridge
    assert 0 < found[0].min() < 1


def test_before_it_has_learned_every_task_is_trusted():
    familiarity = Familiarity(2, [RATE], [1.0])
    assert familiarity(torch.tensor([[1e9, -1e9]])).tolist() == [1.0]


def test_numbers_that_never_vary_are_no_trouble():
    familiarity = Familiarity(2, [RATE], [1.0]).double()
    seen = torch.stack([torch.linspace(0, 1, 50), torch.ones(50)], 1).double()
    familiarity.learn(seen)
    trust = familiarity(torch.tensor([[0.5, 1.0], [0.5, 2.0]], dtype=torch.double))
    assert trust[0] == 1
    assert trust[1] < 1e-3

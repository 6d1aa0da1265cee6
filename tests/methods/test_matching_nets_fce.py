import pytest
import torch
from tests.methods.feature_tasks import (
    FEATURES,
    check_gradients,
    check_order_has_no_meaning,
    check_padding_has_no_influence,
    check_tasks_are_alone,
    close,
    task_batch,
    uneven,
)

from e3bm.core.context import ClassMean, Context, Stats
from e3bm.core.hyperprior import FcGenerator, Hyperprior, LstmGenerator
from e3bm.core.learner import MetaLearner, meta_loss
from e3bm.core.schedules import Constant, Generated, LastOnly
from e3bm.errors import SettingsError
from e3bm.methods import ReadyFeatures
from e3bm.methods.matching_nets import MatchingNets
from e3bm.methods.matching_nets_fce import MatchingNetsFce, order_of_bits

READS = 3


def learner(hyperprior=None, **options):
    torch.manual_seed(0)
    model = MatchingNetsFce(ReadyFeatures(FEATURES), **options)
    return MetaLearner(model, hyperprior or Hyperprior(Constant(1.0), LastOnly()), READS).double()


def test_without_weights_it_is_the_simple_form():
    model, batch = learner(), uneven(task_batch())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    close(model(batch).scores, MatchingNets(ReadyFeatures(FEATURES)).double()(batch).scores)


def test_reads_by_hand():
    """One query of one task, with torch's own bidirectional LSTM for g."""
    model, batch = learner(shuffled=False), task_batch(tasks=1)
    method = model.method
    lstm = torch.nn.LSTM(FEATURES, FEATURES, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(lstm, f"{kind}_l0").copy_(getattr(method.onwards, kind))
            getattr(lstm, f"{kind}_l0_reverse").copy_(getattr(method.backwards, kind))
        states, _ = lstm(batch.support)
        context = (batch.support + states[..., :FEATURES] + states[..., FEATURES:])[0]
        query = batch.query[0, 1]
        hidden = cell = torch.zeros(FEATURES, dtype=torch.float64)
        for _ in range(READS):
            read = (context @ hidden).softmax(0) @ context
            hidden, cell = (
                part[0] for part in method.reader(torch.cat([query, read])[None], (hidden[None], cell[None]))
            )
            hidden = hidden + query
        cosines = torch.nn.functional.cosine_similarity(context, hidden[None])
        attention = (10 * cosines).softmax(0)
        expected = torch.stack([attention[batch.support_labels[0] == way].sum() for way in range(batch.ways)])
        close(model(batch).scores[0, 1].exp(), expected)


def test_order_tasks_and_padding():
    scores = lambda batch: learner()(batch).scores
    check_order_has_no_meaning(scores, uneven(task_batch()))
    check_tasks_are_alone(scores, uneven(task_batch()))


def test_padding_in_the_middle_of_a_sequence():
    check_padding_has_no_influence(lambda batch: learner(shuffled=False)(batch).scores, task_batch())
    check_padding_has_no_influence(lambda batch: learner()(batch).scores, task_batch())


def test_the_order_of_reading_matters_unless_it_is_shuffled():
    batch = task_batch()
    with pytest.raises(AssertionError):
        check_order_has_no_meaning(lambda tasks: learner(shuffled=False)(tasks).scores, batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_order_is_a_permutation_that_knows_nothing_of_classes(dtype):
    batch = task_batch(tasks=200, ways=2, shots=2)
    mask = torch.ones(200, 4, dtype=torch.bool)
    order = order_of_bits(batch.support.to(dtype), mask)
    assert torch.equal(order.sort(1).values, torch.arange(4).expand(200, -1))
    first = batch.support_labels.gather(1, order)[:, 0]
    assert 70 < int(first.sum()) < 130  # a fair coin leaves this in one of 40,000 draws; the draw is fixed
    mask[:, 1] = False
    assert torch.equal(order_of_bits(batch.support.to(dtype), mask)[:, -1], torch.ones(200, dtype=torch.long))


def test_gradients():
    """In the order given: finite differences change bits, and so the shuffled order."""
    check_gradients(learner(shuffled=False, learned_scale=True), uneven(task_batch()), fast=True)


def test_a_hyperprior_may_choose_rates_and_votes():
    generator = LstmGenerator(Context(Stats(transductive=True)), 2, hidden=2)
    model = learner(Hyperprior(Generated([1.0] * READS), Generated([0.2, 0.3, 0.5]), generator))
    batch = task_batch()
    trace = model(batch)
    meta_loss(trace.scores, batch.query_labels).backward()
    assert float(model.hyperprior.rate.values.grad.abs().min()) > 0
    assert float(model.hyperprior.weight.values.grad.abs().min()) > 0
    # Before the first read all embeddings are zero: every class has the same score.
    close(trace.losses[:, 0].exp(), torch.full((2,), 3.0, dtype=torch.float64))


def test_there_is_no_gradient_to_see():
    generator = FcGenerator(Context(ClassMean(FEATURES)), READS, 1)
    model = learner(Hyperprior(Generated([1.0] * READS), LastOnly(), generator))
    with pytest.raises(SettingsError, match="no gradient that a hyperprior could see; use the summary 'stats'"):
        model(task_batch())

import torch

from e3bm.core.episode import TaskBatch
from e3bm.core.learner import DirectLearner
from e3bm.methods.attention import AttentionHead
from e3bm.methods.base import ReadyFeatures


def batch(generator: torch.Generator, mask: torch.Tensor | None = None) -> TaskBatch:
    support = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
    query = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[0, 0, 1, 1, 2, 2]] * 2)
    return TaskBatch(support, labels, query, None, 3, mask)


def test_probabilities_are_attention_summed_by_class():
    tasks = batch(torch.Generator().manual_seed(0))
    scores = AttentionHead(ReadyFeatures(4), scale=3.0)(tasks).scores
    for task in range(2):
        for number in range(3):
            query = tasks.query[task, number]
            cosines = torch.nn.functional.cosine_similarity(tasks.support[task], query.unsqueeze(0))
            attention = (3.0 * cosines).softmax(0)
            expected = torch.stack([attention[tasks.support_labels[task] == way].sum() for way in range(3)])
            torch.testing.assert_close(scores[task, number].exp(), expected, rtol=0, atol=1e-12)


def test_padding_gets_no_attention():
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 1] = False
    tasks = batch(torch.Generator().manual_seed(1), mask)
    moved = TaskBatch(tasks.support.clone(), tasks.support_labels, tasks.query, None, 3, mask)
    moved.support[:, 1] += 5.0
    head = AttentionHead(ReadyFeatures(4))
    torch.testing.assert_close(head(tasks).scores, head(moved).scores, rtol=0, atol=0)
    torch.testing.assert_close(head(tasks).scores.exp().sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_it_answers_like_every_other_model():
    trace = DirectLearner(AttentionHead(ReadyFeatures(4)))(batch(torch.Generator().manual_seed(2)), every_epoch=True)
    assert trace.scores.shape == (2, 3, 3)

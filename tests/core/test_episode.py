"""Records of episodes: what they hold, and what they refuse."""

import pytest
import torch
from jaxtyping import config

from e3bm.core.episode import EpisodeIndex, EpisodeSpec, TaskBatch
from e3bm.errors import DataError, E3BMError, SettingsError

WAYS = 3


@pytest.fixture(autouse=True)
def _what_users_see():
    """Users run without shape checks: they must meet our sentences."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def parts(**changes):
    given = {
        "support": torch.randn(2, 4, 5),
        "support_labels": torch.tensor([[0, 1, 2, 0], [2, 1, 0, 1]]),
        "query": torch.randn(2, 3, 5),
        "query_labels": torch.tensor([[0, 1, 2], [0, 0, 1]]),
        "ways": WAYS,
    }
    return given | changes


def broken(tensor, value):
    tensor.view(-1)[3] = value
    return tensor


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"support_labels": torch.tensor([[0, 1, 2, 3], [2, 1, 0, 1]])}, "support.*0..2 for 3 ways; found 0..3"),
        ({"support_labels": torch.tensor([[0, 1, 2, -1], [2, 1, 0, 1]])}, "support.*0..2 for 3 ways; found -1..2"),
        ({"query_labels": torch.tensor([[0, 1, 7], [0, 0, 1]])}, "query.*0..2 for 3 ways; found 0..7"),
        ({"query_labels": torch.tensor([[0, 1], [0, 0]])}, r"query has \(2, 3\) examples but labels of shape \(2, 2\)"),
        ({"support_labels": torch.zeros(2, 4)}, "support labels must be 64-bit integers, found torch.float32"),
        ({"support_labels": torch.zeros(2, 4, dtype=torch.long)}, "Task 0 has no support example of class 1"),
        ({"support": torch.randn(4, 5)}, r"must be \[tasks, examples, ...features or image\]; found shapes \(4, 5\)"),
        ({"query": torch.randn(2, 3, 6)}, r"in feature shape; found \(2, 4, 5\) and \(2, 3, 6\)"),
        ({"query": torch.randn(1, 3, 5)}, "must agree in the number of tasks and in feature shape"),
        ({"support_mask": torch.ones(2, 3, dtype=torch.bool)},
         r"support mask has shape \(2, 3\), but the labels have \(2, 4\)"),
        ({"support_classes": torch.zeros(2, 3).long()}, r"support has.*class numbers of shape \(2, 3\)"),
        ({"query_classes": torch.zeros(2, 3)}, "query class numbers must be 64-bit integers, found torch.float32"),
        ({"query_classes": torch.full((2, 3), -1)}, "query class numbers must count from 0, found -1"),
        ({"support": broken(torch.randn(2, 4, 5), float("nan"))}, "support holds NaN or infinite numbers"),
        ({"query": broken(torch.randn(2, 3, 5), float("inf"))}, "query holds NaN or infinite numbers"),
        ({"query": broken(torch.randn(2, 3, 5), float("-inf"))}, "query holds NaN or infinite numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_refused(changes, sentence):
    with pytest.raises(DataError, match=sentence):
        TaskBatch(**parts(**changes))


def test_large_but_finite_numbers_are_accepted():
    """Their sum overflows; they do not."""
    TaskBatch(**parts(support=torch.full((2, 4, 5), 3e38)))


def test_a_class_whose_only_example_is_padding_is_refused():
    mask = torch.tensor([[True, True, False, True], [True] * 4])
    with pytest.raises(DataError, match="Task 0 has no support example of class 2; every class needs one or more"):
        TaskBatch(**parts(support_mask=mask))


def test_a_batch_knows_its_size_and_its_real_examples():
    batch = TaskBatch(**parts())
    assert len(batch) == 2
    assert bool(batch.mask.all())
    assert TaskBatch(**parts(query_labels=None)).query_labels is None


def test_a_part_of_a_batch():
    mask = torch.tensor([[True, True, True, False], [True] * 4])
    batch = TaskBatch(**parts(support_mask=mask))
    second = batch.tasks(1, 2)
    assert len(second) == 1
    assert torch.equal(second.support, batch.support[1:])
    assert torch.equal(second.query_labels, batch.query_labels[1:])
    assert torch.equal(batch.tasks(0, 1).mask, mask[:1])
    assert TaskBatch(**parts(query_labels=None)).tasks(0, 1).query_labels is None
    assert second.support_classes is None
    assert second.query_classes is None
    numbered = TaskBatch(**parts(support_classes=torch.arange(8).view(2, 4), query_classes=torch.arange(6).view(2, 3)))
    assert numbered.tasks(1, 2).support_classes.tolist() == [[4, 5, 6, 7]]
    assert numbered.tasks(1, 2).query_classes.tolist() == [[3, 4, 5]]


def test_every_tensor_moves_with_the_batch():
    numbers = {"support_classes": torch.zeros(2, 4).long(), "query_classes": torch.zeros(2, 3).long()}
    moved = TaskBatch(**parts(support_mask=torch.ones(2, 4).bool(), **numbers)).to(torch.device("cpu"))
    assert all(torch.is_tensor(values) for name, values in vars(moved).items() if name != "ways")
    assert moved.ways == WAYS


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"ways": 1}, "at least 2 ways, found 1"),
        ({"shots": 0}, "Shots must be 1 or more"),
        ({"shots": (3, 2)}, r"range \(low, high\) with low <= high; found \(3, 2\)"),
        ({"queries": 0}, "at least 1 query per class, found 0"),
        ({"query_shares": 0}, "a whole number a of 1 or more, found 0"),
    ],
)
def test_impossible_episodes_are_refused(spec, sentence):
    with pytest.raises(SettingsError, match=sentence):
        EpisodeSpec(**spec)


def test_the_smallest_episode():
    spec = EpisodeSpec(ways=2, shots=1, queries=1, query_shares=1)
    assert spec.most_queries == 2  # all may be of one class
    assert EpisodeSpec(ways=2, queries=1).most_queries == 1


def test_shots_are_a_number_or_a_range():
    assert EpisodeSpec(shots=5).shot_range == (5, 5)
    assert EpisodeSpec(shots=(1, 4)).shot_range == (1, 4)


def test_an_index_counts_its_ways():
    assert EpisodeIndex((7, 3), (0, 1), (0, 1), (2, 3), (0, 1)).ways == 2


def test_both_kinds_of_error_are_one_family():
    assert issubclass(DataError, E3BMError)
    assert issubclass(SettingsError, E3BMError)

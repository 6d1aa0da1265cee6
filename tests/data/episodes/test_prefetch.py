"""Working ahead changes neither the items, nor their order, nor their errors, and ends when it is left."""

import gc
import itertools
import threading
from collections.abc import Iterator

import pytest

from e3bm.data.episodes.loader import prefetched


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("depth", [0, 1, 3, 100])
def test_the_items_are_the_same(depth: int) -> None:
    assert list(prefetched(range(50), depth)) == list(range(50))
    assert list(prefetched([], depth)) == []
    assert not workers()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_comes_after_the_items_before_it(depth: int) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise KeyError("broken image")

    seen = []
    with pytest.raises(KeyError, match="broken image"):
        seen.extend(prefetched(items(), depth))
    loop = prefetched(items(), depth)
    assert [next(loop), next(loop), next(loop)] == [0, 1, 2]
    with pytest.raises(KeyError, match="broken image"):
        next(loop)
    assert not workers()


def test_no_more_than_the_depth_is_made_ahead() -> None:
    made: list[int] = []
    asked_for_more = threading.Event()

    def items() -> Iterator[int]:
        for number in itertools.count():
            if number == 5:  # one taken, three ready, one waiting for a place: the next is only made after another take
                asked_for_more.set()
            made.append(number)
            yield number

    loop = prefetched(items(), 3)
    assert next(loop) == 0
    assert not asked_for_more.wait(0.3)
    assert len(made) <= 5
    assert next(loop) == 1
    assert asked_for_more.wait(120)
    loop.close()  # type: ignore[attr-defined]
    assert not workers()


def test_leaving_early_ends_the_thread() -> None:
    for number in prefetched(itertools.count(), 2):
        if number == 3:
            break
    gc.collect()
    assert not workers()
    loop = prefetched(itertools.count(), 2)
    next(loop)
    assert len(workers()) == 1
    del loop
    gc.collect()
    assert not workers()


def test_an_error_in_the_loop_ends_the_thread() -> None:
    def use() -> None:
        for number in prefetched(itertools.count(), 2):
            if number == 3:
                raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        use()
    gc.collect()
    assert not workers()


def test_one_item_ahead_is_made_while_the_first_is_used() -> None:
    second = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        second.set()
        yield 1

    loop = prefetched(items(), 1)
    assert next(loop) == 0
    assert second.wait(120)  # nobody has asked for it yet
    assert list(loop) == [1]

"""Work ahead: the next items are made in a background thread while the present one is used."""

import threading
from collections.abc import Iterable, Iterator
from queue import Empty, Full, Queue
from typing import TypeVar

Item = TypeVar("Item")

STOP_CHECK_SECONDS = 0.1


def prefetched(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """The same items in the same order, up to ``depth`` of them made ahead; 0 makes each when it is asked for.

    An error in the making is raised here, after the items before it. Leaving early stops the thread.
    """
    if depth < 1:
        yield from items
        return
    ready: Queue[tuple[bool, Item | BaseException | None]] = Queue(maxsize=depth)
    stopped = threading.Event()

    def put(entry: tuple[bool, Item | BaseException | None]) -> None:
        while not stopped.is_set():
            try:
                return ready.put(entry, timeout=STOP_CHECK_SECONDS)
            except Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put((True, item))
                if stopped.is_set():
                    return
            put((False, None))
        except BaseException as error:
            put((False, error))

    worker = threading.Thread(target=work, name="prefetch", daemon=True)
    worker.start()
    try:
        while True:
            more, entry = ready.get()
            if more:
                yield entry  # type: ignore[misc]
            elif isinstance(entry, BaseException):
                raise entry
            else:
                return
    finally:
        stopped.set()
        try:  # make room, so that a waiting worker sees the event at once
            while True:
                ready.get_nowait()
        except Empty:
            worker.join()

"""Where the work is done: a thread beside the one that talks to clients, and a limit to waiting for them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from e3bm.serving.refusals import busy

Result = TypeVar("Result")


class Lane:
    """Runs one kind of work, a piece at a time; how many wait for it is bounded by the gate."""

    def __init__(self, name: str, timeout: float) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"e3bm-{name}")
        self._timeout = timeout

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result, or a refusal when it takes too long; work that has not begun by then never begins."""
        future = self._threads.submit(work)
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise busy(f"The work took longer than {self._timeout:g} seconds; try again with fewer photos.") from None

    def close(self) -> None:
        """Work that has begun is finished, the rest dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

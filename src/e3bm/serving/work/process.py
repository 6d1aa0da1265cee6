"""A process that does one piece of work at a time, and is ended where a piece takes too long or nobody wants it.

A thread cannot be stopped; a process can, and what was refused then never takes effect. It is forked from a process
that has imported once what all need (multiprocessing's `forkserver`), so that the next one starts quickly. Torch is not
among that: it is imported by the first fit, and by photos only where their network needs it.
"""

import asyncio
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from e3bm.errors import E3BMError, SettingsError
from e3bm.serving.exchange import RequestError

KEPT_VALUES = 4
TOLD_EVERY = 0.2
"""Seconds between two reports of how far a piece of work is."""
LAST_SECONDS = 2.0
"""How long an idle process may take to end by itself when the server stops."""
OUT_OF_MEMORY = "The work was ended by the system, perhaps for lack of memory; try again with fewer or smaller photos."
CONTEXT: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
Result = TypeVar("Result")
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Shared(Generic[Value]):
    """An argument that many pieces of work have in common: it is sent once, and kept by the process."""

    value: Value


@dataclass(frozen=True)
class Told:
    """How far a piece of work is."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class _Reference:
    """Stands for a shared value that the process has."""

    number: int


@dataclass(frozen=True)
class _Piece:
    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    new_values: dict[int, Any]
    dropped: tuple[int, ...]
    tells: bool


@dataclass(frozen=True)
class _Finished:
    result: Any


@dataclass(frozen=True)
class _Failed:
    error: Exception


@dataclass(frozen=True)
class _Defect:
    trace: str


class WorkDefect(Exception):
    """A defect of ours inside of a work process, with the trace from there."""


class Stopped(Exception):
    """The process was ended because nobody wanted its work any more."""


class WorkProcess:
    """Runs functions in another process, one at a time; how many may wait is bounded by RequestLimits."""

    def __init__(self, name: str, timeout: float) -> None:
        self._name, self._timeout = name, timeout
        self._turn = asyncio.Lock()
        self._guard = threading.Lock()
        self._process: Any = None
        self._line: Connection | None = None
        self._values: OrderedDict[int, Any] = OrderedDict()
        self._last_number = 0
        self._sent = self._stopping = self._killed = self._closed = False

    async def run(
        self,
        work: Callable[..., Result],
        *arguments: Any,
        timeout: float | None = None,
        tell: Callable[[Told], None] | None = None,
    ) -> Result:
        """What ``work`` gives; where it takes too long or the caller is cancelled, it is ended.

        With ``tell``, the function gets a Progress as its last argument, and ``tell`` is called with what that hears.
        """
        limit = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit), self._turn:
                return await self._one(work, arguments, tell)
        except TimeoutError:
            raise RequestError(
                503, f"The work took longer than {limit:g} seconds and was ended; try again with fewer photos."
            ) from None

    def close(self) -> None:
        """End the process, whatever it does; one that does nothing ends by itself, and leaves nothing behind."""
        self._closed = True
        with self._guard:
            idle = None if self._sent or self._killed or self._line is None else self._process
            if idle is not None:
                assert self._line is not None
                self._line.close()
        if idle is not None:
            idle.join(LAST_SECONDS)
        self._end()

    async def _one(
        self, work: Callable[..., Result], arguments: tuple[Any, ...], tell: Callable[[Told], None] | None
    ) -> Result:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Result] = loop.create_future()
        self._stopping = False

        def exchange() -> None:
            try:
                result = self._exchange(work, arguments, None if tell is None else lambda told: later(tell, told))
            except BaseException as error:
                later(_settle, found, error, None)
            else:
                later(_settle, found, None, result)

        def later(function: Callable[..., None], *values: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(function, *values)

        # Not a pool: its threads would be waited for at the end of the program.
        threading.Thread(target=exchange, name=f"e3bm-{self._name}", daemon=True).start()
        try:
            return await asyncio.shield(found)
        except asyncio.CancelledError:
            self._end()
            await asyncio.wait([found])  # until the thread has seen the end, which is at once
            found.exception()
            raise

    def _end(self) -> None:
        """End the piece at hand; a process that is still starting has none, and serves the next."""
        with self._guard:
            self._stopping = True
            if self._process is not None and (self._sent or self._closed):
                self._process.kill()
                self._killed = True  # it may seem alive for a moment

    def _exchange(
        self, work: Callable[..., Any], arguments: tuple[Any, ...], tell: Callable[[Told], None] | None
    ) -> Any:
        """Send a piece and wait for its answer; this happens in a thread."""
        line = self._open_line()
        with self._guard:
            if self._stopping:
                raise Stopped
            self._sent = True
        try:
            line.send_bytes(self._packed(work, arguments, tell is not None))
            while True:
                answer = pickle.loads(line.recv_bytes())
                if isinstance(answer, Told):
                    assert tell is not None
                    tell(answer)
                elif isinstance(answer, _Finished):
                    return answer.result
                elif isinstance(answer, _Failed):
                    raise answer.error
                else:
                    raise WorkDefect(answer.trace)
        except (EOFError, OSError):
            self._forget_process()
            if self._stopping or self._closed:
                raise Stopped from None
            raise RequestError(503, OUT_OF_MEMORY) from None
        finally:
            self._sent = False

    def _open_line(self) -> Connection:
        if self._line is not None and not self._killed and self._process.is_alive():
            return self._line
        self._forget_process()
        load_before_forking()
        ours: Connection
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(
            target=_work_until_the_end, args=(theirs, _torch_threads()), name=f"e3bm-{self._name}", daemon=True
        )
        process.start()
        theirs.close()
        with self._guard:
            self._process, self._line = process, ours
            if self._closed:
                process.kill()
        return ours

    def _forget_process(self) -> None:
        with self._guard:
            process, line = self._process, self._line
            self._process = self._line = None
            self._killed = False
        self._values.clear()
        if line is not None:
            line.close()
        if process is not None:
            process.kill()
            process.join()
            process.close()

    def _packed(self, work: Callable[..., Any], arguments: tuple[Any, ...], tells: bool) -> bytes:
        """The piece as bytes; a shared value goes along the first time only."""
        new_values: dict[int, Any] = {}

        def sent(argument: Any) -> Any:
            if not isinstance(argument, Shared):
                return argument
            for number, value in self._values.items():
                if value is argument.value:
                    self._values.move_to_end(number)
                    return _Reference(number)
            self._last_number += 1
            self._values[self._last_number] = new_values[self._last_number] = argument.value
            return _Reference(self._last_number)

        references = tuple(map(sent, arguments))
        dropped = [self._values.popitem(last=False)[0] for _ in range(max(0, len(self._values) - KEPT_VALUES))]
        try:
            return pickled(_Piece(work, references, new_values, tuple(dropped), tells))
        except SettingsError:
            for number in new_values:
                self._values.pop(number, None)
            raise


def pickled(value: object) -> bytes:
    """A value as another process can take it; SettingsError where it cannot be sent, as a network of a local class."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SettingsError(
            f"The network cannot be sent to the process that works with it ({error}); "
            "define its class at the top of a module, and keep nothing in it that cannot be pickled."
        ) from None


class LineProgress:
    """Progress that is sent to whoever asked for the work."""

    def __init__(self, line: Connection) -> None:
        self._line, self._title, self._total, self._last = line, "", 0, 0.0

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self._title, self._total = title, total
        self._send(done)

    def advance(self, done: int, **numbers: float) -> None:
        if time.monotonic() - self._last >= TOLD_EVERY:
            self._send(done)

    def end(self) -> None: ...

    def say(self, sentence: str) -> None: ...

    def _send(self, done: int) -> None:
        self._last = time.monotonic()
        self._line.send_bytes(pickled(Told(self._title, done, self._total)))


def _settle(found: "asyncio.Future[Any]", error: BaseException | None, result: Any) -> None:
    if not found.done():
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(result)


def load_before_forking() -> None:
    """Let the process that forks the others import what they need; it never computes, so that a fork is safe."""
    if sys.platform != "win32":
        # A server whose network is one of torch has imported it already; its processes will need it at once.
        heavy = ["torch"] if "torch" in sys.modules else []
        CONTEXT.set_forkserver_preload([__name__, "e3bm.serving.work.photos", "e3bm.serving.work.models", *heavy])


def nothing() -> None:
    """The smallest piece of work: what a process needs has been imported once it is done."""


def _torch_threads() -> int | None:
    """How many threads torch was told to use here; None where nobody has imported it."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _work_until_the_end(line: Connection, threads: int | None) -> None:
    """What the process does: pieces of work, until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # onnxruntime's number, and torch's where it comes later
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    values: dict[int, Any] = {}
    while True:
        try:
            content = line.recv_bytes()
        except (EOFError, OSError):
            return
        answer = _answer(content, values, line)
        try:
            packed = pickled(answer)
        except SettingsError:
            packed = pickled(_Defect(f"what the work gave cannot be sent back: {answer!r:.200}"))
        line.send_bytes(packed)


def _answer(content: bytes, values: dict[int, Any], line: Connection) -> "_Finished | _Failed | _Defect":
    try:
        piece: _Piece = pickle.loads(content)
    except Exception as error:
        return _Failed(
            SettingsError(
                f"The network cannot be used in a process of its own ({error}); define its class in a module that "
                "can be imported there."
            )
        )
    for number in piece.dropped:
        values.pop(number, None)
    values.update(piece.new_values)
    arguments = [values[one.number] if isinstance(one, _Reference) else one for one in piece.arguments]
    if piece.tells:
        arguments.append(LineProgress(line))
    try:
        return _Finished(piece.work(*arguments))
    except (E3BMError, RequestError) as error:
        return _Failed(error)
    except MemoryError:
        return _Failed(RequestError(503, OUT_OF_MEMORY))
    except Exception:
        return _Defect(traceback.format_exc())


def _end_with_parent() -> None:
    """A parent that was killed cannot end its processes: each watches for itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

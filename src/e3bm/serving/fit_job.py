"""Fits as jobs: one is made at a time, beside the requests, and can be watched and cancelled.

Predictions are answered by the last fit until the new one takes its place, which happens once, at the end.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from e3bm.errors import E3BMError
from e3bm.serving.errors import DEFECT
from e3bm.serving.exchange import RequestError
from e3bm.serving.kept.workspace import Fit, FitPlan, Workspace
from e3bm.serving.work.models import fit_features
from e3bm.serving.work.process import Stopped, Told, WorkProcess

LOG = logging.getLogger("e3bm.serving")
State = Literal["running", "done", "failed", "cancelled"]
Result = TypeVar("Result")


@dataclass(eq=False)
class FitJob:
    """One fit on its way."""

    number: int
    plan: FitPlan
    state: State = "running"
    told: Told = field(default_factory=lambda: Told("fitting", 0, 0))
    error: Exception | None = None
    fit: Fit | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def sentence(self) -> str | None:
        """What went wrong, in one sentence."""
        if self.error is None:
            return None
        if isinstance(self.error, RequestError):
            return self.error.detail
        return str(self.error) if isinstance(self.error, E3BMError) else DEFECT


class FitJobs:
    """The fit that runs, or the last one; all of it happens on the event loop."""

    def __init__(self, workspace: Workspace, work: WorkProcess, timeout: float) -> None:
        self._workspace, self._work, self._timeout = workspace, work, timeout
        self._task: asyncio.Task[None] | None = None
        self._last: FitJob | None = None

    async def start(self) -> FitJob:
        """Begin a fit to the photos as they are now; one that runs is joined if it is of these, and else ended."""
        plan, running = self._workspace.plan_fit(), self.running
        if running is not None:
            if running.plan.photos == plan.photos:
                return running
            await self.close()
        job = FitJob(1 if self._last is None else self._last.number + 1, plan)
        self._last, self._task = job, asyncio.create_task(self._make(job))
        return job

    def last(self) -> FitJob:
        """The fit that runs, or else the last one."""
        if self._last is None:
            raise RequestError(404, "No fit was asked for since the server was started.")
        return self._last

    async def cancel(self) -> None:
        """End the fit that runs; it leaves nothing behind."""
        if self.running is None:
            raise RequestError(409, "No fit is running.")
        await self.close()

    async def close(self) -> None:
        """End whatever runs."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _make(self, job: FitJob) -> None:
        try:
            plan = job.plan
            fitted = await self._work.run(
                fit_features, plan.features, plan.options, plan.prior_path, timeout=self._timeout, tell=_noting(job)
            )
            job.fit = await finished(asyncio.to_thread(self._workspace.accept_fit, plan, fitted))
            job.state = "done"
        except asyncio.CancelledError:
            job.state = "cancelled"
        except (E3BMError, RequestError, Stopped) as error:
            job.state, job.error = "failed", error
        except Exception as error:
            LOG.exception("a fit failed")
            job.state, job.error = "failed", error
        finally:
            job.ended.set()

    @property
    def running(self) -> FitJob | None:
        """The fit that is being made."""
        return self._last if self._last is not None and self._last.state == "running" else None


async def finished(change: Coroutine[Any, Any, Result]) -> Result:
    """The result of a change that has begun: it takes effect, and whoever wanted to stop it came too late."""
    begun = asyncio.ensure_future(change)
    try:
        return await asyncio.shield(begun)
    except asyncio.CancelledError:
        return await begun


def _noting(job: FitJob) -> Callable[[Told], None]:
    def note(told: Told) -> None:
        job.told = told

    return note

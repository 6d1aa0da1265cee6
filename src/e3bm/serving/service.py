"""What the routes work with: settings, workspace, metrics, and the processes in which the work is done."""

import asyncio

from e3bm.serving.exchange import RequestError
from e3bm.serving.fit_job import FitJobs
from e3bm.serving.kept.journal import Journal, keep_workspace
from e3bm.serving.kept.workspace import Fit, Workspace
from e3bm.serving.metrics import Metrics
from e3bm.serving.settings import ServeSettings
from e3bm.serving.work.photos import PixelLimits
from e3bm.serving.work.process import WorkProcess, nothing, pickled


class Service:
    """One workspace and what is needed to work on it; photos are read in one process and fits made in another."""

    def __init__(self, settings: ServeSettings, workspace: Workspace) -> None:
        self.settings, self.workspace, self.metrics = settings, workspace, Metrics()
        pickled(workspace.initial.extractor)  # said at the start, not at the first photo
        self._journal: Journal | None = None if settings.keep is None else keep_workspace(workspace, settings.keep)
        self.pixels = PixelLimits(settings.most_pixels, settings.most_pixels_together)
        self.photo_work = WorkProcess("photos", settings.timeout)
        self.fit_work = WorkProcess("fits", settings.fit_timeout)
        self.fits = FitJobs(workspace, self.fit_work, settings.fit_timeout)
        self._warming: list[asyncio.Task[None]] = []

    def warm_up(self) -> None:
        """Start the process for photos now: the first request need not wait for it. A fit waits for torch anyway."""
        self._warming.append(asyncio.create_task(self.photo_work.run(nothing)))

    def last_fit(self) -> Fit:
        """The last fit; an error where there is none."""
        found = self.workspace.snapshot.fit
        if found is None:
            raise RequestError(409, "There is no classifier yet; fit it first or open a model.")
        return found

    async def close(self) -> None:
        """End the work, whatever it is: those who asked for it have had their time."""
        await self.fits.close()
        self.photo_work.close()
        self.fit_work.close()
        await asyncio.gather(*self._warming, return_exceptions=True)
        if self._journal is not None:
            self._journal.close()

"""What the routes work with: settings, workspace, metrics, and the threads in which the work is done."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.model_file import parse_origin, read_model
from e3bm.serving.errors import RequestError, busy_error
from e3bm.serving.metrics import Metrics
from e3bm.serving.settings import ServeSettings
from e3bm.serving.uploads import Upload
from e3bm.serving.workspace import Fit, Workspace

SELF_CONTAINED = ("package", "run")
"""Kinds of backbones that need nothing but what is installed or inside of the model file."""
Result = TypeVar("Result")


class WorkThread:
    """Runs one kind of work, a piece at a time, beside the thread that talks to clients.

    How many pieces wait for it is bounded by RequestLimits.
    """

    def __init__(self, name: str, timeout: float) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"e3bm-{name}")
        self._timeout = timeout

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result, or an error when it takes too long; work that has not begun by then never begins."""
        future = self._threads.submit(work)
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise busy_error(
                f"The work took longer than {self._timeout:g} seconds; try again with fewer photos."
            ) from None

    def close(self) -> None:
        """Finish work that has begun and drop the rest."""
        self._threads.shutdown(wait=True, cancel_futures=True)


class Service:
    """One workspace and what is needed to work on it; photos are read in one thread and fits made in another."""

    def __init__(self, settings: ServeSettings, workspace: Workspace) -> None:
        self.settings, self.workspace, self.metrics = settings, workspace, Metrics()
        self.photo_work = WorkThread("photos", settings.timeout)
        self.fit_work = WorkThread("fits", settings.timeout)

    def last_fit(self) -> Fit:
        """The last fit; an error where there is none."""
        found = self.workspace.snapshot.fit
        if found is None:
            raise RequestError(409, "There is no classifier yet; fit it first or open a model.")
        return found

    def load_upload(self, upload: Upload) -> FewShotClassifier:
        """The classifier in an uploaded file; its backbone is one in use here, installed, or in the file itself.

        A file can also name a model of a hub, which may be any folder of this machine: no request decides that.
        """
        initial, path = self.workspace.initial, Path(upload.name)
        about, _ = read_model(path, upload.content)
        origin, _, _ = parse_origin(path, about)
        in_use = (initial.extractor, self.workspace.snapshot.unfitted.extractor)
        backbone = next((one for one in in_use if one.origin.digest == origin.digest), None)
        if backbone is None and origin.kind not in SELF_CONTAINED:
            raise RequestError(
                422,
                f"{upload.name} was made with the backbone '{origin.name}', which is not this server's; "
                "start the server with that model.",
            )
        return FewShotClassifier.from_bytes(
            upload.content, name=upload.name, backbone=backbone, prior=initial.prior_path
        )

    def close(self) -> None:
        """Finish the work that has begun."""
        self.photo_work.close()
        self.fit_work.close()

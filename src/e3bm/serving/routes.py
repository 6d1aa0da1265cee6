"""The routes of the API, and the workspace as the records that they send."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from e3bm.serving.fit_job import FitJob, finished
from e3bm.serving.gate.forms import form_schema, read_form
from e3bm.serving.kept.workspace import Fit, KeptClass
from e3bm.serving.schemas import (
    AddedPhotos,
    ClassState,
    Doubt,
    FitState,
    Health,
    Limits,
    ModelState,
    NewClass,
    PredictionList,
    Problem,
    WorkspaceState,
)
from e3bm.serving.service import Service
from e3bm.serving.settings import ServeSettings
from e3bm.serving.work.models import file_of_model, open_model
from e3bm.serving.work.photos import HowToPredict, predict_uploads, upload_features
from e3bm.serving.work.process import Shared

Result = TypeVar("Result")
TOGETHER = {"type": "boolean", "default": False, "description": "use the photos together"}
COVERAGE = {"type": "number", "description": "ask for sets of classes that hold the right one in this share of cases"}
RECALL = {"type": "number", "description": "share of photos of the classes that should not be called unknown"}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "The request cannot be served as it is."},
    503: {"model": Problem, "description": "Busy; come back after the seconds in Retry-After."},
}
WAIT = 10.0
"""Seconds for which the request of a fit waits for its end, unless it says otherwise."""
FILE = {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}


def api_routes(service: Service) -> APIRouter:
    """All routes that answer with data."""
    router = APIRouter(responses=PROBLEMS)
    _state_routes(router, service)
    _class_routes(router, service)
    _model_routes(router, service)
    _fit_routes(router, service)
    return router


def _state_routes(router: APIRouter, service: Service) -> None:
    workspace = service.workspace

    @router.get("/health")
    async def health() -> Health:
        """Whether the server works."""
        return Health(fitted=workspace.snapshot.fit is not None)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Requests, errors, latency, requests in flight and memory, for Prometheus."""
        content, kind = service.metrics.exposition(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": kind})

    @router.get("/workspace")
    async def show() -> WorkspaceState:
        """Classes, photos by number, and the last fit."""
        return _workspace_state(service)

    @router.delete("/workspace", status_code=204)
    async def clear() -> None:
        """Forget everything."""
        await _changed(workspace.clear)


def _class_routes(router: APIRouter, service: Service) -> None:
    workspace, settings = service.workspace, service.settings

    @router.post("/classes", status_code=201)
    async def create_class(new: NewClass) -> ClassState:
        """Create a class without photos."""
        return _class_state(await _changed(workspace.create_class, new.name))

    @router.delete("/classes/{number}", status_code=204)
    async def forget_class(number: int) -> None:
        """Forget a class, its photos and the fit."""
        await _changed(workspace.forget_class, number)

    @router.post("/classes/{number}/photos", status_code=201, openapi_extra=form_schema("photos", many=True))
    async def add_photos(number: int, request: Request) -> AddedPhotos:
        """Add photos to a class; only their features are kept."""
        now = workspace.snapshot
        now.find(number)
        form = await read_form(request, "photos", settings.most_images)
        extractor = Shared(now.unfitted.extractor)
        rows = await service.photo_work.run(upload_features, extractor, form.files, settings)
        return AddedPhotos(photos=await _changed(workspace.add_photos, number, rows, now))

    @router.delete("/classes/{number}/photos/{photo}", status_code=204)
    async def remove_photo(number: int, photo: int) -> None:
        """Forget one photo, and the fit."""
        await _changed(workspace.remove_photo, number, photo)


def _model_routes(router: APIRouter, service: Service) -> None:
    workspace, settings = service.workspace, service.settings

    @router.post(
        "/predict", openapi_extra=form_schema("photos", many=True, together=TOGETHER, coverage=COVERAGE, recall=RECALL)
    )
    async def predict(request: Request) -> PredictionList:
        """What the last fit says of photos; ``together`` lets the photos of the request help one another."""
        now = service.last_fit()
        form = await read_form(request, "photos", settings.most_images)
        how = HowToPredict(form.flag("together"), form.share("coverage"), form.share("recall"))
        extractor = Shared(now.classifier.extractor)
        found = await service.photo_work.run(predict_uploads, extractor, Shared(now.asked), form.files, settings, how)
        note = None if how.coverage is None else now.asked.fitted.head.why_all_classes(how.coverage)
        return PredictionList(predictions=found, together=how.together, note=note)

    @router.get("/model", response_class=Response, responses=FILE)  # type: ignore[arg-type]  # a narrower dict
    async def download() -> Response:
        """The last fit as one .e3bm file."""
        model = service.last_fit().classifier
        content = await service.photo_work.run(file_of_model, Shared(model.extractor), model.fitted)
        headers = {"Content-Disposition": 'attachment; filename="model.e3bm"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    @router.put("/model", openapi_extra=form_schema("model", many=False))
    async def replace_model(request: Request) -> WorkspaceState:
        """Replace everything by a .e3bm file."""
        upload = (await read_form(request, "model", 1)).files[0]
        prior = workspace.initial.prior_path
        in_use = (workspace.initial.extractor, workspace.snapshot.unfitted.extractor)
        opened = await service.photo_work.run(open_model, upload, prior, *map(Shared, in_use))
        await _changed(workspace.open, opened.classifier(prior, *in_use), upload)
        return _workspace_state(service)


def _fit_routes(router: APIRouter, service: Service) -> None:
    fits, snapshot = service.fits, lambda: service.workspace.snapshot

    @router.post("/fit", responses={202: {"model": FitState, "description": "The fit goes on; ask GET /fit."}})
    async def fit(
        response: Response,
        wait: Annotated[float, Query(ge=0, le=service.settings.timeout)] = min(WAIT, service.settings.timeout),
    ) -> FitState:
        """Fit to the classes that have photos; answers when it is done, or after ``wait`` seconds."""
        job = await fits.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await job.ended.wait()
        if job.error is not None:
            raise job.error
        response.status_code = 202 if job.state == "running" else 200
        return _job_state(job, snapshot().version)

    @router.get("/fit")
    async def how_far() -> FitState:
        """The fit that is being made, or the last one."""
        return _job_state(fits.last(), snapshot().version)

    @router.delete("/fit", status_code=204)
    async def cancel() -> None:
        """End the fit that is being made; the last one stays."""
        await fits.cancel()


async def _changed(change: Callable[..., Result], *arguments: Any) -> Result:
    """Make a change in a thread, because it may be written to disk; once begun, it takes effect."""
    return await finished(asyncio.to_thread(change, *arguments))


def _job_state(job: FitJob, version: int) -> FitState:
    """What a page shows of a fit that is being made."""
    return FitState(
        id=job.number,
        state=job.state,
        stage=job.told.stage,
        done=job.told.done,
        total=job.told.total,
        error=job.sentence(),
        model=None if job.fit is None else _fit_state(job.fit, fresh=job.fit.version == version),
    )


def _workspace_state(service: Service) -> WorkspaceState:
    """Everything but the features."""
    workspace = service.workspace
    now = workspace.snapshot
    return WorkspaceState(
        token=workspace.token,
        backbone=now.unfitted.extractor.origin.name,
        together=now.fit is not None and now.fit.asked.can_use_together(),
        unchangeable=now.unchangeable,
        classes=tuple(map(_class_state, now.classes)),
        model=None if now.fit is None else _fit_state(now.fit, fresh=now.fit.version == now.version),
        fitting=service.fits.running is not None,
        limits=_limits(workspace.settings),
    )


def _class_state(kept: KeptClass) -> ClassState:
    """A class and the numbers of its photos."""
    return ClassState(id=kept.number, name=kept.name, photos=tuple(photo.number for photo in kept.photos))


def _fit_state(fit: Fit, *, fresh: bool) -> ModelState:
    """What a page shows of a fit."""
    model = fit.classifier
    return ModelState(
        classes=model.classes,
        rates=tuple(model.rates.tolist()),
        votes=tuple(model.votes.tolist()),
        left_out_accuracy=model.left_out_accuracy,
        doubts=_doubts(fit),
        fresh=fresh,
    )


def _doubts(fit: Fit) -> tuple[Doubt, ...]:
    fitted = fit.classifier.fitted
    if not fit.photos:
        return ()
    return tuple(
        Doubt(photo=fit.photos[one.position][0], looks_like=fitted.classes[one.looks_like], odds=one.odds)
        for one in fitted.head.suspicions
    )


def _limits(settings: ServeSettings) -> Limits:
    return Limits(
        upload_bytes=settings.most_upload,
        images=settings.most_images,
        pixels=settings.most_pixels,
        pixels_together=settings.most_pixels_together,
        photos=settings.most_photos,
        classes=settings.most_classes,
    )

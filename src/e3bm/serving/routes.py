"""The routes of the API."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from e3bm.serving.exchange import RequestError
from e3bm.serving.fit_job import finished
from e3bm.serving.gate.forms import form_fields, form_schema, read_form
from e3bm.serving.schemas import (
    AddedPhotos,
    ChosenViews,
    ClassState,
    FitState,
    Health,
    MovedPhoto,
    NewClass,
    PredictionList,
    Problem,
    WorkspaceState,
)
from e3bm.serving.service import Service
from e3bm.serving.states import answer_state, class_state, job_state, workspace_state
from e3bm.serving.work.models import file_of_model, onnx_of_model, open_model
from e3bm.serving.work.photos import HowToPredict, photos_to_keep, predict_uploads
from e3bm.serving.work.process import Shared

Result = TypeVar("Result")
TOGETHER = {"type": "boolean", "default": False, "description": "use the photos together"}
COVERAGE = {"type": "number", "description": "ask for sets of classes that hold the right one in this share of cases"}
RECALL = {"type": "number", "description": "share of photos of the classes that should not be called unknown"}
PICTURES = {"type": "boolean", "default": False, "description": "send a small picture of each photo with its answer"}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "The request cannot be served as it is."},
    503: {"model": Problem, "description": "Busy; come back after the seconds in Retry-After."},
}
WAIT = 10.0
"""Seconds for which the request of a fit waits for its end, unless it says otherwise."""
BINARY = {"schema": {"type": "string", "format": "binary"}}
FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": BINARY}}}
PICTURE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": BINARY}}}


def api_routes(service: Service) -> APIRouter:
    """All routes that answer with data."""
    router = APIRouter(responses=PROBLEMS, dependencies=[Depends(_refuse_unknown_parameters)])
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
        return workspace_state(service)

    @router.patch("/workspace")
    async def choose_views(how: ChosenViews) -> WorkspaceState:
        """Before the first photo: whether every photo is averaged with its mirror image, in fits and predictions."""
        await _changed(workspace.choose_views, how.views)
        return workspace_state(service)

    @router.delete("/workspace", status_code=204)
    async def clear() -> None:
        """Forget everything."""
        await _changed(workspace.clear)


def _class_routes(router: APIRouter, service: Service) -> None:
    workspace, settings = service.workspace, service.settings

    @router.post("/classes", status_code=201)
    async def create_class(new: NewClass) -> ClassState:
        """Create a class without photos."""
        return class_state(await _changed(workspace.create_class, new.name))

    @router.patch("/classes/{number}")
    async def rename_class(number: int, new: NewClass) -> ClassState:
        """Call a class otherwise, in the last fit too: it stays the same but for the name."""
        return class_state(await _changed(workspace.rename_class, number, new.name))

    @router.delete("/classes/{number}", status_code=204)
    async def forget_class(number: int) -> None:
        """Forget a class, its photos and the fit."""
        await _changed(workspace.forget_class, number)

    @router.post("/classes/{number}/photos", status_code=201, openapi_extra=form_schema("photos", many=True))
    async def add_photos(number: int, request: Request) -> AddedPhotos:
        """Add photos to a class; their features are kept and, as --pictures says, a small picture of each."""
        now = workspace.snapshot
        now.find(number)
        form = await read_form(request, "photos", settings.most_images)
        extractor = Shared(now.unfitted.extractor)
        wanted = settings.pictures != "tab"
        rows, pictures = await service.photo_work.run(photos_to_keep, extractor, form.files, service.pixels, wanted)
        return AddedPhotos(photos=await _changed(workspace.add_photos, number, rows, now, pictures))

    @router.patch("/classes/{number}/photos/{photo}")
    async def move_photo(number: int, photo: int, where: MovedPhoto) -> ClassState:
        """Put a photo under another class, which is answered; the next fit knows it there."""
        return class_state(await _changed(workspace.move_photo, number, photo, where.to))

    @router.delete("/classes/{number}/photos/{photo}", status_code=204)
    async def remove_photo(number: int, photo: int) -> None:
        """Forget one photo, and the fit."""
        await _changed(workspace.remove_photo, number, photo)

    @router.get("/photos/{photo}/picture", response_class=Response, responses=PICTURE)
    async def picture(photo: int) -> Response:
        """A small picture of a photo that was added."""
        content = workspace.snapshot.photo(photo).picture
        if not content:
            raise RequestError(404, f"There is no picture of photo {photo}: only its features are kept.")
        return Response(content, media_type="image/jpeg")


def _model_routes(router: APIRouter, service: Service) -> None:
    workspace, settings = service.workspace, service.settings

    @router.post(
        "/predict",
        openapi_extra=form_schema(
            "photos", many=True, together=TOGETHER, coverage=COVERAGE, recall=RECALL, pictures=PICTURES
        ),
    )
    async def predict(request: Request) -> PredictionList:
        """What the last fit says of photos, or why nothing is said of one; ``together``: they help one another."""
        now = service.last_fit()
        form = await read_form(request, "photos", settings.most_images, "together", "coverage", "recall", "pictures")
        drawn = form.flag("pictures") and settings.pictures != "tab"
        how = HowToPredict(form.flag("together"), form.number("coverage"), form.number("recall"), drawn)
        extractor = Shared(now.classifier.extractor)
        asked = Shared(now.asked)
        found = await service.photo_work.run(predict_uploads, extractor, asked, form.files, service.pixels, how)
        note = found.separate
        if how.coverage is not None:
            note = now.asked.fitted.head.why_all_classes(how.coverage)
        return PredictionList(
            predictions=tuple(map(answer_state, found.each)),
            together=how.together and found.separate is None,
            version=now.version,
            note=note,
        )

    @router.get("/model", response_class=Response, responses=FILE)
    async def download(pictures: bool = False) -> Response:
        """The last fit as one .e3bm file; ``pictures`` puts small pictures of the labelled photos into it."""
        now = workspace.snapshot
        fit = service.last_fit()
        extractor, fitted = Shared(fit.classifier.extractor), fit.classifier.fitted
        if not pictures:
            fitted = fitted.with_pictures(())
        elif fit.photos:
            fitted = fitted.with_pictures([now.photo(number).picture for number, _ in fit.photos])
        return _file("model.e3bm", await service.photo_work.run(file_of_model, extractor, fitted))

    @router.get("/model.onnx", response_class=Response, responses=FILE)
    async def export() -> Response:
        """The last fit as one ONNX file, checked against torch; made beside the other requests, as a fit is."""
        model = service.last_fit().classifier
        extractor, limit = Shared(model.extractor), settings.fit_timeout
        return _file("model.onnx", await service.fit_work.run(onnx_of_model, extractor, model.fitted, timeout=limit))

    @router.put("/model", openapi_extra=form_schema("model", many=False))
    async def replace_model(request: Request) -> WorkspaceState:
        """Replace everything by a .e3bm file."""
        upload = (await read_form(request, "model", 1)).files[0]
        prior = workspace.initial.prior_path
        in_use = (workspace.initial.extractor, workspace.snapshot.unfitted.extractor)
        opened = await service.photo_work.run(open_model, upload, prior, *map(Shared, in_use))
        await _changed(workspace.open, opened.classifier(prior, *in_use), upload)
        return workspace_state(service)


def _fit_routes(router: APIRouter, service: Service) -> None:
    fits, snapshot = service.fits, lambda: service.workspace.snapshot

    @router.post("/fit", responses={202: {"model": FitState, "description": "The fit is still running; ask GET /fit."}})
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
        return job_state(job, snapshot().version)

    @router.get("/fit")
    async def how_far() -> FitState:
        """The fit that is being made, or the last one."""
        return job_state(fits.last(), snapshot().version)

    @router.delete("/fit", status_code=204)
    async def cancel() -> None:
        """End the fit that is being made; the last one stays."""
        await fits.cancel()


async def _changed(change: Callable[..., Result], *arguments: Any) -> Result:
    """Make a change in a thread, because it may be written to disk; once begun, it takes effect."""
    return await finished(asyncio.to_thread(change, *arguments))


async def _refuse_unknown_parameters(request: Request) -> None:
    """A parameter that is misspelt, or belongs into the form, would otherwise be ignored in silence."""
    route = request.scope["route"]
    known = [parameter.alias for parameter in route.dependant.query_params]
    fields = form_fields(route.openapi_extra or {})
    for name, value in request.query_params.items():
        if name in fields:
            sent = "@x.jpg" if fields[name] == "file" else _printable(value) or "..."
            wrong = f"'{name}' is a field of the form, not a part of the address"
            raise RequestError(422, f"{wrong}: send it as curl's -F {name}={sent} does.")
        if name not in known:
            shown = _printable(name)
            takes = f"this address takes {' and '.join(known)}" if known else "this address takes none"
            raise RequestError(422, f"There is no parameter '{shown}' here; {takes}.")


def _printable(words: str) -> str:
    return "".join(letter for letter in words if letter.isprintable())[:40]


def _file(name: str, content: bytes) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)

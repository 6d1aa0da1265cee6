"""The API."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from e3bm.serving.lane import Lane
from e3bm.serving.measures import Measures
from e3bm.serving.model_content import opened_model
from e3bm.serving.predicting import features_of, predicted
from e3bm.serving.refusals import Refusal
from e3bm.serving.schemas import (
    AddedPhotos,
    ClassState,
    Health,
    ModelState,
    NewClass,
    Predictions,
    Problem,
    WorkspaceState,
)
from e3bm.serving.settings import ServeSettings
from e3bm.serving.snapshot import Fit
from e3bm.serving.states import class_state, fit_state, workspace_state
from e3bm.serving.uploads import form_schema, read_form
from e3bm.serving.workspace import Workspace

SWITCH = {"type": "boolean", "default": False, "description": "use the photos together"}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "The request cannot be served as it is."},
    503: {"model": Problem, "description": "Busy; come back after the seconds in Retry-After."},
}
FILE = {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}


@dataclass(frozen=True)
class Service:
    """What the routes work with; photos are looked at in one lane and fits made in another."""

    settings: ServeSettings
    workspace: Workspace
    measures: Measures
    looking: Lane
    fitting: Lane

    def fit(self) -> Fit:
        """The last fit."""
        found = self.workspace.snapshot.fit
        if found is None:
            raise Refusal(409, "There is no classifier yet; fit it first or open a model.")
        return found


def api_routes(service: Service) -> APIRouter:
    """All routes that answer with data."""
    router = APIRouter(responses=PROBLEMS)
    _state_routes(router, service)
    _class_routes(router, service)
    _model_routes(router, service)
    return router


def _state_routes(router: APIRouter, service: Service) -> None:
    workspace = service.workspace

    @router.get("/health")
    async def health() -> Health:
        """Whether the server works."""
        return Health(fitted=workspace.snapshot.fit is not None)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Requests, errors, latency, requests in flight and memory, for Prometheus."""
        return Response(service.measures.text(), media_type="text/plain; version=0.0.4")

    @router.get("/workspace")
    async def show() -> WorkspaceState:
        """Classes, photos by number, and the last fit."""
        return workspace_state(workspace)

    @router.delete("/workspace", status_code=204)
    async def clear() -> None:
        """Forget everything."""
        workspace.clear()


def _class_routes(router: APIRouter, service: Service) -> None:
    workspace, settings = service.workspace, service.settings

    @router.post("/classes", status_code=201)
    async def create_class(new: NewClass) -> ClassState:
        """Create a class without photos."""
        return class_state(workspace.create_class(new.name))

    @router.delete("/classes/{number}", status_code=204)
    async def forget_class(number: int) -> None:
        """Forget a class, its photos and the fit."""
        workspace.forget_class(number)

    @router.post("/classes/{number}/photos", status_code=201, openapi_extra=form_schema("photos", many=True))
    async def add_photos(number: int, request: Request) -> AddedPhotos:
        """Add photos to a class; only their features are kept."""
        now = workspace.snapshot
        now.find(number)
        form = await read_form(request, "photos", settings.most_images)
        rows = await service.looking.run(lambda: features_of(now.empty, form.files, settings))
        return AddedPhotos(photos=workspace.add_photos(number, rows, now))

    @router.delete("/classes/{number}/photos/{photo}", status_code=204)
    async def remove_photo(number: int, photo: int) -> None:
        """Forget one photo, and the fit."""
        workspace.remove_photo(number, photo)


def _model_routes(router: APIRouter, service: Service) -> None:
    workspace, settings = service.workspace, service.settings

    @router.post("/fit")
    async def fit() -> ModelState:
        """Fit to the classes that have photos."""
        made = await service.fitting.run(workspace.fit)
        return fit_state(made, fresh=made.version == workspace.snapshot.version)

    @router.post("/predict", openapi_extra=form_schema("photos", many=True, together=SWITCH))
    async def predict(request: Request) -> Predictions:
        """What the last fit says of photos; ``together`` lets the photos of the request help one another."""
        now = service.fit()
        form = await read_form(request, "photos", settings.most_images)
        together = form.switch("together")
        found = await service.looking.run(lambda: predicted(now, form.files, settings, together=together))
        return Predictions(predictions=found, together=together)

    @router.get("/model", response_class=Response, responses=FILE)  # type: ignore[arg-type]  # a narrower dict
    async def download() -> Response:
        """The last fit as one .e3bm file."""
        now = service.fit()
        content = await service.fitting.run(now.classifier.to_bytes)
        headers = {"Content-Disposition": 'attachment; filename="model.e3bm"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    @router.put("/model", openapi_extra=form_schema("model", many=False))
    async def open_model(request: Request) -> WorkspaceState:
        """Replace everything by a .e3bm file."""
        form = await read_form(request, "model", 1)
        start = workspace.start
        at_hand = (start.extractor, workspace.snapshot.empty.extractor)
        classifier = await service.fitting.run(lambda: opened_model(form.files[0], at_hand, start.prior_path))
        workspace.open(classifier)
        return workspace_state(workspace)

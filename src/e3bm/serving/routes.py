"""The API."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from e3bm.fewshot.extractor import FeatureExtractor
from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.fewshot.model_file import origin_of, read_model
from e3bm.serving.limits import Lane
from e3bm.serving.measures import Measures
from e3bm.serving.predicting import can_use_together, features_of, predicted
from e3bm.serving.refusals import Refusal
from e3bm.serving.schemas import (
    AddedPhotos,
    ClassState,
    Doubt,
    Health,
    Limits,
    ModelState,
    NewClass,
    Predictions,
    Problem,
    WorkspaceState,
)
from e3bm.serving.settings import ServeSettings
from e3bm.serving.uploads import Upload, form_schema, read_form
from e3bm.serving.workspace import Fit, KeptClass, Workspace

# Snapshots of the workspace as the records that the API sends.


def workspace_state(workspace: Workspace) -> WorkspaceState:
    """Everything but the features."""
    now = workspace.snapshot
    return WorkspaceState(
        token=workspace.token,
        backbone=now.empty.extractor.origin.name,
        together=now.fit is not None and can_use_together(now.fit),
        unchangeable=now.unchangeable,
        classes=tuple(map(class_state, now.classes)),
        model=None if now.fit is None else fit_state(now.fit, fresh=now.fit.version == now.version),
        limits=_limits(workspace.settings),
    )


def class_state(kept: KeptClass) -> ClassState:
    """A class and the numbers of its photos."""
    return ClassState(id=kept.number, name=kept.name, photos=tuple(photo.number for photo in kept.photos))


def fit_state(fit: Fit, *, fresh: bool) -> ModelState:
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
        for one in fitted.classifier.suspicions
    )


def _limits(settings: ServeSettings) -> Limits:
    return Limits(
        upload_bytes=settings.most_upload,
        images=settings.most_images,
        pixels=settings.most_pixels,
        photos=settings.most_photos,
        classes=settings.most_classes,
    )


# A model that was sent: the classifier in it, if it needs nothing but what is here already.


SELF_CONTAINED = ("package", "run")


def opened_model(upload: Upload, at_hand: Sequence[FeatureExtractor], prior: Path | None) -> FewShotClassifier:
    """The classifier in an uploaded file; its backbone is one that is at hand, installed, or in the file itself.

    A file can also name a model of a hub, which may be any folder of this machine: no request decides that.
    """
    about, _ = read_model(Path(upload.name), upload.content)
    origin, _, _ = origin_of(Path(upload.name), about)
    known = next((one for one in at_hand if one.origin.digest == origin.digest), None)
    if known is None and origin.kind not in SELF_CONTAINED:
        raise Refusal(
            422,
            f"{upload.name} was made with the backbone '{origin.name}', which is not this server's; "
            "start the server with that model.",
        )
    return FewShotClassifier.from_bytes(upload.content, name=upload.name, backbone=known, prior=prior)


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

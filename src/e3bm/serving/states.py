"""The workspace, its fits and answers as the records that the API sends."""

from base64 import b64encode

from e3bm.serving.exchange import RequestError
from e3bm.serving.fit_job import FitJob
from e3bm.serving.kept.workspace import Fit, KeptClass, Snapshot
from e3bm.serving.schemas import (
    ClassState,
    Doubt,
    FitState,
    Influence,
    Limits,
    ModelState,
    PhotoPrediction,
    PhotoProblem,
    WorkspaceState,
)
from e3bm.serving.service import Service
from e3bm.serving.settings import ServeSettings
from e3bm.serving.work.photos import Answer


def job_state(job: FitJob, version: int) -> FitState:
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


def workspace_state(service: Service) -> WorkspaceState:
    """Everything but the features."""
    workspace = service.workspace
    now = workspace.snapshot
    return WorkspaceState(
        token=workspace.token,
        backbone=now.unfitted.extractor.origin.name,
        views=now.unfitted.extractor.views,
        together=now.fit is not None and now.fit.asked.can_use_together(),
        unchangeable=now.unchangeable,
        classes=tuple(map(class_state, now.classes)),
        model=None if now.fit is None else _fit_state(now.fit, fresh=now.fit.version == now.version),
        fitting=service.fits.running is not None,
        pictures=workspace.settings.pictures != "tab",
        no_pictures=_no_pictures(now, workspace.settings),
        limits=_limits(workspace.settings),
    )


def _no_pictures(now: Snapshot, settings: ServeSettings) -> str | None:
    """Why there are photos without a small picture, where that can be mended."""
    if settings.pictures == "tab" or all(photo.picture for one in now.classes for photo in one.photos):
        return None
    if settings.keep is None:
        return "This model file holds no small pictures; make it with `e3bm fit --small-pictures`."
    return (
        "Some photos have no small picture: a model file holds them with `e3bm fit --small-pictures`, "
        "the file of --keep with `--pictures file`."
    )


def class_state(kept: KeptClass) -> ClassState:
    """A class and the numbers of its photos."""
    return ClassState(
        id=kept.number,
        name=kept.name,
        photos=tuple(photo.number for photo in kept.photos),
        pictures=tuple(photo.number for photo in kept.photos if photo.picture),
    )


def answer_state(answer: Answer) -> PhotoPrediction | PhotoProblem:
    """What is said of one photo."""
    found = answer.found
    if isinstance(found, Exception):
        return PhotoProblem(name=answer.name, error=found.detail if isinstance(found, RequestError) else str(found))
    columns = {column: value for column, value in found.as_json().items() if column in PhotoPrediction.model_fields}
    influences = tuple(Influence(**vars(one)) for one in answer.mattered)
    picture = b64encode(answer.picture).decode() or None
    return PhotoPrediction(name=answer.name, influences=influences, picture=picture, **columns)


def _fit_state(fit: Fit, *, fresh: bool) -> ModelState:
    """What a page shows of a fit."""
    model = fit.classifier
    return ModelState(
        classes=model.classes,
        rates=tuple(model.rates.tolist()),
        votes=tuple(model.votes.tolist()),
        left_out_accuracy=model.left_out_accuracy,
        expected_accuracy=model.expected_accuracy,
        doubts=_doubts(fit),
        fresh=fresh,
        version=fit.version,
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
        model_bytes=settings.most_model,
        images=settings.most_images,
        pixels=settings.most_pixels,
        pixels_together=settings.most_pixels_together,
        photos=settings.most_photos,
        classes=settings.most_classes,
    )

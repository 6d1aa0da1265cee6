"""Snapshots of the workspace as the records that the API sends."""

from e3bm.serving.predicting import can_use_together
from e3bm.serving.schemas import ClassState, Doubt, Limits, ModelState, WorkspaceState
from e3bm.serving.settings import ServeSettings
from e3bm.serving.snapshot import Fit, KeptClass
from e3bm.serving.workspace import Workspace


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

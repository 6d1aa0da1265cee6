"""A workspace or a server in a process that is to be killed: a module that such a process can import by itself."""

from random import Random

import numpy as np
from torch import nn

from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.app import create_app
from e3bm.serving.kept.journal import keep_workspace
from e3bm.serving.kept.workspace import Workspace
from e3bm.serving.server import serve
from e3bm.serving.settings import ServeSettings


def small_classifier() -> FewShotClassifier:
    return FewShotClassifier(nn.Flatten(), pipeline="resize 8, normalise none")


def serve_for_ever(path, line, classes=(), **settings) -> None:
    """A server that keeps its state in a file, says its address, and ends when it is told to.

    ``classes`` are those that it has at the start: rows of features for each.
    """
    network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
    classifier = FewShotClassifier(network, pipeline="resize 28, centre_crop 28, normalise none")
    chosen = ServeSettings(port=0, keep=path, **settings)
    app = create_app(chosen, classifier)
    workspace = app.state.service.workspace
    for number, rows in enumerate(classes):
        workspace.add_photos(workspace.create_class(f"class {number}").number, list(rows), workspace.snapshot)
    serve(app, chosen, line.send)


def change_for_ever(path, seed, line) -> None:
    """Make random changes, and after each one say what is there now: classes by number, with the numbers of photos."""
    workspace, random = Workspace(small_classifier(), ServeSettings(keep=path)), Random(seed)
    keep_workspace(workspace, path)
    rows = np.random.default_rng(seed)
    while True:
        classes = workspace.snapshot.classes
        draw = random.random()
        if len(classes) < 3 or draw < 0.2:
            workspace.create_class(f"class {random.random()}")
        elif draw < 0.3:
            workspace.forget_class(random.choice(classes).number)
        elif draw < 0.35:
            workspace.clear()
        else:
            some = list(rows.normal(size=(random.randrange(1, 20), 16)).astype(np.float32))
            workspace.add_photos(random.choice(classes).number, some, workspace.snapshot)
        line.send(state(workspace))


def state(workspace: Workspace) -> list[tuple[int, list[tuple[int, bytes]]]]:
    """Everything that is there."""
    return [
        (one.number, [(photo.number, photo.features.tobytes()) for photo in one.photos])
        for one in workspace.snapshot.classes
    ]

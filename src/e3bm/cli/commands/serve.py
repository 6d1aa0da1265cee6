"""`e3bm serve`."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from e3bm.cli.console import parse
from e3bm.errors import SettingsError, install_command
from e3bm.serving.settings import ServeSettings


@dataclass(frozen=True)
class Options:
    """What is served, and where."""

    model: Annotated[Path | None, tyro.conf.Positional] = None
    """A model file made by `e3bm fit` to start with; without one the page starts empty."""
    views: Literal[1, 2] | None = None
    """2: each photo and its mirror image, averaged; a model has the number of views that it was fitted with."""
    settings: Annotated[ServeSettings, tyro.conf.arg(name="")] = field(default_factory=ServeSettings)


def run(words: Sequence[str]) -> int:
    about = "Start an HTTP API and a page: drop photos into classes, fit, predict. Ctrl-C stops it."
    options = parse(Options, words, "serve", about)
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"The server needs {error.name}; run: {install_command('serve')}") from None
    from e3bm.fewshot.few_shot_classifier import FewShotClassifier
    from e3bm.serving.app import create_app
    from e3bm.serving.gate.access import choose_token, is_loopback
    from e3bm.serving.server import serve

    settings, token = options.settings, choose_token(options.settings)
    if options.model is None:
        classifier = FewShotClassifier(views=options.views)
    else:
        classifier = FewShotClassifier.load(options.model)
        if options.views not in (None, classifier.extractor.views):
            raise SettingsError(
                f"{options.model} was fitted with --views {classifier.extractor.views}; leave --views out, or fit it "
                f"again with `e3bm fit --views {options.views}`."
            )
    note = None if options.model is None else classifier.extractor.engine_note(opened=False)
    if note is not None:
        print(f"e3bm: {note}", file=sys.stderr)
    app = create_app(settings, classifier, token)

    now = app.state.service.workspace.snapshot

    def tell(address: str) -> None:
        print(f"Serving at {address} (Ctrl-C stops)", flush=True)
        if settings.keep is not None:
            print(f"{settings.keep} keeps {len(now.classes)} classes and the features of {now.photo_count} photos.")
        if token is not None:
            print(f"The token is {token}: open {address}?token={token} or send 'Authorization: Bearer {token}'.")
        elif not is_loopback(settings.host):
            print("e3bm: with --no-token, anyone who can reach this address can use the server.", file=sys.stderr)
        sys.stdout.flush()

    # A signal comes through once the server has stopped; nothing is lost by it.
    with suppress(KeyboardInterrupt):
        serve(app, settings, tell)
    print("e3bm: the server has stopped.", file=sys.stderr)
    return 0

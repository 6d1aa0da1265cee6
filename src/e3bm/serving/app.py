"""The application: routes, limits, headers and counts put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from e3bm.fewshot.few_shot_classifier import FewShotClassifier
from e3bm.serving.gate import Gate
from e3bm.serving.headers import SecurityHeaders
from e3bm.serving.lane import Lane
from e3bm.serving.measures import Measures, Measuring
from e3bm.serving.page_files import page_routes
from e3bm.serving.refusals import NoTraces, add_handlers
from e3bm.serving.routes import Service, api_routes
from e3bm.serving.settings import ServeSettings
from e3bm.serving.workspace import Workspace


def create_app(settings: ServeSettings | None = None, classifier: FewShotClassifier | None = None) -> FastAPI:
    """An application with one workspace; ``classifier`` gives its backbone and, when fitted, its first model."""
    settings = settings or ServeSettings()
    looking, fitting = Lane("looking", settings.timeout), Lane("fitting", settings.timeout)
    service = Service(settings, Workspace(classifier or FewShotClassifier(), settings), Measures(), looking, fitting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        looking.close()
        fitting.close()

    # The usual pages of documentation load scripts from elsewhere; /openapi.json is all there is.
    app = FastAPI(title="e3bm", version=version("e3bm"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.include_router(api_routes(service))
    app.include_router(page_routes())
    add_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(NoTraces)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(Measuring, measures=service.measures)
    app.add_middleware(SecurityHeaders)
    return app

"""Runs the application until it is told to stop; requests in flight are then given time to finish."""

import logging
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from e3bm.errors import SettingsError
from e3bm.serving.gate.connections import bounded_connections, bounded_logs
from e3bm.serving.settings import ServeSettings

# Longer than clients and proxies keep an idle connection: one that the server closes first may be in use again already.
KEEP_ALIVE = 75


def serve(app: FastAPI, settings: ServeSettings, tell: Callable[[str], None]) -> None:
    """Listen; ``tell`` gets the address once connections are taken."""
    with listening(settings) as place, bounded_logs("asyncio", "uvicorn.error", "e3bm.serving"):
        port = place.getsockname()[1]
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        # What is wrong with a form is told to whoever sent it.
        logging.getLogger("python_multipart").setLevel(logging.ERROR)
        tell(f"http://{shown}:{port}/")
        server(app, settings).run(sockets=[place])


def server(app: FastAPI, settings: ServeSettings) -> uvicorn.Server:
    """The server for an application, not yet started."""
    protocol, at_once = bounded_connections()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=at_once,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=settings.stop_timeout,
        )
    )


def listening(settings: ServeSettings) -> socket.socket:
    """A socket that listens where the settings say."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=settings.in_flight * 2)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"The server cannot listen on {settings.host}, port {settings.port} ({reason}); "
            "choose others with --host and --port."
        ) from None

"""What a request brings, and how it is refused; work processes know this too, so nothing heavy is imported here."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException

RETRY_AFTER = 2


@dataclass(frozen=True)
class Upload:
    """One file of a request; its name is only ever shown."""

    name: str
    content: bytes


class RequestError(HTTPException):
    """A request that is not served, with a status and a sentence for the client.

    It is an HTTPException because the framework lets those through while it reads a request.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, dict(headers or {}))


def busy_error(sentence: str = "The server is busy; try again in a moment.") -> RequestError:
    """An error that asks the client to come back later."""
    return RequestError(503, sentence, {"Retry-After": str(RETRY_AFTER)})

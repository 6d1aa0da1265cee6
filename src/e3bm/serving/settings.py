"""Where the server listens and what it refuses; imports nothing heavy, so that `e3bm serve --help` is quick."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from e3bm.settings import Settings

MEGABYTE = 1_000_000
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


class ServeSettings(Settings):
    """Address and limits of the server."""

    host: str = "127.0.0.1"
    """The address to listen on; the default is reached from this machine only."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """The port to listen on; 0 takes a free one."""
    names: tuple[str, ...] = ()
    """Additional host names that requests may use, such as that of a proxy in front; others are refused."""
    no_token: bool = False
    """Do not ask for a token, even if other machines can reach the address."""
    keep: Path | None = None
    """A file that stores classes, features of photos and the fit, so that they survive a restart."""
    pictures: Literal["tab", "memory", "file"] = "memory"
    """Where small pictures of labelled photos are: in the browser tab only, also in the server's memory, so that they
    are there after a reload, or also in the file of --keep."""
    most_upload_megabytes: float = Field(default=32, gt=0)
    """The largest request."""
    most_model_megabytes: float = Field(default=256, gt=0)
    """The largest model file that can be opened."""
    most_images: int = Field(default=64, ge=1)
    """The most images in one request."""
    most_pixels: int = Field(default=50_000_000, ge=1, le=50_000_000)
    """The most pixels of one image."""
    most_pixels_together: int = Field(default=400_000_000, ge=1)
    """The most pixels of all images in one request."""
    most_photos: int = Field(default=5_000, ge=2)
    """The most photos in all classes together."""
    most_classes: int = Field(default=200, ge=2)
    """The most classes."""
    in_flight: int = Field(default=64, ge=1)
    """Requests served at once; further ones are told to come back later."""
    memory_megabytes: float = Field(default=256, gt=0)
    """What all uploads together may hold in memory; further ones are told to come back later."""
    timeout: float = Field(default=60, gt=0)
    """Seconds for a request to arrive, and again to be served; then it is refused and its work is stopped."""
    fit_timeout: float = Field(default=3_600, gt=0)
    """Seconds for a fit, which runs in the background."""
    stop_timeout: int = Field(default=10, ge=1)
    """Seconds for requests in flight to finish when the server is stopped."""

    @property
    def most_upload(self) -> int:
        return int(self.most_upload_megabytes * MEGABYTE)

    @property
    def most_model(self) -> int:
        return int(self.most_model_megabytes * MEGABYTE)

    @property
    def memory(self) -> int:
        return int(self.memory_megabytes * MEGABYTE)

    @property
    def known_names(self) -> frozenset[str]:
        """The host names that a request may carry: a page of elsewhere must not reach us by renaming itself."""
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, self.host, *self.names))

"""Which prior a classifier uses, by its digest: all that a program needs which only predicts."""

from functools import cache
from hashlib import sha256
from pathlib import Path

from e3bm.errors import CheckpointError

SHIPPED = Path(__file__).parent / "shipped.safetensors"
TRUST_BY_KIND = Path(__file__).parent / "trust_by_kind.json"
"""The numbers of trust of features that are no photos, in place of the shipped prior's, and where they come from."""
PIXELS, SENTENCES, ANY = "pixels", "sentences", "any"
"""Kinds of features that have such numbers, and what suits all kinds where nobody says which one it is; an encoder of
sentences may have others under its own name."""
PHOTOS = "photos"
"""The kind that has the shipped prior's own numbers."""


@cache
def prior_digest(path: Path | None = None) -> str:
    """The sha256 of the shipped prior, or of the file of another one."""
    place = path or SHIPPED
    try:
        return sha256(place.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise no_prior(place) from None
    except OSError as error:
        raise CheckpointError(f"{place} cannot be read: {error.strerror}.") from None


def no_prior(place: Path) -> CheckpointError:
    """What is said of a prior that is not there."""
    return CheckpointError(f"There is no prior {place}; give the path of one that `e3bm train-prior` made.")

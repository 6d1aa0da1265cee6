"""A look at some images before all are packed: which colour comes first, and whether ink is dark or light."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from jaxtyping import Float64

from e3bm.data.decode_pool import pixels_of
from e3bm.data.listing import Listing
from e3bm.data.records import Records
from e3bm.data.source import SourceCard
from e3bm.errors import DataError

ChannelOrder = Literal["check", "rgb", "bgr"]
LOOKED_AT = 1_024
FEWEST_IMAGES, FEWEST_CLASSES = 200, 10
CLEARLY_NEARER = 4.0
"""How many times nearer to the published means, in squared distance, the reversed channels must be."""


def sample(records: Records, count: int = LOOKED_AT) -> Iterator[np.ndarray]:
    """Evenly spaced images, decoded, the unreadable left out."""
    places = sorted({int(place) for place in np.linspace(0, len(records) - 1, min(count, len(records)))})
    for payload in records.pick(places):
        try:
            yield pixels_of(payload, 3)
        except DataError:
            continue


def channel_means(records: Records) -> tuple[Float64[np.ndarray, " C"], int]:
    """Mean of each channel from 0 to 255 over a sample, and the size of the sample."""
    means = [image.reshape(-1, image.shape[-1]).mean(axis=0) for image in sample(records)]
    return (np.mean(means, axis=0), len(means)) if means else (np.zeros(0), 0)


def needs_reversal(listing: Listing, card: SourceCard, order: ChannelOrder) -> tuple[bool, list[str]]:
    """Whether blue comes first, and what to tell the user about it.

    A file format fixes the order of an encoded image. Bare arrays do not: theirs is told by their mean colours.
    """
    if card.channels != 3 or order == "rgb" or (order == "check" and listing.red_first):
        return False, []
    if order == "bgr":
        return True, ["Channels were reversed from blue-green-red, as asked."]
    means, images = channel_means(listing.records)
    if not card.pixel_mean or len(means) != 3 or images < FEWEST_IMAGES or len(listing.class_names) < FEWEST_CLASSES:
        return False, ["Too few images to tell the channel order by their colours; taken as red-green-blue."]
    published = np.array(card.pixel_mean)
    as_stored, reversed_ = (float(((means - target) ** 2).sum()) for target in (published, published[::-1]))
    shown = ", ".join(f"{mean:.1f}" for mean in means)
    if reversed_ * CLEARLY_NEARER < as_stored:
        return True, [f"Stored blue first (channel means {shown}), so the channels were reversed to red-green-blue."]
    if as_stored * CLEARLY_NEARER < reversed_:
        return False, [f"Channel order checked: red first (channel means {shown})."]
    return False, [f"Channel means {shown} fit neither order clearly; taken as red-green-blue."]


def needs_inversion(listing: Listing, card: SourceCard) -> bool:
    """Whether drawings that should have light ink are stored with dark ink on light paper."""
    if not card.ink_is_light:
        return False
    means = [float(image.mean()) for image in sample(listing.records, 64)]
    return bool(means) and float(np.median(means)) > 127.5

"""Glyphs: the data set that comes with the package, open without any preparation."""

from functools import cache

import numpy as np

from e3bm.data.layouts.base import KnownClasses, Layout
from e3bm.data.packed import Origin, PackedImages
from e3bm.data.source import EMBEDDED, SOURCES, SourceCard


@SOURCES.register(EMBEDDED)
class Glyphs:
    """Characters drawn from open-licence typefaces, 28 px, grey."""

    card = SourceCard(
        title="glyphs",
        image_size=28,
        accepted_sizes=(28,),
        channels=1,
        licence="the typefaces' own open licences (OFL-1.1 and Apache-2.0)",
        citation="The e3bm developers, glyphs: characters drawn from open typefaces",
        ink_is_light=True,
    )
    layouts: tuple[Layout, ...] = ()

    def known_classes(self) -> KnownClasses:
        """Nothing needs to be recognised: the arrays are in the package."""
        return KnownClasses()


@cache
def embedded_glyphs() -> PackedImages:
    """The arrays of the package as a data set in memory."""
    from e3bm.data.sources.glyphs import load_glyphs

    arrays = load_glyphs()
    origin = Origin("the package", "drawn at 28 x 28", "", Glyphs.card.licence, Glyphs.card.citation)
    return PackedImages.from_arrays(
        arrays.images,
        np.asarray(arrays.labels, np.int64),
        arrays.class_names,
        arrays.splits,
        name=EMBEDDED,
        origin=origin,
    )

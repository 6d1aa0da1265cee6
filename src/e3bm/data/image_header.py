"""How large an encoded image says it is, before anything of it is decoded."""

import io
import warnings

from PIL import Image, UnidentifiedImageError

from e3bm.data.decode import DECODING_ERRORS, readable_formats
from e3bm.errors import DataError


def image_size(content: bytes) -> tuple[int, int]:
    """Width and height by the header alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=readable_formats()) as image:
                return image.size
    except UnidentifiedImageError:
        raise DataError(f"it is no image that Pillow knows (it begins with {content[:4]!r})") from None
    except Image.DecompressionBombError:
        raise DataError("it has far more pixels than are read") from None
    except MemoryError:
        raise DataError("it asks for more memory than there is") from None
    except DECODING_ERRORS as error:
        raise DataError(f"it is damaged ({str(error).rstrip('.') or type(error).__name__})") from None

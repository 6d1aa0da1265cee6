"""Arrays with shapes in their annotations, for modules that a prediction imports.

jaxtyping, which these names are from, takes as long to import as a photo takes to be classified. So where nobody has
imported it yet, each of them stands for the plain array: `Float[np.ndarray, "N D"]` is `np.ndarray`.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Float32, Float64, Int64, Shaped, UInt8
else:

    class PlainArray:
        """A name whose shapes are not looked at."""

        def __class_getitem__(cls, array_and_shape: tuple[Any, str]) -> Any:
            return array_and_shape[0]

    Bool = Float = Float32 = Float64 = Int64 = Shaped = UInt8 = PlainArray

__all__ = ["Bool", "Float", "Float32", "Float64", "Int64", "Shaped", "UInt8"]

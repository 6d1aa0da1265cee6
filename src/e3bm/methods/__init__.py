"""One published method per file; importing this package registers them."""

from e3bm.methods.base import METHODS, Encoder, Parts, ReadyFeatures
from e3bm.methods.heads.collapsed import CollapsedHead
from e3bm.methods.maml import Maml
from e3bm.methods.mtl import Mtl
from e3bm.methods.nearest_mean import NearestMean
from e3bm.methods.sib import Sib

__all__ = ["METHODS", "CollapsedHead", "Encoder", "Maml", "Mtl", "NearestMean", "Parts", "ReadyFeatures", "Sib"]

"""One published method per file; importing this package registers them."""

from e3bm.methods.base import (
    DEFAULT_METHOD,
    METHODS,
    DirectMethod,
    Encoder,
    InnerLoopMethod,
    InnerLoopSettings,
    MethodSettings,
    Needs,
    Parts,
    ReadyFeatures,
    ReadyMaps,
)
from e3bm.methods.ctm import Ctm
from e3bm.methods.heads.collapsed import CollapsedHead
from e3bm.methods.maml import Maml
from e3bm.methods.mtl import Mtl
from e3bm.methods.nearest_mean import NearestMean
from e3bm.methods.robust_ensemble import RobustEnsemble
from e3bm.methods.sib import Sib
from e3bm.methods.tadam import Tadam

__all__ = [
    "DEFAULT_METHOD",
    "METHODS",
    "CollapsedHead",
    "Ctm",
    "DirectMethod",
    "Encoder",
    "InnerLoopMethod",
    "InnerLoopSettings",
    "Maml",
    "MethodSettings",
    "Mtl",
    "NearestMean",
    "Needs",
    "Parts",
    "ReadyFeatures",
    "ReadyMaps",
    "RobustEnsemble",
    "Sib",
    "Tadam",
]

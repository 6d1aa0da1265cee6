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
from e3bm.methods.bayesian_maml import BayesianMaml
from e3bm.methods.heads.collapsed import CollapsedHead
from e3bm.methods.leo import Leo
from e3bm.methods.maml import Maml
from e3bm.methods.maml_plus_plus import MamlPlusPlus
from e3bm.methods.mtl import Mtl
from e3bm.methods.nearest_mean import NearestMean
from e3bm.methods.sib import Sib

__all__ = [
    "DEFAULT_METHOD",
    "METHODS",
    "BayesianMaml",
    "CollapsedHead",
    "DirectMethod",
    "Encoder",
    "InnerLoopMethod",
    "InnerLoopSettings",
    "Leo",
    "Maml",
    "MamlPlusPlus",
    "MethodSettings",
    "Mtl",
    "NearestMean",
    "Needs",
    "Parts",
    "ReadyFeatures",
    "ReadyMaps",
    "Sib",
]

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
from e3bm.methods.can import Can, CanT
from e3bm.methods.ctm import Ctm
from e3bm.methods.egnn import Egnn
from e3bm.methods.heads.collapsed import CollapsedHead
from e3bm.methods.laplacian_shot import LaplacianShot
from e3bm.methods.leo import Leo
from e3bm.methods.linear_rivals import LogisticRegression, RidgeRegression
from e3bm.methods.maml import Maml
from e3bm.methods.maml_plus_plus import MamlPlusPlus
from e3bm.methods.map_rounds import MapRounds
from e3bm.methods.matching_nets import MatchingNets
from e3bm.methods.matching_nets_fce import MatchingNetsFce
from e3bm.methods.meta_opt_net import MetaOptNet
from e3bm.methods.meta_opt_net_descent import MetaOptNetDescent
from e3bm.methods.mtl import Mtl
from e3bm.methods.nearest_mean import NearestMean
from e3bm.methods.proto_nets import ProtoNets
from e3bm.methods.pt_map import PtMap
from e3bm.methods.robust_ensemble import RobustEnsemble
from e3bm.methods.sib import Sib
from e3bm.methods.soft_k_means import SoftKMeans
from e3bm.methods.tadam import Tadam
from e3bm.methods.tim import Tim

__all__ = [
    "DEFAULT_METHOD",
    "METHODS",
    "BayesianMaml",
    "Can",
    "CanT",
    "CollapsedHead",
    "Ctm",
    "DirectMethod",
    "Egnn",
    "Encoder",
    "InnerLoopMethod",
    "InnerLoopSettings",
    "LaplacianShot",
    "Leo",
    "LogisticRegression",
    "Maml",
    "MamlPlusPlus",
    "MapRounds",
    "MatchingNets",
    "MatchingNetsFce",
    "MetaOptNet",
    "MetaOptNetDescent",
    "MethodSettings",
    "Mtl",
    "NearestMean",
    "Needs",
    "Parts",
    "ProtoNets",
    "PtMap",
    "ReadyFeatures",
    "ReadyMaps",
    "RidgeRegression",
    "RobustEnsemble",
    "Sib",
    "SoftKMeans",
    "Tadam",
    "Tim",
]

"""Routing algorithms: each is some steps of soft clustering on the primitive of
``torchcaps.ops``.
"""

from torchcaps.routing import fast as fast
from torchcaps.routing.attention import AttentionRouting
from torchcaps.routing.base import (
    ROUTINGS,
    LayerShape,
    Routed,
    Routing,
    as_capsules,
    create_routing,
    list_routings,
    register_routing,
)
from torchcaps.routing.degree_centrality import DegreeCentralityRouting
from torchcaps.routing.dynamic import DynamicRouting
from torchcaps.routing.em import EM_PRESETS, EMRouting
from torchcaps.routing.evidence import AgreementRouting, Evidence
from torchcaps.routing.heinsen_2019 import Heinsen2019Routing
from torchcaps.routing.heinsen_2022 import Heinsen2022Routing, VectorWeights
from torchcaps.routing.homogeneous import HomogeneousRouting
from torchcaps.routing.interests import InterestRouting, interests_of, label_aware
from torchcaps.routing.kernel_density import (
    FastKernelDensityRouting,
    KernelDensityRouting,
)
from torchcaps.routing.kmeans import (
    EuclideanKMeansRouting,
    HardKMeansRouting,
    InnerProductKMeansRouting,
)
from torchcaps.routing.max_min import MaxMin, MaxMinRouting
from torchcaps.routing.mean import MeanRouting
from torchcaps.routing.prototypes import PrototypeRouting
from torchcaps.routing.self_attention import SelfAttentionRouting
from torchcaps.routing.self_routing import SelfRouting
from torchcaps.routing.slot_attention import SlotAttentionRouting
from torchcaps.routing.slot_mixture import SlotMixtureRouting
from torchcaps.routing.slot_parts import SlotStart, SlotUpdate
from torchcaps.routing.sparse_attention import Entmax, SparseAttentionRouting
from torchcaps.routing.spectral import SpectralRouting
from torchcaps.routing.variational_bayes import VariationalBayesRouting

__all__ = [
    "ROUTINGS",
    "DynamicRouting",
    "EMRouting",
    "Routed",
    "Routing",
    "create_routing",
    "interests_of",
    "label_aware",
    "list_routings",
    "register_routing",
]

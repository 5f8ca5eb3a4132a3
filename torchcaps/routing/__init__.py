"""Routing algorithms: each is some steps of soft clustering on the primitive of
``torchcaps.ops``.
"""

from torchcaps.routing.attention import AttentionRouting, attention_routing
from torchcaps.routing.base import (
    ROUTINGS,
    LayerShape,
    Routed,
    Routing,
    as_capsules,
    constructor_arguments,
    create_routing,
    list_routings,
    register_routing,
)
from torchcaps.routing.degree_centrality import (
    DegreeCentralityRouting,
    degree_centrality_routing,
)
from torchcaps.routing.dynamic import DynamicRouting, dynamic_routing
from torchcaps.routing.em import EM_PRESETS, EMRouting, EMSettings, em_routing
from torchcaps.routing.evidence import AgreementRouting, Evidence
from torchcaps.routing.heinsen_2019 import Heinsen2019Routing, heinsen_2019_routing
from torchcaps.routing.heinsen_2022 import (
    Heinsen2022Routing,
    VectorWeights,
    heinsen_2022_routing,
)
from torchcaps.routing.homogeneous import HomogeneousRouting, homogeneous_routing
from torchcaps.routing.interests import (
    InterestRouting,
    interest_routing,
    interests_of,
    label_aware,
)
from torchcaps.routing.kernel_density import (
    FastKernelDensityRouting,
    KernelDensityRouting,
    fast_kernel_density_routing,
    kernel_density_routing,
)
from torchcaps.routing.kmeans import (
    EuclideanKMeansRouting,
    HardKMeansRouting,
    InnerProductKMeansRouting,
    euclidean_kmeans_routing,
    hard_kmeans_routing,
    inner_product_kmeans_routing,
)
from torchcaps.routing.max_min import MaxMin, MaxMinRouting, max_min_routing
from torchcaps.routing.mean import MeanRouting, mean_routing
from torchcaps.routing.prototypes import PrototypeRouting, prototype_routing
from torchcaps.routing.self_attention import (
    SelfAttentionRouting,
    self_attention_routing,
)
from torchcaps.routing.self_routing import SelfRouting, self_routing
from torchcaps.routing.slot_attention import SlotAttentionRouting
from torchcaps.routing.slot_mixture import SlotMixtureRouting
from torchcaps.routing.slot_parts import SlotStart, SlotUpdate
from torchcaps.routing.slots import slot_routing
from torchcaps.routing.sparse_attention import (
    Entmax,
    SparseAttentionRouting,
    sparse_attention_routing,
)
from torchcaps.routing.spectral import SpectralRouting, spectral_routing
from torchcaps.routing.variational_bayes import (
    VariationalBayesRouting,
    variational_bayes_routing,
)

__all__ = [
    "ROUTINGS",
    "DynamicRouting",
    "EMRouting",
    "InnerProductKMeansRouting",
    "InterestRouting",
    "LayerShape",
    "Routed",
    "Routing",
    "create_routing",
    "dynamic_routing",
    "em_routing",
    "inner_product_kmeans_routing",
    "interests_of",
    "label_aware",
    "list_routings",
    "register_routing",
]

"""Networks over sets: graphs and points. Capsules of the elements, and their pooled
twin.
"""

from dataclasses import InitVar
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, Prediction
from torchcaps.layers import ClassCaps, PrimaryCaps1d
from torchcaps.models.base import all_finite, layer_routing
from torchcaps.models.network import Network
from torchcaps.numerics import ProperShare, Size, Sizes, can_be_read
from torchcaps.routing import EuclideanKMeansRouting, Routed, Routing
from torchcaps.routing.batch_norm import EarlyBatchNorm1d
from torchcaps.spec import settings

Pool = Literal["mean", "sum", "max"]


@settings
class SetClassifier(Network):
    r"""Base of the networks that classify sets of elements, which may be joined by
    edges.

    .. math:: h^{l+1}_n = \operatorname{relu}\Big(\operatorname{norm}\big(W_l h^l_n + U_l \sum_m A_{nm} h^l_m\big)\Big)

    The features of an element are those of all layers, one behind the other. Without
    edges, as for points, the second term is left out. The order of the elements changes
    no answer.

    Args:
        in_features: numbers that describe an element, C.
        classes: number of classes.
        channels: the channels of the layers.
        edges: whether there are edges.
        dropout: share of the features that are left out in training.

    Example:
        >>> isinstance(
        ...     tc.models.PooledSet(in_features=3, classes=5), tc.models.SetClassifier
        ... )
        True
    """

    in_features: Size = 3
    classes: Size = 10
    channels: Sizes = (64, 64)
    edges: bool = False
    dropout: ProperShare = 0.0

    def __post_init__(self) -> None:
        sizes = [*pairwise((self.in_features, *self.channels))]
        self.own = nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)
        self.neighbours = nn.ModuleList(
            nn.Linear(*size, bias=False) for size in sizes if self.edges
        )
        self.norms = nn.ModuleList(map(EarlyBatchNorm1d, self.channels))
        self.drop = nn.Dropout(self.dropout)

    def features(
        self, elements: Tensor, there: Tensor | None, edges: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return features (B, sum of the channels, N), 0 for absent elements, and the
        mask of present ones, bool (B, N).

        Args:
            elements: (B, N, C), for any N.
            there: bool (B, N), False for what pads a small set, whose numbers are then
                ignored; None if all are there.
            edges: A, (B, N, N), 1 or a weight from each m to n; None for a network
                without edges.

        Raises:
            ValueError: if a set is empty, a shape does not fit, or numbers are not
                finite.
        """
        there = self._check(elements, there, edges)
        # [n, C]: from here on there is no padding.
        rows = elements[there]
        joined = None if edges is None else _pairs(edges, there)
        layers = []
        for number, (own, norm) in enumerate(zip(self.own, self.norms, strict=True)):
            mixed = own(rows)
            if joined is not None:
                to, by, weight = joined
                messages = rows[by] * weight  # in the wider of their two dtypes
                sums = messages.new_zeros(rows.shape).index_add(0, to, messages)
                mixed = mixed + self.neighbours[number](sums.to(rows.dtype))
            rows = norm(mixed).relu()
            layers.append(rows)
        rows = self.drop(torch.cat(layers, 1))
        features = rows.new_zeros(*there.shape, rows.shape[1])
        features[there] = rows
        return features.mT, there

    def _check(
        self, elements: Tensor, there: Tensor | None, edges: Tensor | None
    ) -> Tensor:
        if (
            elements.ndim != 3
            or elements.shape[2] != self.in_features
            or not elements.shape[1]
        ):
            raise ValueError(
                f"elements must be (B, N, {self.in_features}) with N at least 1, got "
                f"shape {tuple(elements.shape)}"
            )
        B, N, _ = elements.shape
        if there is None:
            there = elements.new_ones(B, N, dtype=torch.bool)
        if there.shape != (B, N) or there.dtype != torch.bool:
            raise ValueError(
                f"there must be bool (B, N) = {(B, N)}, got {there.dtype} "
                f"{tuple(there.shape)}"
            )
        if can_be_read(there) and not there.any(1).all():
            raise ValueError(
                "there must leave an element in each set, got an empty set"
            )
        if (edges is not None) != self.edges or (
            edges is not None and edges.shape != (B, N, N)
        ):
            wanted = "None: this network was built without edges"
            if self.edges:
                wanted = f"(B, N, N) = {(B, N, N)}"
            raise ValueError(
                f"edges must be {wanted}, got "
                f"{None if edges is None else tuple(edges.shape)}"
            )
        for name, values in (
            ("elements", elements.masked_fill(~there[..., None], 0.0)),
            ("edges", None if edges is None else _between(edges, there)),
        ):
            if values is None or not can_be_read(values):
                continue
            if not all_finite(values):
                raise ValueError(f"{name} hold NaN or infinite values")
        return there


def _between(edges: Tensor, present: Tensor) -> Tensor:
    """The edges, 0 where one of the two elements is not there, whatever they hold."""
    return edges.masked_fill(~(present[:, None] & present[..., None]), 0)


def _pairs(edges: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The edges between elements that are there, by their places among these: to, from,
    and weights (pairs, 1).
    """
    place = present.flatten().cumsum(0).view_as(present) - 1
    sets, to, by = _between(edges, present).nonzero(as_tuple=True)
    return place[sets, to], place[sets, by], edges[sets, to, by][:, None]


@settings
class SetCapsNet(SetClassifier):
    r"""Capsules over sets: every element has ``types`` capsules, routed to the classes.

    .. math:: u_{nt} = \operatorname{squash}(W_t [h^1_n, \dots, h^L_n] + b_t), \quad V_{ntj} = u_{nt} W_{tj}

    All elements share the transforms, so a set of any number of elements is routed, in
    any order, and the assignment says which element spoke for which class.

    Args:
        in_features: numbers that describe an element, C.
        classes: number of classes.
        channels: the channels of the layers of features.
        edges: whether there are edges.
        dropout: share of the features that are left out in training.
        types: the number of types of capsules of each element.
        dim: the numbers of their poses.
        pose_dim: the size of the poses of the class capsules.
        routing: the routing of the class capsules; default: Euclidean K-Means in 3
            steps, whose parents are means of votes: a sum would grow with the number of
            elements.

    Source: after Xinyi & Chen 2019, "Capsule Graph Neural Network", whose nodes have
    capsules of the features of all layers; without its attention, its capsules of
    graphs and its reconstruction of counts.

    Example:
        >>> network = tc.models.SetCapsNet(in_features=3, classes=5)
        >>> network(torch.randn(2, 40, 3)).capsules.pose.shape  # points
        torch.Size([2, 5, 16])
        >>> edges = torch.tensor(
        ...     [[[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]]
        ... )  # a path of three nodes
        >>> network = tc.models.SetCapsNet(in_features=7, classes=2, edges=True)
        >>> network(torch.rand(1, 3, 7), None, edges).activation.shape
        torch.Size([1, 2])
    """

    types: Size = 4
    dim: Size = 8
    pose_dim: Size = 16
    routing: InitVar[Routing | None] = layer_routing(
        "class_caps", "The routing of the class capsules."
    )

    def __post_init__(self, routing: Routing | None) -> None:
        super().__post_init__()
        self.primary_caps = PrimaryCaps1d(
            sum(self.channels), self.types, self.dim, 1, 1, squash="half"
        )
        self.class_caps = ClassCaps(
            self.types,
            self.classes,
            self.dim,
            self.pose_dim,
            axes=1,
            coordinates=False,
            routing=routing or EuclideanKMeansRouting(),
        )

    def children_of(
        self, elements: Tensor, there: Tensor | None = None, edges: Tensor | None = None
    ) -> Capsules:
        """Return the capsules of all elements, poses (B, N, types, dim); arguments as
        in :meth:`forward`.
        """
        return self._children(elements, there, edges)[0]

    def _children(
        self, elements: Tensor, there: Tensor | None, edges: Tensor | None
    ) -> tuple[Capsules, Tensor]:
        features, there = self.features(elements, there, edges)
        capsules = self.primary_caps(features)
        return capsules, there[..., None].expand(capsules.activation.shape)

    def route(
        self, elements: Tensor, there: Tensor | None = None, edges: Tensor | None = None
    ) -> Routed:
        """Return the routing of the class capsules; the assignment is (B, N * types,
        classes).
        """
        return self.class_caps.route(*self._children(elements, there, edges))

    def forward(
        self, elements: Tensor, there: Tensor | None = None, edges: Tensor | None = None
    ) -> Prediction:
        """Return the class capsules of sets."""
        capsules = self.class_caps(*self._children(elements, there, edges))
        return Prediction(capsules.activation, capsules)


@settings
class PooledSet(SetClassifier):
    """The features of :class:`SetCapsNet`, pooled over the elements, and a hidden
    layer: its twin.

    Args:
        in_features: numbers that describe an element, C.
        classes: number of classes.
        channels: the channels of the layers of features.
        edges: whether there are edges.
        dropout: share of the features that are left out in training.
        hidden: width of the hidden layer.
        pool: ``mean``; ``sum``, which counts; or ``max``.

    Source: sums: Xu et al. 2019, "How Powerful are Graph Neural Networks?" (GIN); the
    greatest of points: Qi et al. 2017, "PointNet".

    Example:
        >>> tc.models.PooledSet(in_features=3, classes=5, pool="max")(
        ...     torch.randn(2, 40, 3)
        ... ).activation.shape
        torch.Size([2, 5])
    """

    hidden: Size = 32
    pool: Pool = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hidden_layer = nn.Linear(sum(self.channels), self.hidden)
        self.head = nn.Linear(self.hidden, self.classes)

    def forward(
        self, elements: Tensor, there: Tensor | None = None, edges: Tensor | None = None
    ) -> Prediction:
        """Return the activations of the classes."""
        features, there = self.features(elements, there, edges)
        if self.pool == "max":
            # After ReLU, the 0 of padding is never above what is there.
            pooled = features.amax(2)
        else:
            pooled = features.sum(2)
            if self.pool == "mean":
                pooled = pooled / there.sum(1, keepdim=True)
        return Prediction(self.head(self.hidden_layer(pooled).relu()).softmax(1))

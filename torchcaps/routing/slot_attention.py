"""Slot attention (Locatello et al. 2020): soft K-Means of the children with learned
projections, whose centres a GRU cell updates.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from torchcaps.numerics import Positive, full_precision, quotient
from torchcaps.ops import InnerProduct, Votes, folded, fused
from torchcaps.ops.backend import mean_of
from torchcaps.ops.competition import PARENTS
from torchcaps.ops.folded import Folded
from torchcaps.routing.base import (
    Gradient,
    LayerShape,
    Routed,
    Routing,
    Steps,
    gradient_context,
    of_settings,
    register_routing,
    unbound,
)
from torchcaps.routing.means import moments_and_shares, weights_for_means
from torchcaps.routing.slot_parts import (
    HiddenSize,
    SlotStart,
    SlotUpdate,
    Start,
    applied,
    passed_on,
    projected_votes,
)
from torchcaps.spec import settings

Aggregate = Literal["mean", "sum"]


@register_routing("slots")
@settings
class SlotAttentionRouting(Routing):
    r"""Slots compete for the children, collect the mean of their values, and are
    updated by a GRU cell and an MLP.

    .. math::
        k_i, v_i = \operatorname{LN}(u_i) \, [W_k \,|\, W_v], \quad
        R_{ij} = \operatorname{softmax}_j \frac{\langle W_q \operatorname{LN}(s_j), k_i \rangle}{\sqrt H}

        s_j \leftarrow \operatorname{update}\Big( \frac{\sum_i a_i R_{ij} v_i}{\sum_i a_i R_{ij}},\; s_j \Big)

    with the update of :class:`~torchcaps.routing.SlotUpdate`. All slots share the
    projections, so the layer has no transforms and slots are exchangeable: they differ
    by where they start. Without GRU cell and MLP a slot is the mean of the values that
    it collects, as in K-Means.

    The projections of the children move to the slots (:mod:`torchcaps.ops.folded`), so
    keys, values and attention maps are not stored. Where votes are stored, children
    vote with ``[key | value]`` and are compared with ``[q | 0]``. The paper adds 1e-8
    to the attention before it is normalised over the children. Here a slot that
    collects nothing collects 0.

    The activation of a slot is its share of the children, so activations add up to 1.

    Args:
        steps: how many times slots are updated.
        start: from learned ``queries``, one for each slot; or ``normal``, from one
            learned Gaussian, for any number of slots.
        gru: whether a GRU cell updates the slots.
        hidden: numbers of the hidden layer of the MLP; None for twice those of a slot;
            0 for no MLP.
        bias: whether the projections have a bias, as in some ports; the paper has none.
        aggregate: what updates a slot: the ``mean`` of the values that it collects; or
            their ``sum``, divided by the number of children, :math:`\sum_i a_i R_{ij}
            v_i / \sum_i a_i`, which also says how many it collects.
        gradient: through ``all`` steps; or only through the ``last``, which takes what
            it starts from as a fixed point and passes its gradient on to the start:
            memory does not grow with the steps.
        first_sharpness: a factor of the queries before training. With 1, logits then have a
            standard deviation of about 1/3, so attention is nearly uniform, all slots
            collect nearly the same, and a training can stay there for thousands of
            updates. With 8, slots differ from the start.

    Source: Locatello et al. 2020, "Object-Centric Learning with Slot Attention",
    Algorithm 1. The gradient of the last step: Chang, Griffiths & Levine 2022, "Object
    Representations as Fixed Points"; passed on to the start: Jia, Liu & Huang 2023. The
    sum: Krimmel, Achterhold & Stueckler 2024, "Attention Normalization Impacts
    Cardinality Generalization in Slot Attention".

    Example:
        >>> layer = tc.Slots(5, dim=32)
        >>> layer(torch.randn(4, 100, 16)).pose.shape  # any number of features
        torch.Size([4, 5, 32])
    """

    resumable = True

    steps: Steps = 3
    start: Start = "queries"
    gru: bool = True
    hidden: HiddenSize | None = None
    bias: bool = False
    aggregate: Aggregate = "mean"
    gradient: Gradient = "all"
    first_sharpness: Positive = 1.0

    exact_gradients = of_settings(lambda routing: routing.gradient == "all")

    def __post_init__(self) -> None:
        self.first: SlotStart | None = None

    @property
    def own_transforms(self) -> bool:
        """It has projections that all slots share."""
        return True

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the start, the projections, the normalisations and the update."""
        size = shape.size
        child_size = math.prod(shape.in_pose)
        hidden = 2 * size if self.hidden is None else self.hidden
        self.first = SlotStart(self.start, shape.parents, size)
        self.norm_child, self.norm_slot = nn.LayerNorm(child_size), nn.LayerNorm(size)
        self.to_key_value = nn.Linear(child_size, 2 * size, bias=self.bias)
        self.to_query = nn.Linear(size, size, bias=self.bias)
        self.update = SlotUpdate(size, self.gru, hidden)
        with torch.no_grad():
            self.to_query.weight.mul_(self.first_sharpness)

    def route(
        self, votes: Votes, activation: Tensor | None, initial: Routed | None = None
    ) -> Routed:
        """Route the children of the votes; their transforms and coordinates are not
        used.
        """
        if self.first is None:
            raise unbound(self)
        with full_precision(votes.children):
            # [key | value], (B, I, J, 2 H)
            keyed = projected_votes(
                votes, self.norm_child, self.to_key_value, folded=True
            )
            B, _, J, _ = keyed.shape
            first = (
                self.first(B, J, keyed.dtype) if initial is None else initial.pose
            ).to(keyed.dtype)
            slots = first
            steps = self.steps
            attention = _Attention.of(keyed, activation)
            for step in range(steps):
                if self.gradient == "last" and step == steps - 1:
                    slots = passed_on(first, slots)
                with gradient_context(self.gradient, step, steps):
                    query = self._query(slots)
                    if attention is None:
                        moments, share = moments_and_shares(
                            keyed, _similarity(query), activation
                        )
                        value = mean_of(moments)[..., slots.shape[-1] :]
                    else:
                        value, share = attention.collected(query)
                    if self.aggregate == "sum":
                        value = share[..., None] * value
                    slots = self.update(value, slots)
        return Routed(slots, share, keyed, _similarity(query))

    def _query(self, slots: Tensor) -> Tensor:
        return applied(self.to_query, applied(self.norm_slot, slots))


def _similarity(query: Tensor) -> InnerProduct:
    """The similarity of [key | value] with queries: [query | 0]."""
    query = query / math.sqrt(query.shape[-1])
    return InnerProduct(torch.cat([query, torch.zeros_like(query)], -1))


class _Attention:
    """The steps without votes: the projections have moved to the slots.

    Args:
        children: the children, all of one type, whose transform is that of [key |
            value].
        native: whether in C++.
    """

    def __init__(self, children: Folded, native: bool) -> None:
        poses = children.poses.flatten(3)
        B, N, _, P = poses.shape
        J = children.parents
        self.pooled: Any = folded.pooled
        self.options: dict[str, Any] = {"epsilon": children.epsilon}
        self.place_query: Tensor | None = None
        if native and not folded.by_matrix_products(J, P):
            self.pooled = fused.folded.pooled
            self.options["shared"] = fused.folded.SharedPoses(poses)
            self.place_query = poses.new_zeros(B, 1, J, 1)
        # The mass is the sum of 1.
        self.children = poses, poses.new_ones(1, N), children.weights
        key, value = children.transforms[0, 0].chunk(2, -1)  # [P, H]
        scale = 1 / math.sqrt(key.shape[-1])
        self.key, self.value = scale * key, value.mT
        self.key_bias = self.value_bias = None
        if children.place_transforms is not None:
            bias, self.value_bias = children.place_transforms[0, 0].chunk(2, -1)
            self.key_bias = scale * bias  # [1, H]
        assert children.weights is not None
        self.total = children.weights.sum(1)  # [B, 1]

    @classmethod
    def of(cls, votes: Votes, activation: Tensor | None) -> "_Attention | None":
        """The steps of these votes; None where they need votes."""
        backend = votes.plan.choice.backend
        if backend not in ("native", "chunked") or votes.competition is not PARENTS:
            return None
        children = votes.folded(weights_for_means(votes, activation))
        return None if children is None else cls(children, backend == "native")

    def collected(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the values that each slot collects, (B, J, H), and its share of
        the children, (B, J).
        """
        place_query = self.place_query
        if self.key_bias is not None:
            place_query = linear(query, self.key_bias)[:, None]
        sums, mass = self.pooled(
            *self.children,
            linear(query, self.key)[:, None],
            place_query,
            **self.options,
        )
        mass = mass[:, 0]
        values = linear(sums[:, 0], self.value)
        if self.value_bias is not None:
            values = values + mass * self.value_bias
        return quotient(values, mass), quotient(mass[..., 0], self.total)

"""Routing vectors in sequences (Heinsen 2022): factored transforms, so that no vote is
ever formed.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.numerics import compute_dtype, full_precision
from torchcaps.ops import Given, Votes
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    Steps,
    check_parents,
    register_routing,
    unbound,
)
from torchcaps.spec import settings
from torchcaps.squashing import length


class VectorWeights(NamedTuple):
    """What :class:`Heinsen2022Routing` learns, with the names of the paper. I is 1
    when all children share a weight.

    Args:
        presence: :math:`W_A`, (I, d), from a child to how much it is there.
        presence_bias: :math:`B_A`, (I,).
        vote: :math:`W_{F_1}`, (J, d), each parent's part of the transforms.
        vote_shared: :math:`W_{F_2}`, (d, D), the part that all pairs share.
        vote_bias: :math:`B_{F_2}`, (J, D).
        prediction_shared: :math:`W_{G_1}`, (D, d), back from a parent to the children
            that it expects.
        prediction: :math:`W_{G_2}`, (J, d).
        prediction_bias: :math:`B_{G_2}`, (J, d).
        score: :math:`W_S`, (I, J), of how well a child fits what a parent expects.
        score_bias: :math:`B_S`, (I, J).
        benefit: :math:`\\beta^{use}`, what a parent gains by a child that it uses, (I,
            J) or (B, I, J).
        cost: :math:`\\beta^{ign}`, what it loses by one that it ignores, (I, J) or (B,
            I, J).

    Example:
        >>> routing = tc.routing.Heinsen2022Routing()
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=routing)
        >>> weights = layer.routing.weights(torch.randn(4, 32, 8))
        >>> isinstance(weights, tc.routing.VectorWeights)
        True
    """

    presence: Tensor
    presence_bias: Tensor
    vote: Tensor
    vote_shared: Tensor
    vote_bias: Tensor
    prediction_shared: Tensor
    prediction: Tensor
    prediction_bias: Tensor
    score: Tensor
    score_bias: Tensor
    benefit: Tensor
    cost: Tensor

    def to(self, dtype: torch.dtype) -> "VectorWeights":
        """Return the same in that dtype."""
        return VectorWeights(*(tensor.to(dtype) for tensor in self))


@register_routing("heinsen_2022")
@settings
class Heinsen2022Routing(Routing):
    r"""Parents that predict their children, and take what it pays to use.

    .. math::
        x'_i = \frac{x_i}{\sqrt I}, \quad f_i = \sigma(x'_i W_A + B_A), \quad
        V_{ij} = (x'_i \odot W_{F_1,j}) W_{F_2} + B_{F_2,j}

        R_{ij} = \operatorname{softmax}_j \log \sigma \Big( \big\langle x_i,\;
        (N(y_j) W_{G_1}) \odot W_{G_2,j} + B_{G_2,j} \big\rangle W_S + B_S \Big)

        \phi_{ij} = \beta^{use}_{ij} f_i R_{ij} - \beta^{ign}_{ij} (f_i - f_i R_{ij}), \quad
        y_j = \sum_i \phi_{ij} V_{ij}

    from uniform R, which is 1 / J, or with a mask 1 over the number of parents that a
    child has; N normalises over the numbers of a pose (variance plus 1e-5, without
    weights), or does nothing to a single number. I counts the children that are there.
    The transforms are factored and its own, so its layer makes none:

    .. math::
        \sum_i \phi_{ij} V_{ij} = \Big( \Big( \sum_i \phi_{ij} x'_i \Big) \odot W_{F_1,j} \Big) W_{F_2}
        + \sum_i \phi_{ij} B_{F_2,j}

    and with the children added up first there are no votes to store or to form, only
    matrix products of children and parents, on any device.

    The parents have no activation in the paper: it is the length of the pose, or for
    poses of one number, as a class has, that number: a score. A layer that takes any
    number of children finds the betas of a child from its pose.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        normalise: whether to normalise the parents at the end, too.

    Source: Heinsen 2022, "An Algorithm for Routing Vectors in Sequences", Algorithm 2;
    the code released with it.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 16, routing=tc.routing.Heinsen2022Routing()
        ... )  # no votes at all
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    uses_activation = False
    masks_pairs = True

    steps: Steps = 2
    normalise: bool = True

    def __post_init__(self) -> None:
        self.benefit_of: nn.Linear | None = None
        self.cost_of: nn.Linear | None = None
        for name in VectorWeights._fields:
            self.register_parameter(name, None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create all weights, drawn as in the code released with the paper."""
        I = shape.children or 1
        J = shape.parents
        d = math.prod(shape.in_pose)
        D = shape.size
        deviations = {
            "presence": ((I, d), 2 / math.sqrt(d)),
            "presence_bias": ((I,), 0.0),
            "vote": ((J, d), 1.0),
            "vote_shared": ((d, D), 2 / math.sqrt(d)),
            "vote_bias": ((J, D), 0.0),
            "prediction_shared": ((D, d), 1 / math.sqrt(D)),
            "prediction": ((J, d), 1.0),
            "prediction_bias": ((J, d), 0.0),
            "score": ((I, J), 1 / math.sqrt(d)),
            "score_bias": ((I, J), 0.0),
        }
        self.benefit = self.cost = self.benefit_of = self.cost_of = None
        if shape.children is None:
            self.benefit_of, self.cost_of = nn.Linear(d, J), nn.Linear(d, J)
        else:
            deviations |= {"benefit": ((I, J), 1.0), "cost": ((I, J), 1.0)}
        for name, (sizes, deviation) in deviations.items():
            setattr(self, name, nn.Parameter(torch.randn(sizes) * deviation))

    @property
    def own_transforms(self) -> bool:
        """It has factored ones."""
        return True

    def route(
        self, votes: Votes, activation: Tensor | None, pairs: Tensor | None = None
    ) -> Routed:
        """Route the children of the votes; their transforms, coordinates and
        activations are not used.

        Where a child must not vote for a parent by ``pairs``, (B, I, J), f is 0,
        and the assignment, the first one too, leaves it out. A child without parents
        adds nothing, and counts in I.
        """
        children = votes.gather(votes.children.flatten(2))
        present = None if votes.mask is None else votes.gather(votes.mask)
        weights = self.weights(children)
        check_parents(self, weights.vote_bias, votes)
        dtype = compute_dtype(children, *weights)
        with full_precision(children):
            pose, logits = self._parents(
                children.to(dtype), weights.to(dtype), present, pairs
            )
        if pose.shape[-1] == 1:
            activation = pose.squeeze(-1)
        else:
            activation = length(pose)
        return Routed(pose, activation, votes, Given(logits))

    def _parents(
        self,
        children: Tensor,
        weights: VectorWeights,
        present: Tensor | None,
        pairs: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The parents y, (B, J, D), and the logits of their last assignment, (B, I,
        J), which are the least of the dtype where masked.
        """
        B, I, _ = children.shape
        J, D = weights.vote_bias.shape
        count = children.new_full((), max(I, 1))
        if present is not None:
            count = present.sum(1, keepdim=True).clamp(min=1).to(children.dtype)
        # The children get this factor when they are added up.
        scale = count.rsqrt()
        logit = torch.einsum("bid,id->bi", children, weights.presence.expand(I, -1))
        presence = (logit * scale + weights.presence_bias).sigmoid()
        if present is not None:
            presence = presence * present
        weighted = presence[..., None] * children
        cost = weights.cost.mT  # [J, I] or [B, J, I]
        gain = (weights.benefit + weights.cost).mT
        apart = None
        if pairs is not None:
            apart = ~pairs.mT  # [B, J, I]
            gain = gain * pairs.mT
            cost = cost * pairs.mT
        logits = children.new_zeros(J, I)
        parents = children.new_zeros(B, J, D)
        for step in range(self.steps):
            if step > 0:
                logits = _fit(children, parents, weights)
            if apart is not None:
                # Finite, so that a child without parents has neither shares nor
                # gradients of NaN.
                logits = logits.masked_fill(apart, torch.finfo(children.dtype).min)
            # phi / f = (beta_use + beta_ign) R - beta_ign, [J, I] or [B, J, I]
            shares = torch.addcmul(-cost, logits.softmax(-2), gain)
            pooled = torch.matmul(shares, weighted) * scale[..., None]  # [B, J, d]
            mass = shares @ presence[..., None]  # [B, J, 1]
            parents = (pooled * weights.vote) @ weights.vote_shared
            parents = parents + mass * weights.vote_bias
        if self.normalise:
            parents = _normalised(parents)
        return parents, logits.expand(B, J, I).mT

    def weights(self, children: Tensor) -> VectorWeights:
        """Return what is learned, with the betas of these children, (B, I, d)."""
        if self.presence is None:
            raise unbound(self)
        fields = {name: getattr(self, name) for name in VectorWeights._fields}
        if self.benefit_of is not None and self.cost_of is not None:
            with full_precision(children):
                children = children.to(fields["presence"].dtype)
                fields |= {
                    "benefit": self.benefit_of(children),
                    "cost": self.cost_of(children),
                }
        return VectorWeights(**fields)


def _fit(children: Tensor, parents: Tensor, weights: VectorWeights) -> Tensor:
    """How well the children are what the parents expect: the logits (B, J, I)."""
    expected = (
        _normalised(parents) @ weights.prediction_shared
    ) * weights.prediction + weights.prediction_bias
    score = torch.matmul(expected, children.mT)
    return functional.logsigmoid(
        torch.addcmul(weights.score_bias.mT, score, weights.score.mT)
    )


def _normalised(parents: Tensor) -> Tensor:
    """The parents normalised over the numbers of a pose; a single number stays."""
    if parents.shape[-1] == 1:
        return parents
    return functional.layer_norm(parents, parents.shape[-1:])

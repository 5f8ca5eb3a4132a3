"""Routing capsules in all domains (Heinsen 2019): EM with a net benefit to use a child
and a net cost to ignore it.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from torchcaps.numerics import Floor, compute_dtype, full_precision
from torchcaps.ops import Gaussian, Moments, Votes
from torchcaps.ops.backend import mean_of
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    Steps,
    register_routing,
    unbound,
)
from torchcaps.spec import settings

Model = Literal["gaussian", "kmeans"]


@register_routing("heinsen_2019")
@settings
class Heinsen2019Routing(Routing):
    r"""Mixture of Gaussians, or soft K-Means, whose parents are on if using their
    children pays.

    .. math::
        R_{ij} = \operatorname{softmax}_j \Big( \log \sigma(a_j) - \sum_h \frac{(V_{ijh} - \mu_{jh})^2}{2 s^2_{jh}}
        - \sum_h \log s_{jh} \Big)

        U_{ij} = f_i R_{ij}, \quad a_j = \sum_i \beta^{use}_{ij} U_{ij} - \beta^{ign}_{ij} (f_i - U_{ij})

        \mu_j = \frac{\sum_i U_{ij} V_{ij}}{\sum_i U_{ij} + \epsilon}, \quad
        s^2_j = \frac{\sum_i U_{ij} (V_{ij} - \mu_j)^2}{\sum_i U_{ij} + \epsilon} + \epsilon

    from uniform R, 1 / J. The score :math:`a_j` is a logit, and f the sigmoid of the
    children's. Soft K-Means has :math:`-\sum_h (V_{ijh} - \mu_{jh})^2` in place of the
    density. To the votes of each pair a learned bias is added. Runs on all backends;
    only ``naive`` stores the votes. Where each pair has its own betas, the assignments
    are formed, (B, I, J).

    The parameters start at 0, where all parents are alike. A layer that takes any
    number of children has biases and betas for each parent alone. One for any number of
    parents, whose transforms all parents share, breaks the symmetry between them by a
    learned pose times a number that goes from -1 for the first parent to 1 for the
    last.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        model: ``"gaussian"``, or ``"kmeans"`` for soft K-Means.
        logits: whether activations are logits, of the children and of the parents, as
            in the paper; a child of logit 0 is then half there, also one of a
            convolution's padding. Otherwise they are probabilities, :math:`f_i` and
            :math:`\sigma(a_j)`.
        any_parents: whether the parameters are shared by all parents, so that any
            number of them will do: in a layer with ``transforms="subspace"`` its
            ``out_capsules`` may be set anew at any time.
        epsilon: the number that keeps the divisors and the variances from 0.

    Source: Heinsen 2019, "An Algorithm for Routing Capsules in All Domains", Algorithm
    1; the code released with it.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, (4, 4), (4, 4), routing=tc.routing.Heinsen2019Routing(steps=2)
        ... )
        >>> layer(
        ...     tc.Capsules(torch.randn(4, 32, 4, 4), torch.rand(4, 32))
        ... ).activation.shape
        torch.Size([4, 10])
    """

    steps: Steps = 3
    model: Model = "gaussian"
    logits: bool = False
    any_parents: bool = False
    epsilon: Floor = 1e-5

    def __post_init__(self) -> None:
        for name in ("bias", "benefit", "cost", "spread"):
            self.register_parameter(name, None)

    def make_parameters(self, shape: LayerShape) -> None:
        r"""Create the biases, (I, J, H), and :math:`\beta^{use}` and
        :math:`\beta^{ign}`, (I, J); I is 1 where all children share them.
        """
        children = shape.children or 1
        parents = 1 if self.any_parents else shape.parents
        self.bias = nn.Parameter(torch.zeros(children, parents, shape.size))
        self.benefit = nn.Parameter(torch.zeros(children, parents))
        self.cost = nn.Parameter(torch.zeros(children, parents))
        if self.any_parents:
            self.spread = nn.Parameter(torch.zeros(shape.size))

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; children are weighted by their activations."""
        votes = votes.with_bias(self._bias(votes.parents))
        benefit = self.benefit.expand(-1, votes.parents)
        cost = self.cost.expand(-1, votes.parents)
        weights = activation
        if self.logits and activation is not None:
            # A child that is not there may be NaN.
            weights = votes.present(activation)
            assert weights is not None
            weights = weights.to(compute_dtype(weights)).sigmoid()
        gaussian = self.model == "gaussian"
        similarity: Gaussian | None = None
        for step in range(self.steps):
            moments = votes.moments(similarity, weights, scatter=gaussian)
            score = _score(votes, similarity, weights, moments.mass, benefit, cost)
            mean = moments.sum / (moments.mass[..., None] + self.epsilon)
            if step == self.steps - 1:
                break
            prior = logsigmoid(score)
            if gaussian:
                variance = _variance(moments, mean, self.epsilon)
                similarity = Gaussian.likelihood(mean, variance, prior)
            else:
                similarity = Gaussian(mean, torch.full_like(mean, 2.0), prior)
        parents = score if self.logits else score.sigmoid()
        return Routed(mean, parents, votes, similarity, score)

    def _bias(self, parents: int) -> Tensor:
        """The bias of the votes, (I, J, H); raises an error where there is none yet."""
        bias = self.bias
        if bias is None:
            raise unbound(self)
        if self.spread is None:
            return bias
        along = torch.linspace(-1, 1, parents, dtype=bias.dtype, device=bias.device)
        return bias + along[:, None] * self.spread


def _score(
    votes: Votes,
    similarity: Gaussian | None,
    weights: Tensor | None,
    mass: Tensor,
    benefit: Tensor,
    cost: Tensor,
) -> Tensor:
    """What using the children pays less what ignoring them costs, (B, J)."""
    benefit = benefit.to(mass.dtype)
    cost = cost.to(mass.dtype)
    _, I, J, _ = votes.shape
    present = votes.present(weights)
    if len(benefit) == 1 == len(cost):
        all_children: Tensor | int = I
        if present is not None:
            all_children = votes.gather(present).to(mass.dtype).sum(1, keepdim=True)
        return benefit * mass - cost * (all_children - mass)
    used = votes.assignment(similarity)
    benefit = benefit.expand(I, J)
    cost = cost.expand(I, J)
    if present is None:
        return (used * (benefit + cost)).sum(1) - cost.sum(0)
    presence = votes.gather(present).to(mass.dtype)
    with full_precision(mass):
        return (
            torch.einsum("bij,ij->bj", presence[..., None] * used, benefit + cost)
            - presence @ cost
        )


def _variance(moments: Moments, mean: Tensor, epsilon: float) -> Tensor:
    """The variance about a mean that epsilon pulls a little towards 0."""
    assert moments.scatter is not None
    mass = moments.mass[..., None]
    return (moments.scatter + mass * (mean_of(moments) - mean).square()) / (
        mass + epsilon
    ) + epsilon

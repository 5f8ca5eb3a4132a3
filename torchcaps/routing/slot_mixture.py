"""Slot mixture (Kirilenko et al. 2024): a Gaussian mixture of the children, whose means
a GRU cell updates.
"""

import math

import torch
from torch import Tensor, nn

from torchcaps.numerics import Floor, full_precision
from torchcaps.ops import Gaussian, Votes
from torchcaps.ops.backend import mean_of, variance_of
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
from torchcaps.routing.means import moments_and_shares
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


@register_routing("slot_mixture")
@settings
class SlotMixtureRouting(Routing):
    r"""Slots are Gaussians of a mixture with learned updates: EM in place of the K-Means
    of slot attention.

    .. math::
        x_i = \operatorname{LN}(u_i) W, \quad
        R_{ij} = \operatorname{softmax}_j \Big( \log \pi_j +
        \frac{1}{\sqrt H} \log \mathcal N(x_i; \mu_j, \sigma_j^2) \Big)

        \bar x_j = \frac{\sum_i a_i R_{ij} x_i}{\sum_i a_i R_{ij}}, \quad
        \mu_j \leftarrow \operatorname{update}(\bar x_j, \mu_j), \quad
        \sigma_j^2 = \frac{\sum_i a_i R_{ij} (x_i - \mu_j)^2}{\sum_i a_i R_{ij}} + f, \quad
        \pi_j = \frac{\sum_i a_i R_{ij}}{\sum_i a_i}

    from :math:`\sigma = 1` and equal :math:`\pi`, with the update of
    :class:`~torchcaps.routing.SlotUpdate`. The pose is an MLP of :math:`[\mu_j \,|\,
    \log \sigma_j]`, so it also says how much the children of a slot differ. Without GRU
    cell, MLP and readout this is EM, and the pose is the mean.

    The released code compares projected keys with projected means and deviations. Here
    the children are compared with the means themselves.

    The activation of a slot is :math:`\pi_j`.

    The gradient is exact, but with a small floor f it changes within
    :math:`\sqrt f` of the children: central differences with a step h are off by about
    8 h² of it at f = 1e-4, so by 8 % for h = 0.1 and by 1e-7 for h = 1e-4.

    Args:
        steps: how many M-steps.
        start: the start of the means: from learned ``queries``, one for each slot; or
            ``normal``, from one learned Gaussian, for any number of slots.
        gru: whether a GRU cell updates the means.
        hidden: numbers of the hidden layers of the MLPs; None for twice those of a
            slot; 0 for no MLP, and a linear readout.
        readout: whether the pose is made from means and deviations; without, it is the
            mean.
        variance_floor: f, added to the variances, above 0; children are normalised.
        gradient: through ``all`` steps; or only through the ``last``, as in
            :class:`~torchcaps.routing.SlotAttentionRouting`.

    Source: Kirilenko et al. 2024, "Object-Centric Learning with Slot Mixture Module";
    the code released with it has the factor :math:`1 / \sqrt H`.

    Example:
        >>> layer = tc.Slots(5, dim=32, routing="slot_mixture")
        >>> layer(torch.randn(4, 100, 16)).activation.sum(1).allclose(torch.ones(4))
        True
    """

    steps: Steps = 3
    start: Start = "queries"
    gru: bool = True
    hidden: HiddenSize | None = None
    readout: bool = True
    variance_floor: Floor = 0.01
    gradient: Gradient = "all"

    exact_gradients = of_settings(lambda routing: routing.gradient == "all")

    def __post_init__(self) -> None:
        self.first: SlotStart | None = None

    @property
    def own_transforms(self) -> bool:
        """It has a projection that all slots share."""
        return True

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the start, the projection, the normalisation, the update and the
        readout.
        """
        size = shape.size
        child_size = math.prod(shape.in_pose)
        hidden = 2 * size if self.hidden is None else self.hidden
        self.first = SlotStart(self.start, shape.parents, size)
        self.norm_child = nn.LayerNorm(child_size)
        self.to_value = nn.Linear(child_size, size, bias=False)
        self.update = SlotUpdate(size, self.gru, hidden)
        self.to_pose = _readout(size, hidden) if self.readout else None

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the children of the votes; their transforms and coordinates are not
        used.
        """
        if self.first is None:
            raise unbound(self)
        with full_precision(votes.children):
            projected = projected_votes(votes, self.norm_child, self.to_value)
            B, _, J, _ = projected.shape
            first = self.first(B, J, projected.dtype)
            mean = first
            variance = torch.ones_like(first)
            # Of equal slots; a constant does not matter.
            log_share = first.new_zeros(B, J)
            sharpness = 1 / math.sqrt(first.shape[-1])
            steps = self.steps
            for step in range(steps):
                if self.gradient == "last" and step == steps - 1:
                    mean = passed_on(first, mean)
                with gradient_context(self.gradient, step, steps):
                    similarity = Gaussian.likelihood(
                        mean, variance, log_share, sharpness
                    )
                    moments, share = moments_and_shares(
                        projected, similarity, activation, scatter=True
                    )
                    collected = mean_of(moments)
                    mean = self.update(collected, mean)
                    about_mean = variance_of(moments) + (collected - mean).square()
                    variance = about_mean + self.variance_floor
                    log_share = share.clamp_min(torch.finfo(share.dtype).tiny).log()
            pose = mean
            if self.to_pose is not None:
                pose = applied(self.to_pose, torch.cat([mean, variance.log() / 2], -1))
        return Routed(pose, share, projected, similarity)


def _readout(size: int, hidden: int) -> nn.Module:
    """Make a network from mean and logarithm of the deviation to the pose."""
    if not hidden:
        return nn.Linear(2 * size, size)
    return nn.Sequential(
        nn.Linear(2 * size, hidden), nn.ReLU(), nn.Linear(hidden, size)
    )

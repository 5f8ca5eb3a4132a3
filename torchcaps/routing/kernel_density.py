"""Routing as weighted kernel density estimation (Zhang et al. 2018; Zhao et al.
2019).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchcaps.numerics import Positive, positive, quotient
from torchcaps.ops import Competition, Similarity, Votes, axes
from torchcaps.ops.backend import mean_of
from torchcaps.routing.base import Routed, Routing, Steps, of_settings, register_routing
from torchcaps.spec import settings
from torchcaps.squashing import SquashKind, length, squash

Method = Literal["shift", "em"]


@dataclass(frozen=True, eq=False)
class SquashedDistance(Similarity):
    r"""Similarity :math:`l_{ij} = \sum_t 1 - |\operatorname{squash}(V_{ij}) -
    v^t_j|^2`, over the parents of t steps.

    Args:
        total: :math:`\sum_t v^t_j`, (B, J, H).
        squared: :math:`\sum_t |v^t_j|^2`, (B, J).
        steps: how many steps that is.
        squash_kind: the squash of the votes.
    """

    total: Tensor = axes("BJH")
    squared: Tensor = axes("BJ")
    steps: int = 1
    squash_kind: str = "half"

    def logits(self, votes: Tensor) -> Tensor:
        """Return the logits (B, I, J) of votes (B, I, J, H)."""
        short = squash(votes, self.squash_kind)
        constant = self.steps * (1 - short.square().sum(-1))
        return (
            constant
            + 2 * torch.einsum("bijh,bjh->bij", short, self.total)
            - self.squared[:, None]
        )

    def __add__(self, other: "SquashedDistance") -> "SquashedDistance":
        """Over the steps of both."""
        total = self.total + other.total
        squared = self.squared + other.squared
        return SquashedDistance(
            total, squared, self.steps + other.steps, self.squash_kind
        )


@register_routing("kernel_density")
@settings
class KernelDensityRouting(Routing):
    r"""Parents climb to where votes are dense.

    .. math::
        R_{ij} = \operatorname{softmax}_j b_{ij}, \quad
        v_j = \operatorname{squash} \frac{\sum_i R_{ij} V_{ij}}{\sum_i R_{ij}}, \quad
        b_{ij} \mathrel{+}= 1 - |\operatorname{squash}(V_{ij}) - v_j|^2

    from b = 0. Runs on ``naive``, which stores the votes, and on ``chunked``.

    With ``settled`` it stops as soon as the logarithm of the density,

    .. math::
        \log \frac1B \sum_{bij} \frac{R_{ij}}{\sum_i R_{ij}} (1 - |\operatorname{squash}(V_{ij}) - v_j|^2)

    changes by less than that from one step to the next, from 0 before the first. The
    density is of the whole batch, as in the authors' code: how many steps an example
    gets then depends on the others. The assignments are formed for it, (B, I, J),
    without gradients.

    Args:
        steps: how many times the assignment is made, the uniform first one included;
            with ``settled``, at most.
        settled: the change of the logarithm of the density below which to stop, 0.05
            in the authors' code; None makes all steps.
        squash: a row of the table in :func:`~torchcaps.squash`, for votes and parents.

    Source: Zhao, Peng, Eger, Cambria & Yang 2019, "Towards Scalable and Reliable
    Capsule Networks for Challenging NLP Applications", Algorithm 1; the code released
    with it.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 16, routing=tc.routing.KernelDensityRouting(steps=2)
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    uses_activation = False

    steps: Steps = 3
    settled: Positive | None = None
    squash: SquashKind = "half"

    separate_examples = of_settings(lambda routing: routing.settled is None)

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; the child activations are the lengths of their poses
        already, and are not used again.
        """
        similarity: SquashedDistance | None = None
        before = 0.0
        for step in range(self.steps):
            moments = votes.moments(similarity)
            pose = squash(mean_of(moments), self.squash)
            if step == self.steps - 1:
                break
            agreement = SquashedDistance(
                pose, pose.square().sum(-1), squash_kind=self.squash
            )
            if self.settled is not None:
                density = _log_density(votes, similarity, agreement)
                if abs(density - before) < self.settled:
                    break
                before = density
            similarity = agreement if similarity is None else similarity + agreement
        return Routed(pose, length(pose), votes, similarity)


@torch.no_grad()
def _log_density(
    votes: Votes, assigned: SquashedDistance | None, agreement: SquashedDistance
) -> float:
    """The logarithm of the density of the votes at the parents, by the shares that made
    these; one for the batch.
    """
    share = votes.assignment(assigned)
    share = share / positive(share.sum(1, keepdim=True))
    density = float((share * votes.logits(agreement)).sum()) / max(len(share), 1)
    return math.log(density) if density > 0 else -math.inf


@dataclass(frozen=True, eq=False)
class MeanShiftShares(Similarity):
    r"""The shares :math:`r \leftarrow (r + \alpha k) / \sum_j (r + \alpha k)` after the
    parents of t steps, from 1 / J.

    Args:
        centres: :math:`v^t_j`, (T, B, J, H).
        width: the width w of the kernel k.
        rate: :math:`\alpha`.
    """

    centres: Tensor = axes("TBJH")
    width: float = 2.0
    rate: float = 1.0

    def logits(self, votes: Tensor) -> Tensor:
        """Return the shares (B, I, J) of votes (B, I, J, H)."""
        share = votes.new_full(votes.shape[:3], 1 / votes.shape[2])
        for centre in self.centres:
            share = share + self.rate * epanechnikov(votes, centre, self.width)
            share = share / share.sum(-1, keepdim=True)
        return share


@dataclass(frozen=True, eq=False)
class KernelMixtureShares(Similarity):
    r"""The shares :math:`p_j k_{ij} / \sum_j p_j k_{ij}`; a vote that no kernel reaches
    has none.

    Args:
        centre: :math:`v_j`, (B, J, H).
        weight: :math:`p_j`, (B, J).
        width: the width w of the kernel k.
    """

    centre: Tensor = axes("BJH")
    weight: Tensor = axes("BJ")
    width: float = 2.0

    def logits(self, votes: Tensor) -> Tensor:
        """Return the shares (B, I, J) of votes (B, I, J, H)."""
        share = self.weight[:, None] * epanechnikov(votes, self.centre, self.width)
        return quotient(share, share.sum(-1, keepdim=True))


@dataclass(frozen=True, eq=False)
class KernelDensity(Similarity):
    r"""What each vote adds to the density at its parent, :math:`r_{ij} k_{ij}`.

    Args:
        shares: r; None for 1 / J.
        centre: the parents, (B, J, H).
        width: the width w of the kernel k.
    """

    shares: Similarity | None
    centre: Tensor = axes("BJH")
    width: float = 2.0

    def logits(self, votes: Tensor) -> Tensor:
        """Return the products (B, I, J) of votes (B, I, J, H)."""
        share: Tensor | float = 1 / votes.shape[2]
        if self.shares is not None:
            share = self.shares.logits(votes)
        return share * epanechnikov(votes, self.centre, self.width)


@dataclass(frozen=True)
class Direct(Competition):
    """The logits are the assignment: :math:`R_{ij} = l_{ij}`."""

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """Return the assignments (B, I, J) of logits (B, I, J)."""
        return logits


def epanechnikov(votes: Tensor, centre: Tensor, width: float) -> Tensor:
    """Return the kernel ``max(0, 1 - |V - v|^2 / (H w^2))``, (B, I, J)."""
    return (1 - (votes - centre[:, None]).square().mean(-1) / width**2).relu()


@register_routing("fast_kernel_density")
@settings
class FastKernelDensityRouting(Routing):
    r"""Parents maximise the density of their votes, :math:`\sum_{ij} a_i r_{ij}
    k(V_{ij}, v_j)`; so do the shares r.

    .. math::
        v_j = \frac{\sum_i a_i r_{ij} V_{ij}}{\sum_i a_i r_{ij}}, \quad
        k(V, v) = \max \Big( 0, 1 - \frac{|V - v|^2}{H w^2} \Big)

    (one step of mean shift with the kernel of Epanechnikov, whose derivative is
    constant), and

    .. math::
        \text{shift (FRMS):}\quad r_{ij} \leftarrow \frac{r_{ij} + \alpha k_{ij}}{\sum_j (r_{ij} + \alpha k_{ij})},
        \qquad
        \text{em (FREM):}\quad r_{ij} = \frac{p_j k_{ij}}{\sum_j p_j k_{ij}}, \quad
        p_j = \frac{\sum_i a_i r_{ij}}{\sum_i a_i}

    from r = 1 / J. The activation is the density at the parent, :math:`\sum_i a_i
    r_{ij} k_{ij} / \sum_i a_i r_{ij}`. In ``em`` a vote that no kernel reaches has no
    share, and a parent without votes is 0; their gradients are 0. Runs on ``naive``,
    which stores the votes, and on ``chunked``.

    Not compared with any code of the authors'. From the paper are the weighted density
    as objective, the kernel, the two ways to climb, and the names; chosen here are a
    kernel that reaches w deviations in each number of a pose, shares that are
    normalised after each step, and the activation.

    Args:
        steps: how many times the parents are found, the first from uniform shares.
        method: ``"shift"`` (FRMS), gradient ascent of the shares, or ``"em"`` (FREM), a
            mixture of the kernels.
        width: w of the kernel, in the units of one number of a pose.
        rate: :math:`\alpha` of the shares' ascent, for ``"shift"``.

    Source: Zhang, Zhao, Wu & Zhou 2018, "Fast Dynamic Routing Based on Weighted Kernel
    Density Estimation".

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 16, routing=tc.routing.FastKernelDensityRouting(method="em")
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    within_window = True

    steps: Steps = 3
    method: Method = "shift"
    width: Positive = 2.0
    rate: Positive = 1.0

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; a mean forgets how long the votes were, so their activations
        weight them.
        """
        uniform = votes
        votes = votes.under(Direct())
        shares: MeanShiftShares | KernelMixtureShares | None = None
        centres: list[Tensor] = []
        for step in range(self.steps):
            assigned = uniform if shares is None else votes
            moments = assigned.moments(shares, activation)
            centres.append(mean_of(moments))
            if step == self.steps - 1:
                break
            if self.method == "shift":
                shares = MeanShiftShares(torch.stack(centres), self.width, self.rate)
            else:
                prior = quotient(moments.mass, moments.mass.sum(-1, keepdim=True))
                shares = KernelMixtureShares(centres[-1], prior, self.width)
        pose = centres[-1]
        density = votes.moments(KernelDensity(shares, pose, self.width), activation)
        height = quotient(density.mass, moments.mass)
        return Routed(pose, height, assigned, shares)

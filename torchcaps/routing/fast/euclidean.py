"""All steps of Euclidean K-Means without votes, where places share their transforms: in
C++, as inner products of poses and of their products.
"""

import torch
from torch import Tensor

from torchcaps.numerics import full_precision
from torchcaps.ops import Gaussian, Moments, Votes
from torchcaps.ops.backend import mean_of
from torchcaps.ops.folded import MOST_NUMBERS, Folded
from torchcaps.ops.fused import folded
from torchcaps.routing.base import Routed, fast
from torchcaps.routing.kmeans import EuclideanKMeansRouting, new_centres
from torchcaps.routing.means import weights_for_means
from torchcaps.squashing import length


@fast(EuclideanKMeansRouting, "native", "steps", "sharpness")
def euclidean(
    routing: EuclideanKMeansRouting, votes: Votes, activation: Tensor | None
) -> Routed | None:
    """Make all steps of Euclidean K-Means."""
    competition = votes.competition
    if not competition.is_softmax:
        return None
    weights = weights_for_means(votes, activation)
    with full_precision(votes.children):
        children = votes.folded(weights)
        if children is None or not _folds(children):
            return None
        distances = _Distances(children, routing.sharpness, competition.leaky)
        mean = mean_of(votes.moments(weights=weights))
        similarity = None
        for _ in range(routing.steps - 1):
            similarity = Gaussian.spherical(mean, routing.sharpness)
            mean = new_centres(distances.moments(mean), mean_of, mean)
    return Routed(mean, length(mean), votes, similarity)


def _folds(children: Folded) -> bool:
    """Whether they are vectors of few numbers with votes that are linear in them."""
    *_, M, P = children.poses.shape
    linear = children.place_transforms is None and children.epsilon is None
    own = children.transforms.shape[1] == children.parents
    return M == 1 and linear and own and P * (P + 3) // 2 <= MOST_NUMBERS


class _Distances:
    r"""Squared distances of votes from means as inner products.

    With poses :math:`x = u - c_t` about their mean of each type, and :math:`d = \mu_j -
    c_t W_{tj}`,

    .. math:: -K |u W_{tj} - \mu_j|^2
        = \langle [x \mid x \otimes x], [2 K W_{tj} d \mid -K W_{tj} W_{tj}^T] \rangle - K |d|^2

    About their mean, since the terms of votes far from 0 would cancel. Of the products,
    which are symmetric, half are taken.

    Args:
        children: the children.
        sharpness: K.
        leaky: one more candidate with logit 0.
    """

    def __init__(self, children: Folded, sharpness: float, leaky: bool) -> None:
        _, poses, _, self.weights, transforms, *_ = children
        poses = poses[..., 0, :]  # [B, N, T, P]
        P = poses.shape[-1]
        centre = poses.mean(1)
        poses = poses - centre[:, None]
        row, column = torch.triu_indices(P, P, device=poses.device)
        products = poses[..., row] * poses[..., column]
        gram = (transforms @ transforms.mT)[..., row, column]  # [T, J, P (P + 1) / 2]
        twice = torch.where(row == column, 1.0, 2.0).to(poses.dtype)
        self.sharpness = sharpness
        self.leaky = leaky
        self.transforms = transforms
        self.poses = torch.cat([poses, products], -1)
        # The mass is the sum of 1.
        self.places = poses.new_ones(1, poses.shape[1])
        self.shared = folded.SharedPoses(self.poses)
        self.of_products = (-sharpness * twice * gram).expand(
            poses.shape[0], -1, -1, -1
        )
        # The votes of the centres, [B, T, J, H].
        self.centre = torch.einsum("btp,tjpd->btjd", centre, transforms)

    def moments(self, mean: Tensor) -> Moments:
        """Mass and sum of the votes under their distances from means, (B, J, H)."""
        difference = mean[:, None] - self.centre
        of_poses = torch.einsum("btjd,tjpd->btjp", difference, self.transforms)
        squared = difference.square().sum(-1, keepdim=True)
        sums, mass = folded.pooled(
            self.poses,
            self.places,
            self.weights,
            torch.cat([2 * self.sharpness * of_poses, self.of_products], -1),
            -self.sharpness * squared,
            leaky=self.leaky,
            shared=self.shared,
        )
        assert mass is not None
        P = of_poses.shape[-1]
        total = torch.einsum("btjp,tjpd->bjd", sums[..., :P], self.transforms)
        total = total + (mass * self.centre).sum(1)
        return Moments(mass.sum((1, 3)), total, None)

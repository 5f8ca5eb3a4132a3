"""Votes of children that know by themselves where they belong: a log prior for each
pair, linear in the child.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.numerics import cast, compute_dtype, full_precision
from torchcaps.ops.backend import Moments
from torchcaps.ops.fields import axes
from torchcaps.ops.folded import Folded
from torchcaps.ops.plan import Choice
from torchcaps.ops.similarity import Gaussian, InnerProduct, Similarity
from torchcaps.ops.votes import Votes

_APART = 8.0
"""Half the distance c between the two means below. Rounding is least for evidence of
about this size: the error is about eps (e / 2 + e^2 / 4 c + c / 4), 1e-6 in float32 for
e = 10.
"""


_TOGETHER = 8
"""Numbers of a vector that the kernels take at once. Votes of vectors for inner
products are filled up with zeros to a multiple: 17 numbers took three times as long as
24.
"""


@dataclass(frozen=True, eq=False)
class _WithEvidence(Similarity):
    """Another similarity plus the evidence of all pairs, (B, I, J)."""

    similarity: Similarity
    evidence: Tensor = axes("BIJ")

    def logits(self, votes: Tensor) -> Tensor:
        """The logits (B, I, J) of votes (B, I, J, H)."""
        return self.similarity.logits(votes) + self.evidence


class EvidentVotes(Votes):
    r"""Votes whose children have evidence of their own, :math:`e_{ij} = \langle u_i,
    w_{ij} \rangle + b_{ij}`.

    It is a log prior that depends on the child. Parents compete for a child with
    :math:`l_{ij} = \text{similarity}(V_{ij}) + e_{ij}`, and with :math:`e_{ij}` alone
    where there is no similarity yet: the first assignment is
    :math:`\operatorname{softmax}_j e_{ij}` in place of :math:`1 / J`. Moments are those
    of the votes alone. All else is as in :class:`Votes`, so any routing that is written
    against these runs on them.

    No backend knows of it. Each vote has the evidence as one more number, :math:`[u W
    \mid u w + b]`, which an inner product reads with :math:`\alpha = [v \mid 1]`.
    Gaussians read it from two copies with means :math:`\mp c` and precisions :math:`\mp
    1 / 2c`, whose squares cancel:

    .. math:: \frac{(e + c)^2}{4c} - \frac{(e - c)^2}{4c} = e

    So neither votes nor pairs (B, I, J) are stored. A pose of M rows has a copy for
    each row, which reads the weights of that row. For any other similarity the evidence
    of all pairs is formed, (B, I, J).

    Args:
        votes: the votes of the same children, without evidence.
        weight: :math:`w`, (T, J, M * P); T is 1, or divides I: child i has weights ``i
            % T``.
        bias: :math:`b`, (T, J).
        gaussian: whether the first step, which has no similarity yet, is one of a
            routing with Gaussians, so that all of its steps share the same votes.

    Raises:
        ValueError: if the weights or the biases do not fit the votes.

    Example:
        >>> plain = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
        >>> votes = tc.ops.EvidentVotes(plain, torch.randn(6, 3, 4), torch.zeros(6, 3))
        >>> votes.assignment().allclose(votes.evidence().softmax(-1), atol=1e-6)
        True
    """

    __slots__ = ("bias", "gaussian", "weight", "without")
    fields = (*Votes.fields, *__slots__)

    def __init__(
        self, votes: Votes, weight: Tensor, bias: Tensor, gaussian: bool = False
    ) -> None:
        for name in Votes.fields:
            setattr(self, name, getattr(votes, name))
        self._kept = {}
        self._check(weight, bias)
        self.without = votes
        self.weight = weight
        self.bias = bias
        self.gaussian = gaussian

    def _check(self, weight: Tensor, bias: Tensor) -> None:
        _, I, J, _ = self.shape
        numbers = math.prod(self.children.shape[2:])
        types = len(weight)
        if weight.shape != (types, J, numbers) or not types or I % types:
            raise ValueError(
                f"the weights of the evidence must be (T, J, M * P) = (T, {J}, "
                f"{numbers}), T 1 or a divisor of {I}, got shape {tuple(weight.shape)}"
            )
        if bias.shape != weight.shape[:2]:
            raise ValueError(
                f"the biases of the evidence must be {(types, J)}, got shape "
                f"{tuple(bias.shape)}"
            )

    def evidence(self) -> Tensor:
        """The evidence ``e_ij`` of all pairs, (B, I, J)."""
        weight = self._of_each(self.weight.to(self._dtype))
        bias = self._of_each(self.bias.to(self._dtype))
        with full_precision(self.children):
            poses = self.gather(self.poses).flatten(2).to(self._dtype)
            if len(weight) == 1:
                return poses @ weight[0].mT + bias
            return torch.einsum("bip,ijp->bij", poses, weight) + bias

    def moments(
        self,
        similarity: Similarity | None = None,
        weights: Tensor | None = None,
        *,
        scatter: bool = False,
    ) -> Moments:
        """One E-step and the sums of the M-step that follows, as in :class:`Votes`."""
        if not scatter:
            with full_precision(self.children):
                similarity = self._checked(similarity)
                moments = self._folded_moments(similarity, weights)
            if moments is not None:
                return moments
        votes, similarity = self._with_evidence(similarity)
        mass, total, second = votes.moments(similarity, weights, scatter=scatter)
        return Moments(
            mass,
            self._of_poses(total),
            None if second is None else self._of_poses(second),
        )

    def folded(self, weights: Tensor | None = None) -> Folded | None:
        """The children as folded routing takes them, where the evidence is a term of
        what they are compared with.
        """
        children = self.without.folded(weights)
        if children is None:
            return None
        T = len(children.transforms)
        if len(self.weight) not in (1, T) or self._dtype != self.dtype:
            return None
        weight = cast(self.weight, self.dtype).expand(T, -1, -1)
        bias = cast(self.bias, self.dtype).expand(T, -1)[..., None]
        places = children.places
        if places is None:
            places = children.poses.new_ones(1, children.poses.shape[1])
        elif len(places) > 1:
            bias = functional.pad(bias, (0, len(places) - 1))
        return children._replace(places=places, evidence=weight, place_evidence=bias)

    def assignment(self, similarity: Similarity | None = None) -> Tensor:
        """The assignment probabilities ``R_ij``, (B, I, J), as in :class:`Votes`."""
        votes, similarity = self._with_evidence(similarity)
        return votes.assignment(similarity)

    def logits(self, similarity: Similarity | None = None) -> Tensor:
        """The logits ``l_ij`` that the parents compete with, (B, I, J): evidence
        included.
        """
        votes, similarity = self._with_evidence(similarity)
        return votes.logits(similarity)

    def choose_backend(self, similarity: Similarity | None = None) -> Choice:
        """The backend that ``moments(similarity)`` runs on, and why."""
        votes, similarity = self._with_evidence(similarity)
        return votes.choose_backend(similarity)

    def with_bias(self, bias: Tensor) -> "EvidentVotes":
        """The votes with a bias for each pair, as in :class:`Votes`, and with the same
        evidence.
        """
        return EvidentVotes(
            self.without.with_bias(bias), self.weight, self.bias, self.gaussian
        ).under(self.competition)

    def total(self, shares: Tensor | None = None) -> Tensor:
        """The sum of the votes of all children for each parent, whatever the evidence,
        (B, J, H).
        """
        return self.without.total(shares)

    def gram(self, weights: Tensor | None = None) -> Tensor:
        """The second moments of the votes for each parent about 0, whatever the
        evidence, (B, J, H, H).
        """
        return self.without.gram(weights)

    def dense(self) -> Tensor:
        """All votes, (B, I, J, H), without the evidence."""
        return self.without.dense()

    @property
    def _dtype(self) -> torch.dtype:
        return compute_dtype(self.children, self.transforms, self.weight)

    def _with_evidence(
        self, similarity: Similarity | None
    ) -> tuple[Votes, Similarity | None]:
        """The votes to ask in place of these, and a similarity that adds their
        evidence.
        """
        if similarity is None or type(similarity) in (InnerProduct, Gaussian):
            return self._compared(similarity)
        votes = self.without.under(self.competition)
        if not isinstance(similarity, Similarity):
            return votes, similarity  # which raises
        return votes, _WithEvidence(similarity, self.evidence())

    def _compared(self, similarity: Similarity | None) -> tuple[Votes, Similarity]:
        """The same for inner products and Gaussians: votes with the evidence beside
        their poses.
        """
        B, _, J, H = self.shape
        eye = torch.eye(
            self.children.shape[2], dtype=self.dtype, device=self.children.device
        )
        if similarity is None:
            nothing = self.children.new_zeros(B, J, H, dtype=self.dtype)
            if self.gaussian:
                similarity = Gaussian(nothing, nothing, nothing[..., 0])
            else:
                similarity = InnerProduct(nothing)
        similarity = self.fitting(similarity)
        if isinstance(similarity, InnerProduct):
            return self._votes(1), InnerProduct(
                self._with_columns(similarity.alpha, eye)
            )
        assert isinstance(similarity, Gaussian)
        mean = self._with_columns(similarity.mean, -_APART * eye, _APART * eye)
        precision = self._with_columns(
            similarity.precision, -eye / (2 * _APART), eye / (2 * _APART)
        )
        return self._votes(2), Gaussian(mean, precision, similarity.log_weight)

    def _votes(self, copies: int) -> Votes:
        """The votes with so many copies of the evidence beside their poses."""
        votes: Votes = self._once(f"{copies} beside", lambda _: self._extend(copies))
        return votes.under(self.competition)

    def _extend(self, copies: int) -> Votes:
        children, transforms, coordinates = self.without._formed()
        N, G, M, _ = children.shape
        _, _, P, D = transforms.shape
        dtype = self._dtype
        weight = self._of_each(self.weight.to(dtype))
        bias = self._of_each(self.bias.to(dtype))
        # [T, J, P, M]: a column for each row of a pose.
        rows = weight.unflatten(-1, (M, -1)).mT
        # 0 for numbers that carry biases of the votes.
        beside = functional.pad(rows, (0, 0, 0, P - rows.shape[2]))
        # [T, J, 1, M]
        constant = functional.pad(bias[..., None, None], (0, M - 1))
        evidence = torch.cat([beside, constant], dim=2).repeat(1, 1, 1, copies)
        transforms = functional.pad(transforms.to(dtype), (0, 0, 0, 1))
        I = self._children_apart(transforms, evidence)
        evidence = functional.pad(evidence, (0, self._zeros(M * copies)))
        transforms = torch.cat(
            [transforms.expand(I, -1, -1, -1), evidence.expand(I, -1, -1, -1)], dim=3
        )
        children = torch.cat(
            [children.to(dtype), children.new_ones(N, G, M, 1, dtype=dtype)], dim=-1
        )
        if coordinates is not None:
            coordinates = functional.pad(
                coordinates.unflatten(-1, (M, D)), (0, evidence.shape[-1])
            ).flatten(-2)
        return Votes(
            children,
            transforms,
            coordinates,
            self.competition,
            self.backend,
            self.sites,
            self.mask,
        )

    def _with_columns(self, field: Tensor, *blocks: Tensor) -> Tensor:
        """A field of the parents, (B, J, M * D), with these blocks, (M, M), beside the
        numbers of its rows.
        """
        poses = field.unflatten(-1, (self.children.shape[2], -1))
        columns = torch.cat(blocks, dim=-1)
        columns = functional.pad(columns, (0, self._zeros(columns.shape[-1]))).expand(
            *poses.shape[:-1], -1
        )
        return torch.cat([poses, columns], dim=-1).flatten(-2)

    def _zeros(self, columns: int) -> int:
        """How many zeros are behind the columns of evidence, beside the numbers of each
        row of a pose.
        """
        if self.gaussian or columns > 1:
            return 0
        return -(self.shape[3] + columns) % _TOGETHER

    def _of_poses(self, field: Tensor) -> Tensor:
        """A field of the parents without what stands beside their poses, (B, J, M *
        D).
        """
        size = self.shape[3]
        M = self.children.shape[2]
        if field.shape[-1] == size:
            return field
        return field.unflatten(-1, (M, -1))[..., : size // M].flatten(-2)

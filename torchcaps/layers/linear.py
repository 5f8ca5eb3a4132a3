"""Fully connected capsules: every child votes for every parent."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from torchcaps.capsules import CapsuleLayer, Capsules, from_pair
from torchcaps.layers.pose import (
    Pose,
    pose_shapes,
    present,
    start_vote_bias,
    vote_bias_of,
    without_own_transforms,
)
from torchcaps.numerics import Positive, check_choice, check_size, full_precision
from torchcaps.ops import Votes
from torchcaps.ops.plan import known_backend
from torchcaps.routing import DynamicRouting, LayerShape, Routed, Routing, as_capsules
from torchcaps.routing.base import routing_of
from torchcaps.spec import check, repr_of
from torchcaps.squashing import length

Transforms = Literal["full", "shared", "orthogonal", "subspace"]


def reflected(vectors: Tensor) -> Tensor:
    r"""Orthogonal matrices (..., P, P): the products :math:`\prod_k (1 - 2 v_k v_k^T /
    |v_k|^2)` of reflections.

    Args:
        vectors: v, (..., P, P), one in each row; any matrix whose rows are not 0.

    Source: Householder 1958; for transforms of capsules Geng et al. 2024 (OrthCaps),
    section 3.3.
    """
    P = vectors.shape[-1]
    identity = torch.eye(P, dtype=vectors.dtype, device=vectors.device)
    product = identity.expand_as(vectors)
    with full_precision(vectors):
        for vector in nn.functional.normalize(vectors, dim=-1).unbind(-2):
            product = product - 2 * (product @ vector[..., None]) * vector[..., None, :]
    return product


class CapsLinear(CapsuleLayer):
    """Route I children to J parents through votes :math:`V_{ij} = u_i W_{ij}`.

    ============== ============================ ==================================================
    transforms     W                            parameters
    ============== ============================ ==================================================
    ``full``       :math:`W_{ij}`               I x J x P x D
    ``shared``     :math:`W_j` for all i        J x P x D; any number of children, also varying
    ``orthogonal`` :math:`W_{ij}^T W_{ij} = 1`  I x J x P x P, as P Householder reflections;
                                                P = D
    ``subspace``   one :math:`W` for all        P x D; any number of children
    ============== ============================ ==================================================

    Args:
        in_capsules: number of children I; None for ``shared`` and ``subspace``
            transforms, which take any number.
        out_capsules: number of parents J.
        in_pose: child pose: P for vectors, (M, P) for matrices.
        out_pose: parent pose: D for vectors, (M, D) for matrices.
        transforms: a row of the table.
        routing: any routing, or the name of one; the layer keeps a copy of its own.
            Default: dynamic routing in 3 steps.
        init_std: standard deviation of the transforms' normal initialisation, truncated
            at twice that. By default J / sqrt(I D), by which children of length 1 that
            agree on nothing give parents of length about 1 before the squash, at any
            depth (0.07 for CapsNet's 1152 children; the released code has 0.1); sqrt(2
            / (P + J D)) for ``shared`` transforms, sqrt(2 / (P + D)) for ``subspace``.
            Those of ``orthogonal`` do not depend on it. Children behind batch
            normalisation are long, and with ``shared`` transforms there may be many:
            then give a small one, such as 0.03 / sqrt(P), or all lengths start at 1.
        vote_bias: whether to add a learned bias to the votes, :math:`V_{ij} = u_i
            W_{ij} + b_{ij}`. Without it most routings give the children u and -u the
            same activations.
        backend: one of :data:`~torchcaps.ops.BACKENDS`, ``"auto"``, or None for the
            plan's choice, which :func:`~torchcaps.ops.use_backend` can force.

    Shape:
        Capsules with poses (B, *sites, P) or (B, *sites, M, P), or those poses alone,
        to :class:`Capsules` with poses (B, J, D) or (B, J, M, D) and activations (B,
        J). All sites together are the children.

    Raises:
        TypeError: if the children are neither :class:`Capsules` nor a tensor.
        ValueError: if an argument is out of its range or contradicts another, or the
            children do not fit the layer.

    Source: Sabour, Frosst & Hinton 2017, section 2; shared transforms: Su 2018;
    orthogonal: Geng et al. 2024 (OrthCaps); one for all: Everett et al. 2023
    (ProtoCaps).

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, in_pose=8, out_pose=16, routing=tc.create_routing("em", steps=2)
        ... )
        >>> children = tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))
        >>> parents = layer(children)
        >>> parents.pose.shape, parents.activation.shape
        (torch.Size([4, 10, 16]), torch.Size([4, 10]))
        >>> layer.route(children).assignment.shape  # which child went to which parent
        torch.Size([4, 32, 10])
    """

    def __init__(
        self,
        in_capsules: int | None,
        out_capsules: int,
        in_pose: Pose,
        out_pose: Pose,
        *,
        transforms: Transforms = "full",
        routing: Routing | str | None = None,
        init_std: float | None = None,
        vote_bias: bool = False,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_choice("transforms", transforms, get_args(Transforms))
        if in_capsules is None and transforms not in ("shared", "subspace"):
            raise ValueError(
                f"{transforms} transforms need the number of children: in_capsules is "
                "None"
            )
        check_size(out_capsules=out_capsules)
        if in_capsules is not None:
            check_size(in_capsules=in_capsules)
        check(Positive | None, init_std, "init_std")
        self.in_capsules = in_capsules
        self.out_capsules = out_capsules
        self.in_pose, self.out_pose = pose_shapes(in_pose, out_pose)
        self.transforms = transforms
        self.backend = known_backend(backend)
        P = self.in_pose[-1]
        D = self.out_pose[-1]
        if transforms == "orthogonal" and P != D:
            raise ValueError(
                f"orthogonal transforms keep the dimension: in_pose is {in_pose}, "
                f"out_pose is {out_pose}"
            )
        types = 1
        if in_capsules and transforms in ("full", "orthogonal"):
            types = in_capsules
        shape = LayerShape(
            in_capsules,
            out_capsules,
            self.in_pose,
            self.out_pose,
            types=types,
            alike=transforms == "subspace" and not vote_bias,
        )
        bound = routing_of(shape, routing, DynamicRouting())
        # A bias does not tell the parents apart: it moves a parent's centre as far as
        # its votes.
        if transforms == "subspace" and bound.hard and not bound.evidence:
            raise ValueError(
                f"routing must not be hard with transforms='subspace', by which all "
                f"parents have the same votes, got {bound!r}: use transforms='shared'"
            )
        pairs = (types, 1 if transforms == "subspace" else out_capsules)
        # These votes are never formed: one transform of zeros stands for all pairs.
        if bound.own_transforms:
            pairs = (1, 1)
        self.weight = nn.Parameter(torch.empty(*pairs, P, D))
        self.bias = vote_bias_of(self, bound, vote_bias, self.out_pose)
        without_own_transforms(self, bound)
        self.routing = bound
        self.reset_parameters(init_std)

    def reset_parameters(self, init_std: float | None = None) -> None:
        """Initialise transforms and biases again, if they are learned; ``init_std`` as
        in the constructor.
        """
        J = 1 if self.transforms == "subspace" else self.out_capsules
        P = self.in_pose[-1]
        D = self.out_pose[-1]
        if init_std is None:
            if self.in_capsules is None or self.transforms in ("shared", "subspace"):
                init_std = math.sqrt(2 / (P + J * D))
            else:
                init_std = J / math.sqrt(self.in_capsules * D)
        if isinstance(self.weight, nn.Parameter):
            nn.init.trunc_normal_(
                self.weight, std=init_std, a=-2 * init_std, b=2 * init_std
            )
        start_vote_bias(self.bias, init_std)

    def votes(self, children: Capsules | Tensor, mask: Tensor | None = None) -> Votes:
        """Return the votes of the children, which are formed later; ``mask`` as in
        :meth:`forward`.
        """
        child_mask, _ = self._masks(children, mask)
        return self._votes(self._as_children(children, child_mask)[0], child_mask)

    def _masks(
        self, children: Capsules | Tensor, mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The mask of the children, and that of the pairs, (B, I, J), if there is
        one.
        """
        if mask is None:
            return None, None
        children = from_pair(children)
        pose = children.pose if isinstance(children, Capsules) else children
        if not isinstance(mask, Tensor) or mask.ndim <= pose.ndim - len(self.in_pose):
            return mask, None
        return mask.any(-1), mask.flatten(1, -2)

    def _votes(self, pose: Tensor, mask: Tensor | None) -> Votes:
        mask = None if mask is None else mask.flatten(1)
        if self.transforms == "orthogonal":
            weight = reflected(self.weight)
        else:
            weight = self.weight
        # Always a view, which the votes keep even if the parameter gets other numbers,
        # as by ``double()``.
        J = self.out_capsules
        single = self.transforms == "subspace" and weight.shape[1] == 1
        votes = Votes(
            pose,
            weight.view_as(weight) if single else weight.expand(-1, J, -1, -1),
            backend=self.backend,
            mask=mask,
            alike=J if single else None,
        )
        if self.bias is None:
            return votes
        return votes.with_bias(self.bias.expand(-1, self.out_capsules, -1))

    def route(
        self,
        children: Capsules | Tensor,
        mask: Tensor | None = None,
        *,
        initial: Routed | None = None,
    ) -> Routed:
        """Route as :meth:`forward` does, but also return the votes and the last
        assignment.

        Args:
            children: capsules, or their poses alone.
            mask: the mask, as in :meth:`forward`.
            initial: parents of an earlier call, from which a ``resumable`` routing goes
                on.
        """
        child_mask, pairs = self._masks(children, mask)
        pose, activation = self._as_children(children, child_mask)
        votes = self._votes(pose, child_mask)
        return self.routing(votes, activation, initial=initial, pairs=pairs)

    def forward(
        self,
        children: Capsules | Tensor,
        mask: Tensor | None = None,
        *,
        initial: Routed | None = None,
    ) -> Capsules:
        """Route the children to the parents.

        Args:
            children: capsules, or their poses alone.
            mask: bool (B, *sites), False for children that are not there, whose numbers
                are then ignored; None if all are there. For a routing that masks pairs,
                such as :class:`~torchcaps.routing.Heinsen2022Routing`, also bool (B,
                *sites, J), False where a child must not vote for a parent; a child
                without parents is not there.
            initial: the parents of an earlier call, as in :meth:`route`.
        """
        return self.parents(self.route(children, mask, initial=initial), children)

    def parents(self, routed: Routed, children: Capsules | Tensor) -> Capsules:
        """Return the result of :meth:`route` for these children in the form of
        :meth:`forward`.
        """
        pose = children if isinstance(children, Tensor) else children[0]
        dtype = torch.promote_types(pose.dtype, self.weight.dtype)
        return as_capsules(routed, self.out_pose, dtype)

    def _as_children(
        self, children: Capsules | Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Poses and activations with all sites on one axis, 0 where children are not
        there.

        The activations of poses alone are their lengths, or None for a routing that
        does not use them.
        """
        children = from_pair(children)
        if isinstance(children, Tensor):
            pose = children
            sites = children.shape[: -len(self.in_pose)]
        elif isinstance(children, Capsules):
            pose = children.pose
            sites = children.activation.shape
        else:
            raise TypeError(
                "children must be Capsules, or a tensor of their poses, got "
                f"{type(children).__name__}"
            )
        if len(sites) < 2 or pose.shape != (*sites, *self.in_pose):
            raise ValueError(
                "children must have poses (B, *sites, "
                f"{', '.join(map(str, self.in_pose))}) and activations "
                f"(B, *sites), got {tuple(pose.shape)} and {tuple(sites)}"
            )
        count = math.prod(sites[1:])
        if self.in_capsules is not None and count != self.in_capsules:
            raise ValueError(
                f"this layer has transforms for {self.in_capsules} children, got "
                f"{count} (transforms='shared' takes any number)"
            )
        activation = children.activation if isinstance(children, Capsules) else None
        # Before the length: its gradient would be NaN where a pose is.
        if mask is not None:
            known = pose.new_zeros(sites) if activation is None else activation
            masked = present(Capsules(pose, known), mask)
            pose = masked.pose
            activation = None if activation is None else masked.activation
        if len(sites) > 2:
            pose = pose.flatten(1, len(sites) - 1)
            activation = None if activation is None else activation.flatten(1)
        if activation is None and self.routing.uses_activation:
            activation = length(pose, tuple(range(2, pose.ndim)))
        return pose, activation

    def extra_repr(self) -> str:
        """Return shapes and the kind of transforms."""
        return repr_of(
            self, "in_capsules", "out_capsules", "in_pose", "out_pose", "transforms"
        )

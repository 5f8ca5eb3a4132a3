"""Routing whose assignment is the answer: words to slots (Zhang et al. 2019)."""

from torch import Tensor

from torchcaps.ops import InnerProduct, Votes
from torchcaps.routing.base import Routed, check_steps
from torchcaps.squashing import length, squash


def slot_routing(
    votes: Votes,
    *,
    steps: int = 2,
    squash_kind: str = "sabour",
    toward: Tensor | None = None,
) -> Routed:
    r"""Routing by agreement that says where each child goes after the last step, and
    can be drawn from above.

    .. math::
        R_{ij} = \operatorname{softmax}_j \langle \alpha_j, V_{ij} \rangle, \quad
        v_j = \operatorname{squash}\Big(\sum_i R_{ij} V_{ij}\Big), \quad
        \alpha_j \mathrel{+}= v_j + t

    from :math:`\alpha = 0`. The assignment that is returned is one more than the steps
    made: with one step it has seen the parents once. The paper's re-routing is a pull t
    from above, :math:`\alpha W \hat u` of the intent :math:`\hat u` that an earlier
    routing found.

    Args:
        votes: of I children for J parents.
        steps: how many times the parents are made.
        squash_kind: a row of the table in :func:`~torchcaps.squash`.
        toward: t, what each step adds beside the parents, (B, H), the same for all of
            them; None for nothing.

    Returns:
        The parents, and the inner products with :math:`\alpha` after the last step as
        the similarity.

    Raises:
        ValueError: if there are no steps, or ``toward`` has another shape.

    Source: Zhang et al. 2019, "Joint Slot Filling and Intent Detection via Capsule
    Neural Networks", Algorithm 1 and equation 8.
    """
    check_steps(steps)
    B, _, J, H = votes.shape
    if toward is not None and toward.shape != (B, H):
        raise ValueError(f"toward must be {(B, H)}, got {tuple(toward.shape)}")
    alpha = votes.children.new_zeros(B, J, H, dtype=votes.dtype)
    for step in range(steps):
        pose = squash(
            votes.moments(InnerProduct(alpha) if step else None).sum, squash_kind
        )
        alpha = alpha + pose if toward is None else alpha + pose + toward[:, None]
    return Routed(pose, length(pose), votes, InnerProduct(alpha))

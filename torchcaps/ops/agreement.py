"""Routing by agreement, step by step."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from torch import Tensor

from torchcaps.numerics import as_constants
from torchcaps.ops.backend import Agreement
from torchcaps.ops.similarity import InnerProduct
from torchcaps.squashing import squash

Total = Callable[[InnerProduct | None], Tensor]
"""From a similarity, or None for a uniform assignment, to the sums of the votes under
it, (B, J, H).
"""


Squashed = Callable[[Tensor], Tensor]
"""From poses (B, J, H) to squashed ones."""


def step_by_step(
    total: Total,
    agreement: Agreement,
    bias: Tensor | None,
    alpha: Tensor | None = None,
    constant: bool = False,
    squashed: Squashed | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The poses (B, J, H), and what the last step compared the votes with; None if its
    assignment was uniform.

    Args:
        total: the sums of the votes.
        agreement: the settings; ``orphan`` is a matter of ``total``.
        bias: added before each squash, (J, H), or None.
        alpha: what the first step compares the votes with, (B, J, H); None for a
            uniform assignment.
        constant: whether alpha is taken as constant, so that no gradient flows through
            the steps before the last.
        squashed: in place of the squash of the agreement.
    """
    squashed = squashed or partial(squash, kind=agreement.squash)
    pose: Tensor | None = None
    for step in range(agreement.steps):
        with (
            as_constants() if constant and step < agreement.steps - 1 else nullcontext()
        ):
            if pose is not None:
                alpha = next_alpha(pose, alpha, agreement.accumulate)
            if alpha is not None and constant:
                alpha = alpha.detach()
            total_vote = total(None if alpha is None else InnerProduct(alpha))
            pose = squashed(total_vote if bias is None else total_vote + bias)
    assert pose is not None
    return pose, alpha


def next_alpha(pose: Tensor, alpha: Tensor | None, accumulate: bool) -> Tensor:
    """What the next step compares the votes with: the pose, or with ``accumulate`` the
    sum of all poses so far.
    """
    return pose if alpha is None or not accumulate else alpha + pose

"""A learned log prior that depends on the child: routing that starts from what each
child knows by itself.
"""

import math
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torchcaps.ops import EvidentVotes, Votes
from torchcaps.routing.base import LayerShape, Routing, shape_of, unbound
from torchcaps.spec import SuggestsNames, settings
from torchcaps.squashing import LearnedSquash, squash


class Evidence(SuggestsNames, nn.Module):
    r"""Where each child belongs as far as it can know alone: :math:`e_{ij} = \langle
    u_i, w_{tj} \rangle + b_{tj}`.

    A linear classifier of single children, learned with the rest. The type t of a child
    is that of its transforms: children that share their transforms share the
    classifier. Weights and biases start as those of ``nn.Linear``, uniform within
    :math:`1 / \sqrt{M P}`.

    Args:
        shape: the shape of the layer.
        gaussian: whether the parents are Gaussians, see
            :class:`~torchcaps.ops.EvidentVotes`.

    Shape:
        Votes of children with poses (M, P) for J parents to the same votes with
        evidence.

    Example:
        >>> from torchcaps.routing import Evidence, LayerShape
        >>> evidence = Evidence(LayerShape(6, 3, (4,), (5,)))
        >>> votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
        >>> evidence(votes).assignment().shape  # already the first one is not uniform
        torch.Size([2, 6, 3])
    """

    def __init__(self, shape: LayerShape, gaussian: bool = False) -> None:
        super().__init__()
        self.gaussian = gaussian
        numbers = math.prod(shape.in_pose)
        types = shape.types or shape.children or 1
        self.weight = nn.Parameter(torch.empty(types, shape.parents, numbers))
        self.bias = nn.Parameter(torch.empty(types, shape.parents))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases anew."""
        bound = 1 / math.sqrt(self.weight.shape[-1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, votes: Votes) -> EvidentVotes:
        """Return the votes with evidence."""
        return EvidentVotes(votes, self.weight, self.bias, self.gaussian)

    def extra_repr(self) -> str:
        """Return sizes of the weights."""
        types, parents, numbers = self.weight.shape
        return f"types={types}, parents={parents}, numbers={numbers}"


@settings
class AgreementRouting(Routing):
    r"""A routing by agreement whose children may have evidence of their own.

    .. math::
        R^{(1)}_{ij} = \operatorname{softmax}_j \, e_{ij}, \quad
        R^{(t)}_{ij} = \operatorname{softmax}_j \big( \text{similarity}(V_{ij}, v^{(t - 1)}_j) + e_{ij} \big)

    Without it the first assignment is the same for all children, 1 / J, so the first
    centres are a mixture of all that an image shows. The evidence :math:`e_{ij}` is the
    log of a prior that depends on the child (:class:`~torchcaps.routing.Evidence`), and
    stays in all steps. With ``steps=1`` it decides alone.

    It is our own. Parts of it are known: in
    :class:`~torchcaps.routing.SelfAttentionRouting` (Efficient-CapsNet) a learned prior
    of each pair does not depend on the pose of the child, and in
    :class:`~torchcaps.routing.SelfRouting` the child decides, without agreement.

    Args:
        evidence: whether to learn it.

    Example:
        >>> routing = tc.routing.InnerProductKMeansRouting(steps=1, evidence=True)
        >>> isinstance(routing, tc.routing.AgreementRouting)
        True
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=routing)
        >>> routed = layer.route(torch.randn(4, 32, 8))
        >>> routed.assignment.allclose(routed.votes.evidence().softmax(-1), atol=1e-6)
        True
    """

    gaussian: ClassVar[bool] = False
    """Whether its parents are Gaussians."""

    squash_start: ClassVar[float] = 1.0
    """The constant c of a squash that is learned, n² / (c + n²), before training."""

    _: KW_ONLY
    evidence: bool = False

    def bind(self, shape: LayerShape | int, size: int | None = None) -> Routing:
        """Return a copy of this routing with fresh parameters, those of the evidence
        and of a learned squash too.
        """
        shape = shape_of(shape, size)
        bound: Any = super().bind(shape)
        if self.evidence:
            bound.add_module("local_evidence", Evidence(shape, self.gaussian))
        if getattr(self, "squash", None) == "learned":
            bound.add_module("learned_squash", LearnedSquash(self.squash_start))
        return bound

    def squashed(self, pose: Tensor) -> Tensor:
        """Return the poses, squashed as the setting ``squash`` says; ``learned`` is a
        module with its constant.
        """
        kind: str = getattr(self, "squash", "none")
        if kind != "learned":
            return squash(pose, kind)
        learned = self._modules.get("learned_squash")
        if learned is None:
            raise unbound(self)
        shortened: Tensor = learned(pose)
        return shortened

    def prepared(self, votes: Votes) -> Votes:
        """Return the votes with evidence."""
        evidence = self._modules.get("local_evidence")
        if evidence is None:
            raise unbound(self)
        prepared: Votes = evidence(votes)
        return prepared

"""Words to slots, slots to intents (Zhang et al. 2019, Capsule-NLU)."""

from dataclasses import KW_ONLY
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, exportable
from torchcaps.layers.linear import CapsLinear
from torchcaps.numerics import NotNegative, Positive, Size
from torchcaps.ops import InnerProduct, Votes
from torchcaps.routing import DynamicRouting, Routed
from torchcaps.routing.base import Steps
from torchcaps.spec import SuggestsNames, settings
from torchcaps.squashing import SquashKind, length, squash


@exportable
class SlotAnswer(NamedTuple):
    """The slots and the intent of sentences.

    Attributes:
        logits: the logits of the slots of each word, (B, L, K): the loss is the
            cross-entropy of their softmax.
        assignment: the assignment of words to slots, (B, L, K): sums to 1 over the
            slots, and is 0 where there is no word.
        slots: capsules of the slots, (B, K, pose_dim).
        intents: capsules of the intents, (B, E, intent_dim).

    Example:
        >>> answer = tc.layers.SlotCaps(features=32, slots=9, intents=3)(
        ...     torch.randn(2, 7, 32)
        ... )
        >>> answer.assignment.sum(2).allclose(torch.ones(2, 7)), answer.slots.pose.shape
        (True, torch.Size([2, 9, 16]))
    """

    logits: Tensor
    assignment: Tensor
    slots: Capsules
    intents: Capsules


class _Slots(CapsLinear):
    """A slot layer whose routing also depends on another layer."""

    def forward(  # type: ignore[override]
        self, words: Tensor, there: Tensor | None = None, *, routed: Routed
    ) -> Capsules:
        """The slots that the votes of these words were routed to."""
        return self.parents(routed, words)


@settings
class SlotCaps(SuggestsNames, nn.Module):
    r"""Route each word to its slot, and slots to intents, which influence the slots
    again.

    .. math::
        V_{tk} = h_t W_k, \quad R_{tk} = \operatorname{softmax}_k \langle \alpha_k, V_{tk} \rangle, \quad
        \alpha_k = \sum_{\text{steps}} (v_k + p \, U \hat u)

    with the parents :math:`v_k = \operatorname{squash} \sum_t R_{tk} V_{tk}`, from
    :math:`\alpha = 0`. The answer for a word t is R after the last step, trained by
    cross-entropy: one assignment more than the steps made, so that with one step it has
    seen the parents once. The parents of a first routing without the last term are
    routed to intents; :math:`\hat u` is the pose of the most active one, and the words
    are then routed again (re-routing).

    Args:
        features: numbers of a word, P, as from a recurrent network.
        slots: how many, K; those of the scheme BIO count one by one, and "O" is one.
        intents: how many, E.
        pose_dim: the size of the poses of slots.
        intent_dim: the size of the poses of intents.
        steps: the number of steps of both routings.
        pull: p, weight of the intent in the re-routing; 0 for no re-routing.
        squash: a row of the table in :func:`~torchcaps.squash`. A slot begins with a
            K-th of the words; the paper's ``sabour`` makes its square of that, and
            learns from it late.
        init_std: the standard deviation of W: words of numbers below 1 must tell K
            slots apart.

    Shape:
        Features (B, L, P) and which words are there, bool (B, L), to a
        :class:`SlotAnswer`.

    Raises:
        ValueError: if an argument is out of its range, or the features or the mask do
            not fit.

    Source: Zhang et al. 2019, "Joint Slot Filling and Intent Detection via Capsule
    Neural Networks", section 3. There tanh bounds the votes, which have a bias, and the
    code released with it answers with R before the last update.

    Example:
        >>> layer = tc.layers.SlotCaps(features=32, slots=9, intents=3)
        >>> there = torch.arange(7) < torch.tensor(
        ...     [[7], [4]]
        ... )  # the second sentence has four words
        >>> answer = layer(torch.randn(2, 7, 32), there)
        >>> answer.assignment.shape, answer.intents.activation.shape
        (torch.Size([2, 7, 9]), torch.Size([2, 3]))
    """

    features: Size
    slots: Size
    intents: Size
    _: KW_ONLY
    pose_dim: Size = 16
    intent_dim: Size = 16
    steps: Steps = 2
    pull: NotNegative = 0.1
    squash: SquashKind = "tanh"
    init_std: Positive = 0.3

    def __post_init__(self) -> None:
        routing = DynamicRouting(steps=self.steps, squash=self.squash)
        self.slot_caps = _Slots(
            None,
            self.slots,
            self.features,
            self.pose_dim,
            transforms="shared",
            routing=routing,
            init_std=self.init_std,
        )
        self.intent_caps = CapsLinear(
            self.slots, self.intents, self.pose_dim, self.intent_dim, routing=routing
        )
        self.down: nn.Linear | None = None
        if self.pull:
            self.down = nn.Linear(self.intent_dim, self.pose_dim, bias=False)

    def forward(self, words: Tensor, there: Tensor | None = None) -> SlotAnswer:
        """Return the slots of words and the intents of sentences; masked words may hold
        any numbers.
        """
        self.slot_caps.set_hooked_weights()
        votes = self.slot_caps.votes(words, there)
        routed = self.route(votes)
        intents = self.intent_caps(self.slot_caps(words, there, routed=routed))
        if self.down is not None:
            rows = torch.arange(words.shape[0], device=words.device)
            toward = self.pull * self.down(
                intents.pose[rows, intents.activation.argmax(1)]
            )
            routed = self.route(votes, toward)
        slots = self.slot_caps(words, there, routed=routed)
        dtype = slots.pose.dtype
        return SlotAnswer(
            votes.logits(routed.similarity).to(dtype),
            votes.assignment(routed.similarity).to(dtype),
            slots,
            intents,
        )

    def route(self, votes: Votes, toward: Tensor | None = None) -> Routed:
        r"""Route words to slots, drawn from above if there is a pull.

        Args:
            votes: the votes of the words for the slots.
            toward: :math:`p \, U \hat u`, what each step adds to :math:`\alpha` beside
                the parents, (B, pose_dim), the same for all of them; None for nothing.

        Returns:
            The slots, and the inner products with :math:`\alpha` after the last step as
            the similarity.

        Raises:
            ValueError: if ``toward`` has another shape.

        Source: Zhang et al. 2019, Algorithm 1 and equation 8.
        """
        B, _, J, H = votes.shape
        if toward is not None and toward.shape != (B, H):
            raise ValueError(f"toward must be {(B, H)}, got {tuple(toward.shape)}")
        alpha = votes.children.new_zeros(B, J, H, dtype=votes.dtype)
        for step in range(self.steps):
            similarity = InnerProduct(alpha) if step else None
            pose = squash(votes.moments(similarity).sum, self.squash)
            alpha = alpha + pose
            if toward is not None:
                alpha = alpha + toward[:, None]
        return Routed(pose, length(pose), votes, InnerProduct(alpha))

"""Words to slots and slots to intents against the paper's equations, with padding, and
bad input.
"""

import pytest
import torch
from torch.nn.utils import prune
from torch.utils import _pytree

from torchcaps.layers import SlotCaps
from torchcaps.ops import Votes

B = 3
L = 6
P = 5
K = 4
E = 2
D = 3
LENGTHS = (6, 3, 1)
THERE = torch.arange(L) < torch.tensor(LENGTHS)[:, None]


def layer(steps: int = 2, pull: float = 0.5) -> SlotCaps:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return SlotCaps(
            P, K, E, pose_dim=D, intent_dim=D, steps=steps, pull=pull, init_std=1.0
        ).double()


def sentences() -> torch.Tensor:
    return torch.randn(
        B, L, P, dtype=torch.double, generator=torch.Generator().manual_seed(1)
    )


def squashed(s: torch.Tensor) -> torch.Tensor:
    n = s.norm(dim=-1, keepdim=True)
    return s / n * n.tanh()


def routed(
    hat: torch.Tensor, steps: int, toward: torch.Tensor | float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Algorithm 1 of one sentence: the parents (J, D) and the logits (I, J) of votes
    (I, J, D).
    """
    b = torch.zeros(hat.shape[:2]).double()
    v = hat[0]
    for _ in range(steps):
        c = b.softmax(1)
        v = squashed(sum(c[i, :, None] * hat[i] for i in range(len(hat))))
        for i in range(len(hat)):
            for k in range(hat.shape[1]):
                b[i, k] = (
                    b[i, k]
                    + hat[i, k] @ v[k]
                    + hat[i, k] @ (torch.zeros(D).double() + toward)
                )
    return v, b


@pytest.mark.parametrize("pull", [0.0, 0.5])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_papers_algorithm_word_by_word(steps: int, pull: float) -> None:
    net = layer(steps, pull)
    words = sentences()
    with torch.no_grad():
        answer = net(words, THERE)
        for row, length in enumerate(LENGTHS):
            hat = torch.einsum(
                "ip,jpd->ijd", words[row, :length], net.slot_caps.weight[0]
            )
            slots, logits = routed(hat, steps)
            intents, _ = routed(
                torch.einsum("ip,ijpd->ijd", slots, net.intent_caps.weight), steps
            )
            if net.down is not None:
                best = intents[intents.norm(dim=1).argmax()]
                slots, logits = routed(hat, steps, pull * net.down.weight @ best)
            torch.testing.assert_close(
                answer.assignment[row, :length], logits.softmax(1), rtol=0, atol=1e-12
            )
            torch.testing.assert_close(
                answer.slots.pose[row], slots, rtol=0, atol=1e-12
            )
            torch.testing.assert_close(
                answer.intents.pose[row], intents, rtol=0, atol=1e-12
            )


def test_assignments_are_shares_of_the_words_that_are_there() -> None:
    parents = layer()(sentences(), THERE)
    torch.testing.assert_close(parents.assignment.sum(2), THERE.double())
    torch.testing.assert_close(
        parents.logits.softmax(2)[THERE], parents.assignment[THERE]
    )


def gradients(
    net: SlotCaps, words: torch.Tensor, there: torch.Tensor | None
) -> list[torch.Tensor]:
    words = words.clone().requires_grad_()
    prediction = net(words, there)
    weight = torch.arange(1.0, K + 1).double()
    (prediction.assignment @ weight).square().sum().add(
        prediction.intents.pose.sum()
    ).backward()
    grads = [words.grad, *(parameter.grad for parameter in net.parameters())]
    net.zero_grad()
    return [grad for grad in grads if grad is not None]


def test_padding_changes_no_answer_and_no_gradient() -> None:
    net = layer()
    words = sentences()[:1, :3]
    padded = torch.cat([words, torch.full((1, 2, P), torch.nan).double()], 1)
    present = torch.tensor([[True] * 3 + [False] * 2])
    alone = net(words)
    beside = net(padded, present)
    torch.testing.assert_close(beside.assignment[:, :3], alone.assignment)
    torch.testing.assert_close(beside.intents.pose, alone.intents.pose)
    (of_words, *of_weights), (with_padding, *same) = (
        gradients(net, words, None),
        gradients(net, padded, present),
    )
    torch.testing.assert_close(with_padding[:, :3], of_words)
    assert not with_padding[:, 3:].any()
    torch.testing.assert_close(same, of_weights)


def test_the_order_of_the_words_changes_their_order_only() -> None:
    net = layer()
    words = sentences()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(
        net(words[:, order]).assignment, net(words).assignment[:, order]
    )
    torch.testing.assert_close(
        net(words[:, order]).intents.pose, net(words).intents.pose
    )


def test_the_intent_pulls_words_only_with_re_routing() -> None:
    with_pull = layer()
    without = layer(pull=0.0)
    without.load_state_dict(with_pull.state_dict(), strict=False)
    assert without.down is None
    assert not torch.allclose(
        with_pull(sentences()).assignment, without(sentences()).assignment, atol=1e-3
    )


def test_both_layers_show_the_routing_that_is_done() -> None:
    made = layer(steps=1)
    for part in (made.slot_caps, made.intent_caps):
        assert (part.routing.steps, part.routing.squash) == (1, "tanh")


def test_half_precision() -> None:
    actual = layer().bfloat16()(sentences().bfloat16(), THERE)
    assert {tensor.dtype for tensor in (*actual.slots, *actual.intents)} == {
        torch.bfloat16
    }


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="pull"):
        SlotCaps(P, K, E, pull=-1.0)
    with pytest.raises(ValueError, match="steps"):
        SlotCaps(P, K, E, steps=0)
    with pytest.raises(ValueError, match="slots"):
        SlotCaps(P, 0, E)
    with pytest.raises(ValueError, match=r"children must have poses \(B, \*sites, 5\)"):
        layer()(sentences()[..., :4], THERE)
    with pytest.raises(ValueError, match="mask"):
        layer()(sentences(), THERE[:, :4])
    votes = Votes(sentences(), layer().slot_caps.weight)
    with pytest.raises(ValueError, match=r"toward must be \(3, 3\), got \(3, 4\)"):
        layer().route(votes, toward=torch.zeros(B, K))


def test_everything_is_in_the_precision_of_the_words() -> None:
    answer = layer().bfloat16()(sentences().bfloat16(), THERE)
    assert {tensor.dtype for tensor in _pytree.tree_leaves(answer)} == {torch.bfloat16}


def test_words_vote_with_the_pruned_weights_of_this_call() -> None:
    """Not with those of the call before, whose graph is gone."""
    slots = layer()
    prune.l1_unstructured(slots.slot_caps, "weight", amount=0.3)
    for _ in range(2):
        slots(sentences(), THERE).logits.sum().backward()
    with torch.no_grad():
        slots.slot_caps.weight_orig.mul_(0.5)
        changed, again = (slots(sentences(), THERE).logits for _ in range(2))
    assert torch.equal(changed, again)

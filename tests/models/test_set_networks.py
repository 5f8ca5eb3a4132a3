"""Networks over sets: what order, padding and small sets must not change."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from torchcaps import create_routing
from torchcaps.models import PooledSet, SetCapsNet, SetClassifier, load_pretrained

SMALL = {"in_features": 2, "classes": 3, "channels": (6, 5), "edges": True}
KINDS = {
    "capsules": lambda: SetCapsNet(**SMALL, types=2, dim=4, pose_dim=4),
    "dynamic": lambda: SetCapsNet(
        **SMALL, types=2, dim=4, pose_dim=4, routing=create_routing("dynamic")
    ),
    "em": lambda: SetCapsNet(
        **SMALL, types=2, dim=4, pose_dim=4, routing=create_routing("em")
    ),
    **{
        pool: lambda pool=pool: PooledSet(**SMALL, pool=pool)
        for pool in ("mean", "sum", "max")
    },
}


def made(kind: str) -> SetClassifier:
    torch.manual_seed(0)
    return KINDS[kind]().double()


def graphs(count: int = 3, nodes: int = 5) -> tuple[Tensor, Tensor]:
    elements = torch.randn(count, nodes, 2, dtype=torch.float64)
    joined = torch.rand(count, nodes, nodes, dtype=torch.float64).round()
    return elements, torch.triu(joined, 1) + torch.triu(joined, 1).mT


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_elements_changes_neither_answers_nor_gradients(
    kind: str, training: bool
) -> None:
    networks = [made(kind).train(training) for _ in range(2)]
    elements, edges = graphs()
    order = torch.tensor([3, 0, 4, 1, 2])
    there = torch.tensor([[True] * 5, [True] * 4 + [False], [True] * 5])
    answers = (
        networks[0](elements, there, edges).activation,
        networks[1](
            elements[:, order], there[:, order], edges[:, order][:, :, order]
        ).activation,
    )
    torch.testing.assert_close(answers[1], answers[0])
    for answer in answers:
        (answer * torch.arange(1.0, 4)).sum().backward()
    for ours, others in zip(
        networks[0].parameters(), networks[1].parameters(), strict=True
    ):
        torch.testing.assert_close(others.grad, ours.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing_whatever_stands_in_it(
    kind: str, training: bool
) -> None:
    networks = [made(kind).train(training) for _ in range(2)]
    elements, edges = graphs()
    padded = torch.nn.functional.pad(elements, (0, 0, 0, 3), value=torch.nan)
    there = torch.arange(8).expand(3, 8) < 5
    more = torch.nn.functional.pad(edges, (0, 3, 0, 3), value=torch.nan)
    torch.testing.assert_close(
        networks[1](padded, there, more).activation,
        networks[0](elements, None, edges).activation,
    )
    for ours, others in zip(networks[0].norms, networks[1].norms, strict=True):
        torch.testing.assert_close(others.running_mean, ours.running_mean)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_neighbours_in_other_precisions(kind: str) -> None:
    elements, edges = graphs()
    network = made(kind).eval()
    expected = network(elements, None, edges).activation
    network = network.float()
    elements = elements.float()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = network(elements, None, edges.bool()).activation
    half = network.bfloat16()(elements.bfloat16(), None, edges.bool()).activation
    for answer in (mixed, half):
        torch.testing.assert_close(answer.double(), expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_of_one_node_without_an_edge(kind: str) -> None:
    network = made(kind).eval()
    elements = torch.randn(2, 4, 2, dtype=torch.float64)
    there = torch.tensor([[True, False, False, False], [True] * 4])
    alone = network(
        elements[:1, :1], None, torch.zeros(1, 1, 1, dtype=torch.float64)
    ).activation
    beside = network(
        elements, there, torch.zeros(2, 4, 4, dtype=torch.float64)
    ).activation
    assert alone.isfinite().all()
    torch.testing.assert_close(beside[:1], alone)


def ring(*sizes: int) -> Tensor:
    return torch.block_diag(
        *(
            torch.roll(torch.eye(n), 1, 0) + torch.roll(torch.eye(n), -1, 0)
            for n in sizes
        )
    )[None]


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_are_told_apart_by_neighbours_and_no_further_than_by_refined_colours(
    kind: str,
) -> None:
    """Nodes with like neighbours have like features (Weisfeiler & Leman): six in a ring
    are as two rings of three.
    """
    network = made(kind).float().eval()
    nodes = torch.ones(1, 6, 2)
    two_rings, single_ring = (
        network(nodes, None, edges).activation for edges in (ring(3, 3), ring(6))
    )
    torch.testing.assert_close(two_rings, single_ring)
    path = ring(6)
    path[0, 0, 5] = path[0, 5, 0] = 0
    assert not torch.allclose(
        network(nodes, None, path).activation, single_ring, rtol=1e-3
    )


def test_the_assignment_says_for_whom_each_element_speaks() -> None:
    network = made("capsules").eval()
    elements, edges = graphs()
    routed = network.route(elements, None, edges)
    assert routed.assignment.shape == (3, 5 * 2, 3)
    torch.testing.assert_close(
        routed.assignment.sum(2), torch.ones(3, 10, dtype=torch.float64)
    )
    torch.testing.assert_close(
        routed.activation, network(elements, None, edges).activation
    )


def test_a_saved_network_comes_back(tmp_path: Path) -> None:
    network = made("dynamic").float().eval()
    network.save_pretrained(tmp_path)
    given = torch.randn(1, 4, 2), None, ring(4)
    answer = load_pretrained(tmp_path)(*given).activation
    torch.testing.assert_close(answer, network(*given).activation, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"elements": torch.zeros(2, 3, 4)},
            r"elements must be \(B, N, 2\) with N at least 1, got shape \(2, 3, 4\)",
        ),
        ({"elements": torch.zeros(2, 0, 2)}, "with N at least 1"),
        (
            {"elements": torch.full((2, 3, 2), torch.nan)},
            "elements hold NaN or infinite",
        ),
        (
            {"there": torch.ones(2, 3)},
            r"there must be bool \(B, N\) = \(2, 3\), got torch.float32",
        ),
        ({"there": torch.tensor([[True] * 3, [False] * 3])}, "got an empty set"),
        (
            {"edges": torch.zeros(2, 3, 4)},
            r"edges must be \(B, N, N\) = \(2, 3, 3\), got \(2, 3, 4\)",
        ),
        ({"edges": torch.full((2, 3, 3), torch.inf)}, "edges hold NaN or infinite"),
        ({"edges": None}, r"edges must be .*, got None"),
    ],
)
def test_sets_that_do_not_fit(changed: dict[str, object], message: str) -> None:
    given = {
        "elements": torch.zeros(2, 3, 2),
        "there": None,
        "edges": torch.zeros(2, 3, 3),
    }
    with pytest.raises(ValueError, match=message):
        PooledSet(**SMALL)(**{**given, **changed})


@pytest.mark.parametrize(
    "changed", [{"dropout": 1.0}, {"pool": "least"}, {"channels": ()}], ids=str
)
def test_arguments(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changed))):
        PooledSet(**{**SMALL, **changed})


def test_a_network_without_edges_takes_none() -> None:
    with pytest.raises(ValueError, match="built without edges"):
        SetCapsNet()(torch.zeros(1, 2, 3), None, torch.zeros(1, 2, 2))

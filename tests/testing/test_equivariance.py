"""The checks are checked: they pass what is equivariant, and nothing else."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from torchcaps import (
    CapsConv2d,
    CapsLinear,
    Capsules,
    ClassCaps,
    create_routing,
    list_routings,
)
from torchcaps.routing import EM_PRESETS, DynamicRouting, EMRouting, Routing
from torchcaps.routing.base import ROUTINGS
from torchcaps.testing import assert_equivariant, orthogonal, signed_permutation

M, P, D = 3, 2, 4


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def several(make: Callable[..., Tensor], number: int = 4) -> Tensor:
    random = generator()
    return torch.stack([make(M, random) for _ in range(number)])


def children(dtype: torch.dtype = torch.float64) -> Capsules:
    random = generator()
    pose = torch.randn(2, 4, 5, 2, M, P, generator=random, dtype=torch.float64)
    return Capsules(
        pose.to(dtype),
        torch.rand(2, 4, 5, 2, generator=random, dtype=torch.float64).to(dtype),
    )


LAYERS: dict[str, Callable[[Routing], nn.Module]] = {
    "linear": lambda routing: CapsLinear(40, 3, (M, P), (M, D), routing=routing),
    "shared": lambda routing: CapsLinear(
        None, 3, (M, P), (M, D), transforms="shared", routing=routing
    ),
    "conv": lambda routing: CapsConv2d(2, 4, (M, P), (M, D), 3, routing=routing),
    "conv-window": lambda routing: CapsConv2d(
        2, 3, (M, P), (M, D), 2, 2, routing=routing, competition="window"
    ),
    "class": lambda routing: ClassCaps(
        2, 3, (M, P), (M, D), routing=routing, coordinates=False
    ),
}
layers = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def build(make: Callable[[Routing], nn.Module], routing: Routing) -> nn.Module:
    torch.manual_seed(0)
    return make(routing)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@layers
class TestEquivariant:
    @pytest.mark.parametrize("routing", ["dynamic", "kmeans", "euclidean"])
    def test_orthogonal(
        self, make: Callable[[Routing], nn.Module], routing: str, dtype: torch.dtype
    ) -> None:
        tolerance = 1e-9 if dtype == torch.float64 else 1e-4
        layer = build(make, create_routing(routing)).to(dtype)
        assert_equivariant(
            layer, children(dtype), several(orthogonal), atol=tolerance, rtol=tolerance
        )

    @pytest.mark.parametrize("preset", sorted(EM_PRESETS))
    def test_signed_permutations(
        self, make: Callable[[Routing], nn.Module], preset: str, dtype: torch.dtype
    ) -> None:
        tolerance = 1e-9 if dtype == torch.float64 else 1e-3
        layer = build(make, EMRouting.preset(preset)).to(dtype)
        assert_equivariant(
            layer,
            children(dtype),
            several(signed_permutation),
            atol=tolerance,
            rtol=tolerance,
        )


NEVER = {
    "attention",
    "heinsen_2019",
    "heinsen_2022",
    "homogeneous",
    "interests",
    "prototypes",
    "self_routing",
    "variational_bayes",
}
SLOTS = {"slot_mixture", "slots"}
"""Slots have projections of their own, so maps of the poses are not passed on. They are
equivariant to permutations, see tests/layers/test_slots_layer.py.
"""


OURS = [
    name
    for name in list_routings()
    if ROUTINGS[name].__module__.startswith("torchcaps.")
]


@pytest.mark.parametrize("name", OURS)
def test_what_the_documents_say_of_each_routing(name: str) -> None:
    """With weights and statistics as after a training: initial ones are often 0."""
    layer = build(
        lambda routing: CapsLinear(12, 3, (M, P), (M, P), routing=routing),
        create_routing(name),
    )
    layer.double().eval()
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.3 * torch.rand(tensor.shape, generator=generator(1)))
    random = generator()
    pose = torch.randn(2, 12, M, P, generator=random).double()
    activation = torch.rand(2, 12, generator=random).double()
    for make, fails in (
        (orthogonal, name in NEVER | SLOTS | {"em"}),
        (signed_permutation, name in NEVER | SLOTS),
    ):
        with (
            pytest.raises(AssertionError, match="off by up to")
            if fails
            else nullcontext()
        ):
            assert_equivariant(
                layer, Capsules(pose, activation), several(make), atol=1e-9, rtol=1e-9
            )


class TestBroken:
    @layers
    def test_em_and_a_rotation(self, make: Callable[[Routing], nn.Module]) -> None:
        layer = build(make, EMRouting()).double()
        with pytest.raises(AssertionError, match="the parents' poses are off by up to"):
            assert_equivariant(layer, children(), several(orthogonal))

    @layers
    @pytest.mark.parametrize("routing", ["dynamic", "euclidean"])
    def test_not_orthogonal(
        self, make: Callable[[Routing], nn.Module], routing: str
    ) -> None:
        layer = build(make, create_routing(routing)).double()
        with pytest.raises(AssertionError, match="off by up to"):
            assert_equivariant(layer, children(), 2 * orthogonal(M, generator()))

    @pytest.mark.parametrize("routing", ["euclidean", "em"])
    def test_coordinates(self, routing: str) -> None:
        torch.manual_seed(0)
        layer = ClassCaps(
            2, 3, (M, P), (M, D), routing=create_routing(routing)
        ).double()
        with pytest.raises(AssertionError, match="poses are off"):
            assert_equivariant(layer, children(), several(signed_permutation))

    def test_bias(self) -> None:
        torch.manual_seed(0)
        layer = CapsLinear(
            40, 3, (M, P), (M, D), routing=DynamicRouting(bias=True)
        ).double()
        with pytest.raises(AssertionError, match="poses are off"):
            assert_equivariant(layer, children(), several(orthogonal))

    def test_poses_alone_move(self) -> None:
        """A layer whose poses are right and whose activations are not; and one with
        NaN.
        """
        turn = several(orthogonal)
        with pytest.raises(
            AssertionError,
            match=r"activations are off by up to .* transform 0:\ntensor",
        ):
            assert_equivariant(
                lambda c: Capsules(c.pose, c.pose[..., 0, 0]), children(), turn
            )
        with pytest.raises(AssertionError, match="activations are off by up to nan"):
            assert_equivariant(
                lambda c: Capsules(c.pose, c.activation * torch.nan), children(), turn
            )

    def test_assignments_alone(self) -> None:
        class Shifty(CapsLinear):
            def route(self, children, mask=None, *, initial=None):
                routed = super().route(children)
                second = replace(
                    routed.similarity, alpha=routed.similarity.alpha.roll(1, -1)
                )
                return routed._replace(similarity=second)

        torch.manual_seed(0)
        layer = Shifty(40, 3, (M, P), (M, D)).double()
        with pytest.raises(AssertionError, match="assignments are off"):
            assert_equivariant(layer, children(), several(orthogonal))

    def test_says_by_how_much(self) -> None:
        """Poses that do not move at all when the children turn round are off by twice
        themselves.
        """

        def layer(c: Capsules) -> Capsules:
            return Capsules(c.pose.abs(), c.activation)

        largest = 2 * children().pose.abs().max().item()
        with pytest.raises(
            AssertionError, match=rf"off by up to {largest:.3g} \(0.25 is allowed\)"
        ):
            assert_equivariant(layer, children(), -torch.eye(M), atol=0.25, rtol=0)

    def test_tolerances(self) -> None:
        def layer(c: Capsules) -> Capsules:
            return Capsules(c.pose + 0.1, c.activation)

        assert_equivariant(layer, children(), -torch.eye(M), atol=0.21, rtol=0)
        with pytest.raises(AssertionError, match=r"off by up to 0\.2 "):
            assert_equivariant(layer, children(), -torch.eye(M), atol=0.19, rtol=0)


def test_any_transform_passes_one_step() -> None:
    torch.manual_seed(0)
    layer = CapsLinear(
        40, 3, (M, P), (M, D), routing=DynamicRouting(steps=1, squash="none")
    ).double()

    def lengths_aside(c: Capsules) -> Capsules:
        return Capsules(layer(c).pose, c.activation)

    assert_equivariant(
        lengths_aside, children(), torch.randn(3, M, M, generator=generator())
    )


def test_no_gradients_are_kept() -> None:
    seen = []
    given = children()
    given = given._replace(pose=given.pose.requires_grad_())

    def layer(c: Capsules) -> Capsules:
        seen.append(torch.is_grad_enabled())
        return c

    assert_equivariant(layer, given, torch.eye(M))
    assert seen == [False, False]


class TestArguments:
    def test_vectors(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"poses must be matrices \(M, P\), got poses of shape \(4,\)",
        ):
            assert_equivariant(
                CapsLinear(5, 2, 4, 3),
                Capsules(torch.zeros(1, 5, 4), torch.zeros(1, 5)),
                torch.eye(4),
            )

    @pytest.mark.parametrize("shape", [(2, 2), (3,), (5, 3, 2), (1, 1, 3, 3)], ids=str)
    def test_transforms(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(
            ValueError, match=r"transforms must be \(3, 3\) or \(N, 3, 3\), got \("
        ):
            assert_equivariant(lambda c: c, children(), torch.zeros(shape))


@pytest.mark.parametrize("make", [orthogonal, signed_permutation])
class TestMatrices:
    @pytest.mark.parametrize("rows", [1, 2, 4, 7])
    def test_orthogonal(self, make: Callable[..., Tensor], rows: int) -> None:
        matrix = make(rows, generator())
        torch.testing.assert_close(
            matrix @ matrix.T, torch.eye(rows, dtype=torch.float64), rtol=0, atol=1e-12
        )
        if make is signed_permutation:
            assert (matrix != 0).sum() == rows

    def test_generator(self, make: Callable[..., Tensor]) -> None:
        assert torch.equal(make(5, generator(3)), make(5, generator(3)))
        assert not torch.equal(make(5, generator(3)), make(5, generator(4)))
        assert make(5).shape == (5, 5)

    def test_evenly_distributed(self, make: Callable[..., Tensor]) -> None:
        """Every entry is 0 on average, with variance 1 / rows; half of them are
        reflections.
        """
        random = generator()
        matrices = torch.stack([make(3, random) for _ in range(2000)])
        assert matrices.mean(0).abs().max() < 0.06
        torch.testing.assert_close(
            matrices.square().mean(0),
            torch.full((3, 3), 1 / 3).double(),
            rtol=0,
            atol=0.05,
        )
        assert 0.45 < (matrices.det() > 0).double().mean() < 0.55

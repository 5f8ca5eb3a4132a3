"""Fully connected capsules."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchcaps as tc
from torchcaps import (
    CapsLinear,
    Capsules,
    create_routing,
    length,
    list_routings,
    squash,
    use_backend,
)
from torchcaps.routing import DynamicRouting

I = 7
J = 5
P = 4
D = 3
KINDS = ("full", "shared")
TRANSFORMS = pytest.mark.parametrize("transforms", KINDS)
ROUTINGS = pytest.mark.parametrize("routing", list_routings())


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def layer(
    transforms: str = "full", in_pose: Any = P, out_pose: Any = D, **options: Any
) -> CapsLinear:
    torch.manual_seed(0)
    return CapsLinear(
        None if transforms == "shared" else I,
        J,
        in_pose,
        out_pose,
        transforms=transforms,
        **options,
    )


def with_routing(name: str, **options: Any) -> CapsLinear:
    capsule_layer = layer(routing=create_routing(name), **options)
    return capsule_layer.eval() if name == "hard_kmeans" else capsule_layer


class TestVotes:
    @TRANSFORMS
    @pytest.mark.parametrize("rows", [0, 2], ids=["vectors", "matrices"])
    def test_explicit(self, transforms: str, rows: int) -> None:
        pose = (rows,) if rows else ()
        capsule_layer = layer(
            transforms, (*pose, P) if rows else P, (*pose, D) if rows else D
        )
        children = random(2, I, *pose, P)
        weight = capsule_layer.weight.expand(I, J, P, D)
        expected = torch.einsum("bi...p,ijpd->bij...d", children, weight).reshape(
            2, I, J, -1
        )
        torch.testing.assert_close(capsule_layer.votes(children).dense(), expected)

    @TRANSFORMS
    def test_number_of_parameters(self, transforms: str) -> None:
        numbers = {
            "full": I * J * P * D,
            "shared": J * P * D,
        }
        assert (
            sum(p.numel() for p in layer(transforms).parameters())
            == numbers[transforms]
        )


class TestForward:
    @TRANSFORMS
    @ROUTINGS
    def test_is_the_routing_of_its_votes(self, transforms: str, routing: str) -> None:
        capsule_layer = with_routing(routing, transforms=transforms)
        children = random(2, I, P)
        pose, activation = capsule_layer(children)
        routed = capsule_layer.routing(capsule_layer.votes(children), length(children))
        assert pose.shape == (2, J, D)
        assert activation.shape == (2, J)
        torch.testing.assert_close(pose, routed.pose)
        torch.testing.assert_close(activation, routed.activation)

    @ROUTINGS
    def test_matrix_poses(self, routing: str) -> None:
        capsule_layer = with_routing(routing, in_pose=(2, P), out_pose=(2, D))
        children = Capsules(random(2, I, 2, P), random(2, I).sigmoid())
        pose, activation = capsule_layer(children)
        routed = capsule_layer.route(children)
        assert pose.shape == (2, J, 2, D)
        assert torch.equal(pose.flatten(2), routed.pose)
        assert torch.equal(activation, routed.activation)

    @pytest.mark.parametrize("sites", [(7,), (7, 1), (1, 7, 1), (1, 1, 7, 1)], ids=str)
    @pytest.mark.parametrize("pose", [(P,), (2, P)], ids=["vectors", "matrices"])
    def test_all_sites_are_children(
        self, sites: tuple[int, ...], pose: tuple[int, ...]
    ) -> None:
        capsule_layer = layer(
            in_pose=pose if len(pose) > 1 else P,
            out_pose=(2, D) if len(pose) > 1 else D,
        )
        flat = random(3, I, *pose)
        expected = capsule_layer(flat)
        activation = flat.flatten(2).square().sum(-1).sqrt()
        for children in (flat.view(3, *sites, *pose), Capsules(flat, activation)):
            torch.testing.assert_close(capsule_layer(children), expected)
        torch.testing.assert_close(
            capsule_layer(
                Capsules(flat.view(3, *sites, *pose), activation.view(3, *sites))
            ),
            expected,
        )

    def test_sites_are_counted_in_order(self) -> None:
        capsule_layer = CapsLinear(6, J, P, D)
        maps = random(2, 2, 3, P)
        expected = torch.einsum(
            "bp,jpd->bjd", maps[:, 1, 2], capsule_layer.weight[1 * 3 + 2]
        )
        torch.testing.assert_close(capsule_layer.votes(maps).dense()[:, 5], expected)

    @pytest.mark.parametrize("count", [1, 2, 13])
    def test_shared_takes_any_number_of_children(self, count: int) -> None:
        children = random(2, count, P)
        capsule_layer = layer("shared")
        total = torch.einsum("bip,jpd->bjd", children, capsule_layer.weight[0])
        capsule_layer.routing.steps = 1
        torch.testing.assert_close(capsule_layer(children).pose, squash(total / J))

    def test_activations_weight_the_children_where_the_routing_says_so(self) -> None:
        poses = random(2, I, P)
        for name, uses in (
            ("dynamic", False),
            ("kmeans", False),
            ("euclidean", True),
            ("em", True),
        ):
            capsule_layer = with_routing(name)
            half = capsule_layer(
                Capsules(poses, torch.ones(2, I) * (torch.arange(I) < 3))
            )
            same = torch.allclose(
                half.pose, capsule_layer(Capsules(poses, torch.ones(2, I))).pose
            )
            assert same != uses, name

    @pytest.mark.parametrize("backend", ["naive", "chunked"])
    def test_backend(self, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 50)
        capsule_layer = layer(backend=backend)
        children = random(3, I, P)
        with use_backend("chunked" if backend == "naive" else "naive"):
            assert (
                backend in type(capsule_layer.votes(children).source).__name__.lower()
            )
            expected = layer()(children)
        torch.testing.assert_close(capsule_layer(children), expected)


class TestInitialisation:
    @TRANSFORMS
    def test_given_deviation_cut_off_at_two(self, transforms: str) -> None:
        capsule_layer = CapsLinear(
            None if transforms == "shared" else 40,
            30,
            8,
            16,
            transforms=transforms,
            init_std=0.1,
        )
        assert capsule_layer.weight.abs().max() <= 0.2
        assert (
            0.08 < capsule_layer.weight.std() < 0.1
        )  # a normal cut off at two deviations has 0.88 of its deviation

    @pytest.mark.parametrize("children", [50, 500])
    def test_unrelated_children_of_length_one_give_parents_of_length_about_one(
        self, children: int
    ) -> None:
        torch.manual_seed(0)
        capsule_layer = CapsLinear(
            children,
            10,
            8,
            16,
            routing=DynamicRouting(steps=1, squash="none"),
        )
        poses = torch.nn.functional.normalize(torch.randn(20, children, 8), dim=-1)
        assert 0.5 < capsule_layer(poses).activation.mean() < 2

    def test_default_is_that_of_the_docstring(self) -> None:
        torch.manual_seed(0)
        for made, deviation in (
            (CapsLinear(1152, 10, 8, 16), 10 / math.sqrt(1152 * 16)),
            (
                CapsLinear(None, 50, 80, 16, transforms="shared"),
                math.sqrt(2 / (80 + 50 * 16)),
            ),
        ):
            assert made.weight.std().item() == pytest.approx(0.88 * deviation, rel=0.02)

    def test_reset(self) -> None:
        capsule_layer = layer("orthogonal", D, D)
        before = [p.clone() for p in capsule_layer.parameters()]
        capsule_layer.reset_parameters()
        assert not any(
            torch.equal(a, b)
            for a, b in zip(before, capsule_layer.parameters(), strict=True)
        )


class TestRoutingOfALayer:
    def test_bias_has_the_size_of_the_poses(self) -> None:
        capsule_layer = CapsLinear(
            I, J, (2, P), (2, D), routing=DynamicRouting(bias=True)
        )
        assert capsule_layer.routing.offset.shape == (J, 2 * D)


class TestExceptions:
    def test_transforms(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"transforms must be one of .*'full', 'shared', .*got 'tied'",
        ):
            CapsLinear(I, J, P, D, transforms="tied")
        for transforms in ("full", "orthogonal"):
            with pytest.raises(
                ValueError, match=f"{transforms} transforms need the number of children"
            ):
                CapsLinear(None, J, P, D, transforms=transforms)

    def test_count(self) -> None:
        for transforms in ("full", "orthogonal"):
            with pytest.raises(
                ValueError, match=r"transforms for 7 children, got 6 .*'shared'"
            ):
                layer(transforms, D, D)(random(2, 6, D))
            with pytest.raises(ValueError, match="transforms for 7 children, got 12"):
                layer(transforms, D, D)(random(2, 3, 4, D))

    @pytest.mark.parametrize("transforms", ["full", "shared"])
    def test_pose(self, transforms: str) -> None:
        with pytest.raises(
            ValueError, match=r"poses \(B, \*sites, 4\) .*got \(2, 7, 5\)"
        ):
            layer(transforms)(random(2, I, 5))
        with pytest.raises(
            ValueError, match=r"poses \(B, \*sites, 2, 4\) .*\(2, 7, 4\)"
        ):
            layer(transforms, (2, P), (2, D))(random(2, I, P))
        with pytest.raises(
            ValueError, match=r"poses \(B, \*sites, 4\) .*\(2, 7, 2, 4\).*\(2, 7\)"
        ):
            layer(transforms)(Capsules(random(2, I, 2, P), random(2, I)))

    @pytest.mark.parametrize(
        ("pose", "shape"),
        [(P, (2, P)), (P, (P,)), ((2, P), (3, 2, P)), ((2, P), (2, P))],
        ids=str,
    )
    def test_no_axis_of_children(self, pose: Any, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="children"):
            layer("shared", pose, D if pose == P else (2, D))(random(*shape))

    def test_activations_of_other_children(self) -> None:
        with pytest.raises(ValueError, match=r"\(2, 6\)"):
            layer("shared")(Capsules(random(2, I, P), random(2, 6)))


EVERY_LAYER = pytest.mark.parametrize(
    "make",
    [
        lambda routing: tc.CapsLinear(4, 2, 8, 16, routing=routing),
        lambda routing: tc.CapsHead(2, routing=routing).class_caps,
        lambda routing: tc.layers.LocalCaps(4, 2, 8, 8, routing=routing),
        lambda routing: tc.CapsConv2d(4, 2, (4, 4), (4, 4), 3, routing=routing),
        lambda routing: tc.ClassCaps(4, 2, (4, 4), (4, 4), routing=routing),
        lambda routing: (
            tc.create_model(
                "capsnet", image_shape=(1, 28, 28), classes=10, routing=routing
            ).class_caps
        ),
        lambda routing: (
            tc.create_model("matrixcapsnet_small", routing=routing).class_caps
        ),
    ],
    ids=[
        "linear",
        "head",
        "local",
        "convolution",
        "classes",
        "network",
        "matrix network",
    ],
)


@EVERY_LAYER
def test_routings_by_name(make: Callable[..., Any]) -> None:
    layer = make("em")
    routing = layer.routing
    assert type(routing) is tc.routing.EMRouting
    with pytest.raises(
        ValueError, match=r"routing must be the name of a routing, got 'emm'"
    ):
        make("emm")


@EVERY_LAYER
@pytest.mark.parametrize("routing", [tc.routing.EMRouting, 3], ids=["class", "number"])
def test_what_is_no_routing(make: Callable[..., object], routing: object) -> None:
    with pytest.raises(
        TypeError,
        match=r"routing must be a Routing, such as \w+\(\), or the name of one, got",
    ):
        make(routing)


@pytest.mark.parametrize(
    "children", [[1.0, 2.0], torch.zeros(2, I, P).numpy(), (torch.zeros(2, I, P),) * 3]
)
def test_what_are_no_children(children: Any) -> None:
    with pytest.raises(
        TypeError,
        match=(
            r"children must be Capsules, or a tensor of their poses, got "
            r"(list|ndarray|tuple)"
        ),
    ):
        layer()(children)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["native", "chunked", "naive"])
@pytest.mark.parametrize("transforms", ["full", "shared"])
def test_votes_keep_the_transforms_that_a_layer_had(
    transforms: Any, backend: str
) -> None:
    single = tc.CapsLinear(9, 3, 4, 4, transforms=transforms, backend=backend)
    routed = single.route(3 * torch.randn(5, 9, 4))
    before = routed.assignment
    single.double().weight.data = torch.zeros_like(single.weight)
    torch.testing.assert_close(routed.assignment, before)

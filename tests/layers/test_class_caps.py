"""Class capsules over a map."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps import CapsLinear, Capsules, ClassCaps, create_routing, list_routings
from torchcaps.layers import coordinate_addition
from torchcaps.ops import Votes

E, T = 3, 2
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
SLOTS = ("slots", "slot_mixture")  # which have projections of their own
OF_CHILDREN = ("heinsen_2022", "self_routing", *SLOTS)
"""Routings that look at the children themselves."""
OF_VOTES = pytest.mark.parametrize(
    "routing", [name for name in list_routings() if name not in OF_CHILDREN]
)
WITHOUT_TRANSFORMS = (
    "hard_kmeans",
    "heinsen_2022",
    *SLOTS,
)  # which do not train those of the layer
TRAINABLE = pytest.mark.parametrize(
    "routing", [name for name in list_routings() if name not in WITHOUT_TRANSFORMS]
)
OWN_SIMILARITY = (
    "degree_centrality",
    "fast_kernel_density",
    "interests",
    "kernel_density",
    "max_min",
    "self_routing",
    "sparse_attention",
)
POSES = pytest.mark.parametrize(
    ("in_pose", "out_pose"), [(3, 4), ((2, 3), (2, 2))], ids=["vectors", "matrices"]
)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 100)


def able(routing: str, backend: str) -> str:
    """The backend, or ``chunked`` where the kernels have not what the routing asks
    for.
    """
    return "chunked" if backend == "native" and routing in OWN_SIMILARITY else backend


def make_children(*grid: int, pose: Any = (2, 3), batch: int = 2) -> Capsules:
    generator = torch.Generator().manual_seed(0)
    shape = (pose,) if isinstance(pose, int) else pose
    poses = torch.randn(
        batch, *grid, T, *shape, generator=generator, dtype=torch.float64
    )
    activation = torch.rand(batch, *grid, T, generator=generator, dtype=torch.float64)
    return Capsules(poses.requires_grad_(), activation.requires_grad_())


def make_layer(
    in_pose: Any = (2, 3), out_pose: Any = (2, 2), routing: str = "em", **options: Any
) -> ClassCaps:
    torch.manual_seed(0)
    settings = (
        {"schedule": "linear", "inverse_temperature": 0.1} if routing == "em" else {}
    )
    layer = ClassCaps(
        T, E, in_pose, out_pose, routing=create_routing(routing, **settings), **options
    ).double()
    for parameter in layer.routing.parameters():
        torch.nn.init.normal_(parameter)
    of_batch = (
        "homogeneous",
        "variational_bayes",
    )  # in training an example depends on its batch
    return layer.eval() if routing in ("hard_kmeans", *of_batch) else layer


def explicit_votes(
    layer: ClassCaps, children: Capsules, coordinates: bool = True
) -> Tensor:
    """V = u W, and the position along each axis on the first elements; (B, I, E, H)."""
    grid = children.activation.shape[1:-1]
    votes = torch.einsum(
        "b...p,...jpd->b...jd" if len(layer.in_pose) == 1 else "b...mp,...jpd->b...jmd",
        children.pose,
        layer.weight,
    )
    votes = votes.flatten(len(grid) + 3).clone()
    for place in itertools.product(*map(range, grid)) if coordinates else ():
        for axis, (at, extent) in enumerate(zip(place, grid, strict=True)):
            votes[(slice(None), *place)][..., axis] += (
                layer.coordinate_scale * (at + 0.5) / extent
            )
    return votes.flatten(1, len(grid) + 1)


def as_tensors(votes: Tensor) -> Votes:
    """Any votes (B, I, J, H) as those of a dense layer: each example has children and
    transforms of its own.
    """
    (dense,) = votes
    I, _, _ = dense.shape
    return Votes(torch.ones(1, I, 1, dtype=dense.dtype), dense[:, :, None])


class TestVotes:
    @POSES
    @pytest.mark.parametrize("coordinates", [False, True], ids=["plain", "coordinates"])
    @pytest.mark.parametrize("size", [(5,), (1, 1), (4, 3), (2, 7), (4, 2, 3)], ids=str)
    @BACKENDS
    def test_explicit(
        self,
        in_pose: Any,
        out_pose: Any,
        coordinates: bool,
        size: tuple[int, ...],
        backend: str,
    ) -> None:
        settings = {
            "coordinates": coordinates,
            "coordinate_scale": 1.7,
            "axes": len(size),
            "backend": backend,
        }
        layer = make_layer(in_pose, out_pose, **settings)
        children = make_children(*size, pose=in_pose)
        torch.testing.assert_close(
            layer.route(children).votes.dense(),
            explicit_votes(layer, children, coordinates),
        )

    @OF_VOTES
    @POSES
    @BACKENDS
    def test_forward_routes_these_votes(
        self, routing: str, in_pose: Any, out_pose: Any, backend: str
    ) -> None:
        """All routings but the one that looks at the children themselves."""
        layer = make_layer(in_pose, out_pose, routing, backend=able(routing, backend))
        children = make_children(3, 4, pose=in_pose)
        parents = layer(children)
        assert parents.activation.shape == (2, E)
        assert parents.pose_shape == (
            (out_pose,) if isinstance(out_pose, int) else out_pose
        )
        for b in range(2):
            votes = as_tensors(explicit_votes(layer, children)[b : b + 1])
            expected = layer.routing(votes, children.activation[b : b + 1].flatten(1))
            torch.testing.assert_close(
                parents.pose[b].flatten(1), expected.pose[0], rtol=1e-9, atol=1e-12
            )
            torch.testing.assert_close(
                parents.activation[b], expected.activation[0], rtol=1e-9, atol=1e-12
            )

    @TRAINABLE
    @BACKENDS
    def test_without_coordinates_is_a_dense_layer_with_tied_transforms(
        self, routing: str, backend: str
    ) -> None:
        """Values and gradients; those of the dense layer's transforms add up over the
        positions.
        """
        backend = able(routing, backend)
        layer = make_layer(routing=routing, coordinates=False, backend=backend)
        dense = CapsLinear(
            3 * 4 * T, E, (2, 3), (2, 2), routing=layer.routing, backend=backend
        )
        dense.weight = torch.nn.Parameter(layer.weight.detach().repeat(12, 1, 1, 1))
        dense.routing = layer.routing
        children = make_children(3, 4)
        results = []
        for made in (layer, dense):
            pose, activation = made(children)
            gradients = torch.autograd.grad(
                pose.square().sum() + activation.sum(),
                (children.pose, made.weight),
                retain_graph=True,
            )
            results.append(
                (
                    pose,
                    activation,
                    gradients[0],
                    gradients[1].view(-1, T, E, 3, 2).sum(0),
                )
            )
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


class TestAnySize:
    def test_without_coordinates_places_do_not_matter(self) -> None:
        layer = make_layer(coordinates=False)
        children = make_children(3, 4)
        turned = Capsules(*(field.flip(1).transpose(1, 2) for field in children))
        torch.testing.assert_close(layer(turned), layer(children))
        with_places = make_layer()
        assert not torch.allclose(
            with_places(turned).pose, with_places(children).pose, rtol=1e-3
        )

    @pytest.mark.parametrize("routing", list_routings())
    def test_a_map_of_no_places_is_one_of_absent_children(self, routing: str) -> None:
        layer = ClassCaps(T, E, 3, 4, routing=routing).eval()
        poses, activation = torch.randn(2, 2, 3, T, 3), torch.rand(2, 2, 3, T)
        absent = torch.zeros(2, 2, 3, T, dtype=torch.bool)
        torch.testing.assert_close(
            layer(Capsules(poses[:, :0], activation[:, :0])),
            layer(Capsules(poses, activation), absent),
        )


class TestCoordinateAddition:
    def test_by_hand(self) -> None:
        field = coordinate_addition(2, 4, 3, scale=8.0)
        assert field.shape == (2, 4, 3)
        assert torch.equal(field[..., 0], torch.tensor([[2.0] * 4, [6.0] * 4]))
        assert torch.equal(field[..., 1], torch.tensor([[1.0, 3.0, 5.0, 7.0]] * 2))
        assert (field[..., 2] == 0).all()
        assert coordinate_addition(4, 2, scale=8.0).tolist() == [
            [1, 0],
            [3, 0],
            [5, 0],
            [7, 0],
        ]
        volume = coordinate_addition(2, 1, 3, 4)
        torch.testing.assert_close(volume[1, 0, 2], torch.tensor([0.75, 0.5, 5 / 6, 0]))

    @pytest.mark.parametrize("size", [(1, 1), (3, 8), (10, 1)], ids=str)
    def test_centres_of_positions(self, size: tuple[int, int]) -> None:
        """Symmetric about the middle, inside (0, 1), whatever the size."""
        field = coordinate_addition(*size, 2)
        torch.testing.assert_close(field + field.flip(0, 1), torch.ones(*size, 2))
        assert ((field > 0) & (field < 1)).all()

    def test_too_small_votes(self) -> None:
        for call in (
            lambda: coordinate_addition(3, 3, 1),
            lambda: ClassCaps(2, 3, 4, 1),
        ):
            with pytest.raises(
                ValueError,
                match="coordinate addition needs votes of 2 elements or more, got 1",
            ):
                call()
        with pytest.raises(
            ValueError,
            match="coordinate addition needs votes of 3 elements or more, got 2",
        ):
            ClassCaps(2, 3, 4, 2, axes=3)
        ClassCaps(2, 3, 4, 1, coordinates=False)
        ClassCaps(2, 3, 4, 1, axes=1)

    def test_scale_zero_is_none(self) -> None:
        children = make_children(3, 2)
        torch.testing.assert_close(
            make_layer(coordinate_scale=0.0)(children),
            make_layer(coordinates=False)(children),
        )


class TestExceptions:
    @pytest.mark.parametrize("axes", [0, 4, "2"])
    def test_axes(self, axes: Any) -> None:
        with pytest.raises(ValueError, match=r"axes must be one of \[1, 2, 3\]"):
            ClassCaps(2, 3, 4, 4, axes=axes)

    @pytest.mark.parametrize(
        ("pose", "activation"),
        [
            ((1, 4, 4, 3, 2, 3), (1, 4, 4, 3)),
            ((1, 4, 4, 2, 3), (1, 4, 4, 2)),
            ((1, 32, 2, 3), (1, 32)),
        ],
        ids=str,
    )
    def test_map(self, pose: tuple[int, ...], activation: tuple[int, ...]) -> None:
        for call in (make_layer(), make_layer().route):
            with pytest.raises(
                ValueError, match=r"children must have poses \(B, H, W, 2, 2, 3\)"
            ):
                call(Capsules(torch.zeros(pose), torch.zeros(activation)))
        with pytest.raises(
            ValueError, match=r"children must have poses \(B, L, 2, 2, 3\)"
        ):
            make_layer(axes=1)(Capsules(torch.zeros(pose), torch.zeros(activation)))

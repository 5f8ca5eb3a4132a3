"""Coordinates scaled to the poses of the children."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchcaps import Capsules, ClassCaps, create_model
from torchcaps.layers import PoseMagnitude, coordinate_addition
from torchcaps.routing import EMRouting
from torchcaps.testing import assert_equivariant, orthogonal

T, E = 3, 4


def capsules(*grid: int, scale: float = 1.0, batch: int = 2, seed: int = 0) -> Capsules:
    generator = torch.Generator().manual_seed(seed)
    pose = scale * torch.randn(
        batch, *grid, T, 2, 3, generator=generator, dtype=torch.float64
    )
    return Capsules(
        pose, torch.rand(batch, *grid, T, generator=generator, dtype=torch.float64)
    )


def make_layer(axes: int = 2, **options: Any) -> ClassCaps:
    torch.manual_seed(0)
    routing = EMRouting.preset("soft", variance_floor=1e-15, cost_scale=0.0)
    return ClassCaps(
        T,
        E,
        (2, 3),
        (2, 3),
        axes=axes,
        **{"routing": routing, "coordinates": "scaled", **options},
    ).double()


def offsets(layer: ClassCaps, children: Capsules, mask: Tensor | None = None) -> Tensor:
    """What is added to the votes, (*grid, H); the same for all types and classes."""
    votes = layer.route(children, mask).votes.dense()
    plain = torch.einsum("b...tmp,tjpd->b...tjmd", children.pose, layer.weight).flatten(
        -2
    )
    if mask is not None:
        plain = plain * mask[..., None, None]
    actual = votes.view_as(plain) - plain
    torch.testing.assert_close(
        actual, actual[:1, ..., :1, :1, :].expand_as(actual), rtol=1e-9, atol=1e-9
    )
    return actual[0, ..., 0, 0, :]


@pytest.mark.parametrize("grid", [(5,), (4, 3), (1, 7), (1, 1), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 100.0, 0.01])
def test_in_training_they_are_multiplied_by_the_magnitude_of_the_batch(
    grid: tuple[int, ...], scale: float
) -> None:
    children = capsules(*grid, scale=scale)
    field = coordinate_addition(*grid, 6, dtype=torch.float64)
    expected = field * children.pose.square().mean().sqrt()
    torch.testing.assert_close(
        offsets(make_layer(len(grid)), children), expected, rtol=1e-9, atol=1e-9 * scale
    )
    halved = make_layer(len(grid), coordinate_scale=0.5)
    torch.testing.assert_close(
        offsets(halved, children), expected / 2, rtol=1e-9, atol=1e-9 * scale
    )


def test_an_empty_batch_leaves_the_magnitude() -> None:
    layer = make_layer()
    layer(capsules(4, 3))
    before = layer.magnitude.mean_square.clone()
    assert layer(capsules(4, 3, batch=0)).pose.shape == (0, E, 2, 3)
    assert layer.magnitude.mean_square == before
    assert layer.magnitude.batches == 1


def test_poses_a_hundred_times_as_large_change_nothing_else() -> None:
    """By a routing that no scale of the votes changes; published coordinates are lost
    among them.
    """
    ones = capsules(4, 3)
    hundreds = capsules(4, 3, scale=100.0)
    layer = make_layer()
    plain = make_layer(coordinates=True)
    before = layer(ones)
    after = layer(hundreds)
    torch.testing.assert_close(
        after.activation, before.activation, rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(after.pose, 100 * before.pose, rtol=1e-9, atol=1e-9)
    assert (plain(hundreds).pose / 100 - plain(ones).pose).abs().max() > 1e-3


def test_evaluation_has_a_running_magnitude() -> None:
    layer = make_layer()
    batches = [
        capsules(4, 3, scale=scale, seed=seed)
        for seed, scale in enumerate((0.01, 0.03, 0.02))
    ]
    for batch in batches:
        layer(batch)
    layer.eval()
    square = torch.zeros((), dtype=torch.float64)
    for number, batch in enumerate(batches, 1):
        square = torch.lerp(square, batch.pose.square().mean(), 10 / (9 + number))
    field = coordinate_addition(4, 3, 6, dtype=torch.float64)
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    for children in (batches[0], capsules(4, 3, scale=100.0)):
        torch.testing.assert_close(
            offsets(layer, children), field * square.sqrt(), rtol=1e-5, atol=1e-7
        )
    assert all(
        torch.equal(tensor, state[name]) for name, tensor in layer.state_dict().items()
    )
    alone = layer(
        Capsules(*(field[:1] for field in batches[0]))
    )  # no example knows of the others
    torch.testing.assert_close(alone.pose[0], layer(batches[0]).pose[0])


def test_the_running_magnitude_follows_the_poses() -> None:
    magnitude = PoseMagnitude().double()
    expected = 0.0
    for number in range(1, 30):
        pose = capsules(4, 3, scale=0.1 * number, seed=number).pose
        share = 10 / (9 + number)
        expected = (1 - share) * expected + share * pose.square().mean().item()
        magnitude(pose)
    assert magnitude.mean_square.item() == pytest.approx(expected, rel=1e-9)


def test_children_that_are_not_there_do_not_count() -> None:
    children = capsules(6, 3)
    mask = torch.rand(2, 6, 3, T, generator=torch.Generator().manual_seed(5)) > 0.4
    expected = (
        coordinate_addition(6, 3, 6, dtype=torch.float64)
        * children.pose[mask].square().mean().sqrt()
    )
    torch.testing.assert_close(
        offsets(make_layer(), children, mask), expected, rtol=1e-9, atol=1e-9
    )
    none = make_layer()(children, torch.zeros_like(mask))
    assert all(field.isfinite().all() for field in none)


def test_no_gradient_through_the_magnitude() -> None:
    """That of the poses is the one that fixed coordinates of the same size have."""
    children = capsules(4, 3)
    results = []
    for layer in (
        make_layer(),
        make_layer(
            coordinates=True,
            coordinate_scale=float(children.pose.square().mean().sqrt()),
        ),
    ):
        pose = children.pose.clone().requires_grad_()
        parents = layer(children._replace(pose=pose))
        results.append(
            torch.autograd.grad(
                parents.pose.square().sum() + parents.activation.sum(), pose
            )[0]
        )
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-9)


def test_a_change_of_viewpoint_leaves_the_magnitude() -> None:
    magnitude = PoseMagnitude().double()
    children = capsules(4, 3)
    moved = orthogonal(2, torch.Generator().manual_seed(0)) @ children.pose
    torch.testing.assert_close(magnitude(moved), magnitude(children.pose))
    layer = make_layer(coordinate_scale=0.0, routing=None)
    assert_equivariant(layer, children, torch.tensor([[0.0, -1.0], [1.0, 0.0]]))


def test_networks() -> None:
    model = create_model(
        "matrixcapsnet_small",
        image_shape=(1, 17, 17),
        types=(2, 3, 4),
        coordinates="scaled",
    )
    assert model.class_caps.coordinates == "scaled"
    assert "magnitude.mean_square" in model.class_caps.state_dict()
    published = create_model(
        "matrixcapsnet_small", image_shape=(1, 17, 17), types=(2, 3, 4)
    )
    assert not [name for name in published.state_dict() if "magnitude" in name]


def test_wrong() -> None:
    with pytest.raises(
        ValueError, match="coordinates must be True, False or 'scaled', got 'poses'"
    ):
        ClassCaps(T, E, 4, 4, coordinates="poses")


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning"
)  # PyTorch's own, of its forward mode
def test_the_magnitude_has_no_tangent_in_training() -> None:
    layer = ClassCaps(2, 3, (2, 2), (2, 2), coordinates="scaled", routing="em")
    layer.double().train()
    pose = torch.randn(3, 4, 4, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    activation = torch.rand(3, 4, 4, 2, dtype=torch.float64)
    direction = torch.randn_like(pose)
    parents = layer(Capsules(pose, activation)).pose
    weights = torch.randn_like(parents)
    (gradient,) = torch.autograd.grad(parents, pose, weights)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(pose.detach(), direction)
        tangent = forward_ad.unpack_dual(layer(Capsules(dual, activation)).pose).tangent
    torch.testing.assert_close((tangent * weights).sum(), (gradient * direction).sum())

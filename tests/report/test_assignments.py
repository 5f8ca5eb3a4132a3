"""Where children went: maps, their place in the image, entropy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.report.small import images_for, look
from torchcaps import create_model, create_routing
from torchcaps.models import CapsuleClassifier
from torchcaps_lab.evaluate import assignment_entropy, dead_capsules
from torchcaps_lab.report import layer_extents


def tiny(name: str = "capsnet_digits", **arguments: object) -> CapsuleClassifier:
    torch.manual_seed(0)
    if name == "capsnet_digits":
        arguments = {"channels": 8, "types": 2, "classes": 3, **arguments}
    else:
        arguments = {"channels": (4, 4, 6, 6), "classes": 3, **arguments}
    model = create_model(name, **arguments)
    with torch.no_grad():
        model.class_caps.weight.mul_(10)  # far from uniform
    return model.eval()


def maps_of(model: CapsuleClassifier, images: Tensor) -> Tensor:
    """Of each class the shares of the children of the classes, (B, H', W', E)."""
    return next(iter(look(model, images).maps.values()))


def extent(model: CapsuleClassifier, images: Tensor) -> tuple[float, ...]:
    """That of the children of the classes."""
    return list(layer_extents(model, images).values())[-1]


@pytest.mark.parametrize("routing", ["dynamic", "em", "kmeans"])
@torch.no_grad()
def test_maps_equal_a_loop(routing: str) -> None:
    model = tiny(routing=create_routing(routing))
    images = images_for(model, 4)
    target = torch.tensor([0, 2, 1, 1])
    activation = model.children_of(images).activation.numpy()  # [B, H', W', types]
    assignment = model.route(images).assignment.numpy()  # [B, I, J]
    B, rows, columns, types = activation.shape
    expected = np.zeros((B, rows, columns))
    for b in range(B):
        for y in range(rows):
            for x in range(columns):
                total = 0.0
                for t in range(types):
                    child = (y * columns + x) * types + t
                    expected[b, y, x] += (
                        activation[b, y, x, t] * assignment[b, child, target[b]]
                    )
                    total += activation[b, y, x, t]
                expected[b, y, x] /= total
    actual = maps_of(model, images)[torch.arange(B), :, :, target]
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5)
    assert expected.std() > 1e-3  # the test would see a mix-up of positions


@pytest.mark.parametrize("name", ["capsnet_digits", "sharedcapsnet"])
@torch.no_grad()
def test_shares_of_all_classes_add_up_to_one(name: str) -> None:
    model = tiny(name)
    maps = maps_of(model, images_for(model, 2))
    assert bool((maps >= 0).all())
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:3]))


@torch.no_grad()
def test_positions_without_an_active_child_get_an_even_share() -> None:
    model = tiny()
    nn.init.zeros_(model.conv.weight)
    nn.init.zeros_(model.conv.bias)
    for parameter in model.primary_caps.parameters():
        nn.init.zeros_(parameter)
    maps = maps_of(model, images_for(model, 4))
    torch.testing.assert_close(maps, torch.full_like(maps, 1 / 3))


def test_misfits_are_named() -> None:
    with pytest.raises(ValueError, match="assignment must be"):
        assignment_entropy(torch.ones(2, 3))
    with pytest.raises(ValueError, match="activation must be"):
        dead_capsules(torch.ones(0, 3))


def test_the_extent_follows_from_kernels_and_strides() -> None:
    # 3x3 behind 3x3: position 0 sees pixels 0..4, and 4 positions lie 1 pixel apart.
    assert extent(tiny(), torch.zeros(1, 1, 8, 8)) == (2, 6, 6, 2)
    # 5x5 stride 2 behind 3x3 stride 1 sees 7 pixels: centres 3.5, 5.5, ...; 2 pixels
    # apart, 3 down and 5 across.
    model = tiny(
        image_shape=(2, 11, 15), kernel_size=3, primary_kernel_size=5, primary_stride=2
    )
    assert extent(model, torch.zeros(1, 2, 11, 15)) == (2.5, 12.5, 8.5, 2.5)


def test_the_extent_of_cells_that_see_less_at_the_border() -> None:
    """With padding, what the outer cells see ends where the image does: the cells tile
    it all the same.
    """
    network = create_model(
        "scene_capsnet", image_shape=(1, 64, 96), channels=(4, 4)
    ).eval()
    with torch.no_grad():
        for parameter in network.features.parameters():
            parameter.abs_()  # nothing that is seen is lost in a ReLU
    assert extent(network, torch.zeros(1, 1, 64, 96)) == (0, 96, 64, 0)


@pytest.mark.parametrize("height", [40, 48])
def test_the_extent_of_cells_that_see_the_border_from_the_middle(height: int) -> None:
    """Their centres lay close together, and the map of a scene was drawn in the middle
    of it; 40 rows are all seen.
    """
    scenes = create_model(
        "scene_capsnet", image_shape=(1, height, 64), channels=(4, 4, 8), child_dim=16
    ).eval()
    assert extent(scenes, torch.zeros(1, 1, height, 64)) == (
        0,
        64,
        height,
        0,
    )  # cells of 8 x 8 tile it


def test_the_extent_of_a_single_position_is_the_whole_image() -> None:
    model = tiny(image_shape=(1, 5, 5))
    with torch.no_grad():  # gradients may be off outside
        assert extent(model, torch.zeros(1, 1, 5, 5)) == (0, 5, 5, 0)


def test_looking_for_the_extent_leaves_no_gradients() -> None:
    model = tiny()
    extent(model, torch.zeros(1, 1, 8, 8))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_hard_assignments_have_no_entropy_and_even_ones_have_all() -> None:
    hard = nn.functional.one_hot(torch.randint(4, (2, 7)), 4).float()
    even = torch.full((2, 7, 4), 0.25)
    assert torch.equal(assignment_entropy(hard), torch.zeros(2))
    torch.testing.assert_close(assignment_entropy(even), torch.ones(2))
    torch.testing.assert_close(
        assignment_entropy(torch.cat([hard, even], 1)), torch.full((2,), 0.5)
    )


def test_entropy_of_two_parents_in_bits() -> None:
    assignment = torch.tensor([[[0.25, 0.75]]], dtype=torch.float64)
    expected = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    torch.testing.assert_close(
        assignment_entropy(assignment), torch.tensor([expected], dtype=torch.float64)
    )


def test_entropy_of_children_that_went_partly_or_wholly_nowhere() -> None:
    assignment = torch.tensor([[[0.1, 0.1], [0.4, 0.0], [0.0, 0.0]]])
    torch.testing.assert_close(assignment_entropy(assignment), torch.tensor([2 / 3]))


def test_one_parent_leaves_nothing_to_decide() -> None:
    assert torch.equal(assignment_entropy(torch.ones(2, 5, 1)), torch.zeros(2))


def test_dead_capsules_never_wake_up() -> None:
    activation = torch.tensor([[0.0, 0.9, 0.0, 0.0], [0.0, 0.0, 0.02, 0.01]])
    assert dead_capsules(activation) == 0.5
    assert dead_capsules(activation, threshold=0.5) == 0.75

"""Locally constrained capsules against a loop over places, and against the convolutions
that their votes are.
"""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import torchcaps as tc
from torchcaps.layers import LocalCaps

GRIDS = {
    1: (7,),
    2: (5, 3),
    3: (3, 2, 5),
}


def squash(pose: Tensor) -> Tensor:
    """The row ``half`` of the table in `squash`."""
    squared = pose.square().sum(-1, keepdim=True)
    return pose * squared.sqrt() / (0.5 + squared)


def seen(layer: LocalCaps, place: tuple[int, ...]) -> tuple[int, list[tuple[int, ...]]]:
    """The phase of a parent at this place, and the places of the children that it sees,
    in the order of the window.
    """
    if layer.resolution == "double":
        phase = tuple(coordinate % 2 for coordinate in place)
        nearest = [
            (coordinate // 2 - 1 + odd, coordinate // 2 + odd)
            for coordinate, odd in zip(place, phase, strict=True)
        ]
        return int("".join(map(str, phase)), 2), list(product(*nearest))
    stride = 2 if layer.resolution == "half" else 1
    half = layer.kernel_size // 2
    return 0, list(
        product(
            *(
                range(stride * coordinate - half, stride * coordinate + half + 1)
                for coordinate in place
            )
        )
    )


def by_loop(
    layer: LocalCaps, pose: Tensor, grid: tuple[int, ...], steps: int
) -> Tensor:
    """Every place by itself: votes as sums over the window, dynamic routing as
    Procedure 1 has it; (B, *grid, J, D).
    """
    B = len(pose)
    inside = pose.shape[1:-2]
    P = layer.in_dim
    rows = []
    for place in product(*map(range, grid)):
        phase, children = seen(layer, place)
        votes = pose.new_zeros(B, layer.in_types, layer.out_types, layer.out_dim)
        for number, child in enumerate(children):
            if all(
                0 <= coordinate < extent
                for coordinate, extent in zip(child, inside, strict=True)
            ):
                W = layer.weight[phase, :, :, number * P : (number + 1) * P]
                votes = votes + torch.einsum(
                    "bip,ijpd->bijd", pose[(slice(None), *child)], W
                )
        logits = pose.new_zeros(B, layer.in_types, layer.out_types, 1)
        for _ in range(steps):
            parents = squash((logits.softmax(2) * votes).sum(1))
            logits = logits + (votes * parents[:, None]).sum(-1, keepdim=True)
        rows.append(parents)
    return torch.stack(rows, 1).unflatten(1, grid)


@pytest.mark.parametrize("backend", ["naive", "native"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("axes", GRIDS)
@pytest.mark.parametrize("resolution", ["same", "half", "double"])
def test_every_place_routes_what_its_window_says(
    resolution: str, axes: int, steps: int, backend: str
) -> None:
    torch.manual_seed(0)
    routing = tc.create_routing("dynamic", steps=steps, squash="half")
    layer = LocalCaps(
        3, 2, 4, 5, 3, resolution, axes, routing=routing, backend=backend
    ).double()
    pose = torch.randn(2, *GRIDS[axes], 3, 4, dtype=torch.float64, requires_grad=True)
    capsules = layer(tc.Capsules(pose, tc.length(pose)))
    grid = {
        "same": lambda extent: extent,
        "half": lambda extent: -(-extent // 2),
        "double": lambda extent: 2 * extent,
    }[resolution]
    expected = by_loop(layer, pose, tuple(map(grid, GRIDS[axes])), steps)
    torch.testing.assert_close(capsules.pose, expected)
    torch.testing.assert_close(capsules.activation, expected.norm(dim=-1))
    upstream = torch.randn_like(expected)
    ours = torch.autograd.grad(capsules.pose, (pose, layer.weight), upstream)
    for gradient, expected_gradient in zip(
        ours, torch.autograd.grad(expected, (pose, layer.weight), upstream), strict=True
    ):
        torch.testing.assert_close(gradient, expected_gradient)


def test_doubling_is_a_transposed_convolution_of_kernel_4_and_stride_2() -> None:
    """With one type of parents there is nothing to route: the votes of all types are
    summed.
    """
    torch.manual_seed(0)
    routing = tc.create_routing("dynamic", steps=1, squash="none")
    layer = LocalCaps(2, 1, 3, 4, resolution="double", routing=routing).double()
    kernel = torch.zeros(6, 4, 4, 4, dtype=torch.float64)
    windows = layer.weight.detach()[:, :, 0].unflatten(
        2, (2, 2, 3)
    )  # [phase, I, place, place, P, D]
    for phase, (row, column) in enumerate(product((0, 1), repeat=2)):
        for high, wide in product(
            (0, 1), repeat=2
        ):  # x = q - 1 + phase + place, y = 2 q + phase, kernel y + 1 - 2 x
            part = windows[phase, :, high, wide].flatten(0, 1)
            kernel[:, :, 3 - row - 2 * high, 3 - column - 2 * wide] = part
    pose = torch.randn(2, 5, 3, 2, 3, dtype=torch.float64)
    expected = F.conv_transpose2d(
        pose.flatten(3).movedim(3, 1), kernel, stride=2, padding=1
    )
    torch.testing.assert_close(
        layer(tc.Capsules(pose, tc.length(pose))).pose[..., 0, :].movedim(3, 1),
        expected,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": 4}, "kernel_size must be odd, got 4"),
        (
            {"resolution": "third"},
            "resolution must be one of .*'double'.*, got 'third'",
        ),
        ({"axes": 4}, "axes must be one of"),
        ({"in_types": 0}, "in_types must be"),
        ({"backend": "fast"}, "backend must be one of"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalCaps(
            **{"in_types": 2, "out_types": 2, "in_dim": 4, "out_dim": 4, **arguments}
        )


def test_children_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"children must have poses \(B, H, W, 2, 4\)"):
        LocalCaps(2, 2, 4, 4)(
            tc.Capsules(torch.randn(1, 5, 5, 3, 4), torch.rand(1, 5, 5, 3))
        )

"""Children's poses that go past the routing."""

from typing import Any

import pytest
import torch
from over_windows import gathered
from torch import Tensor

from torchcaps import CapsConv1d, CapsConv2d, CapsConv3d, Capsules, create_model
from torchcaps.layers import IdentityPath
from torchcaps.routing import EMRouting
from torchcaps.testing import (
    assert_equivariant,
    check_model,
    orthogonal,
    signed_permutation,
)

POSE = (3, 2)


def capsules(*sites: int, batch: int = 2) -> Capsules:
    generator = torch.Generator().manual_seed(0)
    pose = torch.randn(batch, *sites, *POSE, generator=generator, dtype=torch.float64)
    return Capsules(
        pose, torch.rand(batch, *sites, generator=generator, dtype=torch.float64)
    )


def make_layer(
    in_types: int,
    out_types: int,
    kernel: Any,
    stride: Any = 1,
    padding: Any = 0,
    **options: Any,
) -> CapsConv2d:
    torch.manual_seed(0)
    layer = CapsConv2d(
        in_types,
        out_types,
        POSE,
        POSE,
        kernel,
        stride,
        padding,
        **{"residual": True, **options},
    )
    return layer.double()


def looped(layer: CapsConv2d, children: Capsules, mask: Tensor | None = None) -> Tensor:
    """What the children of each window add to their parents."""
    windows = layer.windows(children)
    if mask is not None:
        children = Capsules(
            children.pose * mask[..., None, None], children.activation * mask
        )
    if layer.stride == (1, 1) and windows.out == windows.size:
        mean = children.pose
    else:
        pose, a = (
            field.unflatten(1, (-1, layer.in_types))
            for field in gathered(windows, children)
        )
        total = (a[..., None, None] * pose).sum(1) / a.sum(1).clamp(min=1e-9)[
            ..., None, None
        ]
        mean = total.unflatten(0, (-1, *windows.out))
    assert layer.identity_path is not None
    if layer.identity_path.mix is None:
        return mean
    return torch.einsum("byxtmd,ts->byxsmd", mean, layer.identity_path.mix)


@pytest.mark.parametrize(
    ("in_types", "out_types", "kernel", "stride", "padding"),
    [
        (2, 2, 3, 1, 1),  # the child at the parent's place
        (2, 2, 1, 1, 0),
        (2, 2, (5, 1), 1, (2, 0)),
        (2, 2, 5, 1, 2),
        (2, 2, 3, 1, 0),  # means of windows
        (2, 2, 3, 2, 1),
        (2, 2, (2, 3), (2, 1), 0),
        (2, 3, 3, 1, 1),  # types are mixed
        (4, 2, 3, 2, 1),
        (4, 4, 3, 2, 0),
    ],
)
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_adds_the_children_to_the_routed_poses(
    in_types: int,
    out_types: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    masked: bool,
) -> None:
    children = capsules(5, 6, in_types)
    mask = (
        torch.rand(
            children.activation.shape, generator=torch.Generator().manual_seed(1)
        )
        > 0.3
        if masked
        else None
    )
    layer = make_layer(in_types, out_types, kernel, stride, padding)
    plain = make_layer(in_types, out_types, kernel, stride, padding, residual=False)
    plain.load_state_dict(layer.state_dict(), strict=False)
    parents = layer(children, mask)
    routed = plain(children, mask)
    torch.testing.assert_close(parents.activation, routed.activation, rtol=0, atol=0)
    torch.testing.assert_close(
        parents.pose - routed.pose, looped(layer, children, mask), rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize("make", [CapsConv1d, CapsConv3d])
def test_other_grids(make: Any) -> None:
    axes = make.axes
    children = capsules(*(5, 4, 3)[:axes], 2)
    layer, plain = (
        make(2, 2, POSE, POSE, 3, padding=1, residual=on).double()
        for on in (True, False)
    )
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(
        layer(children).pose, plain(children).pose + children.pose
    )


@pytest.mark.parametrize(
    ("in_types", "out_types", "stride"), [(2, 2, 1), (2, 2, 2), (2, 4, 2), (4, 2, 1)]
)
@pytest.mark.parametrize("pose_norm", [None, "type"])
def test_a_change_of_viewpoint_passes_through(
    in_types: int, out_types: int, stride: int, pose_norm: Any
) -> None:
    children = capsules(5, 6, in_types)
    generator = torch.Generator().manual_seed(0)
    for routing, change in (
        (None, signed_permutation),
        (EMRouting(steps=1), signed_permutation),
    ):
        layer = make_layer(
            in_types, out_types, 3, stride, 1, routing=routing, pose_norm=pose_norm
        )
        assert_equivariant(layer, children, change(3, generator), atol=1e-9, rtol=1e-6)
    path = IdentityPath(in_types, out_types).double()
    turn = orthogonal(3, generator)
    windows = layer.windows(children)
    moved = path(children._replace(pose=turn @ children.pose), windows)
    torch.testing.assert_close(moved, turn @ path(children, windows))


def test_the_mix_of_types_keeps_the_deviation() -> None:
    torch.manual_seed(0)
    children = Capsules(torch.randn(8, 6, 6, 16, 4, 4), torch.rand(8, 6, 6, 16))
    layer = CapsConv2d(16, 64, (4, 4), (4, 4), 1, residual=True)
    assert layer.identity_path is not None
    actual = layer.identity_path(children, layer.windows(children))
    assert actual.std().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.thorough
def test_networks() -> None:
    """Saved, exported, one example as in a batch; with coordinates
    scaled to the poses too.
    """
    options: dict[str, Any] = {
        "image_shape": (1, 17, 17),
        "types": (2, 3, 3),
        "channels": 4,
    }
    options["routing"] = EMRouting.preset("soft", steps=1)
    model = create_model(
        "matrixcapsnet_small", residual=True, coordinates="scaled", **options
    )
    names = {name for name, _ in model.named_parameters()}
    assert "conv_caps1.identity_path.mix" in names
    assert "conv_caps2.identity_path.mix" not in names
    check_model(model)
    assert not create_model("matrixcapsnet_small", **options).residual


def test_wrong() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"residual needs poses of one shape: in_pose is \(3, 2\), out_pose is "
            r"\(3, 4\)"
        ),
    ):
        CapsConv2d(2, 2, (3, 2), (3, 4), 3, residual=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4), "in_types must be at least 1, got 0"),
        ((2, None), "out_types must be a whole number, got None"),
    ],
)
def test_wrong_types(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        IdentityPath(*arguments)

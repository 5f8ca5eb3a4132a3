"""Children's poses that go past the routing."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps import CapsConv1d, CapsConv2d, CapsConv3d, Capsules, create_model
from torchcaps.layers import IdentityPath
from torchcaps.routing import EMRouting
from torchcaps.testing import assert_equivariant, check_model, orthogonal, signed_permutation

POSE = (3, 2)


def capsules(*sites: int, batch: int = 2) -> Capsules:
    generator = torch.Generator().manual_seed(0)
    pose = torch.randn(batch, *sites, *POSE, generator=generator, dtype=torch.float64)
    return Capsules(pose, torch.rand(batch, *sites, generator=generator, dtype=torch.float64))


def make_layer(
    in_types: int, out_types: int, kernel: Any, stride: Any = 1, padding: Any = 0, **options: Any
) -> CapsConv2d:
    torch.manual_seed(0)
    layer = CapsConv2d(in_types, out_types, POSE, POSE, kernel, stride, padding, **{"residual": True, **options})
    return layer.double()


def looped(layer: CapsConv2d, children: Capsules, mask: Tensor | None = None) -> Tensor:
    """What the children of each window add to their parents, one by one."""
    _, height, width, types = children.activation.shape
    windows = layer.windows(children)
    rows, columns = windows.out
    same = layer.stride == (1, 1) and windows.out == (height, width)
    mean = torch.zeros(2, rows, columns, types, *POSE, dtype=torch.float64)
    for y, x, kind, b in itertools.product(range(rows), range(columns), range(types), range(2)):
        weight = 0.0
        for ky, kx in itertools.product(*map(range, layer.kernel_size)):
            row = y * layer.stride[0] + ky * layer.dilation[0] - layer.padding[0]
            column = x * layer.stride[1] + kx * layer.dilation[1] - layer.padding[1]
            if not (0 <= row < height and 0 <= column < width) or (mask is not None and not mask[b, row, column, kind]):
                continue
            if same:
                if (row, column) == (y, x):
                    mean[b, y, x, kind] = children.pose[b, row, column, kind]
                    weight = 1.0
            else:
                a = children.activation[b, row, column, kind]
                mean[b, y, x, kind] += a * children.pose[b, row, column, kind]
                weight += a
        mean[b, y, x, kind] /= max(weight, 1e-9)
    assert layer.identity_path is not None
    mix = layer.identity_path.mix
    if mix is None:
        return mean
    found = torch.zeros(2, rows, columns, layer.out_types, *POSE, dtype=torch.float64)
    share, outs = types // layer.groups, layer.out_types // layer.groups
    for group, t, s in itertools.product(range(layer.groups), range(share), range(outs)):
        found[..., group * outs + s, :, :] += mix[group, t, s] * mean[..., group * share + t, :, :]
    return found


@pytest.mark.parametrize(
    ("in_types", "out_types", "kernel", "stride", "padding", "options"),
    [
        (2, 2, 3, 1, 1, {}),  # the child at the parent's place
        (2, 2, 1, 1, 0, {}),
        (2, 2, (5, 1), 1, (2, 0), {}),
        (2, 2, 3, 1, 2, {"dilation": 2}),
        (2, 2, 3, 1, 0, {}),  # means of windows
        (2, 2, 3, 2, 1, {}),
        (2, 2, (2, 3), (2, 1), 0, {}),
        (2, 3, 3, 1, 1, {}),  # types are mixed
        (4, 2, 3, 2, 1, {"groups": 2}),
        (4, 4, 3, 2, 0, {"groups": 2}),
    ],
)
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_adds_the_children_to_the_routed_poses(
    in_types: int, out_types: int, kernel: Any, stride: Any, padding: Any, options: Any, masked: bool
) -> None:
    children = capsules(5, 6, in_types)
    mask = torch.rand(children.activation.shape, generator=torch.Generator().manual_seed(1)) > 0.3 if masked else None
    layer = make_layer(in_types, out_types, kernel, stride, padding, **options)
    plain = make_layer(in_types, out_types, kernel, stride, padding, **options, residual=False)
    plain.load_state_dict(layer.state_dict(), strict=False)
    found, routed = layer(children, mask), plain(children, mask)
    torch.testing.assert_close(found.activation, routed.activation, rtol=0, atol=0)
    torch.testing.assert_close(found.pose - routed.pose, looped(layer, children, mask), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("make", [CapsConv1d, CapsConv3d])
def test_other_grids(make: Any) -> None:
    axes = make.axes
    children = capsules(*(5, 4, 3)[:axes], 2)
    layer, plain = (make(2, 2, POSE, POSE, 3, padding=1, residual=on).double() for on in (True, False))
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(children).pose, plain(children).pose + children.pose)


@pytest.mark.parametrize(("in_types", "out_types", "stride"), [(2, 2, 1), (2, 2, 2), (2, 4, 2), (4, 2, 1)])
@pytest.mark.parametrize("pose_norm", [None, "type"])
def test_a_change_of_viewpoint_passes_through(in_types: int, out_types: int, stride: int, pose_norm: Any) -> None:
    children, generator = capsules(5, 6, in_types), torch.Generator().manual_seed(0)
    for routing, change in ((None, signed_permutation), (EMRouting(steps=1), signed_permutation)):
        layer = make_layer(in_types, out_types, 3, stride, 1, routing=routing, pose_norm=pose_norm)
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
    found = layer.identity_path(children, layer.windows(children))
    assert found.std().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("make", [CapsConv1d, CapsConv2d, CapsConv3d])
def test_an_empty_batch(make: Any) -> None:
    axes = {CapsConv1d: 1, CapsConv2d: 2, CapsConv3d: 3}[make]
    layer = make(2, 2, POSE, POSE, 3, residual=True).double()
    assert layer(capsules(*[5] * axes, 2, batch=0)).pose.shape == (0, *[3] * axes, 2, *POSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_windows_without_active_children(dtype: torch.dtype) -> None:
    children = Capsules(*(field.to(dtype) for field in capsules(5, 6, 2)))
    children.activation[:, :3] = 0.0
    layer = make_layer(2, 3, 3, 2).to(dtype)
    parents = layer(children)
    assert parents.pose.dtype == dtype
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(layer(children), parents)
    for tensor in children:
        tensor.requires_grad_()
    assert layer.identity_path is not None
    added = layer.identity_path(children, layer.windows(children))
    assert (added[:, 0] == 0).all()
    gradients = torch.autograd.grad(added.sum(), tuple(children))
    assert all(field.isfinite().all() for field in (*parents, added, *gradients))


def test_networks() -> None:
    """Saved, exported, one example as in a batch; with a relative floor and coordinates scaled to the poses too."""
    options: dict[str, Any] = {"image_shape": (1, 17, 17), "types": (2, 3, 3), "channels": 4}
    options["routing"] = EMRouting.preset("soft", steps=1, relative_floor=0.01)
    model = create_model("matrixcapsnet_small", residual=True, coordinates="scaled", **options)
    names = {name for name, _ in model.named_parameters()}
    assert "conv_caps1.identity_path.mix" in names
    assert "conv_caps2.identity_path.mix" not in names
    check_model(model)
    assert not create_model("matrixcapsnet_small", **options).residual


def test_wrong() -> None:
    with pytest.raises(
        ValueError, match=r"residual needs poses of one shape: in_pose is \(3, 2\), out_pose is \(3, 4\)"
    ):
        CapsConv2d(2, 2, (3, 2), (3, 4), 3, residual=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4), "in_types must be at least 1, got 0"),
        ((2, None), "out_types must be a whole number, got None"),
        ((2, 4, 0), "groups must be at least 1, got 0"),
        ((2, 3, 2), "groups must divide in_types and out_types, got 2 for 2 and 3"),
    ],
)
def test_wrong_types(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        IdentityPath(*arguments)

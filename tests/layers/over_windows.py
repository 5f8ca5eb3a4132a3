"""What layers do over the windows of a grid, by loops over windows and children."""

import itertools
import math

import torch
from torch import Tensor

from torchcaps import Capsules
from torchcaps.layers import CapsConvNd
from torchcaps.ops import Votes, Windows


def looped_sites(windows: Windows) -> list[list[int]]:
    """The places of each window, by a loop over all axes."""
    rows = []
    for window in itertools.product(*map(range, windows.out)):
        row = []
        for place in itertools.product(*map(range, windows.kernel)):
            position = [
                w * s + p for w, s, p in zip(window, windows.stride, place, strict=True)
            ]
            flat = 0
            for at, extent in zip(position, windows.extent, strict=True):
                assert 0 <= at < extent
                flat = flat * extent + at
            row.append(flat)
        rows.append(row)
    return rows


def looped_children(windows: Windows, types: int) -> list[list[int]]:
    """The children of each window: all types at each of its places."""
    return [
        [site * types + kind for site in sites for kind in range(types)]
        for sites in looped_sites(windows)
    ]


def gathered(windows: Windows, children: Capsules) -> tuple[Tensor, Tensor]:
    """Poses and activations of the children of each window, (B * W, I, ...), those of
    the padding 0.
    """
    at = torch.tensor(looped_children(windows, children.activation.shape[-1]))
    pose, activation = (windows.pad(field)[:, at].flatten(0, 1) for field in children)
    return pose, activation


def by_windows(layer: CapsConvNd, children: Capsules) -> Capsules:
    """Dense capsules at each position, with the transforms of the layer."""
    windows = layer.windows(children)
    pose, activation = gathered(windows, children)
    present, _ = gathered(
        windows, Capsules(torch.ones_like(children.activation), children.activation)
    )
    transforms = layer.weight.flatten(0, 1)
    votes = Votes(pose, transforms, backend="naive", mask=present.bool())
    routed = layer.routing(votes, activation)
    pose = routed.pose.unflatten(-1, layer.out_pose)
    return Capsules(
        *(field.unflatten(0, (-1, *windows.out)) for field in (pose, routed.activation))
    )


def looped_assignment(
    logits: Tensor,
    windows: Windows,
    types: int,
    leaky: bool = False,
) -> Tensor:
    """Softmax over all windows that see a child, (N * W, I, J)."""
    field = logits.unflatten(0, (-1, math.prod(windows.out)))  # [N, W, I, J]
    seen: dict[int, list[tuple[int, int]]] = {}
    for window, children in enumerate(looped_children(windows, types)):
        for place, child in enumerate(children):
            seen.setdefault(child, []).append((window, place))
    share: dict[tuple[int, int], Tensor] = {}
    for pairs in seen.values():
        candidates = torch.stack(
            [field[:, window, place] for window, place in pairs], 1
        )  # [N, pairs, J]
        rivals = candidates.flatten(1)
        if leaky:
            rivals = torch.cat([rivals, torch.zeros_like(rivals[:, :1])], 1)
        won = rivals.softmax(1)[:, : rivals.shape[1] - leaky].view_as(candidates)
        share.update(zip(pairs, won.unbind(1), strict=True))
    return torch.stack([share[key] for key in sorted(share)], 1).view_as(logits)


def looped_totals(assignment: Tensor, windows: Windows, types: int) -> Tensor:
    """What each child that is seen gives away in all, to whatever parent."""
    share = assignment.sum(-1).unflatten(0, (-1, math.prod(windows.out))).flatten(1)
    places = torch.tensor(looped_children(windows, types)).flatten()
    total = share.new_zeros(len(share), windows.padded * types).index_add(
        1, places, share
    )
    return total[:, places.unique()]

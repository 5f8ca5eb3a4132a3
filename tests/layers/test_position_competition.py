"""EM routing where types do not compete, step by step and child by child, at every stride."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps import CapsConv1d, CapsConv2d, Capsules
from torchcaps.layers import CapsConvNd
from torchcaps.routing import EMRouting

TYPES, PARENTS, STEPS = 2, 3, 3
Place = tuple[int, ...]


def capsules(*grid: int) -> Capsules:
    generator = torch.Generator().manual_seed(0)
    pose = torch.randn(1, *grid, TYPES, 2, 2, generator=generator, dtype=torch.float64)
    activation = torch.rand(1, *grid, TYPES, generator=generator, dtype=torch.float64)
    return Capsules(pose.requires_grad_(), activation.requires_grad_())


def make_layer(axes: int, kernel: int, stride: int, padding: int, backend: str) -> CapsConvNd:
    torch.manual_seed(0)
    routing = EMRouting(STEPS, "constant", 0.05, sharpness=0.3)
    layer = (CapsConv1d if axes == 1 else CapsConv2d)(
        TYPES,
        PARENTS,
        (2, 2),
        (2, 2),
        kernel,
        stride,
        padding,
        routing=routing,
        competition="position",
        backend=backend,
    ).double()
    for parameter in layer.routing.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def looped(layer: CapsConvNd, children: Capsules) -> tuple[Tensor, Tensor]:
    """Poses (1, windows, PARENTS, 4) and activations (1, windows, PARENTS)."""
    grid = children.activation.shape[1:-1]
    starts = [
        range(-padding, size + padding - kernel + 1, stride)
        for size, kernel, stride, padding in zip(grid, layer.kernel_size, layer.stride, layer.padding, strict=True)
    ]
    votes: dict[tuple[Place, Place, int], Tensor] = {}  # of window, child and its type: [PARENTS, 4]
    for start in itertools.product(*starts):
        for number, place in enumerate(itertools.product(*map(range, layer.kernel_size))):
            at = tuple(s + p for s, p in zip(start, place, strict=True))
            if all(0 <= a < size for a, size in zip(at, grid, strict=True)):
                for kind in range(TYPES):
                    pose = children.pose[(0, *at, kind)]
                    votes[start, at, kind] = torch.einsum("mp,jpd->jmd", pose, layer.weight[number, kind]).flatten(1)
    windows = list(itertools.product(*starts))
    seen: dict[tuple[Place, int], list[Place]] = {}
    for start, at, kind in votes:
        seen.setdefault((at, kind), []).append(start)
    one = torch.ones(PARENTS, dtype=torch.float64)
    share = {(start, at, kind): one / len(seen[at, kind]) for start, at, kind in votes}
    beta_u, beta_a = layer.routing.unit_cost, layer.routing.activation_cost
    for step in range(STEPS):
        mean, variance, active = {}, {}, {}
        for window in windows:
            mine = [key for key in votes if key[0] == window]
            r = torch.stack([share[key] * children.activation[(0, *key[1], key[2])] for key in mine])[..., None]
            V = torch.stack([votes[key] for key in mine])  # [children, PARENTS, 4]
            mean[window] = (r * V).sum(0) / r.sum(0)
            variance[window] = (r * (V - mean[window]) ** 2).sum(0) / r.sum(0) + 5e-4
            cost = ((beta_u[:, None] + variance[window].sqrt().log()) * r.sum(0)).sum(-1)
            active[window] = (0.05 * (beta_a - cost)).sigmoid()
        if step < STEPS - 1:
            for (at, kind), parents in seen.items():
                logits = []
                for window in parents:
                    deviation = (votes[window, at, kind] - mean[window]) ** 2 / (2 * variance[window])
                    likelihood = -(deviation + variance[window].sqrt().log()).sum(-1)
                    logits.append(active[window].log() + 0.3 * likelihood)
                for window, one_of in zip(parents, torch.stack(logits).softmax(0), strict=True):
                    share[window, at, kind] = one_of
    return torch.stack([mean[w] for w in windows])[None], torch.stack([active[w] for w in windows])[None]


CASES = itertools.product((1, 2, 3), (2, 3, 5), (0, 1), (1, 2))


@pytest.mark.parametrize(("stride", "kernel", "padding", "axes"), [case for case in CASES if sum(case) % 2 == 0])
def test_against_loops(stride: int, kernel: int, padding: int, axes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 100)
    children = capsules(*((9,) if axes == 1 else (5, 5)))
    backend = "chunked" if (stride + padding) % 2 else "naive"
    layer = make_layer(axes, kernel, stride, padding, backend)
    parents = layer(children)
    pose, activation = parents.pose.flatten(1, axes).flatten(-2), parents.activation.flatten(1, axes)
    expected = looped(layer, children)
    torch.testing.assert_close((pose, activation), expected, rtol=1e-9, atol=1e-10)
    leaves: list[Any] = [*children, *layer.parameters()]
    marks = [torch.randn(field.shape, dtype=torch.float64) for field in expected]
    found, wanted = (torch.autograd.grad(outputs, leaves, marks) for outputs in ((pose, activation), expected))
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-8)

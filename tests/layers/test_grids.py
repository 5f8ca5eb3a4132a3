"""Layers over sequences and volumes: against those over images, and against loops over
all windows.
"""

import itertools
import math
from typing import Any

import pytest
import torch
from over_windows import (
    by_windows,
    looped_assignment,
    looped_children,
    looped_sites,
    looped_totals,
)
from torch import Tensor

from tests.random_numbers import normal
from torchcaps import (
    CapsConv1d,
    CapsConv2d,
    CapsConv3d,
    Capsules,
    PrimaryCaps,
    PrimaryCaps1d,
    PrimaryCaps3d,
    create_routing,
    ops,
)
from torchcaps.layers import CapsConvNd, PrimaryCapsNd
from torchcaps.ops import (
    Gaussian,
    GridWide,
    InnerProduct,
    Votes,
    Windows,
    use_backend,
)
from torchcaps.ops.plan import FEW
from torchcaps.routing import EMRouting

CPU = torch.device("cpu")
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])


def make_children(*sites: int, pose: tuple[int, ...] = (2, 3)) -> Capsules:
    activation = normal(*sites, seed=1).sigmoid()
    return Capsules(normal(*sites, *pose).requires_grad_(), activation.requires_grad_())


def gradients(
    parents: Capsules, inputs: list[Tensor], layer: torch.nn.Module
) -> list[Tensor]:
    mark = normal(parents.pose.numel(), seed=5)
    total = (
        parents.pose.flatten() @ mark
        + parents.activation.flatten() @ mark[: parents.activation.numel()]
    )
    return list(torch.autograd.grad(total, [*inputs, *layer.parameters()]))


class TestWindows:
    @pytest.mark.parametrize(
        "windows",
        [
            Windows((7,), (3,), (2,), (0,)),
            Windows((6,), (2,), (1,), (2,)),
            Windows(
                (5, 4),
                (2, 3),
                (2, 1),
                (0, 1),
            ),
            Windows(
                (4, 3, 5),
                (2, 2, 3),
                (1, 2, 2),
                (0, 1, 1),
            ),
            Windows((2, 3, 2, 4), (2, 1, 2, 2), (1, 2, 1, 2), (0, 0, 1, 0)),
        ],
        ids=lambda windows: f"{windows.axes}d-{windows.size}",
    )
    def test_sites(self, windows: Windows) -> None:
        expected = torch.tensor(looped_sites(windows))
        assert windows.sites(CPU).tolist() == expected.tolist()
        assert expected.shape == (math.prod(windows.out), math.prod(windows.kernel))
        children = windows.children(3, CPU)
        assert children.dtype == torch.int32
        assert children.tolist() == looped_children(windows, 3)

    def test_no_further_window_fits(self) -> None:
        for size, kernel, stride, padding in itertools.product(
            range(5, 9), (1, 3), (1, 2, 3), (0, 1)
        ):
            windows = Windows((size,), (kernel,), (stride,), (padding,))
            last = (windows.out[0] - 1) * stride + kernel - 1
            assert last < windows.padded <= last + stride

    def test_padding_lies_around_the_grid(self) -> None:
        windows = Windows(
            (2, 3, 2),
            (1,) * 3,
            (1,) * 3,
            (1, 0, 2),
        )
        field = normal(2, 2, 3, 2, 4, 5)
        padded = windows.pad(field).unflatten(1, (*windows.extent, 4))
        assert torch.equal(padded[:, 1:-1, :, 2:-2], field)
        assert (padded != 0).sum() == field.numel()
        flags = windows.pad(torch.ones(2, 2, 3, 2, 4, dtype=torch.bool))
        assert flags.dtype == torch.bool
        assert int(flags.sum()) == 2 * 2 * 3 * 2 * 4

    def test_axes_that_contradict(self) -> None:
        for arguments in (((4, 4), (2,), (1, 1), (0, 0)), ((), (), (), ())):
            with pytest.raises(
                ValueError, match="one number for each axis of the grid"
            ):
                Windows(*arguments)

    @pytest.mark.parametrize(
        ("place", "wrong", "message"),
        [
            (0, (1.5, 4), r"size must be in whole numbers, got \(1.5, 4\)"),
            (1, (0, 0), r"kernel must be at least 1, got \(0, 0\)"),
            (1, (1.5, 1.5), "kernel must be in whole numbers"),
            (1, 2, "kernel must be a sequence of whole numbers, got 2"),
            (2, (0, 0), "stride must be at least 1"),
            (2, None, "stride must be a sequence of whole numbers, got None"),
            (3, (-1, -1), "padding must be at least 0"),
            (3, (1.5, 1.5), "padding must be in whole numbers"),
        ],
    )
    def test_what_is_no_size(self, place: int, wrong: Any, message: str) -> None:
        arguments: list[Any] = [(5, 5), (2, 2), (1, 1), (0, 0)]
        arguments[place] = wrong
        with pytest.raises(ValueError, match=f"^{message}"):
            Windows(*arguments)

    def test_too_few_children(self) -> None:
        with pytest.raises(
            ValueError, match=r"grid of 4 are fewer than a window of 5 spans"
        ):
            Windows((4,), (5,), (1,), (0,))
        with pytest.raises(
            ValueError, match=r"grid of 4x2x4 are fewer than a window of 3x3x3 spans"
        ):
            Windows(
                (4, 2, 4),
                (3,) * 3,
                (1,) * 3,
                (0,) * 3,
            )

    def test_what_is_kept_is_no_inference_tensor(self) -> None:
        windows = Windows((11,), (2,), (1,), (0,))
        with torch.inference_mode():
            windows.children(2, CPU)
        assert not windows.children(2, CPU).is_inference()


CONVOLUTIONS = {1: CapsConv1d, 2: CapsConv2d, 3: CapsConv3d}


def make_convolution(axes: int, *arguments: Any, **options: Any) -> CapsConvNd:
    torch.manual_seed(0)
    layer = CONVOLUTIONS[axes](
        *arguments, routing=EMRouting(3, "linear", 0.1), **options
    ).double()
    for seed, parameter in enumerate(layer.routing.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed)
    return layer


class TestConvolution:
    @BACKENDS
    @pytest.mark.parametrize("axes", [1, 3])
    def test_is_dense_capsules_at_each_position(self, axes: int, backend: str) -> None:
        children = make_children(2, *(5, 4, 3)[-axes:], 2)
        options = {
            "stride": (2, 1, 1)[-axes:],
            "padding": (0, 1, 1)[-axes:],
        }
        layer = make_convolution(
            axes,
            2,
            3,
            (2, 3),
            (2, 2),
            2,
            **options,
            competition="window",
            backend=backend,
        )
        parents = layer(children)
        expected = by_windows(layer, children)
        torch.testing.assert_close(parents, expected, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(
            gradients(parents, list(children), layer),
            gradients(expected, list(children), layer),
            rtol=1e-7,
            atol=1e-9,
        )

    @BACKENDS
    @pytest.mark.parametrize("competition", ["grid", "window"])
    @pytest.mark.parametrize("axes", [1, 2])
    def test_one_position_along_further_axes_changes_nothing(
        self, axes: int, competition: str, backend: str
    ) -> None:
        """A sequence is an image of one row, an image a volume of one."""
        grid = (6, 5)[:axes]
        kernel = (3, 2)[:axes]
        stride = (2, 1)[:axes]
        padding = (1, 0)[:axes]
        children = make_children(2, *grid, 4)
        options = {"competition": competition, "backend": backend}
        flat = make_convolution(
            axes, 4, 2, (2, 3), (2, 2), kernel, stride, padding, **options
        )
        deep = make_convolution(
            axes + 1,
            4,
            2,
            (2, 3),
            (2, 2),
            (1, *kernel),
            (1, *stride),
            (0, *padding),
            **options,
        )
        deep.load_state_dict(flat.state_dict())
        parents = flat(children)
        deep_parents = Capsules(
            *(
                field.squeeze(1)
                for field in deep(Capsules(*(f.unsqueeze(1) for f in children)))
            )
        )
        torch.testing.assert_close(parents, deep_parents, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(
            gradients(parents, list(children), flat),
            gradients(deep_parents, list(children), deep),
            rtol=1e-10,
            atol=1e-12,
        )

    @BACKENDS
    @pytest.mark.parametrize("axes", [1, 3])
    def test_each_child_is_given_away_once(self, axes: int, backend: str) -> None:
        children = make_children(2, *(5, 3, 4)[-axes:], 2)
        layer = make_convolution(
            axes, 2, 3, (2, 3), (2, 2), 2, competition="grid", backend=backend
        )
        routed = layer.route(children)
        total = looped_totals(routed.assignment, layer.windows(children), 2)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-10, atol=0)

    @pytest.mark.parametrize("backend", ["naive", "chunked", None])
    def test_rounding_of_large_logits_gives_no_child_away_twice(
        self, backend: str | None
    ) -> None:
        torch.manual_seed(0)
        routing = create_routing("dynamic", squash="none")
        layer = CapsConv1d(
            2,
            3,
            (2, 2),
            (2, 2),
            3,
            routing=routing,
            backend=backend,
        )
        children = Capsules(1e4 * normal(4, 9, 2, 2, 2).float(), torch.ones(4, 9, 2))
        routed = layer.route(children)
        mass = routed.votes.moments(routed.similarity).mass.sum().item()
        assert mass == pytest.approx(4 * 9 * 2)

    @pytest.mark.parametrize("axes", [1, 2, 3])
    def test_grid_is_another_name_of_image(self, axes: int) -> None:
        children = make_children(1, *(4,) * axes, 2)
        parents = [
            make_convolution(axes, 2, 2, (2, 3), (2, 2), 2, competition=name)(children)
            for name in ("image", "grid")
        ]
        torch.testing.assert_close(*parents, rtol=0, atol=0)

    @pytest.mark.parametrize(("axes", "grid"), [(1, "L"), (2, "H, W"), (3, "D, H, W")])
    def test_other_axes(self, axes: int, grid: str) -> None:
        layer = make_convolution(axes, 2, 2, (2, 3), (2, 2), 1)
        for other in {1, 2, 3} - {axes}:
            with pytest.raises(
                ValueError,
                match=(
                    rf"children must have poses \(B, {grid}, 2, 2, 3\) and "
                    r"activations"
                ),
            ):
                layer(make_children(1, *(4,) * other, 2))

    @pytest.mark.parametrize("argument", ["kernel_size", "stride", "padding"])
    def test_one_number_for_each_axis(self, argument: str) -> None:
        with pytest.raises(
            ValueError,
            match=(
                rf"{argument} must be one number, or 3, one for each axis, got "
                r"\(1, 1\)"
            ),
        ):
            CapsConv3d(2, 2, 3, 3, **{"kernel_size": 1, argument: (1, 1)})


class TestOverAllPositions:
    """Competition for a child among all windows that see it, against brute force."""

    TYPES, PARENTS = 2, 3

    def setting(
        self, windows: Windows, backend: str, leaky: bool
    ) -> tuple[Votes, list[Tensor]]:
        children = windows.pad(
            normal(2, *windows.size, self.TYPES, 2, 3)
        ).requires_grad_()
        places = math.prod(windows.kernel) * self.TYPES
        transforms = normal(places, self.PARENTS, 3, 2, seed=1).requires_grad_()
        competition = GridWide(leaky=leaky, windows=windows, types=self.TYPES)
        sites = windows.children(self.TYPES, CPU)
        with use_backend(backend):
            votes = Votes(children, transforms, competition=competition, sites=sites)
            assert ops.BACKENDS[backend] is type(votes.source)
        return votes, [children, transforms]

    def similarity(self, kind: str, rows: int) -> tuple[Any, list[Tensor]]:
        tensors = [normal(rows, self.PARENTS, 4, seed=seed) for seed in (2, 3)] + [
            normal(rows, self.PARENTS, seed=4)
        ]
        tensors[1] = tensors[1].exp()
        tensors = [tensor.requires_grad_() for tensor in tensors]
        if kind == "uniform":
            return None, []
        return (
            (InnerProduct(tensors[0]), tensors[:1])
            if kind == "inner"
            else (Gaussian(*tensors), tensors)
        )

    @BACKENDS
    @pytest.mark.parametrize("kind", ["uniform", "inner", "gaussian"])
    @pytest.mark.parametrize("leaky", [False, True], ids=["", "leaky"])
    @pytest.mark.parametrize(
        "windows",
        [
            Windows(
                (5, 4),
                (3, 3),
                (1, 1),
                (0, 0),
            ),
            Windows(
                (5, 4),
                (3, 2),
                (2, 1),
                (1, 0),
            ),
            Windows(
                (7, 6),
                (3, 3),
                (2, 2),
                (1, 1),
            ),
            Windows((7, 6), (2, 2), (3, 3), (0, 0)),  # children that no window sees
            Windows(
                (6, 5),
                (5, 5),
                (1, 1),
                (1, 1),
            ),
            Windows(
                (6, 7),
                (3, 2),
                (2, 1),
                (0, 2),
            ),
            Windows(
                (6, 7),
                (1, 2),
                (2, 3),
                (0, 1),
            ),
            Windows((8,), (3,), (2,), (1,)),
            Windows(
                (3, 4, 3),
                (2, 2, 2),
                (1, 2, 1),
                (0, 0, 1),
            ),
        ],
        ids=lambda windows: f"{windows.axes}d-k{windows.kernel}-s{windows.stride}",
    )
    def test_brute_force(
        self,
        windows: Windows,
        kind: str,
        leaky: bool,
        backend: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 200)
        monkeypatch.setitem(FEW, "cpu", 0)
        votes, inputs = self.setting(windows, backend, leaky)
        similarity, parents = self.similarity(kind, votes.shape[0])
        weights = normal(*votes.children.shape[:2], seed=8).sigmoid().requires_grad_()
        dense = votes.dense()
        logits = (
            torch.zeros_like(dense[..., 0])
            if similarity is None
            else similarity.logits(dense)
        )
        expected = looped_assignment(logits, windows, self.TYPES, leaky)
        assignment = votes.assignment(similarity)
        torch.testing.assert_close(assignment, expected, rtol=1e-9, atol=1e-12)

        share = expected * votes.gather(weights)[..., None]
        moments = votes.moments(similarity, weights, scatter=True)
        mass = share.sum(1)
        total = torch.einsum("bij,bijh->bjh", share, dense)
        second = torch.einsum(
            "bij,bijh->bjh",
            share,
            (dense - (total / mass[..., None])[:, None]).square(),
        )
        torch.testing.assert_close(
            tuple(moments), (mass, total, second), rtol=1e-9, atol=1e-11
        )

        marks = [
            normal(*tensor.shape, seed=9) for tensor in (expected, mass, total, second)
        ]
        leaves = [*inputs, *parents, weights]
        results = []
        for outputs in ((assignment, *moments), (expected, mass, total, second)):
            objective = sum(
                (output * mark).sum()
                for output, mark in zip(outputs, marks, strict=True)
            )
            results.append(torch.autograd.grad(objective, leaves, retain_graph=True))
        torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)


PRIMARIES = {1: PrimaryCaps1d, 2: PrimaryCaps, 3: PrimaryCaps3d}


def make_primary(axes: int, *arguments: Any, **options: Any) -> PrimaryCapsNd:
    torch.manual_seed(0)
    return PRIMARIES[axes](*arguments, **options).double()


class TestPrimary:
    @pytest.mark.parametrize(
        "options",
        [{}, {"activation": "learned"}, {"routed": True, "batch_norm": True}],
        ids=str,
    )
    @pytest.mark.parametrize("axes", [1, 2])
    def test_one_position_along_further_axes_changes_nothing(
        self, axes: int, options: dict[str, Any]
    ) -> None:
        maps = normal(2, 3, *(9, 8)[:axes]).requires_grad_()
        kernel = (3, 2)[:axes]
        stride = (2, 1)[:axes]
        padding = (1, 0)[:axes]
        flat = make_primary(axes, 3, 4, (2, 2), kernel, stride, padding, **options)
        deep = make_primary(
            axes + 1, 3, 4, (2, 2), (1, *kernel), (1, *stride), (0, *padding), **options
        )
        deep.load_state_dict(
            {
                name: value.view_as(deep.state_dict()[name])
                for name, value in flat.state_dict().items()
            }
        )
        capsules = flat(maps)
        deep_capsules = Capsules(
            *(field.squeeze(1) for field in deep(maps.unsqueeze(2)))
        )
        assert capsules.activation.shape == (2, *flat.sites(*maps.shape[2:]))
        torch.testing.assert_close(capsules, deep_capsules, rtol=1e-12, atol=1e-14)
        ours = gradients(capsules, [maps], flat)
        theirs = gradients(deep_capsules, [maps], deep)
        torch.testing.assert_close(
            ours,
            [g.view_as(o) for g, o in zip(theirs, ours, strict=True)],
            rtol=1e-10,
            atol=1e-12,
        )

    @pytest.mark.parametrize("size", [(9, 10, 11), (12, 9, 17)], ids=str)
    def test_sites_of_a_volume(self, size: tuple[int, ...]) -> None:
        layer = PrimaryCaps3d(
            2,
            3,
            4,
            (3, 4, 9),
            (1, 2, 3),
            (0, 1, 2),
        )
        assert layer(torch.randn(1, 2, *size)).activation.shape == (
            1,
            *layer.sites(*size),
        )

    def test_other_axes(self) -> None:
        with pytest.raises(
            ValueError, match=r"features must be \(B, 2, L\), got shape \(1, 2, 9, 9\)"
        ):
            PrimaryCaps1d(2, 3, 4)(torch.zeros(1, 2, 9, 9))
        with pytest.raises(
            ValueError,
            match=r"sites takes the 3 sizes of a feature map \(D, H, W\), got \(9, 9\)",
        ):
            PrimaryCaps3d(2, 3, 4).sites(9, 9)
        with pytest.raises(
            ValueError, match=r"feature map is 8, smaller than .* kernel of 9"
        ):
            PrimaryCaps1d(2, 3, 4).sites(8)

"""Convolutional capsules against loops over windows, and against loops over all parents
that see a child.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from over_windows import by_windows, gathered, looped_assignment, looped_totals
from torch import Tensor, nn
from torch.nn.functional import pad

from tests.random_numbers import normal
from torchcaps import CapsConv2d, Capsules, create_routing, list_routings, squash
from torchcaps.ops import Gaussian, InnerProduct, Votes
from torchcaps.ops.competition import GridWide
from torchcaps.ops.windows import Windows
from torchcaps.routing import EMRouting, Routing

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
ROUTINGS = ("dynamic", "kmeans", "euclidean", "em")
# What they make of the logits is of one window.
ONE_WINDOW = (
    "hard_kmeans",
    "max_min",
    "degree_centrality",
    "fast_kernel_density",
    "sparse_attention",
)
TRAINABLE = pytest.mark.parametrize(
    "routing", [name for name in list_routings() if name != "hard_kmeans"]
)
IN_COMPETITION = pytest.mark.parametrize(
    ("routing", "competition"),
    [(name, "window") for name in list_routings() if name != "hard_kmeans"]
    + [(name, "image") for name in list_routings() if name not in ONE_WINDOW],
)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 1000)


def make_routing(name: str) -> Routing:
    return EMRouting(3, "linear", 0.1) if name == "em" else create_routing(name)


def make_layer(
    in_types: int,
    out_types: int,
    in_pose: Any,
    out_pose: Any,
    kernel: Any,
    **options: Any,
) -> CapsConv2d:
    torch.manual_seed(0)
    options = {"routing": EMRouting(3, "linear", 0.1), **options}
    layer = CapsConv2d(
        in_types, out_types, in_pose, out_pose, kernel, **options
    ).double()
    for seed, parameter in enumerate(layer.routing.parameters()):  # betas that differ
        parameter.data = normal(*parameter.shape, seed=seed)
    return layer


def make_children(
    batch: int, height: int, width: int, types: int, pose: Any, grad: bool = True
) -> Capsules:
    shape = (pose,) if isinstance(pose, int) else pose
    activation = normal(batch, height, width, types, seed=1).sigmoid()
    return Capsules(
        normal(batch, height, width, types, *shape).requires_grad_(grad),
        activation.detach().requires_grad_(grad),
    )


def gradients(parents: Capsules, children: Capsules, layer: CapsConv2d) -> list[Tensor]:
    mark = normal(*parents.pose.shape, seed=5)
    total = (parents.pose * mark).sum() + (
        parents.activation * mark.flatten(4).sum(-1)
    ).sum()
    return list(
        torch.autograd.grad(
            total, [*children, *layer.parameters()], materialize_grads=True
        )
    )


def geometries() -> list[Any]:
    """Of windows, with the other options in turns; at last, of windows that differ
    along the two axes.
    """
    cases = []
    for kernel, stride, padding in itertools.product((1, 2, 3, 5), (1, 2), (0, 1)):
        if kernel > 1 or not padding:
            cases.append(((kernel, stride, padding), (6, 5)))
    cases += [(((2, 3), (1, 2), (1, 0)), (5, 8))] * 4
    return [
        pytest.param(*case, number % 3 > 0, ROUTINGS[number % 4])
        for number, case in enumerate(cases)
    ]


class TestOneWindow:
    @pytest.mark.parametrize(
        ("windows", "size", "matrix", "routing"), geometries(), ids=str
    )
    def test_is_dense_capsules_at_each_position(
        self,
        windows: tuple[Any, ...],
        size: tuple[int, int],
        matrix: bool,
        routing: str,
    ) -> None:
        in_pose, out_pose = ((2, 3), (2, 2)) if matrix else (3, 4)
        options = dict(zip(("kernel", "stride", "padding"), windows, strict=True))
        options |= {
            "routing": make_routing(routing),
            "competition": "window",
        }
        children = make_children(2, *size, 2, in_pose)
        results = []
        for backend in ("naive", "chunked", "native"):
            layer = make_layer(2, 4, in_pose, out_pose, **options, backend=backend)
            parents = layer(children)
            results.append([*parents, *gradients(parents, children, layer)])
        expected = by_windows(layer, children)
        reference = [*expected, *gradients(expected, children, layer)]
        for result in results:
            torch.testing.assert_close(result, reference, rtol=1e-8, atol=1e-10)

    @pytest.mark.parametrize("routing", list_routings())
    def test_children_of_the_padding_are_absent(self, routing: str) -> None:
        children = make_children(2, 4, 5, 2, (2, 3))
        options: dict[str, Any] = {
            "routing": create_routing(routing),
            "competition": "window",
        }
        layer = make_layer(
            2,
            3,
            (2, 3),
            (2, 2),
            3,
            padding=1,
            **options,
        ).eval()
        bare = make_layer(2, 3, (2, 3), (2, 2), 3, **options).eval()
        bare.load_state_dict(layer.state_dict())
        beside = (0, 0, 1, 1, 1, 1)
        around = Capsules(
            pad(children.pose, (0, 0, 0, 0, *beside)), pad(children.activation, beside)
        )
        present = pad(torch.ones_like(children.activation, dtype=torch.bool), beside)
        torch.testing.assert_close(
            layer(children), bare(around, present), rtol=1e-10, atol=1e-12
        )

    def test_hard_assignments(self) -> None:
        children = make_children(2, 5, 4, 2, 3, grad=False)
        layer = make_layer(
            2, 3, 3, 4, 3, routing=create_routing("hard_kmeans"), competition="window"
        ).eval()
        torch.testing.assert_close(layer(children), by_windows(layer, children))

    @IN_COMPETITION
    def test_one_window_over_the_whole_map_is_dense(
        self, routing: str, competition: str
    ) -> None:
        """Where a child is seen by one window only, the image-wide competition is that
        of the window.
        """
        children = make_children(2, 3, 4, 2, (2, 3))
        layer = make_layer(
            2,
            3,
            (2, 3),
            (2, 2),
            (3, 4),
            routing=make_routing(routing),
            competition=competition,
        )
        torch.testing.assert_close(
            layer(children), by_windows(layer, children), rtol=1e-9, atol=1e-11
        )


GEOMETRIES = pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        case
        for case in itertools.product((2, 3, 5), (1, 2, 3), (0, 1))
        if sum(case) % 2 == 0
    ],
    ids=str,
)
TYPES, PARENTS = 2, 3


def similarity_of(kind: str, windows: int, size: int, scale: float = 1.0) -> Any:
    shape = (2 * windows, PARENTS, size)
    if kind == "inner":
        return InnerProduct(scale * normal(*shape, seed=2))
    if kind == "gaussian":
        return Gaussian(
            normal(*shape, seed=2),
            normal(*shape, seed=3).exp(),
            scale * normal(2 * windows, PARENTS, seed=4),
        )
    return None


class TestWholeImage:
    def setting(
        self,
        kernel: int,
        stride: int,
        padding: int,
        backend: str = "naive",
        leaky: bool = False,
    ) -> tuple[Windows, Votes]:
        windows = Windows(
            (6, 5),
            (kernel,) * 2,
            (stride,) * 2,
            (padding,) * 2,
        )
        children = normal(2, 6, 5, TYPES, 2, 3)
        transforms = normal(kernel**2 * TYPES, PARENTS, 3, 2, seed=1)
        competition = GridWide(leaky=leaky, windows=windows, types=TYPES)
        sites = windows.children(TYPES, children.device)
        return windows, Votes(
            windows.pad(children),
            transforms,
            competition=competition,
            backend=backend,
            sites=sites,
        )

    @BACKENDS
    @pytest.mark.parametrize("leaky", [False, True], ids=["", "leaky"])
    @pytest.mark.parametrize("kind", ["inner", "gaussian"])
    def test_extreme_logits(self, backend: str, kind: str, leaky: bool) -> None:
        for dtype, sign in itertools.product((torch.float32, torch.float64), (1, -1)):
            windows, votes = self.setting(3, 1, 1, leaky=leaky)
            children = votes.children.to(dtype).requires_grad_()
            transforms = votes.transforms.to(dtype)
            low = Votes(
                children,
                transforms,
                competition=votes.competition,
                backend=backend,
                sites=votes.sites,
            )
            similarity = similarity_of(
                kind, math.prod(windows.out), 4, scale=sign * 1e4
            )
            similarity = type(similarity)(
                *(field.to(dtype).requires_grad_() for field in similarity.tensors)
            )
            assignment = low.assignment(similarity)
            assert assignment.isfinite().all()
            totals = looped_totals(assignment, windows, TYPES)
            assert (totals <= 1.01).all()  # float32 logits of 1e4 are known to 1e-3
            if not leaky:
                assert (totals >= 0.99).all()
            objective = (
                assignment.square().sum() + low.moments(similarity).sum.square().mean()
            )
            for gradient in torch.autograd.grad(
                objective, [children, *similarity.tensors]
            ):
                assert gradient.isfinite().all()

    @pytest.mark.parametrize("sign", [1, -1])
    def test_all_logits_extreme_at_once(self, sign: int) -> None:
        """A constant added to all logits changes nothing, however large."""
        windows, votes = self.setting(3, 2, 0)
        similarity = similarity_of("gaussian", math.prod(windows.out), 4)
        moved = replace(similarity, log_weight=similarity.log_weight + sign * 1e4)
        torch.testing.assert_close(
            votes.assignment(moved), votes.assignment(similarity), rtol=1e-7, atol=1e-9
        )
        with_leak = votes.restricted(leaky=True).assignment(moved)
        expected = (
            votes.assignment(similarity) if sign > 0 else torch.zeros_like(with_leak)
        )
        torch.testing.assert_close(with_leak, expected, rtol=1e-7, atol=1e-9)

    @GEOMETRIES
    @pytest.mark.parametrize(
        ("sharpness", "backend"),
        [(1.0, "naive"), (1.0, "chunked"), (1.0, "native"), (0.3, "native")],
    )
    def test_em_layer(
        self,
        kernel: int,
        stride: int,
        padding: int,
        sharpness: float,
        backend: str,
    ) -> None:
        """Three steps with brute-force assignments, values and gradients."""
        children = make_children(1, 6, 5, TYPES, (2, 2))
        options = {
            "stride": stride,
            "padding": padding,
            "backend": backend,
        }
        em = EMRouting(3, "linear", 0.1, sharpness=sharpness)
        layer = make_layer(
            TYPES, PARENTS, (2, 2), (2, 2), kernel, routing=em, **options
        )
        windows = Windows((6, 5), layer.kernel_size, layer.stride, layer.padding)
        count = math.prod(windows.out)
        pose, weights = gathered(windows, children)
        votes = torch.einsum(
            "bimp,ijpd->bijmd", pose, layer.weight.flatten(0, 1)
        ).flatten(-2)
        logits = torch.zeros_like(votes[..., 0])
        routing = layer.routing
        for step in range(3):
            share = looped_assignment(logits, windows, TYPES) * weights[..., None]
            mass = share.sum(1)
            mean = torch.einsum("bij,bijh->bjh", share, votes) / mass[..., None]
            variance = (
                torch.einsum("bij,bijh->bjh", share, (votes - mean[:, None]).square())
                / mass[..., None]
                + 5e-4
            )
            cost = (routing.unit_cost[:, None] + variance.log() / 2).sum(-1) * mass
            activation = (0.1 * (1 + step) * (routing.activation_cost - cost)).sigmoid()
            distance = ((votes - mean[:, None]).square() / variance[:, None]).sum(-1)
            likelihood = -(distance + variance.log().sum(-1)[:, None]) / 2
            logits = activation.log()[:, None] + sharpness * likelihood
        expected = Capsules(
            mean.view(1, count, PARENTS, 2, 2).unflatten(1, windows.out),
            activation.view(1, count, PARENTS).unflatten(1, windows.out),
        )
        parents = layer(children)
        torch.testing.assert_close(parents, expected, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(
            gradients(parents, children, layer),
            gradients(expected, children, layer),
            rtol=1e-6,
            atol=1e-8,
        )

    @BACKENDS
    def test_leaky_dynamic_routing(self, backend: str) -> None:
        """One leak a child, not one a window."""
        children = make_children(1, 5, 4, TYPES, 3)
        layer = make_layer(
            TYPES,
            PARENTS,
            3,
            4,
            3,
            routing=create_routing("dynamic", leaky=True, steps=2),
            backend=backend,
        )
        routed = layer.route(children)
        windows = Windows(
            (5, 4),
            (3, 3),
            (1, 1),
            (0, 0),
        )
        dense = routed.votes.dense()
        first = looped_assignment(
            torch.zeros_like(dense[..., 0]), windows, TYPES, leaky=True
        )
        parents = squash(torch.einsum("bij,bijh->bjh", first, dense))
        logits = torch.einsum("bjh,bijh->bij", parents, dense)
        second = looped_assignment(logits, windows, TYPES, leaky=True)
        torch.testing.assert_close(routed.assignment, second, rtol=1e-9, atol=1e-12)
        expected = squash(torch.einsum("bij,bijh->bjh", second, dense))
        torch.testing.assert_close(routed.pose, expected, rtol=1e-9, atol=1e-12)

    def test_competition_matters(self) -> None:
        children = make_children(1, 5, 5, 2, (2, 2), grad=False)
        image, window = (
            make_layer(2, 3, (2, 2), (2, 2), 3, competition=c)(children)
            for c in ("image", "window")
        )
        assert (image.activation - window.activation).abs().max() > 1e-2


class TestShift:
    @pytest.mark.parametrize("stride", [1, 2])
    @TRAINABLE
    def test_windows(self, stride: int, routing: str) -> None:
        """A map moved by the stride: the capsules move by one, those at the edge come
        anew.
        """
        children = make_children(1, 9, 8, 2, (2, 2), grad=False)
        layer = make_layer(
            2,
            3,
            (2, 2),
            (2, 2),
            3,
            stride=stride,
            routing=make_routing(routing),
            competition="window",
        )
        if any(isinstance(module, nn.BatchNorm1d) for module in layer.modules()):
            layer.eval()  # statistics in training are of the whole map, its edges too
        before = layer(children)
        after = layer(
            Capsules(*(field.roll((stride, stride), (1, 2)) for field in children))
        )
        for old, new in zip(before, after, strict=True):
            torch.testing.assert_close(
                new[:, 1:, 1:], old[:, :-1, :-1], rtol=1e-10, atol=1e-12
            )

    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("routing", ["em", "euclidean"])
    def test_image(self, stride: int, routing: str) -> None:
        """With competition over the image too, as long as all windows that see the
        object are there.
        """
        layer = make_layer(
            2, 3, (2, 2), (2, 2), 3, stride=stride, routing=make_routing(routing)
        )
        results = []
        for top, left in ((3, 3), (3 + stride, 3 + 2 * stride)):
            pose = torch.zeros(1, 12, 13, 2, 2, 2, dtype=torch.float64)
            activation = torch.zeros(1, 12, 13, 2, dtype=torch.float64)
            pose[:, top : top + 3, left : left + 2] = normal(1, 3, 2, 2, 2, 2)
            activation[:, top : top + 3, left : left + 2] = normal(
                1, 3, 2, 2, seed=1
            ).sigmoid()
            results.append(layer(Capsules(pose, activation)))
        for old, new in zip(*results, strict=True):
            torch.testing.assert_close(
                new[:, 1:, 2:], old[:, :-1, :-2], rtol=1e-10, atol=1e-12
            )
        assert (results[0].pose != 0).any()


class TestArguments:
    def test_default_is_em_over_the_image(self) -> None:
        layer = CapsConv2d(2, 2, 3, 3, 1)
        assert layer.routing.config() == EMRouting().config()
        assert layer.competition == "image"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"stride": (1, 0)}, "stride must be at least 1"),
            ({"padding": -1}, "padding must be at least 0"),
            (
                {"competition": "batch"},
                r"competition must be one of .*'image'.*'window'.*got 'batch'",
            ),
        ],
        ids=str,
    )
    def test_wrong(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}"):
            CapsConv2d(
                **{
                    "in_types": 4,
                    "out_types": 4,
                    "in_pose": 3,
                    "out_pose": 3,
                    "kernel_size": 1,
                    **arguments,
                }
            )

    @pytest.mark.parametrize(
        ("pose", "activation"),
        [
            ((1, 5, 5, 3, 2, 2), (1, 5, 5, 3)),
            ((1, 5, 5, 2, 2, 3), (1, 5, 5, 2)),
            ((1, 5, 5, 2, 4), (1, 5, 5, 2)),
            ((1, 50, 2, 2), (1, 50)),
            ((1, 5, 5, 2, 2, 2), (1, 5, 4, 2)),
        ],
        ids=str,
    )
    def test_map(self, pose: tuple[int, ...], activation: tuple[int, ...]) -> None:
        layer = CapsConv2d(2, 3, (2, 2), (2, 2), 3)
        for call in (layer, layer.route):
            with pytest.raises(
                ValueError, match=r"children must have poses \(B, H, W, 2, 2, 2\)"
            ):
                call(Capsules(torch.zeros(pose), torch.zeros(activation)))

    @pytest.mark.parametrize("size", [(2, 5), (5, 2)], ids=str)
    def test_map_smaller_than_the_window(self, size: tuple[int, int]) -> None:
        layer = CapsConv2d(2, 3, 3, 3, 3)
        with pytest.raises(
            ValueError,
            match=rf"grid of {size[0]}x{size[1]} are fewer than a window of 3x3",
        ):
            layer(Capsules(torch.zeros(1, *size, 2, 3), torch.zeros(1, *size, 2)))
        padded = CapsConv2d(2, 3, 3, 3, 3, padding=1)
        assert (
            padded(
                Capsules(torch.zeros(1, *size, 2, 3), torch.zeros(1, *size, 2))
            ).activation.shape[1:3]
            == size
        )

    @pytest.mark.parametrize("routing", ONE_WINDOW)
    def test_routings_of_one_window(self, routing: str) -> None:
        competition: Any = "image"
        name = type(create_routing(routing)).__name__
        with pytest.raises(
            ValueError,
            match=rf"competition must be 'window' with {name}, .* got '{competition}'",
        ):
            CapsConv2d(
                2, 3, 3, 3, 3, routing=create_routing(routing), competition=competition
            )
        layer = CapsConv2d(
            2, 3, 3, 3, 3, routing=create_routing(routing), competition="window"
        ).eval()
        layer.competition = competition  # behind its back
        with pytest.raises(
            ValueError,
            match=(
                r"(hard assignments compete inside|is of) one window only: "
                r".*'window'"
            ),
        ):
            layer(Capsules(torch.zeros(1, 4, 5, 2, 3), torch.zeros(1, 4, 5, 2)))

"""What holds for every routing algorithm."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from by_the_book import dynamic_routing, em_routing, inner_product_kmeans_routing
from torch import Tensor

from torchcaps import (
    CapsConv2d,
    CapsHead,
    CapsLinear,
    Capsules,
    ClassCaps,
    create_model,
    load_pretrained,
)
from torchcaps.models.base import CapsuleClassifier
from torchcaps.ops import Votes
from torchcaps.routing import (
    DynamicRouting,
    EuclideanKMeansRouting,
    HardKMeansRouting,
    LayerShape,
    Routed,
    Routing,
    create_routing,
    list_routings,
    register_routing,
)
from torchcaps.routing.base import ROUTINGS
from torchcaps.squashing import length
from torchcaps.testing.options import options_of

OPTIONAL = ("attention", "spectral")
"""Routings whose parameters need not be there."""
Function = Callable[..., Routed]
J = 4
M = 2
P = 3
D = 3


def em(
    votes: Votes, weights: Tensor | None = None, *, steps: int = 3, **options: Any
) -> Routed:
    generator = torch.Generator().manual_seed(9)
    betas = torch.randn(2, J, generator=generator, dtype=votes.children.dtype)
    lambdas = [0.1, 0.2, 0.3, 0.4, 0.5][:steps]
    return em_routing(votes, weights, *betas, lambdas, **options)


def standardised_em(
    votes: Votes, weights: Tensor | None = None, *, steps: int = 3
) -> Routed:
    return em(
        votes,
        weights,
        steps=steps,
        cost_scale=2.0,
        activation_scale=3.0,
        mass_scale=10.0,
        standardise=True,
    )


def leaky(votes: Votes, weights: Tensor | None = None, *, steps: int = 3) -> Routed:
    return dynamic_routing(votes, weights, steps=steps, leaky=True)


def euclidean(votes: Votes, weights: Tensor | None = None, **settings: Any) -> Routed:
    return EuclideanKMeansRouting(**settings)(votes, weights)


def hard(votes: Votes, weights: Tensor | None = None, **settings: Any) -> Routed:
    return HardKMeansRouting(**settings).eval()(votes, weights)


SOFT: dict[str, Function] = {
    "dynamic": dynamic_routing,
    "leaky": leaky,
    "kmeans": inner_product_kmeans_routing,
    "euclidean": euclidean,
    "em": em,
    "standardised-em": standardised_em,
}
ALL = SOFT | {"hard": hard}

every = pytest.mark.parametrize("routing", ALL.values(), ids=ALL)
every_soft = pytest.mark.parametrize("routing", SOFT.values(), ids=SOFT)
backends = pytest.mark.parametrize("backend", ["naive", "chunked"])


def random(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


def problem(
    children: int = 7, shared: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Children (B, I, M, P), transforms, coordinates (I, H), activations (B, I)."""
    poses, transforms, coordinates, logits = random(
        (2, children, M, P),
        (1 if shared else children, J, P, D),
        (children, M * D),
        (2, children),
    )
    return poses, transforms, coordinates, logits.detach().sigmoid().requires_grad_()


@every
@backends
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_every_child_is_shared_out_over_the_parents(
    routing: Function, backend: str, steps: int
) -> None:
    children, transforms, coordinates, activation = problem()
    routed = routing(
        Votes(children, transforms, coordinates, backend=backend),
        activation,
        steps=steps,
    )
    total = routed.assignment.sum(2)
    if routing is leaky:
        leak = (-routed.votes.source.log_partition(routed.similarity, leaky=True)).exp()
        assert (total < 1).all()
        assert (leak > 0).all()
        total = total + leak
    torch.testing.assert_close(
        total, torch.ones(2, 7, dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert (routed.assignment >= 0).all()


@every_soft
@backends
def test_shared_transforms_are_tied_full_ones(routing: Function, backend: str) -> None:
    children, shared, _, activation = problem(shared=True)
    full = shared.detach().repeat(7, 1, 1, 1).requires_grad_()
    results = []
    for transforms in (shared, full):
        routed = routing(Votes(children, transforms, backend=backend), activation)
        objective = routed.pose.square().sum() + routed.activation.sum()
        # Dynamic routing and K-Means by inner products do not use activations.
        gradients = torch.autograd.grad(
            objective, (children, transforms, activation), materialize_grads=True
        )
        results.append(
            (
                routed.pose,
                routed.activation,
                gradients[0],
                gradients[1].sum(0),
                gradients[2],
            )
        )
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "backend", ["chunked", pytest.param("naive", marks=pytest.mark.slow)]
)  # nothing but autograd
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("dynamic", "em", "max_min")
        else pytest.param(name, marks=pytest.mark.thorough)
        for name in list_routings()
        if ROUTINGS[name].trainable
    ],
)
def test_second_derivatives(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 10)
    torch.manual_seed(0)
    routing = (
        create_routing(name)
        .bind(
            LayerShape(
                3,
                2,
                (2,),
                (2,),
            )
        )
        .double()
        .eval()
    )
    parameters = list(routing.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn_like(parameter), alpha=0.3)

    def call(
        children: Tensor, transforms: Tensor, logits: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor]:
        routed = routing(Votes(children, transforms, backend=backend), logits.sigmoid())
        return routed.pose, routed.activation

    tensors = random((1, 3, 2), (3, 2, 2, 2), (1, 3)) + parameters
    assert torch.autograd.gradgradcheck(call, tuple(tensors), fast_mode=True)


@pytest.mark.parametrize("name", list_routings())
def test_poses_in_whole_numbers_are_numbers(name: str) -> None:
    """Their lengths, which are the activations of poses alone, were cut to whole
    numbers too.
    """
    layer = CapsLinear(6, 3, 3, 3, routing=create_routing(name)).eval()
    poses = torch.arange(2 * 6 * 3).view(2, 6, 3) % 5
    for actual, expected in zip(layer(poses), layer(poses.float()), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the operators
@pytest.mark.parametrize(
    "arguments", [{"in_capsules": 6}, {"in_capsules": None, "transforms": "shared"}]
)
@pytest.mark.parametrize("name", list_routings())
def test_quantised_linear_layers_still_route(
    name: str, arguments: dict[str, Any]
) -> None:
    """Quantising replaces their weights by functions."""
    torch.manual_seed(0)
    sizes = {"out_capsules": 3, "in_pose": 4, "out_pose": 4}
    layer = CapsLinear(**arguments, **sizes, routing=create_routing(name)).eval()
    poses = torch.rand(2, 6, 4)
    exact = layer(poses)
    layer = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear})
    torch.testing.assert_close(layer(poses).pose, exact.pose, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("name", list_routings())
def test_without_children_it_is_as_if_none_were_there(name: str) -> None:
    layer = CapsLinear(None, 3, 4, 4, transforms="shared", routing=name)
    layer = layer.double().eval()
    poses, activation = random((2, 6, 4), (2, 6))
    parents = layer(Capsules(poses[:, :0], activation[:, :0]))
    masked = layer(Capsules(poses, activation), torch.zeros(2, 6, dtype=torch.bool))
    torch.testing.assert_close(parents, masked)
    if parents.pose.requires_grad:
        parents.pose.sum().backward()
        grads = [weight.grad for weight in layer.parameters()]
        assert all(grad.isfinite().all() for grad in grads if grad is not None)


@pytest.mark.parametrize("name", list_routings())
def test_activations_are_used_or_not(name: str) -> None:
    """Those of poses alone are their lengths, which nobody computes if they are not
    used.
    """
    layer = CapsLinear(6, 3, 4, 4, routing=create_routing(name)).double().eval()
    poses, activation = (tensor.detach() for tensor in random((2, 6, 4), (2, 6)))
    alone = layer(poses)
    with_lengths = layer(Capsules(poses, length(poses)))
    with_others = layer(Capsules(poses, activation.sigmoid()))
    assert torch.equal(alone.pose, with_lengths.pose)
    assert torch.equal(alone.activation, with_lengths.activation)
    assert torch.equal(with_others.pose, with_lengths.pose) == (
        not layer.routing.uses_activation
    )


def test_another_route_gets_the_activations() -> None:
    """It inherited that those of dynamic routing are not used, and got None."""
    seen = []

    class Own(DynamicRouting):
        def route(
            self, votes: Votes, activation: Tensor | None, initial: Routed | None = None
        ) -> Routed:
            seen.append(activation)
            return super().route(votes, activation, initial)

    CapsLinear(6, 3, 4, 4, routing=Own())(torch.ones(2, 6, 4))
    torch.testing.assert_close(seen, [torch.full((2, 6), 2.0)])


class TestRegistry:
    def test_names(self) -> None:
        known = {
            "dynamic",
            "em",
            "euclidean",
            "hard_kmeans",
            "kmeans",
            "max_min",
            "mean",
            "self_routing",
        }
        assert known <= set(list_routings())
        assert list_routings() == sorted(list_routings())

    def test_unknown_name(self) -> None:
        with pytest.raises(
            ValueError, match=r"(?s)routing must be the name of .*got 'magic'.*dynamic"
        ):
            create_routing("magic")

    def test_unknown_argument(self) -> None:
        with pytest.raises(
            TypeError,
            match=r"dynamic takes no argument 'magic'; it takes steps, bias, .*squash",
        ):
            create_routing("dynamic", magic=1)

    def test_a_name_is_taken_once(self) -> None:
        with pytest.raises(ValueError, match="'dynamic' exists already"):

            @register_routing("dynamic")
            class Again(Routing):
                def route(self, votes: Votes, activation: Tensor | None) -> Routed:
                    raise NotImplementedError


class Plain(Routing):
    """No settings, and so no constructor of its own."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        pose = votes.moments(weights=activation).mean
        return Routed(pose, length(pose), votes, None)


class Gathering(Plain):
    def __init__(self, steps: int = 2, *rest: object, **options: object) -> None:
        super().__init__()
        self.steps = steps


class TestConstructors:
    def test_without_arguments(self) -> None:
        assert Plain().config() == {}
        assert repr(Plain()) == "Plain()"
        assert type(Plain().bind(3, 4)) is Plain

    def test_gathered_arguments_are_no_settings(self) -> None:
        assert Gathering(3).config() == {"steps": 3}
        assert repr(Gathering()) == "Gathering(steps=2)"

    def test_an_argument_that_is_not_kept_is_told_when_it_is_asked_for(self) -> None:
        class Forgetful(Plain):
            def __init__(self, steps: int = 2, temperature: float = 1.0) -> None:
                super().__init__()
                self.steps = steps

        assert "Forgetful(steps=2)" in repr(CapsLinear(5, 3, 4, 6, routing=Forgetful()))
        with pytest.raises(
            ValueError,
            match="Forgetful must keep its argument 'temperature' as an attribute",
        ):
            Forgetful().config()

    def test_is_saved_with_its_network(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(ROUTINGS, "plain", Plain)
        model = create_model("capsnet_digits", routing=Plain()).eval()
        model.save_pretrained(tmp_path)
        again = load_pretrained(tmp_path)
        assert isinstance(again, CapsuleClassifier)
        assert isinstance(again.routing, Plain)
        images = torch.rand(2, *model.image_shape)
        assert torch.equal(again(images).activation, model(images).activation)


@pytest.mark.parametrize("name", ["dynamic", "em"])
def test_a_tensor_in_place_of_votes_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"votes must be .*Votes\(.*got Tensor"):
        create_routing(name).bind(3, 4)(torch.zeros(2, 5, 3, 4))


class TestWhatARoutingReturns:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda routed: routed._replace(pose=routed.pose[..., :5]),
                r"poses \(B, J, 6\) .* got \(2, 3, 5\)",
            ),
            (
                lambda routed: routed._replace(activation=routed.activation[:, :1]),
                r"got \(2, 3, 6\) and \(2, 1\)",
            ),
            (
                lambda routed: routed._replace(activation=routed.activation[..., None]),
                r"and \(2, 3, 1\)",
            ),
        ],
    )
    def test_shapes(self, change: Callable[[Routed], Routed], message: str) -> None:
        class Changed(Plain):
            def route(self, votes: Votes, activation: Tensor | None) -> Routed:
                return change(super().route(votes, activation))

        with pytest.raises(ValueError, match=f"a routing must return .*{message}"):
            CapsLinear(5, 3, 4, 6, routing=Changed())(torch.zeros(2, 5, 4))

    def test_a_tensor(self) -> None:
        class Bare(Plain):
            def route(self, votes: Votes, activation: Tensor | None) -> Tensor:
                return super().route(votes, activation).pose

        layer = CapsLinear(5, 3, 4, 6, routing=Bare())
        for call in (layer, layer.route, CapsHead(3, routing=Bare())):
            with pytest.raises(
                TypeError, match=r"Bare\.route must return a Routed, got Tensor"
            ):
                call(torch.zeros(2, 5, 4))


@pytest.mark.parametrize(
    "routing",
    [
        create_routing(name)
        for name in (
            "em",
            "self_routing",
            "variational_bayes",
            "prototypes",
            "spectral",
        )
    ]
    + [create_routing("self_attention"), create_routing("dynamic", bias=True)],
    ids=lambda routing: type(routing).__name__,
)
def test_votes_for_other_parents_than_there_are_parameters_for(
    routing: Routing,
) -> None:
    bound = routing.bind(LayerShape(5, 4, (3,), (6,)))
    with pytest.raises(
        ValueError,
        match=(
            rf"{type(routing).__name__} has parameters for 4 parents, got votes "
            r"for 3"
        ),
    ):
        bound(Votes(torch.zeros(2, 5, 3), torch.zeros(5, 3, 3, 6)))


@pytest.mark.parametrize("name", list_routings())
def test_without_parameters_a_routing_asks_for_a_layer(name: str) -> None:
    routing = create_routing(name).eval()
    votes = Votes(torch.zeros(2, 5, 3), torch.zeros(5, 4, 3, 3))
    if (
        any(
            True
            for _ in routing.bind(
                LayerShape(
                    5,
                    4,
                    (3,),
                    (3,),
                )
            ).parameters()
        )
        and name not in OPTIONAL
    ):
        with pytest.raises(RuntimeError, match=r"no parameters yet.*bind"):
            routing(votes)
    else:
        assert routing(votes).pose.shape == (2, 4, 3)


SHAPE = LayerShape(5, J, (M, P), (M, D))
OF_ANY = LayerShape(None, J, (M, P), (M, D))


@pytest.mark.parametrize(
    ("name", "arguments", "shape", "expected"),
    [
        ("dynamic", {}, SHAPE, {}),
        ("dynamic", {"bias": True}, SHAPE, {"offset": (J, M * D)}),
        (
            "attention",
            {"readout": True},
            SHAPE,
            {
                "gain": (M * D,),
                "bias": (M * D,),
                "score.weight": (1, M * D),
                "score.bias": (1,),
            },
        ),
        ("em", {}, SHAPE, {"unit_cost": (J,), "activation_cost": (J,)}),
        (
            "heinsen_2019",
            {"any_parents": True},
            OF_ANY,
            {
                "bias": (1, 1, M * D),
                "benefit": (1, 1),
                "cost": (1, 1),
                "spread": (M * D,),
            },
        ),
        ("prototypes", {}, SHAPE, {"prototypes": (J, M * D)}),
        ("self_attention", {}, SHAPE, {"offset": (5, J)}),
        ("self_attention", {}, OF_ANY, {"offset": (1, J)}),
        ("self_routing", {}, SHAPE, {"weight": (5, J, M * P), "bias": (5, J)}),
        ("self_routing", {}, OF_ANY, {"weight": (1, J, M * P), "bias": (1, J)}),
    ],
)
def test_parameters(
    name: str,
    arguments: dict[str, Any],
    shape: LayerShape,
    expected: dict[str, tuple[int, ...]],
) -> None:
    bound = create_routing(name, **arguments).bind(shape)
    assert {
        name: tuple(parameter.shape) for name, parameter in bound.named_parameters()
    } == expected


@pytest.mark.parametrize(
    "name",
    [name for name in list_routings() if "steps" in create_routing(name).config()],
)
def test_a_setting_is_checked_when_it_is_set_anew(name: str) -> None:
    layer = CapsLinear(6, 3, 4, 4, routing=create_routing(name)).eval()
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        layer.routing.steps = 0
    layer.routing.steps = 2
    assert layer(torch.ones(2, 6, 4)).pose.shape == (2, 3, 4)


@pytest.mark.parametrize("name", list_routings())
def test_flags_follow_a_setting_that_is_set_anew(name: str) -> None:
    config = create_routing(name).config()
    for setting, values in options_of(ROUTINGS[name], config).items():
        for value in values:
            changed = create_routing(name)
            setattr(changed, setting, value)
            made = create_routing(name, **{**config, setting: value})
            assert flags_of(changed) == flags_of(made), (setting, value)


def flags_of(routing: Routing) -> list[bool]:
    return [
        routing.exact_gradients,
        routing.hard,
        routing.resumable,
        routing.separate_examples,
        routing.within_window,
    ]


class TestLayerShape:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((-1, 3, (4,), (4,)), "children must be at least 1, got -1"),
            (("3", 3, (4,), (4,)), "children must be a whole number, got '3'"),
            ((5, None, (4,), (4,)), "parents must be a whole number, got None"),
            ((5, 3, 8, (4,)), "in_pose must be one or more whole numbers, got 8"),
            (
                (5, 3, (4,), (2, 4, 4)),
                r"out_pose must be one size, of vectors, or two, of matrices, got "
                r"\(2, 4, 4\)",
            ),
        ],
    )
    def test_what_is_none(self, arguments: tuple[Any, ...], message: str) -> None:
        with pytest.raises(ValueError, match=rf"^{message}"):
            LayerShape(*arguments)

    def test_vectors_are_matrices_of_one_row(self) -> None:
        shape = LayerShape(5, 3, (4,), (2, 6))
        assert shape.in_pose == (1, 4)
        assert shape.out_pose == (2, 6)
        assert shape.size == 12

    @pytest.mark.parametrize(
        ("layer", "expected"),
        [
            (
                lambda routing: CapsLinear(5, 3, 4, 6, routing=routing),
                LayerShape(5, 3, (1, 4), (1, 6)),
            ),
            (
                lambda routing: CapsLinear(
                    None, 3, (2, 4), (2, 6), transforms="shared", routing=routing
                ),
                LayerShape(None, 3, (2, 4), (2, 6)),
            ),
            (
                lambda routing: CapsConv2d(
                    2, 3, (2, 4), (2, 5), (3, 2), routing=routing
                ),
                LayerShape(12, 3, (2, 4), (2, 5)),
            ),
            (
                lambda routing: ClassCaps(4, 6, (2, 4), (2, 5), routing=routing),
                LayerShape(None, 6, (2, 4), (2, 5)),
            ),
        ],
        ids=["linear", "shared", "conv", "class"],
    )
    def test_of_every_layer(
        self, layer: Callable[[Routing], object], expected: LayerShape
    ) -> None:
        seen = []

        class Watching(Plain):
            def make_parameters(self, shape: LayerShape) -> None:
                seen.append(shape)

        layer(Watching())
        assert set(seen) == {expected}

    def test_parents_and_size(self) -> None:
        seen = []

        class Watching(Plain):
            def make_parameters(self, shape: LayerShape) -> None:
                seen.append(shape)

        Watching().bind(3, 4)
        assert seen == [LayerShape(None, 3, (4,), (4,))]
        with pytest.raises(TypeError, match="bind takes a LayerShape"):
            Watching().bind(3)


class TestGoingOn:
    """Concurrent routing: a call that begins with the parents of an earlier one."""

    @pytest.mark.parametrize("first", [1, 2])
    def test_without_accumulation_only_the_pose_counts(self, first: int) -> None:
        children, transforms, _, _ = problem()
        votes = Votes(children, transforms)
        routing = create_routing("dynamic", steps=2, accumulate=False)
        start = create_routing("dynamic", steps=first, accumulate=False)(votes)
        expected = create_routing("dynamic", steps=2 + first, accumulate=False)(votes)
        torch.testing.assert_close(routing(votes, initial=start).pose, expected.pose)

    def test_last_step_alone_has_a_gradient(self) -> None:
        children, transforms, _, _ = problem()
        votes = Votes(children, transforms)
        start = create_routing("dynamic", steps=2)(votes)
        routing = create_routing("dynamic", steps=1, gradient="last")
        expected = create_routing("dynamic", steps=3, gradient="last")(votes)
        routed = routing(votes, initial=start)
        gradients = [
            torch.autograd.grad(tensor.pose.square().sum(), children, retain_graph=True)
            for tensor in (routed, expected)
        ]
        torch.testing.assert_close(*gradients)

    def test_children_may_have_changed_since(self) -> None:
        children, transforms, _, _ = problem()
        before = create_routing("euclidean", steps=2)(Votes(children, transforms))
        votes = Votes(children * 0.5, transforms)
        routed = create_routing("euclidean", steps=1)(votes, initial=before)
        distance = (votes.dense() - before.pose[:, None]).square().sum(-1)
        torch.testing.assert_close(routed.assignment, (-distance).softmax(-1))

    def test_parents_of_another_layer(self) -> None:
        children, transforms, _, activation = problem()
        routing = create_routing("dynamic")
        first = routing(Votes(children, transforms), activation)
        with pytest.raises(
            ValueError, match=r"initial must have poses \(2, 3, 6\), got \(2, 4, 6\)"
        ):
            routing(Votes(children, transforms[:, :3]), activation, initial=first)
        gaussian = create_routing("euclidean")(Votes(children, transforms), activation)
        with pytest.raises(
            ValueError, match="initial must come from inner products, got Gaussian"
        ):
            routing(Votes(children, transforms), activation, initial=gaussian)


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize("changed", ["transforms", "children"])
def test_assignment_is_that_of_the_votes_or_none(backend: str, changed: str) -> None:
    """After a step of the optimizer the votes are others: without stored ones, nobody
    knows what the assignment was.
    """
    torch.manual_seed(0)
    layer = CapsLinear(9, 3, 4, 4, backend=backend)
    children = torch.randn(2, 9, 4)
    routed = layer.route(children)
    before = routed.assignment.detach().clone()
    with torch.no_grad():
        (layer.weight if changed == "transforms" else children).mul_(2)
    if backend == "naive":
        assert torch.equal(routed.assignment, before)
    else:
        with pytest.raises(
            RuntimeError,
            match="children or transforms were changed in place since they voted",
        ):
            _ = routed.assignment


PARTLY_CONSTANT = {
    "dynamic": {"gradient": "last"},
    "em": {"gradient": "last"},
    "euclidean": {"gradient": "last"},
    "kmeans": {"gradient": "last"},
    "slot_mixture": {"gradient": "last"},
    "slots": {"gradient": "last"},
}
"""Routings with gradients that are not all derivatives."""
STRAIGHT = {"assignment": "straight_through"}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, of the way that it loads formulas
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in list_routings() if name != "hard_kmeans"),
        *PARTLY_CONSTANT.items(),
        ("kmeans", STRAIGHT),
        ("euclidean", STRAIGHT),
    ],
)
def test_forward_mode_has_the_gradients_of_reverse_mode(
    name: str, options: dict[str, Any]
) -> None:
    """What is a constant for one is a constant for the other: <v, J u> = <J^T v, u>."""
    torch.manual_seed(0)
    routing = create_routing(name, **options)
    layer = CapsLinear(5, J, (M, P), (M, D), routing=routing).double().eval()
    primals = {
        "pose": torch.randn(2, 5, M, P, dtype=torch.float64),
        "activation": torch.rand(2, 5, dtype=torch.float64),
        **{
            key: weight.detach() + torch.randn_like(weight) / 4
            for key, weight in layer.named_parameters()
        },
    }

    def parents(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        weights = {key: tensors[key] for key, _ in layer.named_parameters()}
        children = Capsules(tensors["pose"], tensors["activation"])
        return tuple(torch.func.functional_call(layer, weights, (children,)))

    tangents = {key: torch.randn_like(tensor) for key, tensor in primals.items()}
    result, forward = torch.func.jvp(parents, (primals,), (tangents,))
    cotangents = tuple(torch.randn_like(field) for field in result)
    (gradients,) = torch.func.vjp(parents, primals)[1](cotangents)
    along = sum((v * u).sum() for v, u in zip(cotangents, forward, strict=True))
    against = sum((gradients[key] * tangents[key]).sum() for key in primals)
    torch.testing.assert_close(along, against, rtol=1e-8, atol=1e-10)


def test_hard_kmeans_has_no_tangents() -> None:
    layer = CapsLinear(5, 3, 4, 4, routing="hard_kmeans").eval()
    poses = torch.randn(2, 5, 4)
    tangent = torch.func.jvp(lambda x: layer(x).pose, (poses,), (poses.cos(),))[1]
    assert not tangent.any()

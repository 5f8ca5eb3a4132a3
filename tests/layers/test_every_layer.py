"""What holds for every layer with every routing; a layer for which something does not
hold is told.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchcaps import (
    CapsConv1d,
    CapsConv2d,
    CapsHead,
    CapsLinear,
    Capsules,
    ClassCaps,
    PrimaryCaps1d,
    Slots,
    create_routing,
    layers,
    list_routings,
)
from torchcaps.capsules import CapsuleLayer
from torchcaps.layers import LocalCaps
from torchcaps.numerics import kept_tensor
from torchcaps.ops import Windows
from torchcaps.routing import DynamicRouting, EMRouting, Routed, Routing
from torchcaps.testing import check_layer
from torchcaps.testing.compare import by_name
from torchcaps.testing.layers import CHECKS

POSE = (2, 3)
PARENT = (2, 2)
BUT_OPTIONS = set(by_name(CHECKS, ())) - {"options_together"}


def capsules(*sites: int, pose: tuple[int, ...] = POSE) -> Capsules:
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(2, *sites, *pose, generator=generator, dtype=torch.float64)
    return Capsules(
        poses, torch.rand(2, *sites, generator=generator, dtype=torch.float64)
    )


def convolution(**options: Any) -> Callable[[Routing], nn.Module]:
    return lambda routing: CapsConv2d(2, 2, POSE, PARENT, 2, routing=routing, **options)


Make = Callable[..., nn.Module]
LAYERS: dict[str, tuple[Make, tuple[int, ...], tuple[int, ...]]] = {
    "full": (lambda routing: CapsLinear(5, 3, 3, 4, routing=routing), (5,), (3,)),
    "shared": (
        lambda routing: CapsLinear(
            None, 3, POSE, PARENT, transforms="shared", routing=routing
        ),
        (6,),
        POSE,
    ),
    "class": (
        lambda routing: ClassCaps(2, 3, POSE, PARENT, routing=routing),
        (2, 3, 2),
        POSE,
    ),
    "window": (convolution(competition="window"), (3, 3, 2), POSE),
    "image": (convolution(competition="image", padding=1), (2, 3, 2), POSE),
    "local": (lambda routing: LocalCaps(2, 2, 3, 4, routing=routing), (3, 2, 2), (3,)),
    "passed on": (
        lambda routing: CapsConv2d(
            2, 3, POSE, POSE, 2, routing=routing, competition="window", residual=True
        ),
        (3, 2, 2),
        POSE,
    ),
    "normalised": (
        lambda routing: CapsConv1d(
            2,
            2,
            POSE,
            PARENT,
            2,
            routing=routing,
            competition="window",
            pose_norm="type",
        ),
        (4, 2),
        POSE,
    ),
    "scaled": (
        lambda routing: ClassCaps(
            2, 3, POSE, PARENT, routing=routing, axes=1, coordinates="scaled"
        ),
        (3, 2),
        POSE,
    ),
}


def make_routing(name: str) -> Routing:
    """Of EM, one whose assignments do not amplify the last digits."""
    return EMRouting(3, "linear", 0.1) if name == "em" else create_routing(name)


def possible(routing: str, layer: str) -> bool:
    return layer != "image" or not create_routing(routing).within_window


PAIRS = [
    (routing, layer)
    for routing in list_routings()
    for layer in LAYERS
    if possible(routing, layer)
]


def in_turns(routing: str, layer: str) -> Any:
    """Each routing with a tenth of the layers, each layer with a tenth of the routings;
    all in a thorough run.
    """
    turn = list_routings().index(routing) + list(LAYERS).index(layer)
    return pytest.param(
        routing, layer, marks=[pytest.mark.thorough] if turn % 10 else []
    )


EVERY = pytest.mark.parametrize(
    ("routing", "layer"), [in_turns(*pair) for pair in PAIRS]
)


@EVERY
def test_every_layer_with_every_routing(
    routing: str, layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 50)
    torch.manual_seed(0)
    make, sites, pose = LAYERS[layer]
    check_layer(make(make_routing(routing)), capsules(*sites, pose=pose))


@pytest.mark.parametrize("layer", LAYERS)
def test_no_transforms_are_learned_beside_those_of_the_routing(layer: str) -> None:
    """Those of LocalCaps were parameters without gradients."""
    make, _, _ = LAYERS[layer]
    assert "weight" not in dict(make(create_routing("slots")).named_parameters())


def test_inference_after_a_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of windows is no tensor of a transform that is over."""
    anew = kept_tensor(partial(inspect.unwrap(Windows.children)))
    monkeypatch.setattr(Windows, "children", anew)
    make, sites, pose = LAYERS["window"]
    layer = make(make_routing("em")).double()
    children = capsules(*sites, pose=pose)
    torch.func.grad(lambda pose: layer(Capsules(pose, children.activation)).pose.sum())(
        children.pose
    )
    with torch.no_grad():
        assert layer(children).pose.isfinite().all()


@pytest.mark.parametrize("layer", LAYERS)
def test_a_memory_format_of_maps_leaves_the_transforms(layer: str) -> None:
    make, sites, pose = LAYERS[layer]
    module = make(create_routing("dynamic")).double()
    children = capsules(*sites, pose=pose)
    expected = module(children)
    module.to(memory_format=torch.channels_last)
    assert all(parameter.is_contiguous() for parameter in module.parameters())
    parents = module(children)
    torch.testing.assert_close(parents, expected)


SLOTS = ("slots", "slot_mixture")
"""Routings that start from learned slots, which are what is left without children."""


class Primary(PrimaryCaps1d):
    """Primary capsules of what poses hold, channels at moments."""

    def forward(self, children: Capsules) -> Capsules:
        return super().forward(children.pose.mT)


class Head(CapsHead):
    """Capsules on tokens that poses hold, after a first batch."""

    def __init__(self, classes: int, *, routing: Routing) -> None:
        super().__init__(classes, types=2, dim=3, pose_dim=3, routing=routing)
        super().forward(torch.randn(2, 3, 4))

    def forward(self, children: Capsules) -> Capsules:
        return super().forward(children.pose)


OPTIONS: dict[str, tuple[str, Make, tuple[int, ...], tuple[int, ...]]] = {
    "linear": ("kmeans", partial(CapsLinear, 5, 3, 3, 3), (5,), (3,)),
    "any number": (
        "self_routing",
        partial(CapsLinear, None, 3, POSE, PARENT, transforms="shared"),
        (6,),
        POSE,
    ),
    "class": (
        "heinsen_2019",
        partial(ClassCaps, 2, 3, POSE, PARENT),
        (2, 3, 2),
        POSE,
    ),
    "convolution": (
        "spectral",
        partial(CapsConv2d, 2, 2, POSE, POSE, 2),
        (3, 2, 2),
        POSE,
    ),
    "padded": (
        "attention",
        partial(CapsConv1d, 2, 2, 3, 3, 2, padding=1),
        (4, 2),
        (3,),
    ),
    "local": ("dynamic", partial(LocalCaps, 2, 2, 3, 3), (3, 2, 2), (3,)),
    "slots": ("slots", partial(Slots, 3, dim=4, features=6), (5,), POSE),
    "head": ("variational_bayes", partial(Head, 3), (5,), (4,)),
}
"""By name, the routing that is always tried, what makes the layer, the sites and the
poses of its children.
"""


# Convolutions take the others under another competition than by default.
OVER_IMAGES = tuple(
    name for name in list_routings() if not create_routing(name).within_window
)
ROUTINGS_OF = {
    "slots": SLOTS,
    "head": ("variational_bayes", "dynamic"),
    "convolution": OVER_IMAGES,
    "padded": OVER_IMAGES,
}
"""Of layers that do not take every routing, or that others with the same class layer
stand for.
"""


@pytest.mark.parametrize(
    ("routing", "layer"),
    [
        pytest.param(
            routing, layer, marks=[] if routing == always else [pytest.mark.thorough]
        )
        for layer, (always, *_) in OPTIONS.items()
        for routing in ROUTINGS_OF.get(layer, list_routings())
    ],
)
def test_options_of_every_layer_with_those_of_every_routing(
    routing: str, layer: str
) -> None:
    torch.manual_seed(0)
    _, make, sites, pose = OPTIONS[layer]
    check_layer(
        partial(make, routing=routing), capsules(*sites, pose=pose), skip=BUT_OPTIONS
    )


def test_options_of_primary_capsules() -> None:
    torch.manual_seed(0)
    make = partial(Primary, 4, 2, (2,), kernel_size=2, stride=1)
    check_layer(make, capsules(5, pose=(4,)), skip=BUT_OPTIONS)


def test_hard_assignments_need_parents_that_differ() -> None:
    """With one transform for all they would be shared out by rounding, also with a
    bias, which is in the centres as in the votes.
    """
    for routing in (
        create_routing("hard_kmeans"),
        create_routing("kmeans", assignment="straight_through"),
    ):
        for vote_bias in (False, True):
            with pytest.raises(ValueError, match="transforms='subspace'"):
                CapsLinear(
                    None,
                    3,
                    4,
                    4,
                    transforms="subspace",
                    routing=routing,
                    vote_bias=vote_bias,
                )


PROBABLE = ("em", "heinsen_2019", "spectral", "variational_bayes")
"""Routings whose activations are probabilities that have a bias; ``local`` uses none of
the children's.
"""


@EVERY
def test_children_of_0_have_parents_of_0(routing: str, layer: str) -> None:
    """Slots are what was learned instead, the same for all examples."""
    make, sites, pose = LAYERS[layer]
    module = make(make_routing(routing)).eval()
    if isinstance(module, ClassCaps):
        module.coordinates = False
    parents = module(Capsules(torch.zeros(2, *sites, *pose), torch.zeros(2, *sites)))
    expected = parents.pose[:1] if routing in SLOTS else torch.zeros(())
    assert (parents.pose == expected).all()
    assert routing in PROBABLE or layer == "local" or (parents.activation == 0).all()


@pytest.mark.parametrize("layer", LAYERS)
def test_complex_poses_are_refused(layer: str) -> None:
    make, sites, pose = LAYERS[layer]
    children = capsules(*sites, pose=pose)
    with pytest.raises(ValueError, match=r"must be real, got torch\.complex128"):
        make(create_routing("dynamic"))(
            Capsules(children.pose.to(torch.complex128), children.activation)
        )


TOO_LARGE = {
    "self_routing": ("routing.weight",),
    "heinsen_2019": ("routing.benefit", "routing.cost"),
}
"""Parameters whose gradients are sums over poses: of poses in the thousands, over 65,504
for some transforms.
"""


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("routing", list_routings())
def test_poses_in_the_thousands_stay_finite(routing: str, dtype: torch.dtype) -> None:
    """In float16 too; sums of such children can be more than the gradients of two
    routings can hold.
    """
    torch.manual_seed(0)
    layer = (
        CapsLinear(7, 5, 4, 3, routing=create_routing(routing))
        .to(dtype)
        .train(routing != "hard_kmeans")
    )
    children = (
        (1e3 * torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0)))
        .to(dtype)
        .requires_grad_()
    )
    parents = layer(children)
    assert all(field.isfinite().all() for field in parents)
    if routing != "hard_kmeans":
        (parents.pose.float().mean() + parents.activation.float().mean()).backward()
        grads = {name: parameter.grad for name, parameter in layer.named_parameters()}
        if dtype == torch.float16:
            for name in TOO_LARGE.get(routing, ()):
                del grads[name]
        assert all(
            grad.isfinite().all()
            for grad in (children.grad, *grads.values())
            if grad is not None
        )


MAKES = pytest.mark.parametrize(
    "make",
    [
        lambda *poses, **options: CapsLinear(4, 2, *poses, **options),
        lambda *poses, **options: ClassCaps(2, 3, *poses, **options),
        lambda *poses, **options: CapsConv2d(2, 2, *poses, 1, **options),
    ],
    ids=["linear", "class", "conv"],
)


@MAKES
@pytest.mark.parametrize(
    ("in_pose", "out_pose"), [(4, (2, 4)), ((2, 4), (3, 4)), ((2, 4), 8)]
)
def test_poses_that_contradict(
    make: Callable[..., nn.Module], in_pose: Any, out_pose: Any
) -> None:
    with pytest.raises(ValueError, match=r"same rows: in_pose is .*, out_pose is "):
        make(in_pose, out_pose)


@MAKES
def test_what_is_no_backend(make: Callable[..., nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"backend must be one of .* got 'fast'"):
        make(3, 3, backend="fast")


@MAKES
def test_a_routing_passed_to_several_layers_is_not_shared(
    make: Callable[..., nn.Module],
) -> None:
    routing = EMRouting()
    first, second = (make(3, 3, routing=routing) for _ in range(2))
    assert not {*map(id, first.parameters())} & {*map(id, second.parameters())}
    assert not list(routing.parameters())
    assert any(name.endswith("unit_cost") for name, _ in first.named_parameters())


@pytest.mark.parametrize(
    ("layer", "numbers", "routing", "words"),
    [
        (
            CapsLinear(7, 5, 4, 3),
            7 * 5 * 4 * 3,
            DynamicRouting(),
            "in_capsules=7, out_capsules=5, in_pose=(4,), out",
        ),
        (
            CapsConv2d(4, 6, (4, 4), (4, 4), 3, 2),
            9 * 4 * 6 * 16 + 2 * 6,
            EMRouting(),
            "4, 6, in_pose=(4, 4), out_pose=(4, 4), kernel_size=(3, 3), stride=(2, 2)",
        ),
        (
            ClassCaps(2, 3, (2, 3), (2, 2)),
            2 * 3 * 3 * 2 + 2 * 3,
            EMRouting(),
            "2, 3, in_pose=(2, 3), out_pose=(2, 2)",
        ),
    ],
    ids=["linear", "conv", "class"],
)
def test_what_a_layer_has_and_shows(
    layer: nn.Module, numbers: int, routing: Routing, words: str
) -> None:
    assert sum(parameter.numel() for parameter in layer.parameters()) == numbers
    assert layer.routing.config() == routing.config()
    assert words in repr(layer)
    assert f"{type(routing).__name__}(steps=3" in repr(layer)


class Plain(nn.Module):
    """Nothing wrong with it: every parent is the mean of the children, in another
    frame; each below has one fault.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 2))

    def forward(self, children: Capsules, mask: Tensor | None = None) -> Capsules:
        pose, activation = children
        if mask is not None:
            pose = pose.where(mask[..., None], 0)
            activation = activation.where(mask, 0)
        with torch.autocast("cpu", enabled=False):
            return self.parents(
                pose.to(self.weight.dtype), activation.to(self.weight.dtype)
            )

    def parents(self, pose: Tensor, activation: Tensor) -> Capsules:
        return Capsules(
            (pose * activation[..., None]).mean(1, keepdim=True) @ self.weight,
            activation.mean(1, True),
        )


class Mixing(Plain):
    def parents(self, pose: Tensor, activation: Tensor) -> Capsules:
        return super().parents(pose - pose.mean(0), activation)


class Wide(Plain):
    def parents(self, pose: Tensor, activation: Tensor) -> Capsules:
        parents = super().parents(pose, activation)
        return parents._replace(activation=parents.activation.double())


class Rooting(Plain):
    def parents(self, pose: Tensor, activation: Tensor) -> Capsules:
        return super().parents(pose, activation.sqrt())


class Polite(Plain):
    def parents(self, pose: Tensor, activation: Tensor) -> Capsules:
        return super().parents(pose.nan_to_num(), activation)


class Peeking(Plain):
    def forward(self, children: Capsules, mask: Tensor | None = None) -> Capsules:
        return super().forward(children, None)


class Silent(CapsLinear):
    """Poses of 0 in place of those that are not there, which its coordinates or its
    routing may not take for none.
    """

    def __init__(self) -> None:
        super().__init__(None, 2, 3, 4, transforms="shared")

    def route(
        self, children: Capsules, mask: Tensor | None = None, **options: Any
    ) -> Routed:
        if mask is not None:
            silenced = (
                children.pose.where(mask[..., None], 0.0),
                children.activation.where(mask, 0.0),
            )
            children = Capsules(*silenced)
        return super().route(children, None, **options)


class Detached(Plain):
    def parents(self, pose: Tensor, activation: Tensor) -> Capsules:
        return super().parents(pose, activation.detach())


class Rounding(Plain):
    def forward(self, children: Capsules, mask: Tensor | None = None) -> Capsules:
        parents = super().forward(children, mask)
        low = (
            parents.pose.bfloat16().to(parents.pose)
            if torch.is_autocast_enabled("cpu")
            else parents.pose
        )
        return parents._replace(pose=low)


class Late(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.zeros(2)

    def parents(self, pose: Tensor, activation: Tensor) -> Capsules:
        parents = super().parents(pose, activation)
        return parents._replace(pose=parents.pose + self.offset.to(parents.pose.dtype))


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (Mixing, "examples_of_a_batch", "the parents' pose is off by"),
        (Wide, "dtypes", "the parents' activation is torch.float64"),
        (Rounding, "autocast", "the parents' pose is off by"),
        (Rooting, "zeros", "NaN or infinite"),
        (Peeking, "children_that_are_not_there", ""),
        (
            Silent,
            "children_that_are_not_there",
            "its votes were not told which children are not there",
        ),
        (Polite, "not_a_number", "hides that a child's pose is NaN"),
        (Late, "meta", ""),
        (Detached, "gradients", "Jacobian|numerical"),
    ],
)
def test_a_fault_is_told(broken: type[nn.Module], check: str, words: str) -> None:
    check_layer(Plain(), capsules(4, pose=(3,)))
    with pytest.raises(
        AssertionError,
        match=rf"(?s){broken.__name__} fails the check '{check}': .*{words}",
    ):
        check_layer(broken(), capsules(4, pose=(3,)))
    with pytest.raises(ValueError, match="skip must name checks of"):
        check_layer(broken(), capsules(4, pose=(3,)), skip=("everything",))


@pytest.mark.parametrize(
    "layer",
    [
        thing
        for name in layers.__all__
        if inspect.isclass(thing := getattr(layers, name))
        and issubclass(thing, CapsuleLayer)
    ],
)
def test_help_explains_every_argument(layer: type) -> None:
    _, _, arguments = (inspect.getdoc(layer) or "").partition("\nArgs:\n")
    for name in inspect.signature(layer).parameters:
        assert f"    {name}: " in arguments.partition("\n\n")[0]

"""Every routing keeps what layers rely on; one that does not is told from one that
does.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from torchcaps.numerics import as_constants
from torchcaps.ops import InnerProduct, Votes
from torchcaps.routing import (
    EM_PRESETS,
    DynamicRouting,
    EMRouting,
    LayerShape,
    Routed,
    Routing,
    create_routing,
    list_routings,
)
from torchcaps.squashing import length, squash
from torchcaps.testing import check_routing

# Settings beside the defaults; standardised costs say nothing of fewer than three
# parents, but must stay finite.
OTHERS: dict[str, Callable[[], Routing]] = {
    "dynamic-bias": lambda: DynamicRouting(bias=True),
    "dynamic-leaky": lambda: DynamicRouting(leaky=True),
    "dynamic-last": lambda: DynamicRouting(accumulate=False),
    "kmeans-sharp": lambda: create_routing("kmeans", sharpness=2.0, steps=2),
    "hard-inner": lambda: create_routing("hard_kmeans", metric="inner"),
    "attention-readout": lambda: create_routing("attention", readout=True, steps=3),
    "heinsen-logits": lambda: create_routing(
        "heinsen_2019", model="kmeans", logits=True
    ),
    "heinsen-any-parents": lambda: create_routing("heinsen_2019", any_parents=True),
    "kernel-em": lambda: create_routing("fast_kernel_density", method="em", width=4.0),
    "dynamic-last-gradient": lambda: create_routing("dynamic", gradient="last"),
    "kmeans-last": lambda: create_routing("kmeans", gradient="last"),
    **{
        f"{name}-{label}": lambda name=name, settings=settings: create_routing(
            name, **settings
        )
        for name in ("kmeans", "euclidean")
        for label, settings in {
            "straight": {"assignment": "straight_through"},
            "straight-evidence": {"assignment": "straight_through", "evidence": True},
        }.items()
    },
    **{
        f"{name}-learned-{label}": lambda name=name, settings=settings: create_routing(
            name, squash="learned", **settings
        )
        for name in ("dynamic", "kmeans")
        for label, settings in {
            "children": {"softmax": "children"},
            "evidence": {"evidence": True, "steps": 2},
        }.items()
    },
    **{
        f"euclidean-plain-{evidence}": lambda evidence=evidence: create_routing(
            "euclidean", distance="plain", evidence=evidence
        )
        for evidence in (False, True)
    },
    "euclidean-last": lambda: create_routing("euclidean", gradient="last"),
    "slots-last": lambda: create_routing("slots", gradient="last", bias=True),
    "slots-plain": lambda: create_routing("slots", gru=False, hidden=0),
    "mixture-plain": lambda: create_routing(
        "slot_mixture", gru=False, hidden=0, readout=False
    ),
    "em-smooth": lambda: EMRouting(
        mean_smoothing=0.2, cost_scale=0.5, mass_scale=20.0, standardise=True
    ),
    **{f"em-{name}": lambda name=name: EMRouting.preset(name) for name in EM_PRESETS},
}


WITH_OPTIONS = ("dynamic", "em", "euclidean")
"""Whose options are tried with each other each time: test_any_three_options has all."""


@pytest.mark.parametrize("name", list_routings())
def test_every_routing(name: str) -> None:
    check_routing(name, skip=() if name in WITH_OPTIONS else ("options_together",))


@pytest.mark.thorough
@pytest.mark.parametrize("name", list_routings())
def test_any_three_options(name: str) -> None:
    check_routing(name, together=3)


QUICK = (
    "dynamic-last-gradient",
    "dynamic-leaky",
    "heinsen-any-parents",
    "kernel-em",
    "slots-last",
    "em-smooth",
    "em-released",
    "kmeans-straight",
)
"""One of each way to compute something else."""


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough)
        for name in OTHERS
    ],
)
def test_other_settings(name: str) -> None:
    check_routing(OTHERS[name](), skip=("options_together",))


class Plain(Routing):
    """What all that is broken here begins with."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        pose = votes.moments(None, activation).mean
        return Routed(pose, length(pose), votes, None)


def test_plain() -> None:
    check_routing(Plain())


class Remembered(Votes):
    """Votes that keep their sum, as it was made in the first call."""

    def total(self) -> Tensor:
        if not hasattr(self, "kept"):
            self.kept = super().total()
        return self.kept


class Keeping(Plain):
    """Its first step has no gradients with the one option, and is the only one without
    the other.
    """

    evidence = True

    def __init__(self, last: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.last = last
        self.twice = twice

    def prepared(self, votes: Votes) -> Votes:
        fields = votes.children, votes.transforms, votes.coordinates
        return Remembered(*fields, backend=votes.backend, mask=votes.mask)

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        if self.twice:
            with as_constants() if self.last else nullcontext():
                votes.total()
        pose = votes.total()
        return Routed(pose, length(pose), votes, None)


class Detaching(Plain):
    """Two options together lose a part of the gradient, with nothing kept."""

    def __init__(self, quick: bool = False, last: bool = False) -> None:
        super().__init__()
        self.quick = quick
        self.last = last

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        total = votes.moments(None, activation).sum
        similarity = InnerProduct(total.detach() if self.quick and self.last else total)
        pose = votes.moments(similarity, activation).mean
        return Routed(pose, length(pose), votes, similarity)


class MixingTogether(Plain):
    """Two options together take from each pose the mean over the batch."""

    def __init__(self, quick: bool = False, last: bool = False) -> None:
        super().__init__()
        self.quick = quick
        self.last = last

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        routed = super().route(votes, activation)
        if not (self.quick and self.last):
            return routed
        return routed._replace(pose=routed.pose - routed.pose.mean(0))


class Unclear(Plain):
    """It refuses two options together, and does not say which."""

    def __init__(self, first: bool = False, second: bool = False) -> None:
        super().__init__()
        if first and second:
            raise ValueError("that makes no sense")
        self.first = first
        self.second = second


class Forgetful(Plain):
    def __init__(self, steps: int = 3) -> None:
        super().__init__()


class Sharing(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def bind(self, shape: LayerShape | int, size: int | None = None) -> Routing:
        return self


class Flat(Plain):
    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        routed = super().route(votes, activation)
        return routed._replace(activation=routed.activation[:, 0])


class Ordered(Plain):
    """The first child counts twice."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        first = torch.ones_like(activation)
        first[:, 0] = 2
        return super().route(votes, activation * first)


class Mixing(Plain):
    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        routed = super().route(votes, activation)
        return routed._replace(pose=routed.pose - routed.pose.mean(0))


class Doubling(Plain):
    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        routed = super().route(votes, activation)
        return routed._replace(pose=routed.pose.double())


class Rooting(Plain):
    """A length with no gradient at 0."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        pose = votes.moments(None, activation).mean
        return Routed(pose, pose.square().sum(-1).sqrt(), votes, None)


class Overflowing(Plain):
    """A logistic function of far too much."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        pose = votes.moments(None, activation).mean
        density = pose.square().sum(-1).exp()
        return Routed(pose, density / (1 + density), votes, None)


class Peeking(Plain):
    """Looks at the activations without asking who is there."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        pose = votes.moments(None, activation).sum / activation.sum(1)[
            :, None, None
        ].clamp(min=1e-6)
        return Routed(pose, length(pose), votes, None)


class Counting(Plain):
    """Divides by all children, those that are not there too."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        pose = votes.moments(None, activation).sum / votes.shape[1]
        return Routed(pose, length(pose), votes, None)


class Partial(Plain):
    """Means what it says on one backend only."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        routed = super().route(votes, activation)
        return routed._replace(
            pose=routed.pose * (2 if votes.backend == "chunked" else 1)
        )


class Detached(Plain):
    """Claims to be the whole gradient."""

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        alpha = squash(votes.moments(None, activation).sum).detach()
        pose = squash(votes.moments(InnerProduct(alpha), activation).sum)
        return Routed(pose, length(pose), votes, InnerProduct(alpha))


class Obliging(Plain):
    """Says that it goes on, and begins anew."""

    resumable = True

    def __init__(self, steps: int = 3) -> None:
        super().__init__()
        self.steps = steps

    def route(
        self, votes: Votes, activation: Tensor | None, initial: Routed | None = None
    ) -> Routed:
        alpha = 0
        for _ in range(self.steps):
            similarity = None if isinstance(alpha, int) else InnerProduct(alpha)
            pose = squash(votes.moments(similarity, activation).sum)
            alpha = alpha + pose
        return Routed(pose, length(pose), votes, similarity)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (Forgetful, "configuration", "steps"),
        (Sharing, "copies", "share parameters"),
        (Flat, "shapes", r"the parents' activation has shape \(3,\), not \(3, 4\)"),
        (Ordered, "order of the children", "the parents' pose is off by"),
        (Mixing, "examples of a batch", "the parents' pose is off by"),
        (Doubling, "dtypes", "float32 poses give poses of torch.float64"),
        (Rooting, "zeros", "NaN or infinite"),
        (Overflowing, "votes far apart", "NaN or infinite"),
        (Peeking, "children that are not there", ""),
        (Counting, "children that are not there", "the parents' pose is off by 0.29"),
        (
            Partial,
            "backends",
            "on backend chunked, the parents' pose is off by 1 of its size",
        ),
        (Detached, "gradients", "Jacobian mismatch"),
        (Obliging, "earlier parents", "is off by"),
        (Keeping, "options together", "with last=True, twice=True, "),
        (Detaching, "options together", "with quick=True, last=True, .*Jacobian"),
        (
            MixingTogether,
            "options together",
            "with quick=True, last=True, .*pose is off",
        ),
        (Unclear, "options together", "is refused without the name of an option"),
    ],
)
def test_broken(broken: type[Routing], check: str, words: str) -> None:
    with pytest.raises(
        AssertionError,
        match=rf"(?s){broken.__name__} fails the check '{check}': .*{words}",
    ):
        check_routing(broken())


def test_a_class_is_refused() -> None:
    with pytest.raises(TypeError, match="routing must be a Routing or the name of one"):
        check_routing(DynamicRouting)

"""A log prior that depends on the child: the same on every backend, in every layer, and
none where it is 0.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps import (
    CapsHead,
    CapsLinear,
    Capsules,
    ClassCaps,
    create_model,
    create_routing,
    load_pretrained,
)
from torchcaps.ops import (
    PARENTS,
    Distance,
    EvidentVotes,
    Gaussian,
    Given,
    GridWide,
    InnerProduct,
    Moments,
    Similarity,
    Votes,
    Windows,
    axes,
)
from torchcaps.routing import AgreementRouting, LayerShape, Routed, Routing
from torchcaps.routing.base import ROUTINGS
from torchcaps.testing import check_routing

NAMES = ("dynamic", "em", "euclidean", "kmeans")
B = 5
I = 6
J = 3
M = 2
P = 4
D = 3
CPU = torch.device("cpu")
every = pytest.mark.parametrize("name", NAMES)
THOROUGH = pytest.mark.thorough


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def bound(
    name: str, shape: LayerShape, evidence: bool = True, **arguments: Any
) -> Routing:
    return create_routing(name, evidence=evidence, **arguments).bind(shape).double()


def test_these_routings_take_it() -> None:
    assert {
        name for name, cls in ROUTINGS.items() if issubclass(cls, AgreementRouting)
    } == set(NAMES)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        pytest.param(
            name, steps, marks=[] if (name, steps) == ("em", 3) else [THOROUGH]
        )
        for name in NAMES
        for steps in (1, 3)
    ],
)
def test_it_holds_what_holds_for_every_routing(name: str, steps: int) -> None:
    check_routing(
        create_routing(name, evidence=True, steps=steps), skip=("options_together",)
    )


@dataclass(frozen=True, eq=False)
class Plus(Similarity):
    """Another similarity and a prior."""

    similarity: Similarity
    prior: Tensor = axes("BIJ")

    def logits(self, votes: Tensor) -> Tensor:
        return self.similarity.logits(votes) + self.prior


class WithPrior(Votes):
    """Votes whose parents compete with a prior, written out."""

    __slots__ = ("prior",)
    fields = (*Votes.fields, "prior")

    @classmethod
    def of(cls, votes: Votes, prior: Tensor) -> "WithPrior":
        made = object.__new__(cls)
        for name in Votes.fields:
            setattr(made, name, getattr(votes, name))
        made.prior = prior
        return made

    def plus(self, similarity: Similarity | None) -> Similarity:
        return Given(self.prior) if similarity is None else Plus(similarity, self.prior)

    def moments(self, similarity: Any = None, *rest: Any, **options: Any) -> Moments:
        return super().moments(self.plus(similarity), *rest, **options)

    def assignment(self, similarity: Any = None) -> Tensor:
        return super().assignment(self.plus(similarity))


@every
@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize(
    ("rows", "types", "gradient"),
    [(1, 1, "all"), (M, I, "all"), (M, 3, "all"), (M, 3, "last")],
)
def test_it_is_a_prior_inside_the_softmax(
    name: str, backend: str, rows: int, types: int, gradient: str
) -> None:
    """Results and gradients are those of stored votes with the prior
    e_ij, formed by einsum.
    """
    shape = LayerShape(I, J, (rows, P), (rows, D), types=types)
    routing = bound(name, shape, gradient=gradient)
    weight, bias = routing.get_submodule("local_evidence").parameters()
    inputs = [
        random(B, I, rows, P),
        random(1 if types == 1 else I, J, P, D),
        random(I, rows * D),
    ]
    leaves = [*inputs, weight, bias]
    activation = torch.rand(B, I, dtype=torch.float64)

    each = weight.repeat(I // types, 1, 1), bias.repeat(I // types, 1)
    prior = torch.einsum("bip,ijp->bij", inputs[0].flatten(2), each[0]) + each[1]
    plain = bound(name, shape, evidence=False, gradient=gradient)
    stored = Votes(*inputs, backend="naive")
    expected = plain(WithPrior.of(stored, prior), activation)
    routed = routing(Votes(*inputs, backend=backend), activation)

    assert isinstance(routed.votes, EvidentVotes)
    assert routed.votes.choose_backend(routed.similarity).backend == backend
    torch.testing.assert_close(routed.votes.evidence(), prior)
    assert_same(routed, expected, leaves)


def _objective(routed: Routed) -> Tensor:
    return (
        routed.pose.square().sum()
        + routed.activation.sum()
        + routed.assignment.square().sum()
    )


def assert_same(routed: Routed, expected: Routed, leaves: list[Tensor]) -> None:
    for field in ("pose", "activation", "assignment"):
        torch.testing.assert_close(getattr(routed, field), getattr(expected, field))
    both = (
        outcome.pose.square().sum()
        + outcome.activation.sum()
        + outcome.assignment.square().sum()
        for outcome in (routed, expected)
    )
    actual, right = (torch.autograd.grad(tensor, leaves) for tensor in both)
    for first, second in zip(actual, right, strict=True):
        torch.testing.assert_close(first, second)


@every
@pytest.mark.parametrize("competition", [GridWide, None])
@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
def test_it_is_one_where_windows_share_children(
    name: str, competition: type[GridWide] | None, backend: str
) -> None:
    windows = Windows(
        (4, 4),
        (3, 3),
        (1, 1),
        (0, 0),
    )
    shape = LayerShape(9 * 2, J, (P,), (D,))
    inputs = [random(2, 32, P), random(18, J, P, D)]
    competes = competition(windows=windows, types=2) if competition else PARENTS
    mask = torch.rand(2, 32, generator=torch.Generator().manual_seed(0)) > 0.2
    activation = torch.rand(2, 32, dtype=torch.float64)

    def votes(backend: str) -> Votes:
        return Votes(
            *inputs,
            competition=competes,
            sites=windows.children(2, CPU),
            mask=mask,
            backend=backend,
        )

    routing = bound(name, shape)
    plain = bound(name, shape, evidence=False)
    evident = routing.prepared(votes("naive"))
    assert isinstance(evident, EvidentVotes)
    expected = plain(WithPrior.of(votes("naive"), evident.evidence()), activation)
    parameters = routing.get_submodule("local_evidence").parameters()
    assert_same(routing(votes(backend), activation), expected, [*inputs, *parameters])


@every
def test_with_one_step_it_decides_alone(name: str) -> None:
    routing = bound(name, LayerShape(I, J, (P,), (D,)), steps=1)
    routed = routing(Votes(random(B, I, P), random(I, J, P, D)), torch.rand(B, I))
    assert isinstance(routed.votes, EvidentVotes)
    torch.testing.assert_close(routed.assignment, routed.votes.evidence().softmax(-1))


@every
def test_none_is_as_good_as_a_uniform_start(name: str) -> None:
    shape = LayerShape(I, J, (P,), (D,))
    routing = bound(name, shape)
    for parameter in routing.get_submodule("local_evidence").parameters():
        torch.nn.init.zeros_(parameter)
    inputs = random(B, I, P), random(I, J, P, D)
    expected = bound(name, shape, evidence=False)(Votes(*inputs), torch.ones(B, I))
    assert_same(routing(Votes(*inputs), torch.ones(B, I)), expected, list(inputs))


def test_large_evidence_is_not_rounded_away() -> None:
    """What Gaussians read from two squares is as exact in float32 as what an inner
    product reads.
    """
    children = random(B, I, P).float()
    weight = 10 * random(I, J, P).float()
    for similarity in (
        InnerProduct(torch.zeros(B, J, D)),
        Gaussian(*torch.zeros(2, B, J, D), torch.zeros(B, J)),
    ):
        votes = EvidentVotes(
            Votes(children, torch.zeros(I, J, P, D)), weight, torch.zeros(I, J)
        )
        exact = torch.einsum("bip,ijp->bij", children.double(), weight.double())
        assert exact.abs().max() > 30
        assert (votes.logits(similarity) - exact).abs().max() < 3e-5


def test_any_other_similarity_has_it_too() -> None:
    votes = EvidentVotes(
        Votes(random(B, I, P), random(I, J, P, D)), random(I, J, P), random(I, J)
    )
    given_logits = Given(random(B, I, J))
    for similarity in (given_logits, Distance(random(B, J, D), 2.0)):
        expected = similarity.logits(votes.dense()) + votes.evidence()
        torch.testing.assert_close(votes.logits(similarity), expected)
        torch.testing.assert_close(
            votes.moments(similarity).mass, expected.softmax(-1).sum(1)
        )
    with pytest.raises(TypeError, match="similarity must be None or a torchcaps"):
        votes.moments(torch.zeros(B, I, J))


def test_what_it_does_not_change() -> None:
    plain = Votes(random(B, I, P), random(I, J, P, D))
    votes = EvidentVotes(plain, random(I, J, P), random(I, J))
    for method in ("total", "gram", "dense"):
        torch.testing.assert_close(getattr(votes, method)(), getattr(plain, method)())
    alpha = InnerProduct(random(B, J, D))
    biased = votes.with_bias(random(I, J, D))
    bias = random(I, J, D)
    torch.testing.assert_close(
        biased.logits(alpha), plain.with_bias(bias).logits(alpha) + votes.evidence()
    )


@pytest.mark.parametrize("places", [1, I // 2])
def test_it_reads_the_poses_that_votes_are_formed_of(places: int) -> None:
    children = random(B, I, P)
    transforms = random(I // places, J, P, D)
    evidence = random(I // places, J, P), random(I // places, J)
    standard = torch.nn.functional.layer_norm(children, (P,), eps=0.1)
    votes = EvidentVotes(
        Votes(children, transforms, places=places, epsilon=0.1), *evidence
    )
    expected = EvidentVotes(Votes(standard, transforms, places=places), *evidence)
    torch.testing.assert_close(votes.evidence(), expected.evidence())
    mean = random(B, J, D)
    for similarity in (None, InnerProduct(mean), Distance(mean, 2.0)):
        torch.testing.assert_close(
            votes.moments(similarity).sum, expected.moments(similarity).sum
        )
        torch.testing.assert_close(
            votes.logits(similarity), expected.logits(similarity)
        )


class TestLayers:
    def test_places_that_share_transforms_share_it(self) -> None:
        routing = create_routing("kmeans", evidence=True)
        layers: list[tuple[Any, int]] = [
            (CapsLinear(I, J, P, D, routing=routing), I),
            (CapsLinear(None, J, P, D, transforms="shared", routing=routing), 1),
            (CapsLinear(None, J, P, D, transforms="subspace", routing=routing), 1),
            (ClassCaps(8, J, P, D, routing=routing), 8),
        ]
        for layer, types in layers:
            assert layer.routing.local_evidence.weight.shape == (types, J, P)

    def test_class_capsules_read_the_weights_of_each_type(self) -> None:
        layer = ClassCaps(
            2,
            J,
            P,
            D,
            routing=create_routing("kmeans", evidence=True),
            coordinates=False,
        ).double()
        children = Capsules(random(1, 2, 3, 2, P), torch.ones(1, 2, 3, 2))
        evidence = layer.route(children).votes.evidence()
        weight, bias = layer.routing.local_evidence.parameters()
        for place, (y, x, t) in enumerate(
            (y, x, t) for y in range(2) for x in range(3) for t in range(2)
        ):
            torch.testing.assert_close(
                evidence[0, place], children.pose[0, y, x, t] @ weight[t].T + bias[t]
            )

    @every
    def test_a_head_learns_it(self, name: str) -> None:
        head = CapsHead(J, types=4, dim=P, routing=create_routing(name, evidence=True))
        head(torch.randn(3, 16, 2, 2)).activation.square().sum().backward()
        for parameter in head.class_caps.routing.get_submodule(
            "local_evidence"
        ).parameters():
            assert parameter.grad is not None
            assert parameter.grad.abs().sum() > 0

    @THOROUGH
    def test_it_is_exported_with_any_batch(self) -> None:
        layer = CapsLinear(
            None,
            16,
            P,
            8,
            transforms="shared",
            routing=create_routing("euclidean", evidence=True),
        )
        batch = {0: torch.export.Dim("batch")}
        program = torch.export.export(
            layer, (torch.randn(2, 9, P),), dynamic_shapes=(batch,)
        )
        children = torch.randn(7, 9, P)
        torch.testing.assert_close(program.module()(children), layer(children))

    @THOROUGH
    def test_it_is_compiled_as_one_graph(self) -> None:
        layer = CapsLinear(I, J, P, D, routing=create_routing("kmeans", evidence=True))
        children = torch.randn(2, I, P)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(children).pose, layer(children).pose)

    def test_a_network_is_saved_with_it(self, tmp_path: Path) -> None:
        routing = create_routing("kmeans", evidence=True)
        network = create_model(
            "sharedcapsnet",
            image_shape=(1, 16, 16),
            classes=3,
            channels=(4, 4, 8, 8),
            routing=routing,
        )
        network.eval().save_pretrained(tmp_path)
        images = torch.rand(2, 1, 28, 28)
        torch.testing.assert_close(
            load_pretrained(tmp_path)(images).activation, network(images).activation
        )


def test_errors_name_what_does_not_fit() -> None:
    votes = Votes(random(B, I, P), random(I, J, P, D))
    with pytest.raises(RuntimeError, match="no parameters yet"):
        create_routing("kmeans", evidence=True)(votes)
    for weight, bias, named in (
        (random(4, J, P), random(4, J), "weights of the evidence must be"),
        (random(I, J + 1, P), random(I, J + 1), "weights of the evidence must be"),
        (random(I, J, P + 1), random(I, J), "weights of the evidence must be"),
        (random(I, J, P), random(1, J), "biases of the evidence must be"),
    ):
        with pytest.raises(ValueError, match=named):
            EvidentVotes(votes, weight, bias)
    with pytest.raises(ValueError, match="types must divide the 6 children, got 4"):
        LayerShape(6, J, (P,), (D,), types=4)

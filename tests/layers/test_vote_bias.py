"""A layer of capsules cannot tell a child from its negative; a bias of the votes, or
evidence, cures it.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchcaps import (
    CapsConv1d,
    CapsConv2d,
    CapsLinear,
    Capsules,
    ClassCaps,
    create_routing,
    list_routings,
)
from torchcaps.layers import LocalCaps, preserve_deviation
from torchcaps.routing import Routing
from torchcaps.testing import check_layer

BLIND = {
    *(
        "degree_centrality",
        "dynamic",
        "em",
        "euclidean",
        "fast_kernel_density",
        "hard_kmeans",
        "kernel_density",
    ),
    *(
        "kmeans",
        "max_min",
        "mean",
        "self_attention",
        "sparse_attention",
        "spectral",
        "variational_bayes",
    ),
}
"""Similarity, update and activation of these change sign with the votes, or do not
change at all. The others compare children or votes with something learned: an affine
map, a bias, or a prototype.
"""

WITHOUT_VOTES = {"heinsen_2022", "homogeneous", "slots", "slot_mixture"}
I = 6
J = 4
P = 5
D = 5
Make = Callable[..., nn.Module]
MAKERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "full": (lambda **options: CapsLinear(I, J, P, D, **options), (I, P)),
    "matrices": (
        lambda **options: CapsLinear(I, J, (2, P), (2, 3), **options),
        (I, 2, P),
    ),
    "shared": (
        lambda **options: CapsLinear(None, J, P, D, transforms="shared", **options),
        (I, P),
    ),
    "orthogonal": (
        lambda **options: CapsLinear(I, J, P, D, transforms="orthogonal", **options),
        (I, P),
    ),
    "subspace": (
        lambda **options: CapsLinear(None, J, P, D, transforms="subspace", **options),
        (I, P),
    ),
    "windows": (
        lambda **options: CapsConv2d(2, 4, (2, P), (2, 3), 2, padding=1, **options),
        (3, 3, 2, 2, P),
    ),
    "sequence": (
        lambda **options: CapsConv1d(2, 3, P, D, 2, competition="window", **options),
        (4, 2, P),
    ),
    "class": (
        lambda **options: ClassCaps(2, J, (2, P), (2, 3), **options),
        (3, 2, 2, 2, P),
    ),
    "local": (
        lambda **options: LocalCaps(2, 3, P, D, resolution="double", **options),
        (3, 2, 2, P),
    ),
}
every_layer = pytest.mark.parametrize("layer", MAKERS)


def make(layer: str, routing: Routing, vote_bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return MAKERS[layer][0](routing=routing, vote_bias=vote_bias)


def children_of(layer: str) -> Capsules:
    *sites, _ = shape = MAKERS[layer][1]
    sites = sites[:-1] if layer in ("matrices", "windows", "class") else sites
    generator = torch.Generator().manual_seed(1)
    return Capsules(
        torch.randn(2, *shape, generator=generator),
        torch.rand(2, *sites, generator=generator),
    )


def learned(layer: nn.Module) -> nn.Module:
    """The layer with other numbers in its biases and the parameters of its routing, as
    after training.
    """
    generator = torch.Generator().manual_seed(2)
    routing = [
        parameter
        for module in layer.modules()
        if isinstance(module, Routing)
        for parameter in module.parameters()
    ]
    biases = [] if layer.bias is None else [layer.bias]
    for parameter in (*routing, *biases):
        parameter.data += torch.randn(parameter.shape, generator=generator) / 2
    return layer.eval()


@torch.no_grad()
def of_both_signs(name: str, **options: bool) -> tuple[Tensor, Tensor]:
    """Activations of the parents of some children, and of their negatives."""
    layer = "subspace" if name == "interests" else "full"
    bias = options.pop("vote_bias", False)
    network = learned(make(layer, create_routing(name, **options), bias))
    children = children_of(layer)
    return network(children).activation, network(
        Capsules(-children.pose, children.activation)
    ).activation


@pytest.mark.parametrize("name", list_routings())
def test_which_routings_tell_a_child_from_its_negative(name: str) -> None:
    activation, opposite = of_both_signs(name)
    assert torch.equal(activation, opposite) == (name in BLIND)  # to the last bit


@pytest.mark.parametrize("name", sorted({*list_routings()} - WITHOUT_VOTES))
def test_with_a_bias_all_do(name: str) -> None:
    activation, opposite = of_both_signs(name, vote_bias=True)
    assert (activation - opposite).abs().max() > 1e-4


@pytest.mark.parametrize("name", sorted(BLIND))
def test_they_do_from_the_start(name: str) -> None:
    layer = make("full", create_routing(name)).eval()
    children = children_of("full")
    with torch.no_grad():
        opposite = layer(Capsules(-children.pose, children.activation))
        assert not torch.equal(layer(children).activation, opposite.activation)


@pytest.mark.parametrize("name", ["dynamic", "em", "euclidean", "kmeans"])
def test_and_with_evidence(name: str) -> None:
    activation, opposite = of_both_signs(name, evidence=True)
    assert (activation - opposite).abs().max() > 1e-4


@every_layer
def test_each_vote_has_its_bias(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a routing gets, with the bias and without, differs by it; transforms are
    drawn alike.
    """
    seen: list[Tensor] = []
    forward = Routing.forward

    def look(self, votes, activation=None, **options):
        present = votes.gather(
            torch.ones(votes.poses.shape[:2]) if votes.mask is None else votes.mask
        ).bool()
        seen.append(votes.dense().masked_fill(~present[..., None, None], torch.nan))
        return forward(self, votes, activation, **options)

    monkeypatch.setattr(Routing, "forward", look)
    biased, plain = (
        make(layer, create_routing("mean"), vote_bias) for vote_bias in (True, False)
    )
    assert "bias" not in plain.state_dict()
    torch.testing.assert_close(biased.weight, plain.weight)
    assert (
        0 < biased.bias.abs().max() < plain.weight.std()
    )  # small beside the transforms
    biased(children_of(layer))
    half = len(seen)
    plain(children_of(layer))
    biases = []
    for votes, without in zip(seen[:half], seen[half:], strict=True):
        difference = votes - without  # [B, I, J, H]
        biases.append(difference.nanmean(0))
        expected = torch.where(difference.isnan(), difference, biases[-1])
        torch.testing.assert_close(
            difference, expected, atol=1e-5, rtol=1e-5, equal_nan=True
        )
    torch.testing.assert_close(torch.cat(biases).abs().max(), biased.bias.abs().max())


@pytest.mark.parametrize(
    "layer",
    [
        layer
        if layer in ("matrices", "windows")
        else pytest.param(layer, marks=pytest.mark.thorough)
        for layer in MAKERS
    ],
)
@pytest.mark.parametrize(
    "name", ["self_routing", pytest.param("dynamic", marks=pytest.mark.thorough)]
)
def test_it_holds_what_holds_for_every_layer(layer: str, name: str) -> None:
    check_layer(make(layer, create_routing(name)), children_of(layer))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("matrices", "kmeans"),
        pytest.param("matrices", "euclidean", marks=pytest.mark.thorough),
        pytest.param("windows", "kmeans", marks=pytest.mark.thorough),
        pytest.param("windows", "euclidean", marks=pytest.mark.thorough),
    ],
)
def test_beside_evidence(layer: str, name: str) -> None:
    routing = create_routing(name, evidence=True)
    check_layer(make(layer, routing), children_of(layer))


def test_initial_scales_hold_for_it_too() -> None:
    layer = CapsConv2d(2, 2, 4, 4, 2, routing=create_routing("mean"), vote_bias=True)
    before = layer.weight.std(), layer.bias.std()
    preserve_deviation(
        layer, Capsules(torch.randn(4, 4, 4, 2, 4), torch.rand(4, 4, 4, 2))
    )
    torch.testing.assert_close(
        layer.bias.std() / before[1], layer.weight.std() / before[0]
    )
    assert not torch.allclose(layer.bias.std(), before[1])


@pytest.mark.parametrize("name", sorted(WITHOUT_VOTES))
def test_there_is_none_without_votes(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"vote_bias must be False with \w+, which forms no votes"
    ):
        CapsLinear(I, J, P, D, routing=create_routing(name), vote_bias=True)

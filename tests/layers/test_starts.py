"""The length of class capsules before a training: neither saturated nor dead, whatever
the layer and its features.
"""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

import torchcaps as tc
from torchcaps.layers import balanced_length, preserve_deviation, start_length


def start(
    classes: int,
    positions: int,
    scale: float = 1.0,
    routing: str = "dynamic",
    types: int = 8,
) -> Tensor:
    """Activations of a head after its first batch, for features that it has not
    seen.
    """
    torch.manual_seed(0)
    head = tc.CapsHead(
        classes, types=types, dim=4, pose_dim=8, routing=tc.create_routing(routing)
    )
    with torch.no_grad():
        head(scale * torch.randn(4, positions, 16))
        return head(scale * torch.randn(4, positions, 16)).activation


@pytest.mark.parametrize(
    "routing", ["dynamic", "kmeans", "euclidean", "self_attention", "mean", "max_min"]
)
@pytest.mark.parametrize(
    ("classes", "positions"), [(2, 1), (2, 400), (10, 49), (50, 49), (168, 49)]
)
def test_it_is_the_balanced_length(classes: int, positions: int, routing: str) -> None:
    """Where the largest mean length is 1, at most half of that."""
    wanted = min(balanced_length(classes), 0.5)
    assert (
        0.7 * wanted
        < float(start(classes, positions, routing=routing).mean())
        < 1.5 * wanted
    )


@pytest.mark.parametrize("classes", [2, 10, 168])
def test_at_the_balanced_length_the_margin_loss_pulls_neither_way(classes: int) -> None:
    lengths = torch.full(
        (classes, classes),
        balanced_length(classes),
        dtype=torch.float64,
        requires_grad=True,
    )
    tc.margin_loss(lengths, torch.arange(classes)).backward()
    torch.testing.assert_close(
        lengths.grad.sum(), torch.zeros((), dtype=torch.float64), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("routing", ["dynamic", "kmeans", "em"])
def test_no_scale_of_the_features_changes_it(routing: str) -> None:
    means = [
        float(start(10, 20, scale, routing).mean()) for scale in (0.01, 1.0, 100.0)
    ]
    assert max(means) < 1.1 * min(means)


@pytest.mark.parametrize("classes", [2, 10, 168])
@pytest.mark.parametrize("positions", [1, 375])
def test_probabilities_of_em_are_open(classes: int, positions: int) -> None:
    assert 0.1 <= float(start(classes, positions, routing="em").mean()) <= 0.9


def test_few_children_of_many_parents_give_less_and_not_nothing() -> None:
    """Eight children fill eight parents of a thousand: the mean is at most 0.008, and
    the start is half of it.
    """
    lengths = start(1000, 1)
    assert 0.001 < float(lengths.mean()) < 0.008
    assert float(lengths.max()) < 0.9


def learned(classes: int, steps: int) -> float:
    """The accuracy of a head after some steps of Adam, on features that a linear layer
    separates.
    """
    torch.manual_seed(0)
    target = torch.arange(classes).repeat(2)
    features = torch.randn(classes, 64)[target] + 0.3 * torch.randn(2 * classes, 64)
    maps = features[..., None] + 0.3 * torch.randn(2 * classes, 64, 4)
    head = tc.CapsHead(classes, types=4, dim=8, pose_dim=8)
    head(maps.mT)
    optimizer = torch.optim.Adam(head.parameters(), 0.01)
    for _ in range(steps):
        rows = torch.randint(len(target), (64,))
        optimizer.zero_grad()
        tc.margin_loss(head(maps[rows].mT).activation, target[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return float((head(maps.mT).activation.argmax(1) == target).float().mean())


@pytest.mark.parametrize("positions", [16, 256])
def test_one_learning_rate_fits_few_and_many_positions(positions: int) -> None:
    """One step of Adam made all classes of 256 positions as long as can be."""
    torch.manual_seed(0)
    head = tc.CapsHead(3, types=4)
    labels = torch.arange(24) % 3
    features = torch.rand(24, positions, 16)
    features[torch.arange(24), torch.randint(positions, (24,))] += labels[:, None]
    head(features)
    optimizer = torch.optim.Adam(head.parameters(), 0.01)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        losses.append(tc.margin_loss(head(features).activation, labels))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]


@pytest.mark.thorough
def test_168_classes_learn_by_the_margin_loss() -> None:
    assert learned(168, 100) >= 0.9


class TestFirstBatch:
    @pytest.mark.parametrize(
        "features",
        [
            torch.zeros(1, 9),
            torch.zeros(0, 9),
            torch.full((2, 9), torch.nan),
            torch.randn(1, 9),
        ],
    )
    def test_of_any_numbers(self, features: Tensor) -> None:
        head = tc.CapsHead(3)
        head(features)
        assert head.class_caps.weight.isfinite().all()
        assert head.class_caps.weight.std() > 0
        assert 0.1 < float(head(torch.randn(8, 9)).activation.detach().mean()) < 0.8

    def test_one_example_that_is_not_finite_does_not_count(self) -> None:
        features = torch.randn(4, 9)
        features[1, 2] = torch.inf
        head = tc.CapsHead(3)
        head(features)
        assert float(
            head(torch.randn(8, 9)).activation.detach().mean()
        ) == pytest.approx(balanced_length(3), rel=0.5)

    def test_of_a_head_for_other_classes_than_those_of_the_weights(self) -> None:
        trained = tc.CapsHead(5)
        trained(torch.randn(4, 9))
        state = {
            name: tensor
            for name, tensor in trained.state_dict().items()
            if "class_caps" not in name
        }
        head = tc.CapsHead(3)
        head.load_state_dict(state, strict=False)
        features = torch.randn(8, 9)
        assert float(head(features).activation.detach().mean()) == pytest.approx(
            balanced_length(3), rel=0.5
        )
        assert torch.equal(head.primary.weight, trained.primary.weight)

    def test_the_same_seed_gives_the_same_start(self) -> None:
        weights = []
        for _ in range(2):
            torch.manual_seed(3)
            head = tc.CapsHead(3)
            head(torch.randn(4, 9))
            weights.append(head.class_caps.weight)
        assert torch.equal(*weights)

    def test_statistics_of_the_routing_stay(self) -> None:
        layer = tc.CapsLinear(
            12, 3, 4, 8, routing=tc.create_routing("variational_bayes")
        )
        before = {
            name: value.clone() for name, value in layer.routing.state_dict().items()
        }
        start_length(layer, tc.Capsules(torch.randn(5, 12, 4), torch.ones(5, 12)))
        assert all(
            torch.equal(value, before[name])
            for name, value in layer.routing.state_dict().items()
        )


def test_any_layer_can_be_started() -> None:
    torch.manual_seed(0)
    children = tc.Capsules(torch.randn(16, 600, 8), torch.ones(16, 600))
    layer = tc.CapsLinear(600, 10, 8, 16)
    before = layer.weight.detach().clone()
    factor = start_length(layer, children)
    assert torch.equal(layer.weight, before * factor)
    lengths = [
        start_length(layer, children, target) and layer(children).activation.mean()
        for target in (0.1, 0.3, 0.6)
    ]
    assert all(
        first < second
        for first, second in pairwise(float(length.detach()) for length in lengths)
    )
    with pytest.raises(ValueError, match="target must be"):
        start_length(layer, children, 0.0)


def test_poses_alone_start_a_layer_that_takes_them() -> None:
    poses = torch.randn(2, 600, 8)
    layer = tc.CapsLinear(600, 10, 8, 16)
    start_length(layer, poses)
    mean = float(layer(poses).activation.detach().mean())
    assert mean == pytest.approx(balanced_length(10), rel=0.1)
    with pytest.raises(TypeError, match="children must be Capsules"):
        start_length(tc.ClassCaps(6, 10, 8, 16), torch.randn(4, 5, 5, 6, 8))


def test_biases_of_votes_are_scaled_with_the_transforms() -> None:
    layer = tc.CapsLinear(600, 10, 8, 16, vote_bias=True)
    children = tc.Capsules(torch.randn(4, 600, 8), torch.ones(4, 600))
    weight = layer.weight.detach().clone()
    bias = layer.bias.detach().clone()
    factor = start_length(layer, children)
    assert factor != 1
    torch.testing.assert_close(layer.weight, weight * factor)
    torch.testing.assert_close(layer.bias, bias * factor)
    assert layer(children).activation.mean().item() == pytest.approx(
        balanced_length(10), rel=0.1
    )


def test_transforms_behind_a_parametrization_are_scaled() -> None:
    torch.manual_seed(0)
    children = tc.Capsules(torch.randn(4, 5, 5, 6, 8), torch.ones(4, 5, 5, 6))
    linear = weight_norm(tc.CapsLinear(None, 10, 8, 16, transforms="shared"))
    start_length(linear, children)
    mean = float(linear(children).activation.detach().mean())
    assert mean == pytest.approx(balanced_length(10), rel=0.1)
    convolution = weight_norm(tc.CapsConv2d(6, 6, 8, 8, 3, routing="mean"))
    preserve_deviation(convolution, children)
    assert float(convolution(children).pose.detach().std()) == pytest.approx(1, 0.05)


def test_transforms_that_a_hook_computes_cannot_be_scaled() -> None:
    children = tc.Capsules(torch.randn(4, 5, 5, 6, 8), torch.ones(4, 5, 5, 6))
    linear = tc.CapsLinear(None, 10, 8, 16, transforms="shared")
    convolution = tc.CapsConv2d(6, 6, 8, 8, 3, routing="mean")
    for layer, scale in ((linear, start_length), (convolution, preserve_deviation)):
        prune.identity(layer, "weight")
        with pytest.raises(ValueError, match=r"the weight of .* is computed"):
            scale(layer, children)

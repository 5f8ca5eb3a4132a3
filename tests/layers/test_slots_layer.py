"""Slots on features of any kind, and the code of positions."""

from typing import Any

import pytest
import torch

import torchcaps as tc
from torchcaps.layers.slots import positions
from torchcaps.routing import MeanRouting, SlotStart


def test_two_lines_on_features_of_any_size() -> None:
    slots = tc.Slots(7, dim=16)
    capsules = slots(torch.randn(2, 30, 5))
    assert capsules.pose.shape == (2, 7, 16)
    torch.testing.assert_close(capsules.activation.sum(1), torch.ones(2))


def test_maps_and_sequences_of_the_same_features_give_the_same_slots() -> None:
    slots = tc.Slots(3, dim=8).eval()
    maps = torch.randn(2, 8, 4, 5)
    torch.testing.assert_close(slots(maps), slots(maps.flatten(2).mT))


def test_capsules_that_are_off_count_for_nothing() -> None:
    slots = tc.Slots(3, features=6, dim=8).eval()
    pose = torch.randn(2, 4, 5, 2, 3)
    off = torch.rand(2, 4, 5) < 0.3
    capsules = tc.Capsules(pose, torch.where(off, 0.0, 1.0))
    changed = tc.Capsules(torch.where(off[..., None, None], 9.0, pose), capsules[1])
    torch.testing.assert_close(slots(capsules), slots(changed))


def test_a_mask_leaves_features_out() -> None:
    slots = tc.Slots(3, features=6, dim=8).eval()
    features = torch.randn(2, 9, 6)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, 5:] = False
    expected = slots(features[:, :5])
    features[:, 5:] = torch.nan
    torch.testing.assert_close(slots(features, mask), expected)
    assert not slots.route(features, mask).assignment[:, 5:].any()


def test_a_mask_of_a_map_has_its_places() -> None:
    slots = tc.Slots(3, features=6, dim=8).eval()
    maps = torch.randn(2, 6, 4, 5)
    mask = torch.rand(2, 4, 5) < 0.6
    expected = slots(maps.flatten(2).mT, mask.flatten(1))
    torch.testing.assert_close(slots(maps, mask), expected)
    torch.testing.assert_close(slots(maps, mask.flatten(1)), expected)
    for wrong in (mask.mT, mask[:, None], mask.flatten(), mask[..., :4]):
        with pytest.raises(ValueError, match=r"mask must be bool \(2, (20|4, 5)\)"):
            slots(maps, wrong)
    with pytest.raises(ValueError, match=r"mask must be bool \(2, 20\)"):
        slots(maps.flatten(2).mT, mask.mT)


def test_features_that_are_not_there_reach_no_gradient() -> None:
    slots = tc.Slots(3, dim=8)
    features = torch.randn(2, 9, 6)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 5:] = False
    features[0, 5:] = torch.nan
    slots(features, mask).pose.square().sum().backward()
    for name, weight in slots.named_parameters():
        assert weight.grad is None or weight.grad.isfinite().all(), name


@pytest.mark.parametrize("routing", ["heinsen_2022", "homogeneous"])
def test_a_routing_with_weights_of_each_slot_takes_no_other_number(
    routing: str,
) -> None:
    slots = tc.Slots(5, dim=8, features=8, routing=routing)
    with pytest.raises(ValueError, match="has parameters for 5 parents, got votes for"):
        slots(torch.randn(2, 6, 8), slots=7)


def test_the_frame_before_is_where_slots_start() -> None:
    frames = torch.randn(2, 3, 12, 6)
    slots = tc.Slots(3, features=6, dim=8).eval()
    before = slots.route(frames[:, 0])
    after = slots(frames[:, 1], initial=before)
    assert not torch.allclose(after.pose, slots(frames[:, 1]).pose)


def test_more_slots_than_in_training_start_behind_the_others() -> None:
    for size in (5, 20, 64):
        start = SlotStart("normal", 3, size).eval()
        few, many = (start(2, slots, torch.float32) for slots in (3, 5))
        torch.testing.assert_close(many[:, :3], few, rtol=0, atol=0)


def test_weights_and_start_come_back_with_the_state() -> None:
    features = torch.randn(2, 9, 6)
    first = tc.Slots(3, dim=8).eval()
    expected = first(features)
    again = tc.Slots(3, dim=8).eval()
    again.load_state_dict(first.state_dict())
    torch.testing.assert_close(again(features), expected)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.randn(2, 9), "features must be .B, I, D. or maps"),
        (torch.randn(2, 9, 5), "features must have 6 numbers each, got 5"),
        (torch.randn(2, 0, 6), "features must be at least one, got none"),
        (torch.ones(2, 9, 6, dtype=torch.int64), "floating point, got torch.int64"),
    ],
)
def test_features_that_do_not_fit(features: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tc.Slots(3, features=6, dim=8)(features)


def test_other_mistakes() -> None:
    wrong: Any = [1.0]
    with pytest.raises(TypeError, match="features must be a tensor or Capsules, got l"):
        tc.Slots(3)(wrong)
    with pytest.raises(ValueError, match=r"routing must have transforms.*MeanRouting"):
        tc.Slots(3, routing=MeanRouting())
    with pytest.raises(ValueError, match=r"slots must be .* got 0"):
        tc.Slots(0)
    with pytest.raises(ValueError, match=r"maps must be \(B, 4, H, W\), got \(2, 3"):
        tc.PositionCode(4)(torch.zeros(2, 3, 5, 5))


def test_coordinates_go_from_edge_to_edge() -> None:
    grid = positions(3, 5)
    torch.testing.assert_close(grid[0, 0], torch.tensor([0.0, 0.0, 1.0, 1.0]))
    torch.testing.assert_close(grid[2, 4], torch.tensor([1.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(grid[1, 1], torch.tensor([0.5, 0.25, 0.5, 0.75]))
    double = positions(4, 4, torch.float64)
    thirds = torch.tensor([1, 2, 2, 1], dtype=torch.float64) / 3
    torch.testing.assert_close(double[1, 2], thirds, rtol=1e-12, atol=0)


def test_equal_features_in_different_places_are_told_apart() -> None:
    maps = torch.ones(1, 8, 6, 6)
    slots = tc.Slots(4, dim=8, features=8).eval()
    alike = slots.route(maps).assignment
    torch.testing.assert_close(alike, alike[:, :1].expand_as(alike))
    apart = slots.route(tc.PositionCode(8)(maps)).assignment
    assert (apart - apart[:, :1]).abs().max() > 1e-4


ROUTINGS = [
    (name, start, gru)
    for name in ("slots", "slot_mixture")
    for start in ("normal", "queries")
    for gru in (True, False)
]


@pytest.mark.parametrize(("name", "start", "gru"), ROUTINGS)
class TestPermutations:
    """Slots are exchangeable, and features have no order: a proof by induction over the
    steps holds for any weights, so the weights here are random.
    """

    @staticmethod
    def layer(name: str, start: str, gru: bool) -> tc.Slots:
        torch.manual_seed(0)
        routing = tc.create_routing(name, start=start, gru=gru)
        layer = tc.Slots(5, features=6, dim=8, routing=routing).double().eval()
        with torch.no_grad():
            for weight in layer.parameters():
                weight.copy_(torch.randn_like(weight))
        return layer

    def test_slots_in_another_order_are_the_same_slots(
        self, name: str, start: str, gru: bool
    ) -> None:
        layer = self.layer(name, start, gru)
        order = torch.tensor([3, 0, 4, 1, 2])
        features = torch.randn(2, 9, 6, dtype=torch.float64)
        before = layer.route(features)
        first: Any = layer.routing.first
        starts = first.queries if start == "queries" else first.noise
        with torch.no_grad():
            starts.copy_(starts[order].clone())
        after = layer.route(features)
        torch.testing.assert_close(after.pose, before.pose[:, order])
        torch.testing.assert_close(after.activation, before.activation[:, order])
        torch.testing.assert_close(after.assignment, before.assignment[:, :, order])
        assert not torch.allclose(after.pose, before.pose)

    def test_features_in_another_order_give_the_same_slots(
        self, name: str, start: str, gru: bool
    ) -> None:
        layer = self.layer(name, start, gru)
        order = torch.randperm(9)
        features = torch.randn(2, 9, 6, dtype=torch.float64)
        before = layer.route(features)
        after = layer.route(features[:, order])
        torch.testing.assert_close(after.pose, before.pose)
        torch.testing.assert_close(after.activation, before.activation)
        torch.testing.assert_close(after.assignment, before.assignment[:, order])
        assert before.assignment.std() > 0.01


def test_an_argument_of_the_routing_is_sent_to_it() -> None:
    """Other packages take it in the layer."""
    with pytest.raises(TypeError, match=r"routing=create_routing\(NAME, steps=...\)"):
        tc.Slots(4, steps=3)


def test_a_tensor_is_no_result_to_start_from() -> None:
    slots = tc.Slots(4, 8)
    features = torch.randn(2, 5, 8)
    with pytest.raises(TypeError, match=r"initial must be what route\(\) .*got Tensor"):
        slots(features, initial=torch.randn(2, 4, 8))
    assert slots(features, initial=slots.route(features)).pose.shape == (2, 4, 8)


@pytest.mark.parametrize("routing", ["slots", "slot_mixture"])
@pytest.mark.parametrize("count", [5, 40])
def test_as_many_activations_as_features(routing: str, count: int) -> None:
    """Kernels would read what is not there."""
    layer = tc.Slots(4, dim=8, features=8, routing=routing)
    features = tc.Capsules(torch.randn(2, 20, 8), torch.rand(2, count))
    with pytest.raises(ValueError, match="a number for each child"):
        layer(features)

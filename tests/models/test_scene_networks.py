"""Networks of scenes: where classes are, in images of any size."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import label
from torch import Tensor

from torchcaps import Capsules, create_model, create_routing
from torchcaps.models import Places, Prediction, box_iou, boxes_of_maps
from torchcaps.models.scene_capsnet import _agreeing, _components
from torchcaps_lab.report import Observation, Selection

SMALL = {
    "image_shape": (1, 32, 32),
    "classes": 4,
    "channels": (3, 5),
}


def network(name: str = "scene_capsnet", **more: Any) -> Any:
    torch.manual_seed(0)
    model = create_model(name, **{**SMALL, **more})
    with torch.no_grad():
        for module in model.modules():
            if isinstance(
                module, torch.nn.BatchNorm2d
            ):  # not those of a network that saw nothing yet
                module.running_mean.uniform_(-0.2, 0.2)
                module.running_var.uniform_(0.1, 0.3)
    return model.eval()


def noise(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("dtype", "side"), [(torch.float16, 400), (torch.uint8, 255)], ids=str
)
def test_overlaps_of_boxes_whose_area_the_dtype_does_not_hold(
    dtype: torch.dtype, side: int
) -> None:
    boxes = torch.tensor([[0, 0, side, side], [100, 100, 50, 50]], dtype=dtype)
    assert box_iou(boxes, boxes).tolist() == [1.0, 0.0]


class TestBoxesOfMaps:
    @pytest.mark.parametrize("cut", [0.0, 0.2, 0.7])
    def test_a_box_that_is_filled_evenly_is_found_again(self, cut: float) -> None:
        maps = torch.zeros(1, 2, 9, 12, dtype=torch.float64)
        maps[0, 0, 2:5, 3:10] = 0.6
        maps[0, 1, 7, 11] = 2.0
        boxes = boxes_of_maps(maps, 4.0, cut)
        assert torch.allclose(
            boxes[0], torch.tensor([[12.0, 8, 40, 20], [44, 28, 48, 32]]).double()
        )

    def test_half_precision_costs_no_pixels(self) -> None:
        maps = noise(1, 2, 40, 30).half()
        expected = boxes_of_maps(maps.double(), 16.0).float()
        with torch.autocast("cpu", torch.bfloat16):
            for dtype in (torch.float16, torch.float32):
                boxes = boxes_of_maps(maps.to(dtype), 16.0)
                torch.testing.assert_close(boxes, expected, rtol=1e-5, atol=1e-3)

    def test_by_the_book(self) -> None:
        maps = noise(2, 3, 5, 6).double()
        boxes = boxes_of_maps(maps, 8.0, 0.3)
        for image in range(2):
            for number in range(3):
                weights = (
                    maps[image, number] - 0.3 * maps[image, number].max()
                ).clamp_min(0)
                weights = weights / weights.sum()
                x = sum(
                    weights[i, j] * 8 * (j + 0.5) for i in range(5) for j in range(6)
                )
                spread = sum(
                    weights[i, j] * (8 * (j + 0.5) - x) ** 2
                    for i in range(5)
                    for j in range(6)
                )
                half = (3 * (spread + 64 / 12)) ** 0.5
                assert boxes[image, number, [0, 2]].tolist() == pytest.approx(
                    [(x - half).item(), (x + half).item()]
                )

    def test_a_cell_that_speaks_for_more_than_itself(self) -> None:
        maps = torch.zeros(1, 1, 5, 7, dtype=torch.float64)
        maps[0, 0, 2, 3] = 0.3
        for reach, side in ((1.0, 8), (3.0, 24), (1.5, 12)):
            box = boxes_of_maps(maps, 8.0, reach=reach)[0, 0]
            middle = torch.tensor([28.0, 20, 28, 20]).double()
            half = side / 2 * torch.tensor([-1.0, -1, 1, 1]).double()
            torch.testing.assert_close(box, middle + half)

    def test_nowhere(self) -> None:
        maps = torch.zeros(1, 2, 3, 3, requires_grad=True)
        boxes = boxes_of_maps(maps, 8.0)
        assert (boxes == 0).all()
        boxes.sum().backward()
        assert (maps.grad == 0).all()


class TestMaps:
    def test_what_the_assignment_leaves_of_the_activations(self) -> None:
        net = network()
        images = noise(2, 1, 32, 24)
        with torch.no_grad():
            maps = net.maps_of(images)
            children = net.children_of(images)
            share = net.route(images).assignment.unflatten(1, (8, 6))
            leaks = 1 - share.sum(-1)
            expected = (share - leaks[..., None]).clamp_min(0) * children.activation[
                ..., None
            ]
            assert torch.allclose(maps, expected.movedim(-1, 1))
            assert (maps > 0).any()
            (explained,) = Observation(net, Selection(images, images)).maps.values()
            assert torch.allclose(explained, share)

    def test_a_routing_without_leaks(self) -> None:
        net = network(routing=create_routing("kmeans"))
        images = noise(1, 1, 32, 32)
        with torch.no_grad():
            maps = net.maps_of(images)
            activation = net.children_of(images).activation
        assert torch.allclose(maps.sum(1), activation, atol=1e-5)

    def test_of_the_twin(self) -> None:
        net = network("scene_cnn")
        images = noise(2, 1, 32, 24)
        with torch.no_grad():
            scores = net.scores(net.features(images))
            prediction = net(images)
            assert torch.equal(net.maps_of(images), scores.relu())
            assert torch.allclose(
                prediction.activation, (scores.mean((2, 3)) + net.bias).sigmoid()
            )
            assert torch.equal(prediction.boxes, boxes_of_maps(scores.relu(), 4, 0.2))


class TestThings:
    @pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.9])
    def test_connected_parts(self, share: float) -> None:
        """Against SciPy, cell by cell, on maps that wind through each other."""
        present = (
            torch.rand(3, 4, 9, 13, generator=torch.Generator().manual_seed(0)) < share
        )
        components = _components(present)
        neighbours = np.ones((3, 3))
        labels = np.stack(
            [label(part, neighbours)[0] for part in present.flatten(0, 1).numpy()]
        ).reshape(present.shape)
        for mine, theirs in zip(
            components.flatten(0, 1),
            torch.from_numpy(labels).flatten(0, 1),
            strict=True,
        ):
            pairs = set(
                zip(mine.flatten().tolist(), theirs.flatten().tolist(), strict=True)
            )
            assert (
                len(pairs)
                == len({mine for mine, _ in pairs})
                == len({theirs for _, theirs in pairs})
            )

    def test_how_many_parts_a_map_has(self) -> None:
        maps = torch.zeros(1, 3, 5, 6)
        maps[0, 0, 0, 0] = maps[0, 0, 1, 1] = maps[0, 0, 4, 4] = maps[0, 1, 2, 2] = 1.0
        maps[0, 1, 4, 5] = 0.1  # below the cut
        net = network("scene_cnn", classes=3)
        net.maps_of = lambda images: maps
        assert net.parts_of(torch.zeros(1, 1, 20, 24)).tolist() == [[2, 1, 0]]

    def test_nothing_is_there(self) -> None:
        assert network().things_of(torch.zeros(2, 1, 32, 32), least=0.99) == [[], []]

    def test_each_class_that_is_there_has_one_at_least(self) -> None:
        net = network()
        images = noise(3, 1, 32, 40)
        with torch.no_grad():
            active = net(images).activation
        least = active.median().item()
        for things, mine in zip(net.things_of(images, least), active, strict=True):
            assert {thing.label for thing in things} == set(
                (mine > least).nonzero().flatten().tolist()
            )
            assert all(torch.equal(thing.pose[-4:], thing.box) for thing in things)


class TestThingsByVotes:
    def places(self, votes: Tensor, maps: Tensor) -> tuple[Any, Prediction]:
        net = network(boxes=True, classes=1)
        count = votes.shape[0]
        pose = noise(1, 1, count, net.child_dim)
        places = Places(
            Capsules(pose, torch.ones(1, 1, count)),
            maps.view(1, 1, 1, count),
            votes[None],
            torch.zeros(1, count, 2),
        )
        return net, Prediction(torch.ones(1, 1), None, None, None, places)

    def test_neighbours_that_vote_for_two_boxes_are_two_things(self) -> None:
        first = torch.tensor([0.0, 0, 10, 10])
        second = torch.tensor([10.0, 0, 20, 10])
        votes = torch.stack([first, first + 1, second, second - 1, second])
        net, prediction = self.places(votes, torch.ones(5))
        seen: list[Tensor] = []
        net.alone = lambda places, image, there: (
            seen.append(there)
            or Capsules(torch.zeros(len(there), 1, 20), torch.ones(len(there), 1))
        )
        assert len(net.things_in(prediction)[0]) == 2
        assert sorted(row.flatten().tolist() for row in seen[0]) == [
            [0, 0, 1, 1, 1],
            [1, 1, 0, 0, 0],
        ]
        net.overlap = None
        assert len(net.things_in(prediction)[0]) == 1

    def test_every_place_belongs_to_one_even_with_empty_boxes(self) -> None:
        groups = _agreeing(torch.ones(2, 3, 1, 4), torch.zeros(2, 4, 4), 0.3)
        assert torch.equal(groups.flatten(), torch.arange(24))
        assert (
            _agreeing(torch.zeros(2, 3, 1, 4), torch.ones(2, 4, 4), 0.3) == -1
        ).all()


class TestBoxes:
    def test_from_labels_alone(self) -> None:
        net = network(cut=0.5)
        images = noise(2, 1, 32, 32)
        with torch.no_grad():
            prediction = net(images)
            assert torch.allclose(
                prediction.boxes, boxes_of_maps(net.maps_of(images), 4, 0.5)
            )
        assert prediction.capsules.pose.shape == (2, 4, 16 + 4)
        assert torch.equal(prediction.capsules.pose[..., -4:], prediction.boxes)
        assert torch.equal(prediction.capsules.pose[..., :-4], net.route(images).pose)

    def test_of_votes_are_means_over_the_children_of_a_class(self) -> None:
        net = network(boxes=True)
        images = noise(2, 1, 24, 32)
        with torch.no_grad():
            net.sides.weight.normal_()
            maps = net.maps_of(images)
            boxes = net(images).boxes
            sides = net.sides(net.features(images)).exp() * 8
            for image in range(2):
                for number in range(4):
                    total = 0.0
                    box = torch.zeros(4)
                    for row in range(6):
                        for column in range(8):
                            x = 4 * column + 2
                            y = 4 * row + 2
                            weight = maps[image, number, row, column]
                            left, top, right, bottom = sides[image, :, row, column]
                            box += weight * torch.stack(
                                [x - left, y - top, x + right, y + bottom]
                            )
                            total += weight
                    assert torch.allclose(
                        boxes[image, number], box / total, rtol=1e-4, atol=1e-4
                    )

    @pytest.mark.parametrize("name", ["scene_capsnet", "scene_cnn", "boxes"])
    def test_move_with_what_they_hold(self, name: str) -> None:
        """Far from the edges, on a larger canvas; by whole cells."""
        net = network("scene_capsnet", boxes=True) if name == "boxes" else network(name)
        scene = torch.zeros(1, 1, 120, 96)
        scene[0, 0, 44:58, 40:52] = noise(14, 12)
        with torch.no_grad():
            maps = net.maps_of(scene)
            moved = net.maps_of(scene.roll((8, -4), (2, 3)))
        far = (slice(None), slice(None), slice(6, -6), slice(6, -6))
        assert torch.allclose(maps.roll((2, -1), (2, 3))[far], moved[far], atol=1e-5)

    def test_votes_learn(self) -> None:
        net = network(boxes=True).train()
        net(noise(2, 1, 32, 32)).boxes.sum().backward()
        for part in (net.sides, net.what, net.features[0]):
            assert part.weight.grad.isfinite().all()
            assert (part.weight.grad != 0).any()


class TestAnySize:
    @pytest.mark.parametrize("name", ["scene_capsnet", "scene_cnn"])
    def test_cells_that_are_not_whole_get_black(self, name: str) -> None:
        net = network(name)
        for height, width in ((33, 47), (5, 3), (1, 1)):
            images = noise(2, 1, height, width)
            padded = torch.zeros(
                2,
                1,
                -(-height // 4) * 4,
                -(-width // 4) * 4,
            )
            padded[:, :, :height, :width] = images
            with torch.no_grad():
                prediction = net(images)
                expected = net(padded)
            assert torch.equal(prediction.activation, expected.activation)
            assert torch.equal(prediction.boxes, expected.boxes)

    @pytest.mark.parametrize("boxes", [False, True])
    def test_nothing_to_see(self, boxes: bool) -> None:
        net = network(boxes=boxes)
        with torch.no_grad():
            net.what.weight.zero_()  # no child is active anywhere
            net.what.bias.zero_()
            prediction = net(torch.zeros(2, 1, 32, 32))
        assert (prediction.activation == 0).all()
        assert (prediction.boxes == 0).all()


@pytest.mark.parametrize("name", ["scene_capsnet", "scene_cnn"])
def test_reach(name: str) -> None:
    images = noise(2, 1, 32, 24)
    with torch.no_grad():
        near = network(name)
        far = network(name, reach=2.5)
        assert torch.equal(
            far(images).boxes, boxes_of_maps(far.maps_of(images), 4, 0.2, 2.5)
        )
        assert torch.equal(
            near(images).boxes, boxes_of_maps(near.maps_of(images), 4, 0.2)
        )

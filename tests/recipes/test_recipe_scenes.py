from dataclasses import replace

import pytest
import torch

from recipes.scenes import (
    fit_outlines,
    look_at_all,
    on_larger_canvases,
    peaks,
    segments,
)
from torchcaps.models import Prediction, create_model
from torchcaps_lab.data import Digits, class_boxes
from torchcaps_lab.data.boxes import INK
from torchcaps_lab.kinds.scenes.made import Scenery


def test_peaks_by_hand():
    maps = torch.zeros(1, 2, 3, 4)
    maps[0, 0, 2, 1] = maps[0, 1, 0, 3] = 1
    assert peaks(maps, 8).tolist() == [[[12, 20], [28, 4]]]


class TestSegments:
    scene = torch.tensor([[[[0.9, 0.9, 0.1, 0.9], [0.9, 0.9, 0.9, 0.9]]]])
    maps = torch.tensor([[[[4.0, 0]], [[0, 1.0]], [[0, 9.0]]]])
    predicted = torch.tensor([[True, True, False]])

    def test_bright_pixels_go_to_the_class_with_the_larger_share(self):
        actual = segments(self.scene, self.maps, self.predicted, 0.2)
        assert actual[0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
        assert actual[0, 1].int().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
        assert not actual[0, 2].any()  # is not said

    def test_below_the_cut_to_none(self):
        actual = segments(self.scene, self.maps, self.predicted, 0.9)
        assert actual.sum((2, 3)).tolist() == [[2, 2, 0]]

    def test_cells_that_speak_for_more_than_themselves(self):
        scene = torch.ones(1, 1, 5, 7)
        predicted = torch.tensor([[True, True]])
        maps = torch.zeros(1, 2, 5, 7)
        maps[0, 0, 2, 1] = 5.0
        maps[0, 1, 2, 6] = 1.0
        for reach, counts in (
            (1, [1, 1]),
            (3, [9, 6]),
            (4, [20, 15]),
        ):  # of 4 cells: a pixel and a half, hence 2
            actual = segments(scene, maps, predicted, 0.2, reach)
            assert actual.sum((2, 3)).tolist() == [counts]
        assert not actual[0, 0, :, 4:].any()


def some_scenes():
    digits = Digits().test.subset(torch.arange(20))
    return replace(
        digits, composition=Scenery(digits, (48, 48), 1, 1, 16, 24, clutter=0)
    )


@pytest.mark.parametrize("points", [False, True])
def test_outlines_are_those_that_fit(points):
    """Of maps that are the boxes themselves, and of maps that point at their
    middles.
    """
    scenes = some_scenes()

    class Sees(torch.nn.Module):
        classes, cell = 10, 4

        def forward(self, images):
            return Prediction(
                scenes.__getitems__(list(range(20))).labels.float(), None, None
            )

        def maps_of(self, images):
            boxes = class_boxes(scenes.__getitems__(list(range(20))).parts, 10)
            centres = 4 * torch.arange(12) + 2.0
            left, top, right, bottom = boxes[..., None].unbind(2)
            if points:
                left = right = ((left + right) / 8).floor() * 4 + 2
                top = bottom = ((top + bottom) / 8).floor() * 4 + 2
            across = (centres >= left) & (centres <= right)
            down = (centres >= top) & (centres <= bottom)
            return (down[..., None] & across[:, :, None]).float() * (boxes.sum(-1) > 0)[
                ..., None, None
            ]

    boxes, pixels = fit_outlines(Sees(), scenes)
    assert boxes.reach == (4.0 if points else 1.0)
    assert pixels.reach == (3.0 if points else 1.0)


def test_a_network_that_knows_is_right_in_all():
    scenes = some_scenes()

    class Knows(torch.nn.Module):
        """Says what is true of all 20 scenes at once."""

        classes, cell, cut = 10, 1, 0.5

        def forward(self, images):
            batch = scenes.__getitems__(list(range(20)))
            return Prediction(
                batch.labels.float(), None, None, class_boxes(batch.parts, 10)
            )

        def maps_of(self, images):
            batch = scenes.__getitems__(list(range(20)))
            ink = (batch.parts.pictures[:, 0] >= INK).float()
            place = batch.parts.labels[:, :, None, None].expand(20, 1, 48, 48)
            return torch.zeros(20, 10, 48, 48).scatter(1, place, ink)

    actual = look_at_all(Knows(), scenes)
    assert actual["exact"].all()
    assert actual["point"].all()
    assert torch.equal(actual["boxes"], actual["true"])
    assert (actual["pixels"] == 1).all()


def test_larger_canvases():
    digits = Digits().test
    scenes = replace(
        digits, composition=Scenery(digits, (48, 40), smallest=10, largest=16)
    ).subset(torch.arange(4))
    assert on_larger_canvases(scenes).image_shape == (1, 64, 60)
    network = create_model("scene_capsnet", image_shape=(1, 48, 40), channels=(2, 2))
    assert look_at_all(network, on_larger_canvases(scenes))["boxes"].shape == (4, 10, 4)
    with pytest.raises(ValueError, match="made by a Scenery, got NoneType"):
        on_larger_canvases(digits)

"""Scenes of digits: what is in them, where, and that nothing but seed, epoch and place
decides it.
"""

from dataclasses import replace

import pytest
import torch

from torchcaps_lab.data import (
    Batch,
    DataSet,
    Digits,
    DigitScenes,
    Examples,
    Pairs,
    Parts,
    Scenery,
    class_boxes,
    ink_boxes,
)
from torchcaps_lab.data.boxes import INK
from torchcaps_lab.kinds.scenes.made import _Place
from torchcaps_lab.kinds.scenes.task import _true_boxes

SMALL = {"canvas": (48, 56), "smallest": 10.0, "largest": 18.0, "clutter": 3}


@pytest.fixture(scope="module")
def digits() -> Examples:
    return Digits().test


@pytest.fixture(scope="module")
def batch(digits: Examples) -> Batch:
    scenes = replace(digits, composition=Scenery(digits, **SMALL))
    assert scenes.image_shape == (1, 48, 56)
    return scenes.__getitems__(list(range(200)))


class TestScenery:
    def test_labels_say_which_parts_are_there(
        self, batch: Batch, digits: Examples
    ) -> None:
        present = batch.parts.pictures.flatten(2).amax(2) > 0
        for labels, parts, seen in zip(
            batch.labels, batch.parts.labels, present, strict=True
        ):
            assert len(set(parts.tolist())) == len(parts)
            assert labels.nonzero().flatten().tolist() == sorted(parts[seen].tolist())
        assert batch.parts.labels[:, 0].tolist() == digits.labels[:200].tolist()
        assert present[:, 0].all()
        assert sorted(set(present.sum(1).tolist())) == [1, 2, 3, 4]

    def test_a_scene_is_its_parts_and_clutter(
        self, batch: Batch, digits: Examples
    ) -> None:
        together = batch.parts.pictures.amax(1)
        assert (batch.inputs >= together).all()
        assert (batch.inputs > together).flatten(1).any(1).float().mean() > 0.9
        assert batch.inputs.amax() <= 1
        bare = replace(
            digits, composition=Scenery(digits, **{**SMALL, "clutter": 0})
        ).__getitems__([0, 1, 2])
        assert torch.equal(bare.inputs, bare.parts.pictures.amax(1))

    def test_sizes_and_places(self, batch: Batch) -> None:
        boxes = ink_boxes(batch.parts.pictures)
        sides = (boxes[..., 2:] - boxes[..., :2]).amax(-1)
        sides = sides[sides > 0]
        assert 10 - 2 <= sides.min()
        assert sides.min() < 12
        assert 16 < sides.max() <= 18 + 2
        edges = torch.cat(
            [
                batch.parts.pictures[..., [0, -1], :].flatten(),
                batch.parts.pictures[..., [0, -1]].flatten(),
            ]
        )
        assert edges.max() < INK  # nothing is cut off
        centres = ((boxes[..., :2] + boxes[..., 2:]) / 2)[boxes.sum(-1) > 0]
        assert (centres.amin(0) < 12).all()
        assert (centres.amax(0) > torch.tensor([56 - 12, 48 - 12])).all()

    def test_digits_lie_apart_where_there_is_room(self, batch: Batch) -> None:
        ink = batch.parts.pictures.flatten(2) >= INK
        shared = (ink.sum(1) > 1).sum(1) / ink.any(1).sum(1)
        assert shared.mean() < 0.01

    def test_seed_epoch_and_place_alone_decide(self, digits: Examples) -> None:
        scenery = Scenery(digits, **SMALL)

        def made(rows: list[int], epoch: int = 0, seed: int = 0) -> Batch:
            index = torch.tensor(rows)
            pixels = digits.inputs[index].float() / 255
            return scenery(
                Batch(pixels, digits.labels[index], index, pixels), epoch, seed
            )

        together = made([3, 8, 5])
        alone = made([8])
        assert torch.equal(together.inputs[1], alone.inputs[0])
        assert torch.equal(together.labels[1], alone.labels[0])
        assert torch.equal(together.parts.pictures[1], alone.parts.pictures[0])
        assert not torch.equal(made([8], epoch=1).inputs, alone.inputs)
        assert not torch.equal(made([8], seed=1).inputs, alone.inputs)

    def test_scenes_with_nothing_but_clutter(self, digits: Examples) -> None:
        scenes = replace(
            digits, composition=Scenery(digits, **SMALL, least=0, most=1)
        ).__getitems__(list(range(60)))
        empty = ~scenes.labels.any(1)
        assert 15 < empty.sum() < 45
        assert (scenes.parts.pictures[empty] == 0).all()
        assert (class_boxes(scenes.parts, 10)[empty] == 0).all()
        assert scenes.inputs[empty].flatten(1).amax(1).min() > 0

    def test_a_digit_of_its_own_size_is_drawn_pixel_by_pixel(
        self, digits: Examples
    ) -> None:
        picture = torch.rand(1, 1, 1, 8, 8)
        place = _Place(
            torch.zeros(1, 1, 2), torch.tensor([[[3.0, 5.0]]]), torch.ones(1, 1)
        )
        drawn = Scenery(digits, **SMALL)._drawn(picture, place)
        assert torch.equal(drawn[0, 0, 0, 3:11, 5:13], picture[0, 0, 0])
        assert drawn.sum().item() == pytest.approx(picture.sum().item())

    @pytest.mark.parametrize("scale", [0.5, 0.25, 2.0])
    def test_what_is_drawn_smaller_is_a_mean(
        self, digits: Examples, scale: float
    ) -> None:
        place = _Place(
            torch.zeros(1, 1, 2),
            torch.tensor([[[4.0, 4.0]]]),
            torch.full((1, 1), scale),
        )
        drawn = Scenery(digits, **SMALL)._drawn(torch.ones(1, 1, 1, 16, 16), place)[
            0, 0, 0
        ]
        side = round(16 * scale)
        inside = slice(4 + 1, 4 + side - 1)
        assert torch.allclose(drawn[inside, inside], torch.tensor(1.0))
        assert drawn.sum().item() == pytest.approx((16 * scale) ** 2, rel=0.02)

    def test_classes_repeat_where_they_may(self, digits: Examples) -> None:
        twice = replace(
            digits, composition=Scenery(digits, least=4, repeats=True)
        ).__getitems__(list(range(200)))
        assert torch.equal(twice.parts.labels[:, 0], digits.labels[:200])
        several = torch.tensor(
            [len(set(row)) < 4 for row in twice.parts.labels.tolist()]
        )
        assert (
            0.35 < several.float().mean() < 0.65
        )  # of four digits 1 - 0.9 * 0.8 * 0.7
        for labels, mask in zip(twice.parts.labels.tolist(), twice.labels, strict=True):
            assert mask.nonzero().flatten().tolist() == sorted(set(labels))
        with pytest.raises(ValueError, match="at most one thing of a class"):
            _true_boxes(twice, len(digits.classes))

    def test_twins(self, digits: Examples) -> None:
        plain, some = (
            replace(
                digits, composition=Scenery(digits, least=2, twins=share)
            ).__getitems__(list(range(200)))
            for share in (0.0, 0.5)
        )
        same = some.parts.labels[:, 0] == some.parts.labels[:, 1]
        assert 0.35 < same.float().mean() < 0.65
        assert torch.equal(
            same.int() + 1,
            5 - torch.tensor([len({*row}) for row in some.parts.labels.tolist()]),
        )
        assert all(len({*row}) == 4 for row in plain.parts.labels.tolist())
        with pytest.raises(ValueError, match="twins"):
            Scenery(digits, twins=1.5)

    def test_classes_without_digits_are_not_there(self, digits: Examples) -> None:
        some = digits.subset((digits.labels % 3 == 1).nonzero().flatten())
        scenes = replace(
            some, composition=Scenery(some, **{**SMALL, "most": 3})
        ).__getitems__(list(range(50)))
        assert scenes.labels.any(0).nonzero().flatten().tolist() == [1, 4, 7]
        assert torch.equal(scenes.labels, class_boxes(scenes.parts, 10).sum(-1) > 0)
        with pytest.raises(
            ValueError, match="<= 3, the number of classes that there are digits of"
        ):
            Scenery(some, **SMALL)

    def test_no_digits_at_all(self) -> None:
        data = DigitScenes(Digits(validation=0), **SMALL)
        assert len(data.validation) == 0
        assert data.validation.image_shape == (1, 48, 56)

    def test_colours(self) -> None:
        images = Examples(
            torch.full((6, 3, 9, 7), 255, dtype=torch.uint8),
            torch.arange(6) % 3,
            ("a", "b", "c"),
        )
        scenes = replace(
            images,
            composition=Scenery(
                images, (32, 32), most=2, smallest=6, largest=9, clutter=1
            ),
        )
        assert scenes[0].inputs.shape == (1, 3, 32, 32)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (
                {"least": 3, "most": 2},
                "least and most must be 0 <= least <= most <= 10",
            ),
            ({"most": 11}, "<= 10, the number of classes that there are"),
            ({"smallest": 0.5}, "smallest and largest must be 1 <= smallest"),
            ({"largest": 47.0}, "largest <= 46 for a canvas of 48 x 56"),
            ({"clutter": -1}, "clutter must be at least 0, got -1"),
            ({"clutter": 1.5}, "clutter must be a whole number, got 1.5"),
            ({"most": 2.5}, "most must be a whole number, got 2.5"),
            ({"canvas": 48}, "canvas must be 2 whole numbers, got 48"),
        ],
    )
    def test_what_cannot_be(self, digits: Examples, wrong: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Scenery(digits, **{**SMALL, **wrong})
        if (
            "<= 10" not in message
        ):  # classes, which are known once the digits are read; all else is told at once
            with pytest.raises(ValueError, match=message):
                DigitScenes(Digits(), **{**SMALL, **wrong})

    @pytest.mark.parametrize("together", [DigitScenes, Pairs], ids=["scenes", "pairs"])
    def test_scenes_of_scenes(self, together: type[DataSet]) -> None:
        """They were scenes of the single digits, without a word."""
        made = together(
            Digits(), **(SMALL if together is DigitScenes else {"size": 12, "shift": 2})
        )
        with pytest.raises(ValueError, match="digits must be images of one class each"):
            _ = DigitScenes(made, **SMALL).test
        with pytest.raises(ValueError, match="digits must be images of one class each"):
            _ = Pairs(made, size=60).test


class TestBoxes:
    def test_by_hand(self) -> None:
        pictures = torch.zeros(2, 1, 6, 7)
        pictures[0, 0, 2:4, 1:6] = 0.5
        pictures[0, 0, 5, 6] = INK / 2
        assert ink_boxes(pictures).tolist() == [[1, 2, 6, 4], [0, 0, 0, 0]]

    def test_of_classes(self) -> None:
        pictures = torch.zeros(1, 2, 1, 4, 4)
        pictures[0, 0, 0, 1, 2] = 1
        boxes = class_boxes(Parts(torch.tensor([[2, 0]]), pictures), 3)
        assert boxes.tolist() == [[[0, 0, 0, 0], [0, 0, 0, 0], [2, 1, 3, 2]]]


class TestDigitScenes:
    def test_each_part_is_made_of_its_own_digits(self) -> None:
        data = DigitScenes(Digits(validation=0.2), **SMALL)
        for part in ("train", "validation", "test"):
            images = getattr(data, part)
            own = getattr(data.data, part)
            assert images.composition.digits is own
            assert len(images) == len(own)
        assert data.image_shape == (1, 48, 56)
        assert data.task == {"name": "several_labels"}
        assert (
            data.fingerprint()
            == DigitScenes(Digits(validation=0.2), **SMALL).fingerprint()
        )

    def test_numbers_come_from_files_of_options_as_lists(self) -> None:
        assert DigitScenes(Digits(), canvas=[48, 56]).canvas == (48, 56)

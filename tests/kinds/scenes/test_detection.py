"""The task detection: overlaps, losses, average precision, and that boxes are
learned.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchcaps import Capsules, Classifier, create_model
from torchcaps.losses import MarginLoss, ReconstructionLoss
from torchcaps.models import Places, Prediction, Thing
from torchcaps_lab.data import Digits, Examples, Preprocess, Scenery
from torchcaps_lab.kinds.images.samples import digit_samples
from torchcaps_lab.kinds.scenes.task import _true_boxes
from torchcaps_lab.tasks import (
    Criteria,
    Detection,
    SeveralLabels,
    as_task,
    average_precision,
    box_iou,
    box_loss,
    mean_average_precision,
    owners,
    vote_loss,
)

TRUE = torch.tensor(
    [
        [[0.0, 0, 4, 4], [0, 0, 0, 0], [2, 2, 6, 10]],
        [[0, 0, 0, 0], [1, 1, 3, 3], [0, 0, 0, 0]],
    ]
)


def scenes() -> Examples:
    digits = Digits().test.subset(torch.arange(24))
    return replace(
        digits, composition=Scenery(digits, (24, 24), 1, 2, 8, 12, clutter=1)
    )


class TestOverlap:
    def test_by_hand(self) -> None:
        first = torch.tensor(
            [[0.0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 0, 0], [3, 3, 1, 1]]
        )
        second = torch.tensor(
            [[0.0, 0, 4, 4], [2, 0, 6, 4], [4, 4, 5, 5], [0, 0, 0, 0], [0, 0, 4, 4]]
        )
        assert box_iou(first, second).tolist() == pytest.approx([1, 8 / 24, 0, 0, 0])

    def test_loss_by_hand(self) -> None:
        assert box_loss(TRUE, TRUE).item() == 0
        off = TRUE + torch.tensor([1.0, 0, 1, 0])
        expected = sum(
            0.5 / area**0.5 + 1 - shared / (2 * area - shared)
            for area, shared in ((16, 12), (32, 24), (4, 2))
        )
        assert box_loss(off, TRUE).item() == pytest.approx(expected / 3)

    def test_classes_that_are_not_there_do_not_count(self) -> None:
        boxes = torch.rand(2, 3, 4, requires_grad=True)
        box_loss(boxes, TRUE).backward()
        assert (boxes.grad.abs().sum(-1) > 0).tolist() == [
            [True, False, True],
            [False, True, False],
        ]
        assert box_loss(boxes, torch.zeros(2, 3, 4)).item() == 0


class TestAveragePrecision:
    there = torch.tensor([[0.9, 0.1, 0.8], [0.2, 0.7, 0.1]])

    def test_all_right(self) -> None:
        assert average_precision(self.there, TRUE, TRUE) == pytest.approx(
            {"map": 1, "map_50": 1, "map_75": 1}
        )

    def test_one_class_is_off(self) -> None:
        boxes = TRUE.clone()
        boxes[0, 2] += torch.tensor(
            [0, 2.0, 0, 2]
        )  # IoU 24 / 40: right at 0.5, 0.55 and 0.6 only
        actual = average_precision(self.there, boxes, TRUE)
        assert actual == pytest.approx(
            {
                "map": (2 + 3 / 10) / 3,
                "map_50": 1,
                "map_75": 2 / 3,
            },
            abs=1e-6,
        )

    def test_a_false_detection_that_is_surer(self) -> None:
        """Of the first class the second image has none: said more surely than the true
        one, half the precision.
        """
        actual = average_precision(
            torch.tensor([[0.5, 0.1, 0.8], [0.6, 0.7, 0.1]]), TRUE, TRUE
        )
        assert actual["map_50"] == pytest.approx((0.5 + 1 + 1) / 3, abs=1e-6)

    def test_nothing_there(self) -> None:
        assert set(
            average_precision(self.there, TRUE, torch.zeros(2, 3, 4)).values()
        ) == {0.0}


class TestDetection:
    def test_learns_where_digits_are(self) -> None:
        torch.manual_seed(0)
        net = create_model(
            "scene_capsnet", image_shape=(1, 24, 24), channels=(8, 16), boxes=True
        )
        task = Detection(each=False)
        images = scenes()
        task.check(images)
        batch = images.__getitems__(list(range(24)))
        criteria = Criteria(MarginLoss(), ReconstructionLoss())
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        before = task.examine(net, images).figures
        for _ in range(60):
            prediction, parts = task.loss(net, net, batch, criteria)
            optimizer.zero_grad()
            sum(parts.values()).backward()
            optimizer.step()
        assert set(parts) == {"class_loss", "box_loss"}
        measured = task.measure(prediction, batch)
        assert measured["box_iou"].mean() > 0.7
        actual = task.examine(net, images, batch_size=10)
        assert actual.figures["box_iou"] > max(0.6, before["box_iou"] + 0.2)
        assert actual.figures["map_50"] > max(0.5, before["map_50"] + 0.2)
        assert "mean IoU" in actual.lines[1]
        wide = task.examine(
            net.double(), images
        )  # pixels in the precision of the network
        assert wide.figures["box_iou"] == pytest.approx(
            actual.figures["box_iou"], abs=1e-3
        )

    def test_runs_the_network_once(self) -> None:
        """Making the scenes and looking at them is most of the time of a test."""
        net = create_model(
            "scene_capsnet", image_shape=(1, 24, 24), channels=(8, 16), boxes=True
        )
        calls: list[int] = []
        net.what.register_forward_hook(lambda *_: calls.append(1))
        task = Detection(threshold=0.01)
        images = scenes()
        actual = task.examine(net, images, batch_size=10)
        assert len(calls) == 3
        assert (
            actual.details
            == SeveralLabels(threshold=0.01).examine(net, images, 10).details
        )
        with pytest.raises(ValueError, match="image_set holds no images"):
            task.examine(net, images.subset(torch.arange(0)))

    def test_the_report_draws_what_is_there_beside_what_is_found(
        self, tmp_path: Path
    ) -> None:
        """It drew neither, or the found boxes alone."""
        net = create_model(
            "scene_capsnet", image_shape=(1, 24, 24), channels=(8, 16), boxes=True
        )
        images = scenes()
        page = Detection().report(tmp_path, net, images, {}, [])
        assert page is not None
        data = json.loads((page.parent / "exhibits.json").read_text())["exhibits"]
        (drawn,) = [exhibit for exhibit in data if exhibit["kind"] == "class_boxes"]
        assert len(drawn["true"]) == len(drawn["things"])
        batch = images.__getitems__([0])
        present = [images.classes[label] for label in batch.labels[0].nonzero()]
        assert sorted(name for name, _ in drawn["true"][0]) == sorted(present)
        assert any(exhibit["title"] == "What to do next" for exhibit in data)

    def test_measures(self) -> None:
        images = scenes()
        batch = images.__getitems__(list(range(24)))
        task = Detection()
        boxes = torch.zeros(24, 10, 4)
        prediction = Prediction(batch.labels.float(), None, None, boxes)
        assert task.measure(prediction, batch)["accuracy"].all()
        assert (task.measure(prediction, batch)["box_iou"] == 0).all()
        empty = batch._replace(labels=torch.zeros_like(batch.labels))
        empty = empty._replace(
            parts=batch.parts._replace(pictures=torch.zeros_like(batch.parts.pictures))
        )
        assert (task.measure(prediction, empty)["box_iou"] == 1).all()

    def test_brighter_images_show_no_other_classes(self) -> None:
        """With a brightness of 0.3 the black parts, of digits that are not there, had
        boxes as large as the image.
        """
        batch = scenes().__getitems__(list(range(12)))
        assert batch.parts is not None
        bright = (batch.parts.pictures + 0.3).clamp(max=1)
        boxes = _true_boxes(
            batch._replace(parts=batch.parts._replace(pictures=bright)), 10
        )
        assert torch.equal((boxes != 0).any(2), batch.labels)

    @pytest.mark.parametrize(
        "shades",
        [
            {"brightness": 0.9},
            {"contrast": (0.1, 0.2)},
            {"brightness": 0.4, "contrast": (1.0, 9.0)},
            {"erase": 1.0},
        ],
        ids=str,
    )
    def test_boxes_move_with_the_images_and_with_nothing_else(
        self, shades: dict[str, Any]
    ) -> None:
        """With a brightness of 0.3 a digit's box was the whole image; with a contrast
        of 0.2 it was empty.
        """
        if "erase" in shades:
            pytest.importorskip("kornia")
        batch = scenes().__getitems__(list(range(12)))

        def boxes(**options: Any) -> torch.Tensor:
            preprocess = Preprocess(shift=2, **options)
            return _true_boxes(
                batch.prepared(
                    lambda images: preprocess.train(images, batch.indices, epoch=3)
                ),
                10,
            )

        assert torch.equal(boxes(**shades), boxes())
        assert not torch.equal(boxes(), _true_boxes(batch, 10))

    def test_is_saved_with_its_arguments(self) -> None:
        task = as_task(Detection(0.4, weight=2.0, each=False).saved())
        assert isinstance(task, Detection)
        assert (task.threshold, task.weight, task.each) == (0.4, 2.0, False)

    def test_what_it_does_not_take(self) -> None:
        digits = Digits().test.subset(torch.arange(4))
        masks = replace(digits, labels=torch.zeros(4, 10, dtype=torch.bool))
        with pytest.raises(
            ValueError, match="put together from parts, whose boxes it learns"
        ):
            Detection().check(masks)
        images = scenes()
        net = create_model(
            "capsnet_small",
            image_shape=(1, 24, 24),
            channels=2,
            types=1,
            decoder_hidden=None,
        )
        with pytest.raises(
            ValueError, match="takes networks that predict boxes, CapsNet does not"
        ):
            Detection().loss(
                net, net, images[0], Criteria(MarginLoss(), ReconstructionLoss())
            )
        with pytest.raises(ValueError, match="weight must be at least 0, got -1"):
            Detection(weight=-1)


class TestThings:
    boxes = torch.tensor([[[0.0, 0, 16, 16], [4, 4, 12, 12], [0, 0, 0, 0]]])

    def test_a_place_is_of_the_smallest_thing_around_it(self) -> None:
        centres = torch.tensor([[[2.0, 2], [6, 6], [14, 10], [20, 2]]])
        assert owners(self.boxes, centres).tolist() == [[0, 1, 0, -1]]

    def test_votes_that_are_right_lose_nothing(self) -> None:
        centres = torch.tensor([[[2.0, 2], [6, 6], [14, 10], [20, 2]]])
        owner = owners(self.boxes, centres)
        labels = torch.tensor([[1, 1, 0]])
        votes = self.boxes[:, [0, 1, 0, 2]].clone()
        maps = torch.rand(1, 2, 2, 2) + 0.1
        places = Places(
            Capsules(torch.zeros(1, 2, 2, 1), torch.zeros(1, 2, 2)),
            maps,
            votes,
            centres,
        )
        assert vote_loss(places, owner, labels, self.boxes).item() == 0
        off = votes + torch.tensor([0.0, 0, 0, 4])  # the last place is of no thing
        share = maps[0, 1].flatten()[:3] + 0.01
        each = torch.tensor(
            [1 / 16 + 1 - 256 / 320, 1 / 8 + 1 - 64 / 96, 1 / 16 + 1 - 256 / 320]
        )
        expected = (share * each).sum() / share.sum()
        assert vote_loss(
            places._replace(boxes=off), owner, labels, self.boxes
        ).item() == pytest.approx(expected.item())

    def test_precision_of_two_of_a_class(self) -> None:
        """One found, one found twice: the second of a pair is a false detection, as
        COCO counts.
        """
        first = torch.tensor([0.0, 0, 10, 10])
        second = torch.tensor([20.0, 0, 30, 10])
        true = [[Thing(1, 1.0, first), Thing(1, 1.0, second)]]
        results = [
            [Thing(1, 0.9, first), Thing(1, 0.8, first + 0.5), Thing(1, 0.7, second)]
        ]
        assert mean_average_precision(true, true) == pytest.approx(
            {"map": 1, "map_50": 1, "map_75": 1}
        )
        assert mean_average_precision(results, true)["map_50"] == pytest.approx(
            (51 + 50 * 2 / 3) / 101
        )
        assert mean_average_precision([[]], true)["map"] == 0

    @pytest.mark.thorough
    def test_two_that_touch_are_learned_and_counted(self) -> None:
        """Of the same class, side by side: one connected part of its map, two
        things.
        """
        digits = Digits().test.subset(torch.arange(40))
        scenery = Scenery(digits, (24, 24), 2, 2, 10, 11, clutter=0, twins=1.0)
        images = replace(digits, composition=scenery).subset(torch.arange(16))
        batch = images.__getitems__(list(range(16)))
        task = Detection()
        torch.manual_seed(0)
        net = create_model(
            "scene_capsnet", image_shape=(1, 24, 24), channels=(8, 24), boxes=True
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        criteria = Criteria(MarginLoss(), ReconstructionLoss())
        for _ in range(100):
            _, parts = task.loss(net, net, batch, criteria)
            optimizer.zero_grad()
            sum(parts.values()).backward()
            optimizer.step()
        assert set(parts) == {"class_loss", "box_loss", "thing_loss"}
        actual = task.examine(net, images)
        assert actual.figures["count_accuracy"] > 0.7
        assert actual.figures["map_50"] > 0.8
        assert "things: mean average precision" in actual.lines[2]
        net.overlap = None
        assert (
            task.examine(net, images).figures["count_accuracy"]
            < actual.figures["count_accuracy"]
        )


class TestAnswers:
    prediction = Prediction(
        torch.tensor([[0.9, 0.1, 0.8], [0.2, 0.3, 0.1]]), None, None, TRUE
    )

    def test_boxes_of_the_classes_that_are_said(self) -> None:
        first, second = SeveralLabels().answers(self.prediction, ["a", "b", "c"])
        boxes = {
            name: [thing["box"] for thing in things]
            for name, things in first.json()["things"].items()
        }
        assert boxes == {"a": [[0, 0, 4, 4]], "c": [[2, 2, 6, 10]]}
        assert (second.classes, second.things, str(second)) == ((), {}, "nothing")

    def test_of_a_network_that_does_not_say(self) -> None:
        (answer, _) = SeveralLabels().answers(
            self.prediction._replace(boxes=None), ["a", "b", "c"]
        )
        assert answer.things is None
        assert "things" not in answer.json()


@pytest.mark.thorough
def test_how_many_of_a_class_there_are_is_measured() -> None:
    digits = digit_samples((1, 28, 28))
    images = replace(digits, composition=Scenery(digits, repeats=True)).subset(
        torch.arange(40)
    )
    actual = Classifier.open("scenes/scene_capsnet").examine(images)
    assert (
        0.5 < actual.figures["count_accuracy"] <= actual.figures["accuracy"]
    )  # never more than of the classes alone
    assert actual.lines[1].startswith(
        f"{actual.figures['count_accuracy']:.2%} right in how many there are of each "
        "class"
    )
    assert "images with several of one" in actual.lines[1]
    single = Classifier.open("scenes/scene_capsnet").examine(
        replace(images, composition=Scenery(digits))
    )
    assert "count_accuracy" not in single.figures


@pytest.mark.thorough
def test_a_report_of_scenes_draws_what_is_where(tmp_path: Path) -> None:
    digits = digit_samples((1, 28, 28))
    images = replace(digits, composition=Scenery(digits, repeats=True)).subset(
        torch.arange(6)
    )
    classifier = Classifier.open("scenes/scene_capsnet")
    page = classifier.task.report(
        tmp_path, classifier.network, classifier.prepared(images), {}, []
    )
    shown = {
        exhibit["kind"]: exhibit
        for exhibit in json.loads((page.parent / "exhibits.json").read_text())[
            "exhibits"
        ]
    }
    boxes = shown["class_boxes"]
    assert (
        len(boxes["pictures"]) == len(boxes["things"]) == len({*boxes["pictures"]}) == 6
    )  # each image once
    assert (page.parent / "boxes.png").is_file()
    assert boxes["names"] == [str(digit) for digit in range(10)]

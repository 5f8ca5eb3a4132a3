"""The task objects: what it measures and answers, from training to export."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps as tc
from tests.kinds.objects.test_sets import pictures
from torchcaps.capsules import DrawnFeatures, Prediction
from torchcaps.models.slot_autoencoder import assigned_pixels
from torchcaps.numerics import Progress
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main
from torchcaps_lab.data import Digits, Shapes
from torchcaps_lab.kinds.objects.task import (
    Objects,
    error_of_outlines,
    error_of_slots,
    slot_hints,
)
from torchcaps_lab.tasks import Criteria

NETWORK: dict[str, Any] = {"channels": 4, "dim": 8}


def test_perfect_slots_have_perfect_figures() -> None:
    """A network that draws each object of Shapes with its own slot."""
    test = Shapes(count=20, tests=12).test
    batch = test.__getitems__(list(range(12)))
    masks = torch.nn.functional.one_hot(batch.labels, 6).movedim(-1, 1).float()
    activation = masks.flatten(2).amax(2)
    prediction = Prediction(activation, None, batch.pictures, masks=masks)
    measured = Objects().measure(prediction, batch)
    torch.testing.assert_close(measured["fg_ari"], torch.ones(12))
    assert not measured["error"].any()
    answer, *_ = Objects().answers(prediction, test.classes)
    mask = answer.mask
    assert mask is not None
    assert bool(((mask == 0) == (batch.labels[0] == 0)).all())
    assert len(answer.classes) == batch.labels[0].unique().numel()
    assert answer.classes[0] == "slot 1"
    number = len(answer.classes) - 1
    assert answer.seen == f"{number} object{'s' * (number != 1)} and the ground"


def test_of_pictures_of_one_colour_nothing_is_drawn() -> None:
    """The share was -4e36."""
    batch = Shapes(count=20, tests=12).test.__getitems__(list(range(12)))
    flat = batch._replace(pictures=torch.full_like(batch.pictures, 0.3))
    masks = torch.full((12, 6, *batch.inputs.shape[2:]), 1 / 6)
    drawn = torch.full_like(batch.inputs, 0.5)
    prediction = Prediction(torch.ones(12, 6), None, drawn, masks=masks)
    measured = Objects().measure(prediction, flat)
    assert measured["drawn"].tolist() == [0.0] * 12
    assert bool((measured["error"] > 0).all())


def test_the_error_of_slots_is_that_of_the_slot_that_claims_a_pixel() -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(2, 3, 5, 7, generator=generator)
    colours = torch.rand(2, 4, 3, 5, 7, generator=generator)
    owner = torch.randint(4, (2, 5, 7), generator=generator)
    masks = torch.nn.functional.one_hot(owner, 4).movedim(-1, 1).float()
    drawn = (colours * masks[:, :, None]).sum(1)
    expected = (pictures - drawn).square().flatten(1).mean(1)
    error = error_of_slots(pictures, colours, masks)
    torch.testing.assert_close(error, expected)
    # Two slots that blend to the picture are no slots of it.
    halves = torch.stack([2 * pictures, torch.zeros_like(pictures)], 1)
    shared = torch.full((2, 2, 5, 7), 0.5)
    assert bool((error_of_slots(pictures, halves, shared) > 0.03).all())


def test_the_part_of_single_slots_falls_to_nothing() -> None:
    network = tc.models.SlotAutoencoder(classes=6, **NETWORK)
    batch = Shapes(count=20, tests=4).test.__getitems__([0, 1, 2, 3])
    criteria = Criteria(tc.MarginLoss(), tc.ReconstructionLoss())
    task = Objects(single_slots=0.2)
    parts = {}
    for epoch in range(3):
        task.advance(Progress(epoch, 3))
        torch.manual_seed(0)
        parts[epoch] = task.loss(network, network, batch, criteria)[1]
    first, middle, last = parts.values()
    assert list(last) == ["loss_of_drawing"]
    error = last["loss_of_drawing"]
    torch.testing.assert_close(first["loss_of_drawing"], 0.8 * error)
    single = first["loss_of_single_slots"]
    torch.testing.assert_close(middle["loss_of_single_slots"], single / 2)
    task.advance(Progress(0, 3))
    network.eval()
    assert list(task.loss(network, network, batch, criteria)[1]) == list(last)


def test_objects_pay_for_their_pixels_by_what_is_drawn() -> None:
    pictures = Shapes(count=20, tests=4).test
    batch = pictures.__getitems__([0, 1, 2, 3])
    criteria = Criteria(tc.MarginLoss(), tc.ReconstructionLoss())
    task = Objects(single_slots=0.0, area=0.5)
    # Three quarters, and for the last picture all of it, are in one slot.
    owner = torch.zeros(4, 32, 32, dtype=torch.int64)
    owner[:3, :16, :16] = torch.tensor([1, 2, 1])[:, None, None]
    masks = torch.nn.functional.one_hot(owner, 3).movedim(-1, 1).float()
    masks.requires_grad_()
    variance = batch.pictures.flatten(2).var(2, correction=0).mean()
    for drawn, share in ((batch.pictures, 1.0), (torch.rand(4, 3, 32, 32), 0.0)):
        network = Answering(lambda _, drawn=drawn: slots_as(masks, drawn)).train()
        cost = task.loss(network, network, batch, criteria)[1]["loss_of_area"]
        torch.testing.assert_close(cost, 0.5 * share * variance * 3 / 16)
    network.eval()
    assert list(task.loss(network, network, batch, criteria)[1]) == ["loss_of_drawing"]
    with pytest.raises(ValueError, match="area"):
        Objects(area=1.5)


def test_masks_learn_the_pixels_that_colours_assign() -> None:
    pictures = Shapes(count=20, tests=4).test
    batch = pictures.__getitems__([0, 1, 2, 3])
    criteria = Criteria(tc.MarginLoss(), tc.ReconstructionLoss())
    colours = torch.rand(4, 3, 3, 32, 32).requires_grad_()
    claims = torch.randn(4, 3, 32, 32).requires_grad_()
    masks = claims.softmax(1)
    assigned = assigned_pixels(batch.pictures, colours, masks).detach()
    error_of_outlines(batch.pictures, colours, masks).sum().backward()
    assert colours.grad is None
    # Of a softmax, and of an E-step held as it is.
    torch.testing.assert_close(claims.grad, (masks - assigned).detach() / 32**2)
    network = tc.models.SlotAutoencoder(classes=6, **NETWORK)
    task = Objects(single_slots=0.0, outlines=0.5)
    task.advance(Progress(0, 3))
    assert list(task.loss(network, network, batch, criteria)[1]) == ["loss_of_drawing"]
    task.advance(Progress(2, 3))
    drawn, parts = task.loss(network, network, batch, criteria)
    expected = error_of_outlines(batch.pictures, drawn.colours, drawn.masks).mean() / 2
    torch.testing.assert_close(parts["loss_of_outlines"], expected)
    with pytest.raises(ValueError, match="outlines"):
        Objects(outlines=1.5)


def slots_as(masks: torch.Tensor, drawn: torch.Tensor) -> Prediction:
    """What a network predicts that draws pictures under these masks, (B, J, H, W)."""
    return Prediction(masks.flatten(2).amax(2), None, drawn, masks=masks)


class Answering(tc.models.SlotAutoencoder):
    """Answers to any pictures with slots that a function makes of them."""

    def __init__(self, answer: Callable[[torch.Tensor], Prediction]) -> None:
        super().__init__(classes=6, **NETWORK)
        self.answer = answer

    def forward(
        self, images: torch.Tensor, target: torch.Tensor | None = None
    ) -> Prediction:
        return self.answer(images)


def test_a_network_that_found_nothing_is_told_so() -> None:
    """Black pictures, and masks that are the same everywhere."""
    test = Shapes(count=20, tests=12).test
    masks = torch.full((12, 6, 32, 32), 1 / 6)
    masks[:, 2, 4:20, 4:20] += 1e-3  # the largest mask there, by nothing
    network = Answering(lambda images: slots_as(masks, torch.zeros_like(images)))
    examination = Objects().examine(network, test)
    assert examination.figures["objects"] == 0
    assert examination.figures["drawn"] < 0
    assert any("found nothing" in line for line in examination.lines)
    answers = Objects().answers(network(test[0].inputs), test.classes)
    assert {answer.seen for answer in answers} == {"0 objects and the ground"}


def test_what_is_drawn_does_not_depend_on_the_batches() -> None:
    test = Shapes(count=20, tests=12).test
    test.inputs[0] = 100
    test.inputs[0, :, 0] = 101  # nearly of one colour
    masks = torch.full((12, 6, 32, 32), 1 / 6)
    network = Answering(lambda images: slots_as(masks[: len(images)], images / 2))
    drawn = [
        Objects().examine(network, test, size).figures["drawn"] for size in (1, 5, 12)
    ]
    assert drawn == pytest.approx([drawn[0]] * 3)
    assert -1 < drawn[0] < 1


def test_slots_that_divide_pictures_by_place_are_named() -> None:
    test = Shapes(count=20, tests=12).test
    place = torch.arange(32) * 3 // 32 + (torch.arange(32)[:, None] >= 16) * 3
    grid = torch.nn.functional.one_hot(place, 6).movedim(-1, 0).float()
    masks = grid.expand(12, -1, -1, -1)
    network = Answering(lambda images: slots_as(masks[: len(images)], images))
    examination = Objects().examine(network, test, batch_size=11)
    assert examination.figures["same_places"] == pytest.approx(1)
    assert any("by place and not by object" in line for line in examination.lines)
    single_examination = Objects().examine(network, test.subset(torch.arange(1)))
    assert not any("by place" in line for line in single_examination.lines)


def test_objects_in_several_slots_are_named() -> None:
    """Each object is divided into columns of pixels, which take turns."""
    test = Shapes(count=20, tests=12).test
    turns = (torch.arange(32) % 5 + 1).expand(12, 32, 32)
    slots = torch.where(test.labels > 0, turns, 0)
    masks = torch.nn.functional.one_hot(slots, 6).movedim(-1, 1).float()
    examination = Objects().examine(
        Answering(lambda images: slots_as(masks, images)), test
    )
    assert examination.figures["shared_objects"] > 0.9
    assert any("in several slots" in line for line in examination.lines)


def test_slots_of_the_objects_need_no_advice() -> None:
    test = Shapes(count=20, tests=12).test
    masks = torch.nn.functional.one_hot(test.labels.long(), 6).movedim(-1, 1).float()
    network = Answering(lambda images: slots_as(masks, images))
    figures = Objects().examine(network, test).figures
    assert figures["drawn"] == 1
    assert not list(slot_hints(figures))


def test_it_takes_no_labels() -> None:
    with pytest.raises(ValueError, match=r"without labels.*these have labels, such as"):
        Objects().check(Digits().test)


def test_other_networks_draw_no_slots() -> None:
    network = tc.create_model("capsnet_digits")
    test = Digits().test
    with pytest.raises(ValueError, match=r"draw each slot with a mask.*autoencoder"):
        Objects().measure(network(test[0].inputs), test[0])


@pytest.mark.thorough
def test_learning_lowers_the_error() -> None:
    torch.manual_seed(0)
    data = Shapes(count=20, tests=8)
    network = tc.models.SlotAutoencoder(classes=6, **NETWORK)
    batch = data.test.__getitems__(list(range(8)))
    optimizer = torch.optim.Adam(network.parameters(), 0.005)
    errors = []
    for _ in range(30):
        prediction, parts = Objects().loss(network, network, batch, None)
        optimizer.zero_grad()
        sum(parts.values()).backward()
        optimizer.step()
        errors.append(float(Objects().measure(prediction, batch)["error"].mean()))
    assert errors[-1] < 0.8 * errors[0]


def test_from_a_folder_of_pictures_to_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "shelf")
    options = ["--epochs", "1", "--data.size", "16", "--model_args.channels", "4"]
    main(["train", "shelf", "--task", "objects", *options, "--model_args.dim", "8"])
    printed = capsys.readouterr().out
    assert "guessed: model slot_autoencoder, 7 slots" in printed
    assert "guessed: task.area 1" in printed
    network = Classifier.open(Path("runs/shelf")).network
    assert network.ground
    assert network.slots.routing.first_sharpness > 1
    assert "2 sub-folders of shelf are not used as classes" in printed
    assert "(C x H x W), 7 slots\n" in printed
    assert "classes of" not in printed
    page = Path("runs/shelf/report/index.html").read_text()
    assert "learned from shelf</h1>" in page
    assert "it has found nothing" in page
    report = Path("runs/shelf/report")
    names = {path.name for path in report.glob("*.png")}
    assert {"slots.png", "slots-worst.png", "slot-moves.png"} <= names

    main(["predict", "runs/shelf", "shelf/a/0.png", "--json", "--masks", "masks"])
    row = json.loads(capsys.readouterr().out)
    number = len(row["classes"]) - 1
    assert row["seen"] == f"{number} object{'s' * (number != 1)} and the ground"
    with Image.open("masks/0.png") as mask:
        values = np.asarray(mask)
    # As large as the picture.
    assert values.shape == (30, 40)
    assert values.max() < len(row["classes"])

    main(["evaluate", "runs/shelf"])
    assert "of the variance of the pictures drawn" in capsys.readouterr().out
    pictures(tmp_path / "other")
    assert main(["evaluate", "runs/shelf", "other"]) == 0
    assert "all: " in capsys.readouterr().out
    main(["explain", "runs/shelf"])


@pytest.mark.thorough
def test_answers_of_exported_slots_differ_from_call_to_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slots are drawn."""
    monkeypatch.chdir(tmp_path)
    main(["export", "shapes/slot_autoencoder", "--to", "slots.onnx"])
    assert "its answers differ" in capsys.readouterr().out


@pytest.mark.thorough
def test_slots_of_features_from_a_folder_to_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They draw no picture: the report and the explorer show features as colours."""
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "shelf")
    options = ["--epochs", "1", "--data.size", "16", "--model_args.dim", "8"]
    network = ["--model", "slots_on_backbone", "--model_args.widths", "[4,5]"]
    main(["train", "shelf", "--task", "objects", *network, *options])
    names = {path.name for path in Path("runs/shelf/report").glob("*.png")}
    assert {"slots.png", "slots-worst.png"} <= names
    assert "slot-moves.png" not in names

    main(["predict", "runs/shelf", "shelf/a/0.png", "--masks", "masks"])
    with Image.open("masks/0.png") as mask:
        assert mask.size == (40, 30)
    legend = capsys.readouterr().out.splitlines()
    assert "# %: share of the pixels, not calibrated" in legend
    assert "# length: activation of the slot" in legend
    main(["evaluate", "runs/shelf"])
    assert "of the variance of the pictures drawn" in capsys.readouterr().out
    main(["export", "runs/shelf", "--to", "slots.onnx"])
    classifier = Classifier.open("runs/shelf")
    image = torch.rand(1, 3, 16, 16)
    shown = classifier.task.explored(classifier.network, image, image[0])
    assert shown.drawn.shape == (9, 3, 16, 16)
    assert shown.parts.shape == (9, 7, 3, 16, 16)


def test_perfect_features_have_no_error() -> None:
    test = Shapes(count=20, tests=3).test
    batch = test.__getitems__([0, 1, 2])
    masks = torch.full((3, 6, 32, 32), 1 / 6)
    true = torch.randn(3, 5, 4, 4)
    halved = DrawnFeatures(true / 2, true)
    for features, error in (
        (DrawnFeatures(true, true), torch.zeros(3)),
        (halved, true.square().flatten(1).mean(1) / 4),
    ):
        drawn = Prediction(masks[..., 0, 0], None, None, masks=masks, features=features)
        torch.testing.assert_close(Objects().measure(drawn, batch)["error"], error)


def test_a_network_of_another_number_of_slots(tmp_path: Path) -> None:
    """Slots from a learned Gaussian may be more than in training: their weights fit."""
    few = tc.models.SlotAutoencoder(classes=3, **NETWORK).eval()
    more = few.with_slots(5)
    assert more.classes == 5
    assert more(torch.rand(2, 3, 32, 32)).masks.shape == (2, 5, 32, 32)
    again = more.with_slots(3)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(again(images).masks, few(images).masks)
    queries = tc.models.SlotAutoencoder(
        classes=3, routing=tc.create_routing("slots"), **NETWORK
    )
    with pytest.raises(ValueError, match="start='normal'"):
        queries.with_slots(5)

"""What the owner of the photos reads: what to do next."""

from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from tests.report.small import answers
from torchcaps_lab.data import Examples, TextSet, Words
from torchcaps_lab.evaluate.hints import Commands, falling_loss
from torchcaps_lab.report.pictures import Advice


def advice(
    labels: torch.Tensor,
    predicted: torch.Tensor,
    summary=None,
    metrics=(),
    files=None,
    side=4,
    channels=1,
    model=None,
) -> Advice:
    pixels = torch.zeros(len(labels), channels, side, side, dtype=torch.uint8)
    images = Examples(pixels, labels, ("cat", "dog", "owl"), files)
    return Advice.of(
        answers(3, labels, predicted), images, summary or {}, list(metrics), model
    )


def options(given_advice: Advice) -> str:
    return " | ".join(hint.option for hint in given_advice.hints)


EVEN = torch.arange(900) % 3


class TestEachFactHasItsAdvice:
    def test_nothing_to_do(self):
        metrics = [{"train_accuracy": 0.99, "val_accuracy": 0.98}] * 5
        actual = advice(EVEN, EVEN, metrics=metrics)
        assert actual.hints == ()
        assert "Use the network with `torchcaps predict RUN new.jpg`" in actual.text
        assert actual.table() is None

    def test_no_better_than_always_the_same(self):
        actual = advice(EVEN, torch.zeros_like(EVEN))
        assert "answering 'cat' every time gets 33.3% right" in actual.hints[0].fact
        assert "--epochs" in actual.hints[0].option

    @pytest.mark.parametrize(
        ("preprocess", "option"),
        [
            ({}, "--preprocess.flip true"),
            ({"flip": True, "shift": 2}, "--preprocess.rotate 15"),
        ],
    )
    def test_learned_by_heart(self, preprocess, option):
        metrics = [{"train_accuracy": 0.99, "val_accuracy": 0.8}]
        actual = advice(EVEN, EVEN, {"preprocess": preprocess}, metrics)
        assert (
            "the accuracy is 99.0% on the training images and 80.0% on others"
            in actual.hints[0].fact
        )
        assert actual.hints[0].option.startswith(option)

    def test_learned_by_heart_where_most_is_right(self):
        """The defect: 95 % against 89 % was called good."""
        metrics = [{"train_accuracy": 0.95, "val_accuracy": 0.89}]
        (hint,) = advice(
            EVEN, EVEN, {"preprocess": {"flip": True, "shift": 4}}, metrics
        ).hints
        assert "is 95.0% on the training images and 89.0% on others" in hint.fact
        assert "pip install 'torchcaps-lab[augment]'" in hint.advice  # for what to type
        assert (
            hint.option
            == "--preprocess.rotate 15 --preprocess.zoom 0.2 --preprocess.randaugment 2"
        )
        everything = {
            "flip": True,
            "shift": 4,
            "rotate": 15,
            "zoom": 0.2,
            "randaugment": 2,
            "erase": 0.25,
        }
        (hint,) = advice(EVEN, EVEN, {"preprocess": everything}, metrics).hints
        assert hint.advice == "it overfits its training images: add images"

    def test_mistakes_without_one_reason(self):
        """The defect: 93 % of many images, no pair of classes above the others, was
        called good.
        """
        predicted = EVEN.clone()
        predicted[:60:2] = (predicted[:60:2] + 1) % 3
        predicted[1:60:2] = (predicted[1:60:2] + 2) % 3
        metrics = [{"train_accuracy": 0.94, "val_accuracy": 0.93}] * 12
        (hint,) = advice(
            EVEN, predicted, {"model": "capsnet_on_backbone"}, metrics
        ).hints
        assert "93.3% are right" in hint.fact
        assert hint.option == "--epochs 24 --model_args.widths [64,128,256]"

    def test_not_learned_to_the_end(self):
        rising = [
            {"train_accuracy": value, "val_accuracy": value}
            for value in (0.3, 0.4, 0.5, 0.6, 0.7)
        ]
        assert options(advice(EVEN, EVEN, metrics=rising)) == "--epochs 20"
        flat = [{"train_accuracy": 0.7, "val_accuracy": 0.7}] * 5
        assert (
            options(advice(EVEN, EVEN, {"model": "capsnet"}, flat))
            == "--model capsnet_on_backbone"
        )
        actual = advice(EVEN, EVEN, {"model": "capsnet_on_backbone"}, flat)
        assert options(actual) == "--model_args.widths [64,128,256]"

    def test_still_rising_is_not_learned_by_heart(self):
        rows = [
            {"train_accuracy": 0.9, "val_accuracy": value}
            for value in (0.3, 0.4, 0.5, 0.6, 0.7)
        ]
        (hint,) = advice(EVEN, EVEN, metrics=rows).hints
        assert hint.advice == "it was still improving: train longer"
        assert hint.option == "--epochs 20"

    def test_a_network_is_not_advised_instead_of_itself(self):
        texts = TextSet.of(
            ["a text"], torch.tensor([0]), ("cat", "dog", "owl"), Words()
        )
        flat = [{"train_accuracy": 0.7, "val_accuracy": 0.7}] * 5
        findings = answers(3, EVEN, EVEN)
        for model, option in (
            ("text_capsnet", "--model text_pooled"),
            ("text_pooled", "--model_args.types 30"),
        ):
            assert options(Advice.of(findings, texts, {"model": model}, flat)) == option

    def test_was_better_before(self):
        metrics = [
            {"train_accuracy": 0.95, "val_accuracy": value}
            for value in (0.8, 0.95, 0.94, 0.93, 0.92)
        ]
        (hint,) = advice(EVEN, EVEN, metrics=metrics).hints
        assert "epoch 2 had 95.0%" in hint.fact
        assert hint.option == "--keep best --patience 10"

    def test_of_the_epoch_that_is_used(self):
        metrics = [
            {"train_accuracy": train, "val_accuracy": value}
            for train, value in ((0.8, 0.7), (0.92, 0.9), (0.99, 0.7), (1.0, 0.7))
        ] + [{"train_accuracy": 1.0, "val_accuracy": 0.7}] * 4
        kept = {"used_epoch": {"epoch": 2}, "command": "torchcaps train --keep best"}
        assert advice(EVEN, EVEN, kept, metrics).hints == ()
        assert advice(EVEN, EVEN, metrics=metrics).hints

    def test_rare_classes(self):
        """Of the training: those of the test were counted."""
        (hint,) = advice(
            EVEN, EVEN, {"train_per_class": {"cat": 1900, "dog": 1900, "owl": 90}}
        ).hints
        assert hint.fact == "'dog' has 1,900 training images, 'owl' 90"
        assert hint.option == "--class_weights balanced"
        labels = torch.cat(
            [torch.zeros(900), torch.ones(900), torch.full((90,), 2)]
        ).long()
        assert (
            advice(
                labels,
                labels,
                {"train_per_class": {"cat": 900, "dog": 900, "owl": 900}},
            ).hints
            == ()
        )

    def test_no_weight_helps_a_class_of_three_photos(self):
        (hint,) = advice(
            EVEN, EVEN, {"train_per_class": {"cat": 90, "dog": 90, "owl": 3}}
        ).hints
        assert hint.fact == "'owl' has 3 training images"
        assert "collect at least 10" in hint.advice
        assert not hint.option

    def test_a_network_that_has_learned_little_is_not_said_to_overfit(self):
        metrics = [{"train_accuracy": 0.45, "val_accuracy": 0.3}]
        hints = advice(EVEN, (EVEN + 1) % 3, metrics=metrics).hints
        assert not any("overfits" in hint.advice for hint in hints)
        assert any("train longer" in hint.advice for hint in hints)

    def test_nothing_to_type_is_promised_where_there_is_nothing(self):
        summary = {"train_per_class": {"cat": 4, "dog": 90, "owl": 3}}
        actual = advice(EVEN, EVEN, summary)
        assert actual.hints[0].fact == "'cat' has 4 training images, 'owl' 3"
        assert "text to type" not in actual.text
        assert "torchcaps train" not in actual.text  # how it was trained is not known
        typed = {**summary, "run": "r", "command": "torchcaps train pets --run r"}
        again = advice(EVEN, EVEN, typed).text
        assert "This command trains again: `torchcaps train pets`." in again

    def test_few_photos_start_from_a_trained_backbone(self):
        predicted = torch.where(torch.arange(900) % 10 == 0, (EVEN + 1) % 3, EVEN)
        summary = {"train_per_class": {"cat": 100, "dog": 80, "owl": 90}}
        actual = advice(EVEN, predicted, summary, channels=3).hints[0]
        assert actual.fact.startswith("90 training photos in each class on average")
        assert "torchcaps[photos]" in actual.advice
        assert actual.option.startswith(
            "--model capsnet_on_backbone --model_args.backbone timm/efficientnet_lite0 "
        )
        known = SimpleNamespace(backbone="timm/efficientnet_lite0")
        for other in (
            {"channels": 1},
            {"model": known},
            {"summary": {"train_per_class": {"cat": 5000}}},
        ):
            hints = advice(
                EVEN, predicted, **{"summary": summary, "channels": 3, **other}
            ).hints
            assert not any("efficientnet" in hint.option for hint in hints)

    def test_a_class_that_is_never_recognised_is_named(self):
        labels = torch.tensor([0] * 500 + [1] * 12 + [2] * 388)
        predicted = torch.tensor([0] * 512 + [2] * 388)
        lost, taken, *_ = advice(
            labels,
            predicted,
            files=("photos/a cat/1.jpg",) * 500 + ("photos/dog/1.jpg",) * 400,
        ).hints
        assert lost.fact == "none right: 'dog' 0 of 12"
        assert lost.option == taken.option == "torchcaps predict RUN photos/dog"
        assert taken.fact == "confused with each other: 12 of 12 of 'dog' for 'cat'"

    def test_texts_are_not_shown_as_images(self):
        """ "torchcaps predict RUN ." was printed: the folder of a line of a table."""

        texts = TextSet.of(
            ["a text"] * 900,
            EVEN,
            ("cat", "dog", "owl"),
            Words(),
            tuple(f"reviews.csv:{line}" for line in range(900)),
        )
        predicted = EVEN.clone()
        predicted[EVEN == 1] = 0
        lost, *_ = Advice.of(
            answers(3, EVEN, predicted),
            texts,
            {},
            [],
        ).hints
        assert lost.option == "torchcaps explain RUN --split validation"

    def test_commands_name_the_run_and_how_it_was_trained(self):
        """They named RUN."""
        summary = {
            "run": "my runs/cats",
            "command": "torchcaps train 'my cats' --run=elsewhere --epochs 3",
        }
        predicted = EVEN.clone()
        predicted[EVEN == 1] = 0
        actual = advice(EVEN, predicted, summary)
        assert actual.hints[0].option == (
            "torchcaps explain 'my runs/cats' --split validation"
        )
        assert "command: `torchcaps train 'my cats' --epochs 3`" in actual.text
        assert "`torchcaps predict 'my runs/cats' new.jpg`" in actual.text

    @pytest.mark.parametrize(
        ("command", "again"),
        [
            ("torchcaps train --data Digits --run r", "--data Digits --run r-2"),
            ("torchcaps train --resume r", "--config r/config.yaml --run r-2"),
            ("torchcaps.train('it is', run='r')", "--config r/config.yaml --run r-2"),
        ],
    )
    def test_a_training_is_repeated_into_another_folder(self, command, again):
        commands = Commands.of({"run": "r", "command": command})
        assert commands.training() == f"torchcaps train {again}".strip()

    @pytest.mark.parametrize(
        ("shares", "measured"),
        [
            ({"cell": 0.0, "wall": 0.9}, "never found: 'cell'"),
            ({"cell": 0.3, "wall": 0.9}, "the IoU of 'cell' is 30.0%"),
            ({"cell": None, "wall": float("nan")}, None),
        ],
    )
    def test_other_tasks_have_advice(self, shares, measured):
        """Reports of masks and of scenes had none."""
        metrics = [{"train_iou": 0.95, "val_iou": 0.9}] * 5
        images = Examples(torch.zeros(900, 1, 4, 4).byte(), EVEN, ("a", "b", "c"))
        actual = Advice.of_task(
            "iou", 0.9, shares, images, {}, metrics, of_class="IoU", draw="--masks m"
        )
        facts = [hint.fact for hint in actual.hints]
        assert facts == ([] if measured is None else [measured])
        assert "`torchcaps predict RUN new.jpg --masks m`" in actual.text

    def test_a_loss_that_still_falls_asks_for_more_epochs(self):
        falling = [{"val_loss": 1 / epoch} for epoch in range(1, 9)]
        (hint,) = falling_loss(falling)
        assert hint.option == "--epochs 20"
        assert not list(falling_loss([{"val_loss": 0.5}] * 9))
        assert not list(falling_loss([]))

    def test_all_main_confusions_are_told(self):
        """Three of seven were."""
        predicted = EVEN.clone()
        for label in range(3):
            for step in (1, 2):
                predicted[
                    (EVEN == label)
                    .nonzero()
                    .squeeze(1)[20 * step : 20 * step + 19 + label]
                ] = (label + step) % 3
        hint = next(
            hint
            for hint in advice(EVEN, predicted).hints
            if hint.fact.startswith("confused with each other")
        )
        assert hint.fact.count(";") == 5
        assert hint.fact.startswith(
            "confused with each other: 21 of 300 of 'owl' for 'dog'"
        )
        assert hint.option == "torchcaps explain RUN --split validation"

    def test_classes_without_images_are_not_rare(self):
        """They were to be weighed, or shown more often."""
        labels = torch.tensor([0] * 450 + [1] * 450)
        (hint,) = advice(labels, labels).hints
        assert hint.fact == "1 of 3 classes have no test images"
        assert not hint.option

    @pytest.mark.parametrize("right", [0.6, 1.0])
    def test_images_of_one_class_tell_nothing_about_guessing(self, right):
        """100 % right was 'the network has learned nothing of use yet'."""
        labels = torch.zeros(900, dtype=torch.int64)
        actual = advice(labels, (torch.arange(900) >= 900 * right).long())
        assert not any("nothing useful" in hint.advice for hint in actual.hints)

    def test_all_right_of_classes_that_are_far_from_balanced(self):
        labels = (torch.arange(900) < 5).long() + (torch.arange(900) < 2).long()
        assert not any(
            "nothing useful" in hint.advice for hint in advice(labels, labels).hints
        )
        guessed = advice(labels, torch.zeros_like(labels))
        assert "nothing useful" in guessed.hints[0].advice

    def test_one_epoch(self):
        (hint,) = advice(
            EVEN, EVEN, metrics=[{"train_accuracy": 0.5, "val_accuracy": 0.5}]
        ).hints
        assert hint.fact.startswith("after 1 epoch the accuracy is 50.0%")

    def test_confused_classes_and_few_images(self):
        labels = torch.arange(60) % 3
        predicted = torch.where((labels == 0) & (torch.arange(60) < 24), 1, labels)
        confused, few = advice(labels, predicted).hints
        assert confused.fact == "confused with each other: 8 of 20 of 'cat' for 'dog'"
        assert "60 test images: the accuracy is 86.7% ± 8.6%" in few.fact

    def test_photos_that_were_made_small(self, tmp_path):
        Image.new("L", (200, 100)).save(tmp_path / "photo.png")
        files = (str(tmp_path / "photo.png"),) * 20 + (
            str(tmp_path / "gone.png"),
        ) * 880
        predicted = torch.where(torch.arange(900) % 10 == 0, (EVEN + 1) % 3, EVEN)
        actual = advice(EVEN, predicted, files=files, side=32)
        assert actual.hints[-1].option == "--data.size 64"
        assert (
            "photos with 100 pixels on the smaller side are reduced to 32"
            in actual.hints[-1].fact
        )
        assert "--data.size" not in options(
            advice(EVEN, predicted, files=files, side=64)
        )

"""Classes of very different sizes are told, weighted and balanced."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import torchcaps as tc
from torchcaps.losses import (
    ActivationLoss,
    LengthCrossEntropy,
    MarginLoss,
    NegativeLogLikelihood,
    SpreadLoss,
)
from torchcaps_lab.cli import main
from torchcaps_lab.data import Examples
from torchcaps_lab.evaluate import Findings
from torchcaps_lab.tasks import Classification, SeveralLabels
from torchcaps_lab.training.loaders import balanced_order, train_loader
from torchcaps_lab.training.options import Optimisation

COUNTS = (150, 20, 2)
WEIGHTS = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)
LOSSES = [
    MarginLoss(),
    MarginLoss(weighting="released"),
    SpreadLoss(schedule="constant"),
    LengthCrossEntropy(),
    NegativeLogLikelihood(),
]


def findings(predicted: list[int], labels: list[int], classes: int) -> Findings:
    return Findings(
        torch.tensor(labels), F.one_hot(torch.tensor(predicted), classes).float(), None
    )


def uneven(counts: tuple[int, ...] = COUNTS) -> Examples:
    labels = torch.cat(
        [torch.full((count,), label) for label, count in enumerate(counts)]
    )
    images = (
        (40 * labels + 40)
        .to(torch.uint8)[:, None, None, None]
        .expand(-1, 1, 8, 8)
        .contiguous()
    )
    return Examples(images, labels, tuple("abcdefgh"[: len(counts)]))


class TestFigures:
    def test_by_hand(self):
        actual = findings([0, 0, 0, 1, 0], [0, 0, 0, 1, 1], 3)
        assert actual.per_class == (
            (3, 0.75, 1.0, 6 / 7),
            (2, 1.0, 0.5, 2 / 3),
            (0, None, None, None),
        )
        assert actual.balanced_accuracy == 0.75
        assert actual.majority == (0, 0.6)

    def test_everything_called_the_first_class(self):
        actual = findings([0] * sum(COUNTS), uneven().labels.tolist(), 3)
        assert actual.accuracy == actual.majority[1] == 150 / 172
        assert actual.balanced_accuracy == pytest.approx(1 / 3)
        assert actual.per_class[2] == (2, None, 0.0, 0.0)

    @pytest.mark.parametrize(("bias", "warned"), [(1.0, True), (0.0, False)])
    def test_a_network_that_says_one_class_is_warned_of(self, bias, warned):
        class Guess(tc.models.ImageClassifier):
            def __init__(self) -> None:
                super().__init__((1, 8, 8), 3)

            def forward(self, images, target=None):
                told = F.one_hot(
                    (images.amax((1, 2, 3)) * 255 / 40 - 1).round().long(), 3
                ).float()
                activation = told * (1 - bias) + bias * torch.tensor([1.0, 0.0, 0.0])
                return tc.models.Prediction(activation, None, None)

        examination = Classification().examine(Guess(), uneven())
        assert bool(examination.warnings) is warned
        if warned:
            assert (
                "87.21%, the share of the most frequent class, 'a'"
                in examination.warnings[0]
            )
            assert "balanced accuracy 33.33%" in examination.lines[0]


class Told(tc.models.ImageClassifier):
    """Gives the same activations for each image."""

    def __init__(self, *activation: float) -> None:
        super().__init__((1, 8, 8), len(activation))
        self.activation = torch.tensor(activation)

    def forward(self, images, target=None):
        return tc.models.Prediction(self.activation.expand(len(images), -1), None, None)


def test_classes_without_images_are_named():
    images = Examples(
        torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
        torch.tensor([0, 2]),
        ("a", "b", "c"),
    )
    examination = Classification().examine(Told(0.9, 0.1, 0.2), images)
    assert (
        examination.warnings[0]
        == "there are no images of 'b', so the figures leave them out"
    )


def two_images(task, classes):
    """One of each class, labelled as the task wants it."""
    labels = torch.tensor([0, 1])
    if isinstance(task, SeveralLabels):
        labels = F.one_hot(labels).bool()
    return Examples(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), labels, classes)


@pytest.mark.parametrize("task", [Classification(), SeveralLabels()])
def test_activations_that_are_not_finite_are_warned_of(task):
    examination = task.examine(Told(torch.nan, 0.1), two_images(task, ("a", "b")))
    assert examination.warnings[0].startswith(
        "the activations of 2 of 2 are not finite"
    )


def test_of_many_classes_the_most_confused_are_told():
    """The defect: 300 classes were 300 lines of 300 numbers."""

    class Shifted(tc.models.ImageClassifier):
        """Takes each odd class for the one before it."""

        def __init__(self) -> None:
            super().__init__((1, 1, 1), 300)

        def forward(self, images, target=None):
            labels = (images.flatten(1)[:, 0] * 255).round().long()
            return tc.models.Prediction(
                F.one_hot(labels - labels % 2, 300).float(), None, None
            )

    labels = torch.tensor([*range(200), 7, 7, 9])
    images = Examples(
        labels.byte()[:, None, None, None],
        labels,
        tuple(f"c{label}" for label in range(300)),
    )
    examination = Classification().examine(Shifted(), images)
    assert len(examination.lines) == 22
    assert examination.lines[1] == (
        "most often confused of 300 classes ('evaluate --json' has the whole matrix):"
    )
    assert (
        examination.lines[2]
        == "  c7 classified as c6: 3 of 3  (precision -, recall 0.00%)"
    )
    assert (
        examination.lines[3]
        == "  c9 classified as c8: 2 of 2  (precision -, recall 0.00%)"
    )
    assert torch.tensor(examination.details["confusion"]).sum() == 203


class TestClassWeights:
    @pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
    def test_each_image_counts_as_its_class(self, loss):
        torch.manual_seed(0)
        activation = torch.rand(7, 3, dtype=torch.float64)
        labels = torch.tensor([0, 1, 2, 0, 0, 1, 2])
        fresh = type(loss)()
        vars(fresh).update(
            {
                name: value
                for name, value in vars(loss).items()
                if not name.startswith("_")
            }
        )
        alone = torch.stack(
            [loss(activation[i : i + 1], labels[i : i + 1]) for i in range(7)]
        )
        torch.testing.assert_close(loss(activation, labels), alone.mean())
        fresh.weigh(WEIGHTS)
        torch.testing.assert_close(
            fresh(activation, labels), (alone * WEIGHTS[labels]).mean()
        )
        if not isinstance(loss, SpreadLoss):
            torch.testing.assert_close(
                fresh(activation, F.one_hot(labels)), (alone * WEIGHTS[labels]).mean()
            )
        assert fresh.state_dict() == {}  # checkpoints stay as they are

    def test_several_classes_weigh_their_mean_and_none_one(self):
        activation = torch.rand(3, 3, dtype=torch.float64)
        mask = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
        alone = torch.stack(
            [tc.margin_loss(activation[i : i + 1], mask[i : i + 1]) for i in range(3)]
        )
        expected = (alone * torch.tensor([1.4, 1.0, 1.0])).mean()
        torch.testing.assert_close(
            tc.margin_loss(activation, mask, weight=WEIGHTS), expected
        )

    def test_balanced_weights(self):
        how = Optimisation(
            loss=MarginLoss(), optimizer=torch.optim.SGD, class_weights="balanced"
        )
        images = uneven()
        how.weigh(images)
        expected = 172 / (3 * torch.tensor(COUNTS))
        torch.testing.assert_close(how.loss.class_weights, expected)
        assert how.loss.class_weights[images.labels].mean() == pytest.approx(1)

    def test_errors(self):
        class Plain(ActivationLoss):
            def forward(self, activation, target):
                return activation.sum()

        with pytest.raises(
            ValueError, match="class_weights are not supported by Plain"
        ):
            Plain().weigh(WEIGHTS)
        with pytest.raises(
            ValueError, match=r"weight must be \(3,\), one for each class, got \(2,\)"
        ):
            tc.margin_loss(
                torch.rand(4, 3), torch.tensor([0, 1, 2, 0]), weight=WEIGHTS[:2]
            )
        masks = Examples(
            torch.zeros(2, 1, 3, 3, dtype=torch.uint8),
            torch.ones(2, 2, dtype=torch.bool),
            ("a", "b"),
        )
        how = Optimisation(optimizer=torch.optim.SGD, class_weights="balanced")
        with pytest.raises(
            ValueError,
            match="class_weights cannot be balanced where images have several classes",
        ):
            how.weigh(masks)
        with pytest.raises(ValueError, match="sampler cannot be balanced"):
            train_loader(masks, 2, seed=0, sampler="balanced")


class TestBalancedSampler:
    @pytest.mark.parametrize("counts", [COUNTS, (5, 5), (100, 1), (3, 7, 0, 11)])
    def test_classes_come_up_equally_often_and_images_too(self, counts):
        labels = uneven(counts).labels
        order = balanced_order(labels, torch.Generator().manual_seed(0))
        assert len(order) == len(labels)
        often = torch.bincount(labels[order], minlength=len(counts))
        present = torch.tensor(counts) > 0
        assert often[present].max() - often[present].min() <= 1
        for label in labels.unique():
            images = torch.bincount(order, minlength=len(labels))[labels == label]
            assert images.max() - images.min() <= 1

    @pytest.mark.parametrize("processes", [1, 2, 3])
    def test_seed_and_epoch_alone_decide_for_any_number_of_processes(self, processes):
        images = uneven((150, 28, 2))

        def batches(rank: int, processes: int, epoch: int) -> list[list[int]]:
            loader = train_loader(
                images, 12, seed=3, rank=rank, processes=processes, sampler="balanced"
            )
            loader.sampler.set_epoch(epoch)
            return [sorted(batch.indices.tolist()) for batch in loader]

        shards = zip(
            *(batches(rank, processes, 5) for rank in range(processes)), strict=True
        )
        together = [
            sorted(index for part in parts for index in part) for parts in shards
        ]
        assert together == batches(0, 1, 5) != batches(0, 1, 6)


@pytest.mark.thorough
def test_options_figures_and_resume(tmp_path, capsys):
    random = np.random.default_rng(0)
    for name, count in (("many", 60), ("few", 8)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(
                0, 256, (8, 8), dtype=np.uint8
            )  # noise: nothing to be learned
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    options = [
        *(
            "--data",
            "ImageFolder",
            "--data.root",
            str(tmp_path / "images"),
            "--model",
            "capsnet_digits",
        ),
        *(
            "--model_args.channels",
            "4",
            "--model_args.types",
            "2",
            "--model_args.decoder_hidden",
            "[4]",
        ),
        *("--trainer.accelerator", "cpu", "--report", "false", "--batch_size", "8"),
        *("--class_weights", "balanced", "--sampler", "balanced", "--epochs"),
    ]
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    assert main(["train", *options, "2", "--run", str(whole)]) == 0
    assert "balanced accuracy" in capsys.readouterr().out
    assert main(["train", *options, "1", "--run", str(parts)]) == 0
    assert main(["train", "--resume", str(parts), "--epochs", "2"]) == 0
    unbroken, resumed = (
        json.loads((run / "summary.json").read_text()) for run in (whole, parts)
    )
    assert unbroken["last_epoch"]["train_loss"] == resumed["last_epoch"]["train_loss"]
    assert unbroken["test_per_class"] == resumed["test_per_class"]
    assert set(unbroken["test_per_class"]["few"]) == {
        "images",
        "precision",
        "recall",
        "f1",
    }
    counts = {
        name: unbroken["train_per_class"][name]
        + unbroken["test_per_class"][name]["images"]
        for name in ("many", "few")
    }
    assert 60 >= counts["many"] > 8 >= counts["few"]  # the rest is for validation
    assert sum(unbroken["train_per_class"].values()) == unbroken["examples"]["train"]
    recalls = [row["recall"] for row in unbroken["test_per_class"].values()]
    assert unbroken["test_balanced_accuracy"] == pytest.approx(sum(recalls) / 2)
    if unbroken["test_accuracy"] <= 12 / 14:
        assert "the share of the most frequent class, 'many'" in unbroken["warnings"][0]

"""Two digits in each image: trained, interrupted, resumed, tested, saved, opened and
asked, on the task's word.
"""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from several_digits import Masks, Pairs
from sklearn import metrics

import torchcaps as tc
from tests.runs import rows, summary
from torchcaps.losses import MarginLoss, NegativeLogLikelihood, ReconstructionLoss
from torchcaps.models import Prediction, create_model
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main
from torchcaps_lab.data import Digits, Examples
from torchcaps_lab.options.declarations import Schedule
from torchcaps_lab.tasks import (
    Classification,
    Criteria,
    SeveralLabels,
    Task,
    as_task,
    create_task,
    list_tasks,
)
from torchcaps_lab.tasks.several_labels import _best_threshold
from torchcaps_lab.training.loaders import Loaders
from torchcaps_lab.training.speed import Speed

MODULE = str(Path(__file__).with_name("several_digits.py"))
OPTIONS = [
    *(
        "--import",
        MODULE,
        "--data",
        "several_digits.Pairs",
        "--model",
        "capsnet_digits",
    ),
    *(
        "--model_args.channels",
        "8",
        "--model_args.types",
        "2",
        "--model_args.decoder_hidden",
        "[8]",
    ),
    *(
        "--data.count",
        "600",
        "--batch_size",
        "16",
        "--optimizer",
        "Adam",
        "--optimizer.lr",
        "0.01",
    ),
    *("--preprocess.shift", "1", "--trainer.accelerator", "cpu"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("several") / "run"
    assert main(["train", *OPTIONS, "--run", str(run), "--epochs", "3"]) == 0
    return run


class TestCommandLine:
    def test_the_data_say_what_networks_are_for(self, run):
        actual = summary(run)
        assert actual["task"] == "several_labels"
        assert actual["examples"] == {"train": 479, "validation": 121, "test": 50}
        assert 0.1 < actual["test_accuracy"] <= 1
        assert {
            "train_accuracy",
            "val_accuracy",
            "train_class_loss",
            "val_reconstruction_loss",
        } <= rows(run)[0].keys()
        network = tc.load_pretrained(run / "model")
        assert network.extra["task"] == {
            "name": "several_labels",
            "count": 2,
            "threshold": 0.5,
        }
        assert network.image_shape == (1, 8, 16)

    @pytest.mark.thorough
    def test_a_resumed_training_ends_like_an_unbroken_one(self, run, tmp_path):
        broken = tmp_path / "broken"
        assert (
            main(
                [
                    "train",
                    *OPTIONS,
                    "--run",
                    str(broken),
                    "--epochs",
                    "1",
                    "--report",
                    "false",
                ]
            )
            == 0
        )
        assert (
            main(
                ["train", "--resume", str(broken), "--epochs", "3", "--import", MODULE]
            )
            == 0
        )
        assert rows(broken) == rows(run)

    @pytest.mark.thorough
    def test_training_ends_at_a_share_of_exact_answers(self, run, tmp_path):
        accuracies = [row["val_accuracy"] for row in rows(run)]
        aim = max(accuracies[:2])
        assert aim > 0  # or nothing is seen here
        stopped = tmp_path / "stopped"
        options = [
            "--run",
            str(stopped),
            "--epochs",
            "3",
            "--stop_at",
            str(aim),
            "--report",
            "false",
        ]
        assert main(["train", *OPTIONS, *options]) == 0
        assert rows(stopped) == rows(run)[: accuracies.index(aim) + 1]

    def test_evaluate_agrees_with_the_summary(self, run, capsys):
        assert main(["evaluate", str(run), "--json", "--import", MODULE]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["accuracy"] == summary(run)["test_accuracy"]
        assert (
            sum(figures["images"] for figures in result["per_class"].values()) == 2 * 50
        )
        assert (
            main(["evaluate", str(run), "--split", "validation", "--import", MODULE])
            == 0
        )
        assert "of 121 images right in all their classes" in capsys.readouterr().out

    def test_predict_names_both_classes(self, run, tmp_path, capsys):
        images = Pairs().test.__getitems__([0, 1, 2]).inputs
        files = []
        for number, image in enumerate(images):
            files.append(str(tmp_path / f"{number}.png"))
            Image.fromarray((255 * image[0]).round().to(torch.uint8).numpy()).save(
                files[-1]
            )
        assert main(["predict", str(run), *files, "--json"]) == 0
        actual = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        with torch.no_grad():
            activation = tc.load_pretrained(run / "model")(images).activation
        for row, expected in zip(actual, activation, strict=True):
            assert row["classes"] == [
                str(label) for label in expected.topk(2).indices.tolist()
            ]
            assert list(row["lengths"].values()) == pytest.approx(
                expected.tolist(), abs=1e-5
            )
            assert row["probabilities"] == row["lengths"]
        assert main(["predict", str(run), files[0]]) == 0
        assert capsys.readouterr().out.count("(") == 2

    def test_the_report_shows_each_class_of_an_image(self, run):
        exhibits = json.loads((run / "report" / "exhibits.json").read_text())[
            "exhibits"
        ]
        kinds = {exhibit["kind"]: exhibit for exhibit in exhibits}
        assert {"summary", "learning_curves", "assignments"} <= kinds.keys()
        first = exhibits[0]
        last = exhibits[-1]
        assert (first["kind"], last["kind"]) == (
            "present_classes",
            "summary",
        )  # what was found first, settings last
        assert first["text"].startswith(
            f"{summary(run)['test_accuracy']:.2%} of 50 images right in all their "
            "classes."
        )
        lowest = min(
            row["recall"]
            for row in first["figures"].values()
            if row["recall"] is not None
        )
        assert f"found in {lowest:.1%} of its" in first["text"]
        assert ("reconstructions" in kinds) is (
            "The decoder learned nothing" not in first["text"]
        )
        assert "test_accuracy" in last["recorded"]
        first, second = kinds["layer_activations"]["titles"][:2]
        # One image, asked about each of its digits.
        assert first.split("\nbeside ")[::-1] == second.split("\nbeside ")

    def test_a_network_alone_knows_its_task(self, run):
        classifier = Classifier.open(run / "model")
        assert classifier.task.config() == {
            "name": "several_labels",
            "count": 2,
            "threshold": 0.5,
        }
        answers = classifier(Pairs().test.__getitems__([0, 1]).pictures)
        assert [len(answer.classes) for answer in answers] == [2, 2]


class TestTrainingPairs:
    def test_they_are_new_in_each_epoch_and_the_same_for_any_number_of_processes(self):
        images = Pairs(validation=0).train
        raw = images.__class__(images.inputs, images.labels, images.classes)

        def made(indices: list[int], epoch: int, seed: int = 0):
            return images.composition(raw.__getitems__(indices), epoch, seed)

        whole = made(list(range(20)), 3)
        assert torch.equal(whole.inputs[5:9], made([5, 6, 7, 8], 3).inputs)
        assert torch.equal(whole.inputs, made(list(range(20)), 3).inputs)
        assert not torch.equal(whole.inputs, made(list(range(20)), 4).inputs)
        assert not torch.equal(whole.inputs, made(list(range(20)), 3, seed=1).inputs)

    def test_only_training_makes_them_anew(self):
        class Trainer:
            training, current_epoch = True, 7

        loaders = Loaders(Pairs().train, Pairs().validation, Schedule(seed=3), Speed())
        loaders.trainer = Trainer()
        raw = loaders.train.__getitems__([4, 2])
        assert raw.inputs.shape == (2, 1, 8, 8)
        expected = Pairs().train.composition(raw, 7, 3)
        assert torch.equal(
            loaders.on_after_batch_transfer(raw, 0).inputs, expected.inputs
        )
        Trainer.training = False
        fixed = Pairs().validation.__getitems__([0])
        assert loaders.on_after_batch_transfer(fixed, 0) is fixed


def criteria(loss=None) -> Criteria:
    return Criteria(loss or MarginLoss(), ReconstructionLoss(0.1))


class TestLoss:
    @pytest.fixture
    def network(self):
        torch.manual_seed(0)
        return create_model(
            "capsnet_digits",
            image_shape=(1, 8, 16),
            channels=4,
            types=2,
            decoder_hidden=(8,),
        )

    def test_each_capsule_reconstructs_its_digit_alone(self, network):
        batch = Pairs().test.__getitems__([0, 1, 2, 3])
        prediction, parts = SeveralLabels(2).loss(network, network, batch, criteria())
        assert torch.equal(prediction.activation, network(batch.inputs).activation)
        torch.testing.assert_close(
            parts["class_loss"],
            tc.margin_loss(prediction.activation, batch.labels.float()),
        )
        capsules = network.encode(batch.inputs)
        expected = 0.0
        for place in range(2):
            alone = network.decode(capsules, batch.parts.labels[:, place])
            error = (
                (alone - batch.parts.pictures[:, place])
                .square()
                .flatten(1)
                .sum(1)
                .mean()
            )
            expected = expected + 0.1 * error
        torch.testing.assert_close(parts["reconstruction_loss"], expected)

    def test_without_parts_the_capsules_reconstruct_together(self, network):
        batch = Masks().test.__getitems__([0, 1, 2, 3])
        _, parts = SeveralLabels().loss(network, network, batch, criteria())
        together = network.decode(network.encode(batch.inputs), batch.labels)
        expected = 0.1 * (together - batch.pictures).square().flatten(1).sum(1).mean()
        torch.testing.assert_close(parts["reconstruction_loss"], expected)

    def test_probabilities_that_add_up_to_one_are_compared_with_shares(self):
        torch.manual_seed(0)
        twin = create_model(
            "matrixcapsnet_cnn",
            image_shape=(1, 8, 16),
            classes=10,
            channels=(4, 4),
            hidden=8,
        )
        batch = Pairs().test.__getitems__([0, 1, 2, 3])
        prediction, parts = SeveralLabels(2).loss(
            twin, twin, batch, criteria(NegativeLogLikelihood())
        )
        torch.testing.assert_close(prediction.activation.sum(1), torch.ones(4))
        expected = -(batch.labels * prediction.activation.log()).sum(1).mean() / 2
        assert parts.keys() == {"class_loss"}
        torch.testing.assert_close(parts["class_loss"], expected)


class TestAnswers:
    ACTIVATION = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.7, 0.6], [0.3, 0.1, 0.2]])
    LABELS = torch.tensor(
        [[True, True, False], [False, True, False], [False, False, False]]
    )

    def test_exact_sets(self):
        prediction = Prediction(self.ACTIVATION, None, None)
        batch = Masks().test[0]._replace(labels=self.LABELS)
        assert SeveralLabels().measure(prediction, batch)["accuracy"].tolist() == [
            True,
            False,
            True,
        ]
        assert SeveralLabels(threshold=0.65).measure(prediction, batch)[
            "accuracy"
        ].tolist() == [True, True, True]
        assert SeveralLabels(2).measure(prediction, batch)["accuracy"].tolist() == [
            True,
            False,
            False,
        ]

    def test_what_people_read(self):
        answers = SeveralLabels().answers(
            Prediction(self.ACTIVATION, None, None), ["a", "b", "c"]
        )
        assert [answer.classes for answer in answers] == [("a", "b"), ("b", "c"), ()]
        assert str(answers[1]) == "b (0.700), c (0.600)"
        assert str(answers[2]) == "nothing"

    def test_one_class_has_a_share_of_all_activations(self):
        answers = Classification().answers(
            Prediction(self.ACTIVATION, None, None), ["a", "b", "c"]
        )
        assert [answer.classes for answer in answers] == [("a",), ("b",), ("a",)]
        assert list(answers[2].probabilities.values()) == pytest.approx(
            [0.5, 1 / 6, 1 / 3]
        )
        assert answers[2].json()["class"] == "a"

    def test_figures_of_each_class(self):
        class Fixed(torch.nn.Module):
            classes = 10

            def forward(self, images):
                return Prediction(
                    torch.stack(
                        [self.told[image.item()] for image in images[:, 0, 0, 0]]
                    ),
                    None,
                    None,
                )

        masks = torch.zeros(3, 10, dtype=torch.bool)
        masks[0, [1, 2]] = masks[1, 1] = masks[2, 3] = True
        predicted = torch.zeros(3, 10)
        predicted[0, [1, 2]] = predicted[1, [1, 3]] = predicted[2, 4] = 1.0
        pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
        images = Examples(pixels, masks, tuple(map(str, range(10))))
        network = Fixed()
        network.told = dict(
            zip((images[row].inputs.item() for row in range(3)), predicted, strict=True)
        )
        actual = SeveralLabels().examine(network, images, batch_size=2)
        assert actual.figures["accuracy"] == pytest.approx(1 / 3)
        assert actual.details["per_class"]["1"] == {
            "images": 2,
            "precision": 1.0,
            "recall": 1.0,
            "f1": 1.0,
            "best_f1": 1.0,
            "best_threshold": 0.5,
        }
        assert actual.details["per_class"]["3"] == {
            "images": 1,
            "precision": 0.0,
            "recall": 0.0,
            "f1": 0.0,
            "best_f1": 0.0,
            "best_threshold": 0.5,
        }
        assert actual.figures["micro_f1"] == pytest.approx(6 / 9)
        assert actual.figures["macro_f1"] == pytest.approx((1 + 1 + 0) / 3)
        assert actual.details["per_class"]["4"] == {
            "images": 0,
            "precision": 0.0,
            "recall": None,
            "f1": 0.0,
            "best_f1": None,
            "best_threshold": None,
        }
        assert actual.details["per_class"]["9"]["f1"] is None

    @pytest.mark.parametrize("size", [1.0, 0.0])
    def test_the_best_threshold_has_the_best_f1(self, size):
        draw = torch.Generator().manual_seed(0)
        activation = size * (torch.rand(9, generator=draw) * 3).round() / 3
        assert (activation == 0).any()
        present = activation.roll(4) < 0.9
        best = _best_threshold(activation, present)
        levels = {0.0, *activation.tolist()}
        most = max(metrics.f1_score(present, activation > level) for level in levels)
        assert best["best_f1"] == pytest.approx(most)
        if size:
            predicted = activation > best["best_threshold"]
            assert metrics.f1_score(present, predicted) == pytest.approx(most)

    def test_means_over_classes_are_those_of_scikit_learn(self):
        draw = torch.Generator().manual_seed(0)
        activation = (torch.rand(60, 4, generator=draw) * 9).round() / 9
        labels = torch.rand(60, 4, generator=draw) < 0.3

        class Fixed(torch.nn.Module):
            classes = 4

            def forward(self, images):
                rows = (255 * images[:, 0, 0, 0]).round().long()
                return Prediction(activation[rows], None, None)

        pixels = torch.arange(60, dtype=torch.uint8).view(60, 1, 1, 1)
        images = Examples(pixels, labels, tuple("abcd"))
        actual = SeveralLabels().examine(Fixed(), images).figures
        average_precision = metrics.average_precision_score(labels, activation)
        assert actual["mean_average_precision"] == pytest.approx(average_precision)
        for average in ("micro", "macro"):
            f1 = metrics.f1_score(labels, activation > 0.5, average=average)
            assert actual[f"{average}_f1"] == pytest.approx(f1)


class TestTasks:
    def test_by_name(self):
        assert list_tasks() == [
            "classification",
            "detection",
            "objects",
            "segmentation",
            "several_labels",
        ]
        assert create_task("several_labels", count=3).config()["count"] == 3
        for task in (Classification(), SeveralLabels(2), SeveralLabels(threshold=0.3)):
            assert as_task(task.config()).config() == task.config()
        with pytest.raises(
            ValueError, match=r"task must be the name of a task, got 'x'"
        ):
            as_task("x")

    def test_arguments_of_a_base_class_are_kept(self):
        class Own(SeveralLabels):
            name = "own"

        assert Own(4).config() == {
            "name": "own",
            "count": 4,
            "threshold": 0.5,
        }

    @pytest.mark.parametrize(
        "arguments", [{"count": 0}, {"threshold": 0.0}, {"threshold": 1.0}]
    )
    def test_range(self, arguments):
        with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
            SeveralLabels(**arguments)

    def test_aims(self):
        loss = Task.measures[0].__class__(
            "pixel_error", higher_is_better=False, percent=False
        )
        assert loss.reached(0.1, 0.2)
        assert not loss.reached(0.3, 0.2)
        with pytest.raises(
            ValueError, match=r"stop_at must be a pixel_error in \[0, 1\), got 1"
        ):
            loss.check_aim(1.0)


def test_masks_are_split_in_shares():
    data = Masks(count=100, validation=0.25)
    # About a quarter of all and of every label.
    assert abs(len(data.validation) - 25) <= 2
    labels = torch.cat([data.train.labels, data.validation.labels])
    aside = data.validation.labels.sum(0)
    assert (aside - labels.sum(0) / 4).abs().max() <= 2
    assert data.train.labels.dtype == torch.bool
    digits = Digits().test
    with pytest.raises(ValueError, match=r"or bool \(359, 10\), a mask"):
        Examples(digits.inputs, torch.zeros(359, 9, dtype=torch.bool), digits.classes)

"""The task segmentation: its loss and measures on masks worked out by hand, a training,
its report and predictions.
"""

import json
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps as tc
from torchcaps.models import Prediction
from torchcaps_lab.cli import main
from torchcaps_lab.data import NO_CLASS, Batch, Digits, MaskSet
from torchcaps_lab.tasks import Criteria, Segmentation, dice_loss

LABELS = torch.tensor([[[0, 0, 1], [1, 2, NO_CLASS]]])
SAID = torch.tensor([[[0, 1, 1], [1, 0, 2]]])
"""Class 0: one of three right in all; class 1: two of three; class 2: none of one, and
one that counts for nothing.
"""


def certain(labels: torch.Tensor, classes: int = 3) -> torch.Tensor:
    return (
        torch.nn.functional.one_hot(labels.clamp_max(classes - 1), classes)
        .movedim(-1, 1)
        .float()
    )


def batch_of(labels: torch.Tensor) -> Batch:
    images = torch.rand(len(labels), 1, *labels.shape[1:])
    return Batch(images, labels, torch.arange(len(labels)), images)


def test_measures_leave_pixels_without_a_class_out() -> None:
    actual = Segmentation().measure(
        Prediction(certain(SAID), None, None), batch_of(LABELS)
    )
    assert actual["iou"].tolist() == pytest.approx([(1 / 3 + 2 / 3 + 0) / 3])
    assert actual["dice"].tolist() == pytest.approx([(2 / 4 + 4 / 5 + 0) / 3])


def test_answers_that_are_not_numbers_are_told(tmp_path: Path) -> None:
    class WithoutNumbers(tc.models.UNet):
        def forward(self, images, target=None):
            return Prediction(
                super().forward(images).activation * torch.nan, None, None
            )

    images = MaskSet(
        torch.zeros(2, 1, 16, 16, dtype=torch.uint8),
        torch.zeros(2, 16, 16, dtype=torch.uint8),
        ("ground", "cell", "dirt"),
    )
    network = WithoutNumbers((1, 16, 16), classes=3)
    examination = Segmentation().examine(network, images)
    assert "2 of 2 are not finite" in examination.warnings[0]
    assert examination.lines[-1] == "  dirt: in no mask and in no answer"


def test_dice_loss_of_certain_answers_is_one_minus_the_coefficient() -> None:
    assert float(dice_loss(certain(SAID), LABELS)) == pytest.approx(
        1 - (2 / 4 + 4 / 5 + 0) / 3
    )
    assert float(dice_loss(certain(LABELS), LABELS)) == pytest.approx(0)
    assert float(dice_loss(certain(SAID), torch.full_like(LABELS, NO_CLASS))) == 0


def test_the_loss_is_that_of_every_pixel_with_a_class() -> None:
    activation = torch.rand(1, 3, 2, 3)
    criteria = Criteria(tc.MarginLoss(), tc.ReconstructionLoss(1.0))
    drawn = torch.rand(1, 1, 2, 3)
    batch = batch_of(LABELS)
    _, parts = Segmentation(dice=0.0).loss(
        torch.nn.Identity(),
        lambda images, labels: Prediction(activation, None, drawn),
        batch,
        criteria,
    )
    rows = activation[0].flatten(1).T[:5]
    assert set(parts) == {"class_loss", "reconstruction_loss"}
    torch.testing.assert_close(
        parts["class_loss"], tc.margin_loss(rows, LABELS.flatten()[:5])
    )
    shown = (LABELS > 0) & (LABELS != NO_CLASS)
    expected = (drawn - batch.pictures)[:, 0][shown].square().sum()
    torch.testing.assert_close(parts["reconstruction_loss"], expected)


def test_a_batch_without_any_pixel_of_a_class_teaches_nothing() -> None:
    network = tc.models.UNet((1, 2, 3), 3, (2,))
    nothing = batch_of(torch.full_like(LABELS, NO_CLASS))
    criteria = Criteria(tc.MarginLoss(), tc.ReconstructionLoss())
    _, parts = Segmentation().loss(network, network, nothing, criteria)
    total = torch.stack(list(parts.values())).sum()
    assert total.item() == 0
    for gradient in torch.autograd.grad(total, list(network.parameters())):
        assert not gradient.any()


def test_examining_counts_the_pixels_of_all_images_together() -> None:
    class Reads(tc.models.UNet):
        """Says what the brightness says."""

        def forward(
            self, images: torch.Tensor, target: torch.Tensor | None = None
        ) -> Prediction:
            return Prediction(certain((255 * images[:, 0]).round().long()), None, None)

    predicted = torch.cat([SAID, torch.zeros_like(SAID)]).to(torch.uint8)
    labels = torch.cat([LABELS, torch.zeros_like(LABELS)]).to(torch.uint8)
    actual = Segmentation().examine(
        Reads((1, 2, 3), 3, (2,)), MaskSet(predicted[:, None], labels, ("a", "b", "c"))
    )
    each = actual.details["per_class"]
    assert [each[name]["iou"] for name in "abc"] == pytest.approx([7 / 9, 2 / 3, 0])
    assert actual.figures["iou"] == pytest.approx((7 / 9 + 2 / 3) / 3)
    assert actual.figures["pixel_accuracy"] == pytest.approx(9 / 11)
    assert actual.details["iou_of_images"] == pytest.approx([1 / 3, 1])


def test_labels_of_whole_images_and_networks_over_them_are_refused() -> None:
    with pytest.raises(
        ValueError, match="task 'segmentation' takes images with a class for each pixel"
    ):
        Segmentation().check(Digits().test)
    with pytest.raises(
        ValueError,
        match=r"takes networks with activations \(B, E, 2, 3\), got \(1, 3\)",
    ):
        Segmentation().loss(
            torch.nn.Identity(),
            lambda images, labels: Prediction(torch.rand(1, 3), None, None),
            batch_of(LABELS),
            Criteria(tc.MarginLoss(), tc.ReconstructionLoss()),
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training on squares of pictures whose bright half is another class."""
    folder = tmp_path_factory.mktemp("halves")
    for number in range(6):
        picture = torch.randint(
            60, (20, 17), generator=torch.Generator().manual_seed(number)
        )
        mask = (torch.arange(17) > 3 + number).expand(20, 17)
        for name, values in (("images", picture + 180 * mask), ("masks", 255 * mask)):
            (folder / name).mkdir(exist_ok=True)
            Image.fromarray(values.to(torch.uint8).numpy()).save(
                folder / name / f"{number}.png"
            )
    data = [
        "--data",
        "Masks",
        "--data.root",
        str(folder),
        "--data.cut",
        "12",
        "--data.cuts",
        "4",
    ]
    how = [
        "--epochs",
        "12",
        "--batch_size",
        "2",
        "--loss",
        "NegativeLogLikelihood",
        "--optimizer",
        "Adam",
    ]
    small = [
        "--model_args.types",
        "[2,2]",
        "--model_args.channels",
        "[4]",
        "--optimizer.lr",
        "0.01",
    ]
    main(
        [
            "train",
            *data,
            *how,
            *small,
            "--data.names",
            "[dark,bright]",
            "--run",
            str(folder / "run"),
        ]
    )
    return folder


def test_a_run_learns_and_its_report_shows_the_worst(run: Path) -> None:
    summary = tc.Classifier.open(run / "run").summary
    assert summary["test_iou"] > 0.9
    assert list(summary["test_per_class"]) == ["dark", "bright"]
    page = (run / "run/report/index.html").read_text()
    assert "segments.png" in page
    assert "<td>bright</td>" in page
    assert (run / "run/report/segments.png").stat().st_size > 1000


def test_masks_of_files_with_nearly_the_same_name_are_all_kept(
    run: Path, tmp_path: Path
) -> None:
    names = ["5.overlay.png", "5.png", "a/5.png", "b/5-2.png", "c/5.overlay.png"]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run / "images/5.png", tmp_path / "in" / name)
    out = tmp_path / "out"
    assert (
        main(["predict", str(run / "run"), str(tmp_path / "in"), "--masks", str(out)])
        == 0
    )
    assert len([*out.iterdir()]) == 2 * len(names)


def test_predict_writes_masks_and_overlays(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        [
            "predict",
            str(run / "run"),
            str(run / "images/5.png"),
            "--masks",
            str(run / "said"),
        ]
    )
    assert "bright (" in capsys.readouterr().out
    with (
        Image.open(run / "said/5.png") as mask,
        Image.open(run / "said/5.overlay.png") as laid,
    ):
        assert (mask.mode, mask.size, laid.mode, laid.size) == (
            "P",
            (17, 20),
            "RGB",
            (17, 20),
        )
        predicted = torch.from_numpy(np.array(mask)).long()
    assert (predicted == (torch.arange(17) > 8)).double().mean() > 0.9
    answer = tc.Classifier.open(run / "run")(run / "images/5.png")
    assert answer.mask is not None
    assert torch.equal(answer.mask, predicted)


@pytest.mark.parametrize(
    ("classes", "values"),
    [(("0", "7", "255"), (0, 7, 255)), (("ground", "7", "cell"), (0, 1, 2))],
)
def test_a_predicted_mask_has_the_values_of_those_learnt_from(
    classes: tuple[str, ...], values: tuple[int, ...]
) -> None:
    task = Segmentation()
    (answer,) = task.answers(Prediction(certain(SAID), None, None), classes)
    drawings = task.drawings(answer, torch.rand(1, 2, 3), classes)
    with Image.open(BytesIO(drawings[".png"])) as mask:
        assert np.array_equal(np.array(mask), np.array(values)[SAID[0]])


def test_a_network_of_pixels_is_tested_on_pictures_of_another_size(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Predict took them, and evaluate refused them for their size."""
    for number in range(5):
        mask = np.zeros((24, 32), np.uint8)
        mask[:, 16:] = 1
        for folder, pixels in (("images", 60 + 120 * mask), ("masks", mask)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / folder / f"{number}.png")
    data = ["--data", str(tmp_path), "--data.names", "[dark,bright]"]
    assert main(["evaluate", str(run / "run"), *data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iou"] > 0.8


def test_networks_without_masks_write_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(
        [
            "predict",
            "digits/capsnet_digits",
            "some.png",
            "--masks",
            str(tmp_path / "masks"),
        ]
    )
    assert "does not predict a class for each pixel" in capsys.readouterr().err

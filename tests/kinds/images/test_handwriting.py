"""Photos of handwriting, as MNIST's pictures are: through ``predict``, for anyone's
picture.
"""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageOps

from tests.kinds.images.photos import digits, photo
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main
from torchcaps_lab.data import ImageFolder, load_image
from torchcaps_lab.kinds.images.decoding.handwriting import read_handwriting

MNIST = (1, 28, 28)


def seven(size: tuple[int, int], pen: int, ink: str, paper: str) -> Image.Image:
    """A seven in a corner of a sheet."""
    sheet = Image.new("RGB", size, paper)
    ImageDraw.Draw(sheet).line(
        [(30, 40), (100, 40), (65, 140)], fill=ink, width=pen, joint="curve"
    )
    return sheet


@pytest.mark.thorough
def test_95_of_100_photos_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = digits()
    for number, digit in enumerate(images):
        photo(digit, number).save(tmp_path / f"{number}.png")
    assert (
        main(
            ["predict", "mnist/efficient_capsnet", str(tmp_path), "--csv", "--top", "1"]
        )
        == 0
    )
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    right = [row["class"] == str(labels[int(Path(row["file"]).stem)]) for row in rows]
    assert len(right) == 50
    assert np.mean(right) >= 0.95


def test_predict_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seven((400, 300), 3, "navy", "linen").save(tmp_path / "7.png")
    assert main(["predict", "mnist/efficient_capsnet", str(tmp_path / "7.png")]) == 0
    assert "7.png: 7 (" in (printed := capsys.readouterr().out)
    assert (
        "# dark ink on light ground, cut out of 400 x 300 pixels: 18 % of the width"
        in printed
    )
    assert "thin strokes widened" in printed
    assert (
        main(
            [
                "predict",
                "mnist/efficient_capsnet",
                str(tmp_path / "7.png"),
                "--resize",
                "pad",
            ]
        )
        == 0
    )
    assert "ink" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ink", "paper"),
    [("black", "#00000000"), ("#e00000", "#008000")],
    ids=["clear", "as bright"],
)
@pytest.mark.parametrize("size", [28, None])
def test_training_images_are_read_as_others_are(
    tmp_path: Path, ink: str, paper: str, size: int | None
) -> None:
    """They were made grey on black before their ink was looked for: of these nothing
    was left.
    """
    for number in range(4):
        sheet = Image.new("RGBA", (160, 200), paper)
        ImageDraw.Draw(sheet).line(
            [(30, 40), (100, 40 + number), (65, 140)], fill=ink, width=12
        )
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        sheet.save(tmp_path / "ab"[number % 2] / f"{number}.png")
    data = ImageFolder(
        str(tmp_path),
        size=size,
        channels=1,
        resize="handwriting",
        test=0.5,
        validation=0.0,
    )
    assert data.train.files is not None
    for name, image in zip(data.train.files, data.train.inputs, strict=True):
        assert torch.equal(
            image, load_image(tmp_path / name, data.image_shape, "handwriting")
        )


class TestWhatTheNetworkSees:
    @pytest.mark.parametrize(
        ("ink", "paper"), [("black", "white"), ("white", "black"), ("red", "green")]
    )
    def test_the_box_and_the_centre_are_those_of_mnist(
        self, ink: str, paper: str
    ) -> None:
        seen = (
            read_handwriting(seven((400, 300), 12, ink, paper), MNIST)
            .values[0]
            .double()
        )
        rows, columns = (seen.amax(axis).gt(40).nonzero().flatten() for axis in (1, 0))
        assert rows[-1] - rows[0] + 1 == pytest.approx(20, abs=1)
        for axis, extent in ((1, rows), (0, columns)):
            centre = (seen.sum(axis) * torch.arange(28.0)).sum() / seen.sum()
            assert float(centre) == pytest.approx(13.5, abs=0.75)
            assert 0 <= extent[0] <= extent[-1] <= 27
        assert seen.max() == 255
        assert seen[0, 0] == 0

    def test_it_does_not_depend_on_where_and_how_large(self) -> None:
        small = read_handwriting(seven((160, 200), 12, "black", "white"), MNIST).values
        far = ImageOps.expand(
            seven((160, 200), 12, "black", "white"), (40, 10, 20, 40), "white"
        )
        assert (small.double() - read_handwriting(far, MNIST).values).abs().max() < 8
        large = read_handwriting(
            far.resize((4 * far.width, 4 * far.height)), MNIST
        ).values
        assert (small.double() - large.double()).abs().mean() < 4

    def test_a_picture_of_mnist_is_taken_as_it_is(self) -> None:
        digit = digits()[0][0]
        actual = read_handwriting(Image.fromarray(digit), MNIST)
        assert torch.equal(actual.values[0], torch.from_numpy(digit))
        assert actual.note == "taken as it is"
        again = load_image(Image.fromarray(digit), MNIST, "handwriting")
        assert torch.equal(again, actual.values)

    def test_a_picture_of_mnist_inverted_comes_back(self) -> None:
        """But for a pixel to each side: where the faint edge of a stroke ends is not
        told any more.
        """
        for digit in digits()[0][::5]:
            actual = (
                read_handwriting(Image.fromarray(255 - digit), MNIST).values[0].numpy()
            )
            moved = [
                np.roll(actual, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1)
            ]
            assert (
                max(
                    np.corrcoef(shifted.ravel(), digit.ravel())[0, 1]
                    for shifted in moved
                )
                > 0.9
            )

    @pytest.mark.parametrize("ink", [0, 255])
    def test_transparent_paper(self, ink: int) -> None:
        digit = Image.fromarray(digits()[0][3]).resize((140, 140))
        sheet = Image.new("RGBA", digit.size, (ink, ink, ink, 0))
        sheet.putalpha(digit)
        opaque = ImageOps.invert(digit) if ink == 0 else digit
        expected = read_handwriting(opaque, MNIST).values.double()
        assert (
            read_handwriting(sheet, MNIST).values.double() - expected
        ).abs().max() <= 2

    def test_16_bit(self, tmp_path: Path) -> None:
        sheet = seven((160, 200), 12, "black", "white").convert("L")
        Image.fromarray(np.asarray(sheet).astype(np.uint16) * 257).save(
            tmp_path / "deep.png"
        )
        actual = load_image(tmp_path / "deep.png", MNIST, "handwriting")
        assert torch.equal(actual, read_handwriting(sheet, MNIST).values)

    def test_specks_are_left_out(self) -> None:
        sheet = seven((200, 200), 12, "black", "white")
        clean = read_handwriting(sheet, MNIST).values
        ImageDraw.Draw(sheet).ellipse([180, 180, 184, 184], fill="black")
        # The ground is fitted to slightly other pixels.
        assert (
            read_handwriting(sheet, MNIST).values.double() - clean.double()
        ).abs().max() < 16


class TestWhatIsNoHandwriting:
    @pytest.mark.parametrize("noise", [0, 3])
    def test_an_empty_sheet(self, noise: float, tmp_path: Path) -> None:
        sheet = 230 + np.random.default_rng(0).normal(0, noise, (120, 90))
        Image.fromarray(sheet.astype(np.uint8)).save(tmp_path / "empty.png")
        with pytest.raises(ValueError, match=r"empty\.png: no ink found"):
            load_image(tmp_path / "empty.png", MNIST, "handwriting")

    def test_a_file_that_is_no_image(self, tmp_path: Path) -> None:
        (tmp_path / "text.png").write_text("seven")
        with pytest.raises(ValueError, match=r"text\.png"):
            load_image(tmp_path / "text.png", MNIST, "handwriting")

    def test_a_canvas_that_is_scribbled_full(self) -> None:
        """It was told to take a picture with more empty paper."""
        canvas = Image.new("L", (280, 280))
        for start in range(0, 280, 40):
            canvas.paste(255, (start, 0, start + 20, 280))
        with pytest.raises(
            ValueError, match="leave more of the ground empty around the sign"
        ):
            read_handwriting(canvas, MNIST)

    def test_one_pixel(self) -> None:
        with pytest.raises(ValueError, match="no ink"):
            read_handwriting(Image.new("L", (1, 1)), MNIST)


def test_all_kinds_of_images_are_read_alike() -> None:
    classifier = Classifier.open("mnist/efficient_capsnet")
    sheet = seven((160, 200), 12, "black", "white")
    pixels = np.array(sheet)
    kinds = [
        sheet,
        pixels,
        torch.from_numpy(pixels.copy()).permute(2, 0, 1),
        (pixels / 255).astype(np.float32),
    ]
    first, *others = (classifier.pixels(kind) for kind in kinds)
    for other in others:
        assert torch.allclose(first, other, atol=0.01)
    assert all(
        answer.classes == ("7",) and "dark ink" in answer.seen
        for answer in classifier(kinds)
    )

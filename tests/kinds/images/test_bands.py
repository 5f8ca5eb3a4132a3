"""Pictures of many bands, in .npy and TIFF files: trained on, checked, predicted,
drawn, and hostile ones refused.
"""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import torchcaps as tc
from tests.runs import status
from torchcaps_lab.data import ImageFolder, load_image
from torchcaps_lab.kinds.images.check import check_folder
from torchcaps_lab.options.guess import guess
from torchcaps_lab.report.exhibit import png

DRAW = np.random.default_rng(0)


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, pixels)
    else:
        tifffile.imwrite(
            path,
            pixels,
            photometric="minisblack",
            planarconfig="contig",
            compression="zlib",
        )
    return path


def fields(root: Path, suffix: str, bands: int = 6, kind: type = np.uint8) -> Path:
    """Two classes that differ in the last band."""
    for number in range(16):
        pixels = DRAW.integers(0, 100, (16, 18, bands)).astype(kind)
        pixels[..., -1] += kind(100 * (number % 2))
        save(root / "ab"[number % 2] / f"{number:02}{suffix}", pixels)
    return root


@pytest.mark.parametrize("suffix", [".npy", ".tif"])
@pytest.mark.parametrize("bands", [2, 6, 13])
def test_bands_are_read_as_they_are(tmp_path: Path, suffix: str, bands: int) -> None:
    data = ImageFolder(fields(tmp_path, suffix, bands))
    assert data.image_shape == (bands, 16, 18)
    file = Path(data.train.files[0])
    stored = np.load(file) if suffix == ".npy" else tifffile.imread(file)
    assert torch.equal(data.train.inputs[0], torch.from_numpy(stored).permute(2, 0, 1))


@pytest.mark.thorough
def test_a_run_of_many_bands_is_trained_checked_evaluated_explained_and_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fields(Path("fields"), ".npy", 6, np.uint16)
    assert check_folder("fields").modes == {"6 x uint16": 16}
    assert check_folder("fields").range == (0, 255)
    assert guess("fields").options["model"] == "capsnet_small"
    assert "channels" not in guess("fields").options["data"]
    tiny = (
        "--model",
        "capsnet_digits",
        "--epochs",
        "1",
        "--trainer.accelerator",
        "cpu",
    )
    assert status("train", "fields", *tiny) == 0
    assert Path("runs/fields/report/index.html").is_file()
    assert (
        status(
            "evaluate",
            "runs/fields",
            "--data",
            "ImageFolder",
            "--data.root",
            "fields",
            "--split",
            "all",
        )
        == 0
    )
    capsys.readouterr()
    assert status("predict", "runs/fields", "fields/a/00.npy") == 0
    assert "00.npy" in capsys.readouterr().out
    classifier = tc.Classifier.open("runs/fields")
    assert classifier.image_shape == (6, 16, 18)
    file = Path("fields/a/00.npy")
    expected = torch.from_numpy(np.load(file).astype(np.float32)).permute(2, 0, 1) / 255
    torch.testing.assert_close(classifier.pixels(file), expected)
    torch.testing.assert_close(classifier.pixels(np.load(file)), expected)
    Image.new("RGB", (18, 16)).save("photo.png")
    with pytest.raises(ValueError, match="has 3 channels, expected 6"):
        classifier.predict("photo.png")


def test_grey_and_colour_arrays_are_read_as_pictures_are(tmp_path: Path) -> None:
    pixels = DRAW.integers(0, 256, (7, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    for order in (pixels, pixels.transpose(2, 0, 1)):
        file = save(tmp_path / "x.npy", order)
        for shape in ((3, 7, 9), (1, 5, 5)):
            assert torch.equal(
                load_image(file, shape), load_image(tmp_path / "x.png", shape)
            )
    colour = save(tmp_path / "deep.tif", (pixels.astype(np.uint16) * 257))
    assert torch.equal(
        load_image(colour, (3, 7, 9)), load_image(tmp_path / "x.png", (3, 7, 9))
    )


def test_other_bands_than_most_are_named(tmp_path: Path) -> None:
    fields(tmp_path, ".npy")
    save(tmp_path / "a/odd.npy", np.zeros((16, 18, 5), np.uint8))
    with pytest.raises(ValueError, match=r"odd.npy: it has 5 channels.* expected 6"):
        _ = ImageFolder(tmp_path).train


def test_the_first_three_bands_are_drawn() -> None:
    image = torch.rand(6, 5, 5)
    assert png(image) == png(image[:3])
    assert Image.open(io.BytesIO(png(image[:2]))).mode == "L"


def header(shape: str, kind: str = "|u1") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


class Executed:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("executed"),))


def pickled() -> bytes:
    return header("(1,)", "|O") + pickle.dumps([Executed()])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cannot read the image"),
        (b"\x93NUMPY\x01\x00", "cannot read the image"),
        (header("(8, 8)"), "cannot read the image"),  # the pixels are missing
        (header("(10000000, 10000000)") + bytes(99), "at most"),
        (header("(4294967296, 4294967296, 4294967296)"), "at most"),
        (header("(8,)") + bytes(8), "a picture"),
        (header("(0, 8)"), "a picture"),
        (header("(2, 2)", "<M8[s]") + bytes(32), "must hold numbers"),
        (header("(3, 20, 3)") + bytes(180), "the picture is not clear"),
        (pickled(), "must hold numbers"),
    ],
)
def test_hostile_arrays_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=why):
        load_image("x.npy", (1, 8, 8))
    assert not Path("executed").exists()

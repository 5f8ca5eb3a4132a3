"""The size that images are brought to is that of most of them, when upright."""

from pathlib import Path

import pytest
from PIL import Image

from torchcaps_lab.cli import main
from torchcaps_lab.kinds.images.check import check_folder
from torchcaps_lab.kinds.images.guess import guess_of_images, looked_at, shape_of


def write_photo(path: Path, size: tuple[int, int], turn: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = turn
    Image.new("RGB", size, (len(path.stem) * 40, 90, 10)).save(path, exif=exif)
    return path


@pytest.mark.parametrize("odd", [(1, 1), (2000, 1500)])
def test_one_odd_image_does_not_decide(tmp_path: Path, odd: tuple[int, int]) -> None:
    files = [write_photo(tmp_path / f"{number}.png", (40, 32)) for number in range(9)]
    files.append(write_photo(tmp_path / "odd.png", odd))
    shape, _ = shape_of(looked_at(files))
    assert shape["size"] == 32


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_sizes_are_those_of_upright_images(
    tmp_path: Path, suffix: str, turn: int
) -> None:
    file = write_photo(tmp_path / f"photo.{suffix}", (40, 30), turn)
    upright = (40, 30) if turn >= 5 else (30, 40)
    assert looked_at([file]).sizes == [upright]


def test_the_command_that_check_prints_fits_images_that_were_not_looked_at(
    tmp_path: Path,
) -> None:
    for number in range(140):
        size = (40, 30) if number != 1 else (30, 40)
        write_photo(tmp_path / "ab"[number % 2] / f"{number:03}.png", size)
    report = check_folder(tmp_path)
    assert len(report.sizes) == 2
    assert report.advised({"data": {}}) == {"--data.size": "32"}


def test_fewer_images_than_a_batch_are_one_step(tmp_path: Path) -> None:
    files = [write_photo(tmp_path / f"{number}.png", (40, 32)) for number in range(3)]
    guess = guess_of_images({}, "", files, train=2, given={})
    assert guess.why["batch_size"].endswith(", for 1 step an epoch")


def test_a_folder_of_turned_photos_trains_as_check_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(24):
        turn = 6 if number % 3 == 0 else 1
        name = f"{'x' * (number % 4)}{number}.jpg"
        write_photo(tmp_path / "photos" / "ab"[number % 2] / name, (40, 30), turn)
    main(["check", str(tmp_path / "photos")])
    assert " --data.size " in capsys.readouterr().out

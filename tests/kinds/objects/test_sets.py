"""Figures whose masks are known, and folders of pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps_lab.data import Pictures, Shapes
from torchcaps_lab.kinds.objects.guess import guess_pictures
from torchcaps_lab.kinds.objects.sets import PictureFolder
from torchcaps_lab.run_folder import RunFolder
from torchcaps_lab.testing import check_dataset
from torchcaps_lab.training.record import follow_record, images_apart, write_record


def pictures(folder: Path, count: int = 12) -> Path:
    """A folder of red squares on black."""
    for number in range(count):
        picture = Image.new("RGB", (40, 30))
        picture.paste((255, 0, 0), (number, 5, number + 10, 15))
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{number}.png")
    return folder


def test_what_every_data_set_keeps(tmp_path: Path) -> None:
    check_dataset(Shapes(count=60, tests=20))
    check_dataset(PictureFolder(pictures(tmp_path), size=16))


def test_each_object_has_one_colour_and_the_ground_is_black() -> None:
    test = Shapes(count=20, tests=50).test
    for image, labels in zip(test.inputs, test.labels, strict=True):
        assert not image[:, labels == 0].any()
        colours = [image[:, labels == number] for number in labels.unique() if number]
        assert all((colour == colour[:, :1]).all() for colour in colours)
        different = {tuple(colour[:, 0].tolist()) for colour in colours}
        assert len(different) == len(colours)


def test_images_have_as_many_objects_as_they_should() -> None:
    """Some may be covered."""
    test = Shapes(least=6, most=7, count=20, tests=100).test
    counts = [labels.unique().numel() - 1 for labels in test.labels]
    assert max(counts) == 7
    assert sum(counts) / len(counts) > 5.5
    assert len(test.classes) == 8


def test_grounds_may_be_textured() -> None:
    textured = Shapes(count=20, tests=20, ground="textured").test
    ground = textured.inputs.movedim(1, -1)[textured.labels == 0]
    assert ground.float().std() > 5


def test_the_seed_changes_neither_training_nor_test_images() -> None:
    first = Shapes(count=30, tests=9)
    second = Shapes(count=30, tests=9, seed=4)
    assert torch.equal(first.test.inputs, second.test.inputs)
    both = [
        torch.cat([data.train.inputs, data.validation.inputs]).sum()
        for data in (first, second)
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"least": 6}, "least must be at most most, 5, got 6"),
        ({"slots": 5}, "slots must be more than most, 5: .* got 5"),
    ],
)
def test_figures_that_do_not_fit(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shapes(**arguments)


def test_sub_folders_are_no_classes(tmp_path: Path) -> None:
    data = PictureFolder(pictures(tmp_path), slots=3, size=16)
    assert data.classes == ("slot 1", "slot 2", "slot 3")
    assert "2 sub-folders" in data.notes()[0]
    parts = [len(part) for part in (data.train, data.validation, data.test)]
    assert sum(parts) == 12
    assert min(parts) >= 1


def test_the_folder_itself_is_no_sub_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in range(3):
        Image.new("L", (20, 20), number).save(tmp_path / f"{number}.png")
    assert not PictureFolder("~").notes()


def test_pixels_of_12_bit_fill_the_range(tmp_path: Path) -> None:
    """They came nearly black."""
    deep = [np.full((20, 20), 4095 * (number % 2), np.uint16) for number in range(8)]
    for number, pixels in enumerate(deep):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    data = guess_pictures(tmp_path, {}).options["data"]
    assert data.pop("name") == "PictureFolder"
    for made in (PictureFolder(**data), Pictures(deep, range=(0, 4095))):
        pixels = torch.cat([made.train.inputs, made.test.inputs])
        assert pixels.unique().tolist() == [0, 255]


def test_a_picture_that_is_added_leaves_the_others_where_they_are(
    tmp_path: Path,
) -> None:
    """Pictures that were trained on came to be tested on."""
    tests = [
        {*(PictureFolder(pictures(tmp_path, count), size=16).test.files or ())}
        for count in (24, 25)
    ]
    assert len(tests[0] - tests[1]) <= 1


def test_a_test_share_of_0_leaves_all_to_the_training(tmp_path: Path) -> None:
    data = PictureFolder(pictures(tmp_path), size=16, test=0, validation=0)
    assert (len(data.train), len(data.test)) == (12, 0)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        PictureFolder(tmp_path / "none")
    with pytest.raises(ValueError, match=r"at least three pictures.* holds 2"):
        PictureFolder(pictures(tmp_path / "few", 2))
    (pictures(tmp_path / "broken") / "a" / "0.png").write_bytes(b"no picture")
    data = PictureFolder(tmp_path / "broken")
    with pytest.raises(ValueError, match=r"0\.png"):
        _ = data.train, data.test


def test_all_broken_pictures_are_named_at_once_or_left_out(tmp_path: Path) -> None:
    broken = [pictures(tmp_path) / "a" / f"{number}.png" for number in (0, 2, 4, 6)]
    for file in broken:
        file.write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"4 images cannot be read.* skip_broken"):
        _ = PictureFolder(tmp_path, size=16).train
    with pytest.raises(ValueError, match=r"(?s)a/0\.png.*a/6\.png"):
        _ = Pictures(sorted(tmp_path.rglob("*.png")), size=16).train
    data = PictureFolder(tmp_path, size=16, skip_broken=True)
    assert len(data.train) + len(data.validation) + len(data.test) == 8
    assert any("left out" in note for note in data.notes())


@pytest.mark.parametrize("mask", ["masks/{number}.png", "images/{number}_mask.png"])
def test_masks_beside_pictures_are_no_pictures(tmp_path: Path, mask: str) -> None:
    """They were trained on as further pictures."""
    numbers = np.random.default_rng(0)
    for number in range(8):
        pixels = numbers.integers(0, 256, (20, 20, 3), dtype=np.uint8)
        for name, of in ("images/{number}.png", pixels), (mask, pixels[..., 0] > 99):
            file = tmp_path / name.format(number=number)
            file.parent.mkdir(exist_ok=True)
            Image.fromarray(of).save(file)
    assert "8 pictures" in guess_pictures(tmp_path, {}).why["data"]
    data = PictureFolder(tmp_path, size=16)
    assert len(data.train) + len(data.validation) + len(data.test) == 8
    assert any("it is a mask" in note for note in data.notes())


def test_no_run_tests_on_pictures_that_it_was_trained_on(tmp_path: Path) -> None:
    """Also if they are renamed, or take the names of others, after some were added."""
    root = pictures(tmp_path / "shelf", 24)
    run = RunFolder(tmp_path)
    run.config.write_text("")
    first = PictureFolder(root, size=16)
    write_record(run, first)
    trained = {*first.train.contents()}
    parts = first.manifest().parts
    gone, renamed, *_ = (root / entry.name for entry in parts["train"])
    tested = root / parts["test"][0].name
    gone.unlink()
    renamed.rename(tested)
    Image.new("RGB", (40, 30), "gold").save(root / "new.png")
    later = PictureFolder(root, size=16)
    lines = "\n".join(follow_record(run, later))
    assert "1 image added since the training, left out of all parts: new.png" in lines
    assert "2 images gone since the training" in lines
    assert f"{renamed.parent.name}/{renamed.name} -> " in lines
    assert {*later.train.contents()} < trained
    assert not trained & {*later.test.contents(), *later.validation.contents()}
    assert len(later.test) == len(first.test) - 1
    images, notes = images_apart(run, PictureFolder(root, size=16), "all")
    assert not trained & {*images.contents()}
    assert "the run was trained on them" in notes[-1]

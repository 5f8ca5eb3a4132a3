"""Files of the same pixels, and pictures that look alike: no test image was trained on
without a word.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from tests.kinds.images.folders import make_root
from torchcaps_lab.cli import main
from torchcaps_lab.data import ImageFolder
from torchcaps_lab.kinds.images.alike import first_alike
from torchcaps_lab.kinds.images.sets import listed


def noise(seed: int, size: tuple[int, int] = (24, 32)) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    )


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def make_copies(root: Path, count: int = 20) -> Path:
    """Each picture of two classes as PNG, as BMP, and as a TIFF that is stored
    turned.
    """
    turned = Image.Exif()
    turned[0x0112] = 3
    for number in range(2 * count):
        folder = root / "ab"[number % 2]
        picture = noise(number)
        saved(folder / f"{number}.png", picture)
        saved(folder / f"{number} again.bmp", picture)
        saved(folder / f"{number} turned.tif", picture.rotate(180), exif=turned)
    return root


def groups(images) -> set[str]:
    return {Path(file).stem.split()[0] for file in images.files}


@pytest.mark.parametrize("memory", [4.0, 0.0])
@pytest.mark.parametrize(
    "how", [{}, {"size": 16}, {"channels": 1, "size": 40, "resize": "crop"}]
)
def test_the_same_picture_in_other_formats_is_in_one_part(tmp_path, how, memory):
    data = ImageFolder(make_copies(tmp_path), memory=memory, **how)
    results = [groups(part) for part in (data.train, data.validation, data.test)]
    assert [
        len(first & second)
        for first, second in zip(results, results[1:] + results[:1], strict=True)
    ] == [0, 0, 0]
    assert sum(map(len, results)) == 40
    assert sum(map(len, (data.train, data.validation, data.test))) == 120
    assert 22 <= len(data.test) <= 30  # a fifth of each class, and at most two more
    assert not [note for note in data.notes() if "same content" in note]


def test_nothing_is_decoded_twice_for_it(tmp_path, monkeypatch):
    opened: list[str] = []
    original = listed.open_image
    monkeypatch.setattr(
        listed,
        "open_image",
        lambda file, *rest: opened.append(file) or original(file, *rest),
    )
    data = ImageFolder(make_copies(tmp_path), size=8)
    assert (len(data.train) > 0, len(opened), len(set(opened))) == (True, 120, 120)
    for part in (data.train, data.validation, data.test):
        for image, file in zip(part.inputs, part.files, strict=True):
            item = next(item for item in data.listed.items if item.title == file)
            assert torch.equal(image, data._picture((3, 8, 8), item, item.name))


def test_a_picture_of_its_own_stays_where_its_file_puts_it(tmp_path):
    root = make_root(tmp_path)
    before = {
        part: set(getattr(ImageFolder(root), part).files)
        for part in ("train", "validation", "test")
    }
    first = min(before["test"])
    Image.open(first).save(Path(first).with_suffix(".bmp"))
    data = ImageFolder(root)
    for part in before:
        moved = set(getattr(data, part).files) ^ before[part]
        assert len([file for file in moved if file.endswith(".png")]) <= 3


def test_a_recorded_split_is_kept_and_its_copies_are_named(tmp_path):
    root = make_root(tmp_path)
    first = ImageFolder(root)
    manifest = first.manifest()
    fingerprint = first.fingerprint()
    entry = manifest.parts["test"][0]
    saved(root / "a" / "new.bmp", Image.open(root / entry.name))
    changes = ImageFolder(root).follow(manifest)
    assert (changes.changed, changes.added) == ((), ("a/new.bmp",))
    moved = next(
        file for file in manifest.parts["train"] if file.category == entry.category
    )
    Image.open(root / entry.name).save(
        root / moved.name, compress_level=0
    )  # other bytes, the same pixels
    later = ImageFolder(root)
    assert later.follow(manifest).changed == (moved.name,)
    assert [len(part) for part in later.manifest().parts.values()] == [
        len(part) for part in manifest.parts.values()
    ]
    assert f"{moved.name} (train) = {entry.name} (test)" in "\n".join(later.notes())
    assert later.fingerprint() != fingerprint


def test_pixels_are_not_looked_at_where_the_split_is_recorded(tmp_path, monkeypatch):
    """An evaluation need not read all training images for it."""
    data = ImageFolder(make_copies(tmp_path, 5), size=8)
    manifest = data.manifest()
    monkeypatch.setattr(listed, "same_content", None)  # whoever looks now fails
    later = ImageFolder(tmp_path, size=8)
    later.follow(manifest)
    assert torch.equal(later.test.inputs, data.test.inputs)


def test_check_names_copies_of_other_bytes(tmp_path, capsys):
    saved(tmp_path / "train" / "a" / "1.png", noise(1))
    saved(tmp_path / "train" / "b" / "2.png", noise(2))
    saved(tmp_path / "test" / "a" / "1 again.bmp", noise(1))
    saved(tmp_path / "test" / "b" / "3.png", noise(3))
    assert main(["check", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "1 image with copies: train/a/1.png = test/a/1 again.bmp" in output
    assert (
        "PROBLEM: 1 image of the same content in several parts of the data: "
        "train/a/1.png (train) = test" in output
    )
    assert (
        "same content in several parts"
        in ImageFolder(str(tmp_path), validation=0).notes()[0]
    )


def make_near(root: Path) -> Path:
    """Cut out of photos: two test pictures are training pictures that were saved anew,
    with losses or smaller.
    """
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    for part, row in (("train", 60), ("test", 220)):
        for number in range(12):
            picture = photos[number % 2].crop(
                (50 * number, row, 50 * number + 96, row + 96)
            )
            saved(root / part / "ab"[number % 2] / f"{number}.png", picture)
    saved(
        root / "test" / "a" / "lossy.jpg",
        Image.open(root / "train" / "a" / "0.png"),
        quality=70,
    )
    saved(
        root / "test" / "b" / "small.png",
        Image.open(root / "train" / "b" / "1.png").resize((64, 64)),
    )
    return root


def test_near_copies_are_named_by_check_and_counted_in_training(tmp_path, capsys):
    root = make_near(tmp_path / "my photos")
    notes = ImageFolder(str(root), size=48, validation=0).notes()
    assert notes == (
        f"2 test images nearly the same as a training image; torchcaps check '{root}' "
        "names them",
    )
    assert main(["check", str(root)]) == 0
    output = capsys.readouterr().out
    assert "2 images nearly the same as another one: " in output
    assert "train/a/0.png ~ test/a/lossy.jpg" in output
    assert "train/b/1.png ~ test/b/small.png" in output


def test_pictures_of_one_grey_look_like_none(tmp_path):
    for number in range(12):
        saved(
            tmp_path / "ab"[number % 2] / f"{number}.png",
            Image.new("L", (8, 8), 20 * number + 1),
        )
    assert ImageFolder(str(tmp_path), validation=0).notes() == ()


@pytest.mark.parametrize("at_once", [1, 7 * 23, 2**24])
def test_first_alike_is_the_first_by_comparing_all(monkeypatch, at_once):
    monkeypatch.setattr("torchcaps_lab.kinds.images.alike._AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(2, (5, 256), generator=generator)
    bits = kinds[torch.randint(5, (23,), generator=generator)]
    bits = bits ^ (
        torch.rand(23, 256, generator=generator) < 0.024
    )  # 6 of 256: pairs differ in about 12
    looks = bits.float() * 2 - 1
    alike = (bits[:, None] != bits).sum(2) <= 12
    first = [next((j for j in range(23) if alike[i, j]), -1) for i in range(23)]
    before = [next((j for j in range(i) if alike[i, j]), -1) for i in range(23)]
    assert first_alike(looks, looks) == first
    assert first_alike(looks, looks, earlier=True) == before
    assert 0 < before.count(-1) < 23
    assert first_alike(looks, looks[:0]) == [-1] * 23


def test_a_class_of_one_image_is_said_to_have_no_test_image(tmp_path, capsys):
    """Nothing said so: the class was in no measure."""
    make_root(tmp_path, 5, ("a", "b", "single"))
    for path in sorted((tmp_path / "single").iterdir())[1:]:
        path.unlink()
    line = "classes without a test image, of which nothing is measured: single"
    assert line in ImageFolder(str(tmp_path)).notes()
    assert main(["check", str(tmp_path)]) == 0
    assert line in capsys.readouterr().out
    assert not [
        note
        for note in ImageFolder(str(tmp_path), test=0).notes()
        if "measured" in note
    ]

"""Data sets of (image, label) in Python, whatever their kind."""

from functools import partial
from threading import Lock, current_thread

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from torchcaps_lab.data import ImageFolder, MapStyle
from torchcaps_lab.testing import check_dataset

PIXELS = np.random.default_rng(0).integers(
    0,
    256,
    (60, 6, 7, 3),
    dtype=np.uint8,
)
LABELS = [number % 3 for number in range(60)]


class Photos(Dataset):
    """A data set as torchvision's: images that are made when asked for, names of
    classes, a transform.
    """

    classes = ("cat", "dog", "bird")

    def __init__(
        self, transform=lambda image: image, start: int = 0, end: int = 60
    ) -> None:
        self.transform = transform
        self.start = start
        self.end = end
        self.asked: list[int] = []
        self.busy = Lock()

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, index: int):
        assert self.busy.acquire(blocking=False), (
            f"asked by several threads, {current_thread().name}"
        )
        try:
            self.asked.append(index)
            return self.transform(Image.fromarray(PIXELS[self.start + index])), LABELS[
                self.start + index
            ]
        finally:
            self.busy.release()


KINDS = {
    "PIL": lambda image: image,
    "array": np.asarray,
    "tensor of bytes": lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1),
    "floating point": lambda image: (
        torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    ),
    "float64 array": lambda image: np.asarray(image) / 255,
}


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_all_kinds_are_the_same_data(kind):
    data = MapStyle(Photos(KINDS[kind]))
    plain = MapStyle(
        [(pixels, label) for pixels, label in zip(PIXELS, LABELS, strict=True)]
    )
    assert data.classes == ("cat", "dog", "bird")
    assert data.image_shape == (3, 6, 7)
    for part in ("train", "validation", "test"):
        first = getattr(data, part)
        second = getattr(plain, part)
        assert torch.equal(first.inputs, second.inputs)
        assert torch.equal(first.labels, second.labels)
        for image, label, file in zip(
            first.inputs, first.labels, first.files, strict=True
        ):
            row = int(file.removeprefix("train/"))
            assert image.permute(1, 2, 0).tolist() == PIXELS[row].tolist()
            assert int(label) == LABELS[row]
    assert sum(map(len, (data.train, data.validation, data.test))) == 60


def test_it_is_a_data_set_as_all_others():
    check_dataset(partial(MapStyle, Photos()))
    check_dataset(partial(MapStyle, Photos(), memory=0, size=9, channels=1))


def test_files_are_read_as_those_of_a_folder(tmp_path):
    for number, pixels in enumerate(PIXELS[:20]):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "ab"[number % 2] / f"{number:02}.png")
    files = sorted(tmp_path.rglob("*.png"))
    folder = ImageFolder(str(tmp_path), size=5)
    data = MapStyle(
        [
            (str(file) if number % 2 else file, file.parent.name)
            for number, file in enumerate(files)
        ],
        size=5,
    )
    assert data.classes == ("a", "b")
    assert torch.equal(data.test.inputs, folder.test.inputs)
    assert data.fingerprint() == folder.fingerprint()


def test_splits_of_its_own_are_kept():
    train = Photos(end=40)
    test = Photos(start=40)
    data = MapStyle(train, test_data=test, validation=0)
    assert (len(data.train), len(data.validation), len(data.test)) == (40, 0, 20)
    assert data.test.files[3] == "test/3"
    data = MapStyle(train, test_data=test, validation_data=test)
    assert (len(data.train), len(data.validation), len(data.test)) == (40, 20, 20)
    assert "60 images" not in data.notes()[0]
    assert (
        "20 images of the same content in several parts of the data" in data.notes()[0]
    )
    assert "used as the test" in MapStyle(train, validation_data=test).notes()[0]


def test_parts_of_a_data_set_have_its_classes():
    first, second = random_split(
        Photos(), [50, 10], generator=torch.Generator().manual_seed(0)
    )
    data = MapStyle(Subset(first, range(40)), test_data=second)
    assert data.classes == Photos.classes
    assert (len(data.train) + len(data.validation), len(data.test)) == (40, 10)


def test_labels_are_numbers_or_names():
    images = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    numbers = (
        torch.arange(60) % 2 * 8 + 2
    )  # 2 and 10, which are not in the order of their names
    assert MapStyle(TensorDataset(images, numbers)).classes == ("2", "10")
    assert (
        MapStyle(
            TensorDataset(images, numbers), classes=[f"class {n}" for n in range(11)]
        ).classes[10]
        == "class 10"
    )
    names = MapStyle(
        [
            (pixels, "ba"[label % 2])
            for pixels, label in zip(PIXELS, LABELS, strict=True)
        ]
    )
    assert names.classes == ("a", "b")


def test_every_pair_is_asked_for_twice_by_one_thread_at_a_time():
    photos = Photos()
    data = MapStyle(photos, size=8)
    assert photos.asked == []
    _ = data.train, data.test, data.notes()
    assert sorted(photos.asked) == sorted([*range(60)] * 2)


def test_a_recorded_split_is_followed():
    before = MapStyle(Photos(end=50))
    manifest = before.manifest()
    later = MapStyle(Photos())
    assert later.follow(manifest).added == tuple(
        f"train/{index}" for index in range(50, 60)
    )
    assert torch.equal(later.test.inputs, before.test.inputs)
    assert later.fingerprint() == before.fingerprint()


PAIRS = [(pixels, label) for pixels, label in zip(PIXELS, LABELS, strict=True)]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (
            PIXELS[0],
            r"train/30: it must be a pair \(image, label\): ValueError\('too many",
        ),
        (
            (PIXELS[0] / 100, 0),
            r"train/30: floating-point pixels must lie in \[0, 1\], got 0 to 2.48",
        ),
        (
            (PIXELS[0].astype(int), 0),
            r"train/30: pixels must be bytes \(uint8\), or floating point in \[0, "
            r"1\], got",
        ),
        (
            (torch.zeros(2, 4, 4), 0),
            "train/30: it has 2 channels, of which none can be left out, expected 3",
        ),
        (
            (object(), 0),
            "train/30: an image must be a path, the bytes of a file, a PIL image, an array or a tensor, "
            "got object",
        ),
    ],
)
def test_what_is_wrong_with_a_pair_is_said_or_it_is_left_out(item, why):
    pairs = [*PAIRS[:30], item, *PAIRS[30:]]
    with pytest.raises(ValueError, match=why):
        _ = MapStyle(pairs, size=6).train
    data = MapStyle(pairs, size=6, skip_broken=True)
    assert sum(map(len, (data.train, data.validation, data.test))) == 60
    assert set(data.manifest().left_out) == {"train/30"}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"data": iter(PAIRS)},
            TypeError,
            "the train data must have a length and items, got list_iterator",
        ),
        (
            {"data": (pair for pair in PAIRS)},
            TypeError,
            r"got generator: give a list of pairs \(image, label\)",
        ),
        (
            {"data": DataLoader(PAIRS)},
            TypeError,
            "got DataLoader: give its dataset",
        ),
        (
            {"data": {"image": PIXELS, "label": [0, 1]}},
            TypeError,
            r"got dict: give \(images, labels\), such as those under 'image', 'label'",
        ),
        (
            {"data": [{"image": PIXELS[0], "label": 0}] * 9},
            ValueError,
            "a pair .*got a dict of image, label",
        ),
        (
            {"data": (torch.full((60, 8, 8), 254.0), [0, 1] * 30)},
            ValueError,
            r"^the train images: .*must lie in \[0, 1\], got 254 to 254.*$",
        ),
        (
            {"data": (np.full((60, 8, 8), np.nan), [0, 1] * 30)},
            ValueError,
            "^the train images: .*got NaN: put a value in its place",
        ),
        (
            {"data": (torch.zeros(60, 8, 8, dtype=torch.int64), [0, 1] * 30)},
            ValueError,
            "^the train images: pixels must be bytes .*got torch.int64",
        ),
        (
            {"data": PAIRS, "test_data": 3},
            TypeError,
            "the test data must have a length and items, got int",
        ),
        (
            {"data": [(PIXELS[0], 0.5)] * 9},
            ValueError,
            "label of train/0 must be a whole number or the name .* got 0.5",
        ),
        (
            {"data": (torch.zeros(3, 8, 8), ["cat", "", "dog"])},
            ValueError,
            "label of train 1 must be a whole number or the name .* got ''",
        ),
        (
            {"data": PAIRS, "classes": ["a", "b"]},
            ValueError,
            "a class or its number, one of 2, a, b; got 2",
        ),
        (
            {"data": Photos(), "test_data": [(PIXELS[0], "fish")]},
            ValueError,
            "one of 3, cat, dog, bird; got 'fish'",
        ),
        (
            {"data": [(PIXELS[0], 0), (PIXELS[1], "a")]},
            ValueError,
            "all whole numbers or all names, got 'a' and 0",
        ),
        (
            {"data": [(pixels, 0) for pixels in PIXELS]},
            ValueError,
            r"two or more classes, got \('0',\)",
        ),
        ({"data": PAIRS, "test": 2}, ValueError, "test must be a share"),
    ],
)
def test_errors(given, error, message):
    with pytest.raises(error, match=message):
        _ = MapStyle(**given).train

"""All data sets pass `check_dataset`, and it finds what is wrong with others."""

import random
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from tests.kinds.images import test_cifar10, test_smallnorb
from tests.kinds.images.folders import write
from tests.kinds.images.test_mnist import idx
from tests.kinds.images.test_smallnorb import COUNT
from tests.kinds.pixels import test_pixel_masks
from tests.kinds.scenes import test_annotated
from torchcaps.spec import package_of
from torchcaps_lab import data
from torchcaps_lab.data import (
    CIFAR10,
    MNIST,
    AnnotatedImages,
    DataSet,
    Digits,
    Examples,
    FashionMNIST,
    Hub,
    ImageFolder,
    ImageTable,
    Series,
    SmallNORB,
    Text,
    list_datasets,
)
from torchcaps_lab.data.base import DATASETS
from torchcaps_lab.kinds.objects.sets import PictureFolder
from torchcaps_lab.testing import check_dataset

sys.path.append(str(Path(__file__).parents[1] / "tasks"))
from several_digits import Masks, Pairs


class TinyMNIST(MNIST):
    """MNIST of other files than those that were published."""

    digests: ClassVar = {}


class TinyFashion(FashionMNIST):
    digests: ClassVar = {}


@pytest.fixture(scope="module")
def makers(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Callable[..., DataSet]]:
    """What makes each data set of the registry, from small files in its original
    format.
    """
    folder = tmp_path_factory.mktemp("sources")
    draw = random.Random(0)
    for number in range(60):
        path = folder / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("L", (6, 5), draw.randbytes(30)).save(path)
    for name in ("mnist", "fashion-mnist"):
        (folder / name).mkdir()
        for part, count in (("train", 40), ("t10k", 10)):
            (folder / name / f"{part}-images-idx3-ubyte").write_bytes(
                idx((count, 4, 5), draw.randbytes(count * 20))
            )
            labels = bytes(number % 10 for number in range(count))
            (folder / name / f"{part}-labels-idx1-ubyte").write_bytes(
                idx((count,), labels)
            )
    rows = [
        f"{'ab'[number % 2]},text {number} of {number % 7}\n" for number in range(60)
    ]
    (folder / "texts.csv").write_text("label,text\n" + "".join(rows))
    moments = [
        f"{number},{'ab'[number % 2]},{draw.random()},{draw.random()}\n"
        for number in range(60)
        for _ in range(5)
    ]
    (folder / "series.csv").write_text("series,label,x,y\n" + "".join(moments))
    write(folder / "cifar10", test_cifar10.FILES)
    write_smallnorb(folder / "smallnorb")
    pixels = [
        np.frombuffer(draw.randbytes(30), np.uint8).reshape(5, 6) for _ in range(40)
    ]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    rows = {
        "image": [Image.fromarray(image) for image in pixels],
        "label": [number % 2 for number in range(40)],
    }
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows, features).save_to_disk(folder / "hub")
    data_dir = {"data_dir": str(folder), "download": False}
    for number in range(20):
        for part in ("images", "masks"):
            shift = number if part == "images" else 0
            test_pixel_masks.save(
                folder / f"pixels/{part}/{number}.png",
                test_pixel_masks.labels_of(number) + shift,
            )
    images = sorted((folder / "images").rglob("*.png"))
    rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in images]
    (folder / "images.csv").write_text("\n".join(["image,label", *rows]))
    (folder / "annotated").mkdir()
    boxes = {
        str(side): [("cat", (0, 0, side, 9)), ("dog", (30, 0, 32, side))]
        for side in range(1, 21)
    }
    notes = test_annotated.write(folder / "annotated", "voc", boxes)
    return {
        "annotated": partial(AnnotatedImages, folder / "annotated", notes),
        "cifar10": partial(CIFAR10, **data_dir),
        "digits": Digits,
        "hub": partial(Hub, str(folder / "hub")),
        "fashion_mnist": partial(TinyFashion, **data_dir),
        "folder": partial(ImageFolder, str(folder / "images")),
        "image_table": partial(ImageTable, folder / "images.csv", file="image"),
        "masks": partial(data.Masks, folder / "pixels"),
        "mnist": partial(TinyMNIST, **data_dir),
        "picture_folder": partial(PictureFolder, folder / "images", size=16),
        "series": partial(Series, str(folder / "series.csv")),
        "shapes": partial(data.Shapes, count=60, tests=20),
        "tetrominoes": partial(data.Tetrominoes, count=60, tests=20),
        "multi_dsprites": partial(data.MultiDSprites, count=60, tests=20),
        "scenes_3d": partial(data.Scenes3D, count=60, tests=20, size=32),
        "smallnorb": partial(SmallNORB, str(folder), size=12),
        "text": partial(Text, str(folder / "texts.csv")),
    }


def write_smallnorb(folder: Path) -> None:
    """Its own small files, but that each pair of the test half is another one."""
    seen = b"".join(
        bytes([number]) * 96 * 96
        for pair in range(COUNT)
        for number in (pair, 251 - pair)
    )
    name = f"{test_smallnorb.TEST}-dat.mat"
    files = {
        **test_smallnorb.FILES,
        name: test_smallnorb.matrix((COUNT, 2, 96, 96), seen),
    }
    write(folder, files)


@pytest.mark.thorough
def test_all_of_the_registry(makers: dict[str, Callable[..., DataSet]]) -> None:
    shipped = {
        name
        for name in list_datasets()
        if package_of(DATASETS[name].__module__) == "torchcaps"
    }
    assert makers.keys() == shipped
    # Only some versions of Python have its wheel.
    if not find_spec("pybullet"):
        del makers["scenes_3d"]
    for make in makers.values():
        check_dataset(make)


@pytest.mark.parametrize(
    "source",
    [Digits, Digits(seed=3), partial(Digits, size=5), Pairs, Masks, Masks(count=50)],
)
def test_classes_makers_and_data_sets(source: object) -> None:
    check_dataset(source)


class Wrong(DataSet):
    """Forty images of two classes, and eight to test on, with one thing that is off."""

    off = ""

    def load_train(self) -> Examples:
        images = (
            torch.arange(40, dtype=torch.uint8)
            .view(40, 1, 1, 1)
            .expand(40, 1, 4, 4)
            .clone()
        )
        if self.off == "global":
            images = images[torch.randperm(40)]
        return Examples(
            images, torch.arange(40) % 2, ("a", "a" if self.off == "names" else "b")
        )

    def load_test(self) -> Examples:
        first = {"overlap": 36, "seeded test": 100 + self.seed}.get(self.off, 100)
        size = 5 if self.off == "size" else 4
        images = (
            torch.arange(first, first + 8)
            .to(torch.uint8)
            .view(8, 1, 1, 1)
            .expand(8, 1, size, size)
            .clone()
        )
        labels = torch.arange(8) % 2
        if self.off == "masks":
            labels = torch.nn.functional.one_hot(labels, 2).bool()
        return Examples(
            images[: 0 if self.off == "empty" else 8],
            labels[: 0 if self.off == "empty" else 8],
            ("a", "c")
            if self.off == "classes"
            else ("a", "a" if self.off == "names" else "b"),
        )

    @property
    def validation(self) -> Examples:
        return (
            self.train.subset(torch.arange(5))
            if self.off == "leak"
            else super().validation
        )

    @property
    def train(self) -> Examples:
        images = super().train
        return (
            images.subset(torch.arange(len(images) - 3))
            if self.off == "lost" and self.validation_share
            else images
        )


class Unseeded(Wrong):
    def __init__(self, validation: float = 0.1, seed: int = 0) -> None:
        super().__init__(validation, 0)


@pytest.mark.parametrize(
    ("off", "message"),
    [
        ("size", r"test has images \(1, 5, 5\), train \(1, 4, 4\)"),
        ("classes", r"test has the classes \('a', 'c'\), train \('a', 'b'\)"),
        ("names", "classes must have different names"),
        ("masks", "test has labels of 2 axes, train of 1"),
        ("empty", "there must be images to train and to test on"),
        ("overlap", "of 8 images in test are in (train|validation) too"),
        ("leak", "5 of 5 images in validation are in train too"),
        ("global", "the same seed gives other (train|validation) images"),
        ("seeded test", "another seed gives other test images"),
        ("lost", "training and validation images are 29 and 8, but 40 together"),
    ],
)
def test_what_is_off_is_named(
    off: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrong, "off", off)
    with pytest.raises(AssertionError, match=message):
        check_dataset(Wrong)


def test_a_seed_that_does_nothing_is_found() -> None:
    check_dataset(Wrong)
    with pytest.raises(
        AssertionError, match="another seed puts the same validation images aside"
    ):
        check_dataset(Unseeded)


def test_it_must_be_a_data_set() -> None:
    with pytest.raises(AssertionError, match="it must be a DataSet, got dict"):
        check_dataset(dict)

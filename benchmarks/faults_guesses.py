"""Faults of what is guessed of data: classes by place, values of masks, ranges of
pixels, orders of axes.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from benchmarks.faults import CRASH, damaged, fault, no_crash
from torchcaps_lab.data import Examples, ImageFolder, MapStyle, Masks, load_image

NAMES = ("ant", "bee", "cow", "dog", "eel", "fox")


def _shade(name: str) -> int:
    return 20 + 40 * NAMES.index(name)


@fault(
    "splits, arrays and image sets whose classes are some of those known, in any order",
    "labels by name",
)
def classes_by_name(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """The class of each image can be read off its pixels, whatever the order of
    names.
    """
    for number in range(count):
        classes = tuple(chance.sample(NAMES, 4))
        some = tuple(chance.sample(classes, chance.randrange(1, 5)))
        images = [
            torch.full((1, 3, 3), _shade(name), dtype=torch.uint8) for name in some
        ]
        labels = torch.arange(len(some))
        examples = Examples(torch.stack(images), labels, some)
        yield _labels_fit(examples.in_classes(classes))
        root = folder / f"classes{number}"
        for part, names in (("train", classes), ("test", some)):
            for name in names:
                path = root / part / name / f"{part}.png"
                path.parent.mkdir(parents=True)
                Image.new("L", (4, 4), _shade(name)).save(path)
        yield _labels_fit(ImageFolder(root, validation=0).test)


def _labels_fit(examples: Examples) -> bool:
    """Whether each image has the shade of its class."""
    shades = [_shade(examples.classes[label]) for label in examples.labels.tolist()]
    return shades == examples.inputs[:, 0, 0, 0].tolist()


@fault(
    "masks that were drawn, saved as JPEG or made smaller",
    "taken as drawn, or refused with the values drawn",
)
def changed_masks(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Masks of two to four classes; only those that are as drawn may be trained on
    without more options.
    """
    for number in range(count):
        root = folder / f"masks{number}"
        change = chance.choice(("drawn", "jpeg", "smaller"))
        scale = 4 if change == "smaller" else 1
        suffix = "jpg" if change == "jpeg" else "png"
        values = sorted(chance.sample((60, 120, 180, 255), chance.randrange(1, 4)))
        for part in ("images", "masks"):
            (root / part).mkdir(parents=True)
        for place in range(5):
            Image.new("L", (48, 48), 90).save(root / f"images/{place}.png")
            mask = Image.new("L", (48 * scale, 48 * scale), 0)
            for value in values:
                left = scale * chance.randrange(2, 24)
                top = scale * chance.randrange(2, 24)
                box = (left, top, left + 18 * scale, top + 20 * scale)
                ImageDraw.Draw(mask).ellipse(box, fill=value)
            if change == "smaller":
                mask = mask.resize((48, 48), Image.Resampling.BILINEAR)
            mask.save(root / f"masks/{place}.{suffix}")
        try:
            classes = Masks(root).classes
        except ValueError as error:
            yield change != "drawn" and "nearest" in str(error)
        else:
            yield change == "drawn" and set(classes) <= {"0", *map(str, values)}


@fault(
    "values of 9 to 16 bit in pictures of 16 bit",
    "the range is noted, and with it all grey levels are used",
)
def deep_pictures(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """A set whose pixels use less than a quarter of the range is noted; with the range
    that is left they use all.
    """
    for number in range(count):
        root = folder / f"deep{number}"
        most = 2 ** chance.randrange(9, 15) - 1
        for name in ("a", "b"):
            (root / name).mkdir(parents=True)
            for place in range(3):
                ramp = np.linspace(0, most, 32 * 32).astype(np.uint16)
                pixels = ramp.reshape(32, 32)
                pixels[0, 0] = chance.randrange(most)
                shifted = np.roll(pixels, 32 * place + (name == "b"))
                Image.fromarray(shifted).save(root / name / f"{place}.png")
        noted = any("--data.range" in note for note in ImageFolder(root).notes())
        stretched = ImageFolder(root, range=(0, most)).train.inputs
        yield noted and len(stretched.unique()) >= 250


@fault(
    "arrays of images in any order of axes",
    "the order in which they were made, or an error that names both",
)
def orders_of_axes(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Images of 1, 3 or 4 channels and sides of 1 to 40."""
    for number in range(count):
        channels = chance.choice((1, 3, 4))
        height = chance.randrange(1, 40)
        width = chance.randrange(1, 40)
        images = torch.randint(0, 256, (12, channels, height, width), dtype=torch.uint8)
        labels = [place % 2 for place in range(12)]
        array = images if number % 2 else images.permute(0, 2, 3, 1)
        try:
            data = MapStyle((array, labels), test=0, validation=0)
            shape = data.image_shape
        except ValueError as error:
            message = str(error)
            reasons = ("NHWC", "not clear", "looks like")
            yield any(reason in message for reason in reasons)
        else:
            yield shape[1:] == (height, width)


@fault("pictures in .npy files, fuzzed", CRASH)
def fuzzed_arrays(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Whatever a header states, no more is read than is there, and nothing is
    unpickled.
    """
    path = folder / "picture.npy"
    np.save(path, np.arange(3 * 8 * 9, dtype=np.uint8).reshape(8, 9, 3))
    content = path.read_bytes()
    for _ in range(count):
        path.write_bytes(damaged(content, chance))
        yield no_crash(lambda: load_image(path, (3, 8, 9)))

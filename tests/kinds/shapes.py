"""Data in the shapes in which people have them, each made small in a folder."""

import csv
import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw


class Shape(NamedTuple):
    """One shape of data.

    Args:
        make: writes it into an empty folder, and returns the path to name.
        classes: the names of its classes.
        count: how many examples it has in all.
        inputs: how many inputs ``predict`` finds at the path.
        main: words that the list of guessed options must have.
    """

    make: Callable[[Path], Path]
    classes: tuple[str, ...]
    count: int
    inputs: int
    main: str


COLOURS = {"gold": (240, 200, 20), "navy": (10, 10, 120)}


def picture(path: Path, colour: str, number: int, size: int = 24) -> Path:
    """A photo of a square of a colour, another one for each number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(number).integers(0, 60, (size, size, 3))
    image = Image.fromarray(noise.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    left = 2 + number % 5
    top = 2 + number % 7
    draw.rectangle((left, top, left + 9, top + 9), fill=COLOURS[colour])
    image.save(path)
    return path


def class_folders(root: Path) -> Path:
    for number in range(24):
        colour = [*COLOURS][number % 2]
        picture(root / "photos" / colour / f"{number}.png", colour, number)
    return root / "photos"


def nested(root: Path) -> Path:
    for number in range(24):
        colour = [*COLOURS][number % 2]
        # The same inner folders in both classes could be the classes: that is asked.
        inner = f"{colour} in {'summer' if number % 3 else 'winter'}"
        picture(root / "photos" / colour / inner / f"{number}.png", colour, number)
    return root / "photos"


def split_folders(root: Path) -> Path:
    for number in range(36):
        colour = [*COLOURS][number % 2]
        part = ("train", "train", "train", "train", "val", "test")[number // 2 % 6]
        picture(root / "photos" / part / colour / f"{number}.png", colour, number)
    return root / "photos"


def _table(path: Path, rows: list[list[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def tables_of_splits(root: Path) -> Path:
    """As Hugging Face has them: a metadata.csv beside the images of each split."""
    parts = ("train", "train", "train", "train", "validation", "test")
    for part in dict.fromkeys(parts):
        rows = [["file_name", "label"]]
        for number in range(36):
            colour = [*COLOURS][number % 2]
            if parts[number // 2 % 6] == part:
                picture(root / "photos" / part / f"{number:04}.png", colour, number)
                rows.append([f"{number:04}.png", colour])
        _table(root / "photos" / part / "metadata.csv", rows)
    return root / "photos"


def table_of_images(root: Path) -> Path:
    rows = [["file_name", "label"]]
    for number in range(24):
        colour = [*COLOURS][number % 2]
        picture(root / "photos" / "images" / f"{number}.png", colour, number)
        rows.append([f"images/{number}.png", colour])
    _table(root / "photos" / "metadata.csv", rows)
    return root / "photos"


def table_of_several_labels(root: Path) -> Path:
    rows = [["image", "tags"]]
    for number in range(30):
        colour = [*COLOURS][number % 2]
        picture(root / "photos" / f"{number}.png", colour, number)
        rows.append([f"{number}.png", f"{colour} bright" if number % 3 else colour])
    _table(root / "photos" / "tags.csv", rows)
    return root / "photos" / "tags.csv"


def column_a_label(root: Path) -> Path:
    rows = [["id", "gold", "navy", "bright"]]
    for number in range(30):
        colour = [*COLOURS][number % 2]
        picture(root / "photos" / "train" / f"photo_{number}.png", colour, number)
        bright = str(int(number % 3 == 0))
        rows.append([f"photo_{number}", str(1 - number % 2), str(number % 2), bright])
    _table(root / "photos" / "train.csv", rows)
    return root / "photos"


def masks(root: Path) -> Path:
    for number in range(12):
        picture(root / "cells" / "images" / f"{number}.png", "gold", number, 40)
        mask = Image.new("L", (40, 40))
        left = 2 + number % 5
        top = 2 + number % 7
        ImageDraw.Draw(mask).rectangle((left, top, left + 9, top + 9), fill=255)
        (root / "cells" / "masks").mkdir(exist_ok=True)
        mask.save(root / "cells" / "masks" / f"{number}.png")
    return root / "cells"


def _box(number: int) -> tuple[int, int, int, int]:
    return 2 + number % 5, 2 + number % 7, 12 + number % 5, 12 + number % 7


def coco(root: Path) -> Path:
    for part, numbers in (("train2017", range(24)), ("val2017", range(24, 32))):
        images, rows = [], []
        for number in numbers:
            colour = [*COLOURS][number % 2]
            picture(root / "scenes" / part / f"{number}.png", colour, number, 64)
            images.append(
                {"id": number, "file_name": f"{number}.png", "width": 64, "height": 64}
            )
            left, top, right, bottom = _box(number)
            rows.append(
                {
                    "id": number,
                    "image_id": number,
                    "category_id": number % 2,
                    "bbox": [left, top, right - left, bottom - top],
                    "iscrowd": 0,
                    "area": 100,
                }
            )
        categories = [{"id": k, "name": name} for k, name in enumerate(COLOURS)]
        content = {"images": images, "annotations": rows, "categories": categories}
        path = root / "scenes" / "annotations" / f"instances_{part}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return root / "scenes"


def yolo(root: Path) -> Path:
    for number in range(32):
        part = "val" if number % 4 == 3 else "train"
        colour = [*COLOURS][number % 2]
        picture(root / "scenes" / "images" / part / f"{number}.png", colour, number, 64)
        left, top, right, bottom = (side / 64 for side in _box(number))
        middle = f"{(left + right) / 2} {(top + bottom) / 2}"
        labels = root / "scenes" / "labels" / part
        labels.mkdir(parents=True, exist_ok=True)
        line = f"{number % 2} {middle} {right - left} {bottom - top}\n"
        (labels / f"{number}.txt").write_text(line)
    (root / "scenes" / "data.yaml").write_text(
        "path: ../scenes\ntrain: images/train\nval: images/val\n"
        "names:\n  0: gold\n  1: navy\n"
    )
    return root / "scenes"


def yolo_twins(root: Path) -> Path:
    """Two squares of one colour in each image, which ended the training."""
    scenes = yolo(root)
    for file in (scenes / "labels").glob("*/*.txt"):
        label = file.read_text().split()[0]
        file.write_text(f"{file.read_text()}{label} 0.8 0.8 0.2 0.2\n")
    return scenes


def voc(root: Path) -> Path:
    for number in range(24):
        colour = [*COLOURS][number % 2]
        picture(root / "scenes" / "JPEGImages" / f"{number}.png", colour, number, 64)
        left, top, right, bottom = _box(number)
        sides = f"<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"
        sides += f"<xmax>{right}</xmax><ymax>{bottom}</ymax>"
        (root / "scenes" / "Annotations").mkdir(exist_ok=True)
        (root / "scenes" / "Annotations" / f"{number}.xml").write_text(
            f"<annotation><filename>{number}.png</filename>"
            "<size><width>64</width><height>64</height></size>"
            f"<object><name>{colour}</name><bndbox>{sides}</bndbox></object>"
            "</annotation>"
        )
    return root / "scenes"


def sounds(root: Path) -> Path:
    for number in range(24):
        name = ("low", "high")[number % 2]
        pitch = (200, 900)[number % 2] + 5 * number
        moments = np.arange(4000) / 8000
        samples = (20000 * np.sin(2 * np.pi * pitch * moments)).astype(np.int16)
        (root / "sounds" / name).mkdir(parents=True, exist_ok=True)
        with wave.open(str(root / "sounds" / name / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(samples.tobytes())
    return root / "sounds"


def series_file(root: Path) -> Path:
    lines = ["@problemName slopes", "@timeStamps false", "@univariate true"]
    lines += ["@equalLength true", "@seriesLength 12", "@classLabel true up down"]
    lines.append("@data")
    for number in range(40):
        sign, name = (1, "up") if number % 2 else (-1, "down")
        values = ",".join(f"{sign * k + number / 10:.2f}" for k in range(12))
        lines.append(f"{values}:{name}")
    (root / "slopes.ts").write_text("\n".join(lines) + "\n")
    return root / "slopes.ts"


def _text(number: int) -> tuple[str, str]:
    label = ("good", "bad")[number % 2]
    word = {"good": ("fine", "lovely"), "bad": ("dull", "awful")}[label]
    return f"it was a {word[number // 2 % 2]} film, number {number}", label


def text_folders(root: Path) -> Path:
    for number in range(40):
        text, label = _text(number)
        (root / "reviews" / label).mkdir(parents=True, exist_ok=True)
        (root / "reviews" / label / f"{number}.txt").write_text(text)
    return root / "reviews"


def table_of_texts(root: Path) -> Path:
    rows = [["id", "review", "sentiment"]]
    for number in range(40):
        text, label = _text(number)
        rows.append([str(number), text, label])
    return _table(root / "reviews.csv", rows)


TWO = ("gold", "navy")
THREE = ("bright", "gold", "navy")
SHAPES = {
    "class folders": Shape(class_folders, TWO, 24, 24, "ImageFolder"),
    "nested folders": Shape(nested, TWO, 24, 24, "ImageFolder"),
    "folders of splits": Shape(split_folders, TWO, 36, 36, "ImageFolder"),
    "a table of labels": Shape(table_of_images, TWO, 24, 24, "ImageTable"),
    "a table for each split": Shape(tables_of_splits, TWO, 36, 36, "ImageTable"),
    "several labels": Shape(table_of_several_labels, THREE, 30, 30, "several_labels"),
    "a column a label": Shape(column_a_label, THREE, 30, 30, "several_labels"),
    "masks": Shape(masks, ("0", "255"), 12, 12, "Masks"),
    "COCO": Shape(coco, TWO, 32, 32, "boxes as of COCO"),
    "YOLO": Shape(yolo, TWO, 32, 32, "boxes as of YOLO"),
    "YOLO, several of a class": Shape(yolo_twins, TWO, 32, 32, "places vote for boxes"),
    "VOC": Shape(voc, TWO, 24, 24, "boxes as of Pascal VOC"),
    "sounds": Shape(sounds, ("high", "low"), 24, 24, "Series"),
    "a file of series": Shape(series_file, ("down", "up"), 40, 40, "Series"),
    "folders of texts": Shape(text_folders, ("bad", "good"), 40, 40, "Text"),
    "a table of texts": Shape(table_of_texts, ("bad", "good"), 40, 40, "Text"),
}

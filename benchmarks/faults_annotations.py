"""Rows of ``python -m benchmarks faults``: annotations that contradict themselves, and
guards that must hold for every kind of data and every part.
"""

import json
import random
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.faults import fault
from torchcaps_lab.cli import main
from torchcaps_lab.data import AnnotatedImages, ImageTable, Text
from torchcaps_lab.data.base import stable_split

_ROWS = {"images": 2, "annotations": 4, "categories": 2}
"""How many entries of each kind a file of COCO has here."""

_WRONG: dict[str, tuple[str, list[Any]]] = {
    "id": ("iac", ["1", True, 1.5, None, [1], {}, "twice"]),
    "file_name": ("i", [1, None, ["a.png"], "twice", "", "none.png"]),
    "width": ("i", ["40", True, -40, 0, 1.5, float("nan"), [40], 20]),
    "image_id": ("a", ["1", True, 0.5, None, 99, [1]]),
    "category_id": ("a", ["1", True, 0.5, None, 99, [1]]),
    "iscrowd": ("a", ["0", True, False, 2, -1, 0.5, None]),
    "bbox": (
        "a",
        [
            ["1", "2", "3", "4"],
            [1, 2, 3],
            [1, 2, 3, 4, 5],
            [[1, 2, 3, 4]],
            [True, 2, 3, 4],
            [1, 2, -3, 4],
            [1, 2, 0, 4],
            [1, float("nan"), 3, 4],
            [1, 2, float("inf"), 4],
            [1, 2, 3000, 4],
            "1234",
            {},
            None,
        ],
    ),
    "segmentation": ("a", [[1, 2, 3, 4, 5, 6], [[1, 2]], "x", 3, {"size": [1, 2]}]),
    "name": ("c", [3, True, None, ["cat"], {}, "", " ", "twice", "\ud800"]),
}
"""Values that contradict the other ones or their own type, by field, and the first
letters of the kinds of entries that have it; ``twice`` stands for the value of another
entry.
"""


def _coco() -> dict[str, Any]:
    images = [
        {"id": number, "file_name": f"{number}.png", "width": 40, "height": 24}
        for number in range(_ROWS["images"])
    ]
    rows = [
        {
            "id": number,
            "image_id": number % 2,
            "category_id": number // 2,
            "bbox": [2 + number, 3, 8, 6],
            "iscrowd": 0,
            "segmentation": [[2, 3, 9, 3, 9, 8]],
        }
        for number in range(_ROWS["annotations"])
    ]
    categories = [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    return {"images": images, "annotations": rows, "categories": categories}


def _refused(root: Path, notes: Path, named: str) -> bool:
    """Whether annotations are refused by an error that names the file."""
    try:
        _ = AnnotatedImages(root, notes, size=24, test=0.0, validation=0.0).train
    except (ValueError, OSError) as error:
        return named in str(error)
    return False


@fault("annotations that contradict themselves", "refused, the file named")
def contradictions(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """One value of COCO's, VOC's or YOLO's files is replaced by one that has another
    type, stands twice, or points nowhere.
    """
    for number in range(_ROWS["images"]):
        Image.new("L", (40, 24)).save(folder / f"{number}.png")
    notes = folder / "all.json"
    (folder / "voc").mkdir()
    (folder / "yolo").mkdir()
    numbers = ("1_0", "nan", "inf", "-inf", "", "١", "0x1", "1e999", "1,5")
    for _ in range(count):
        field = chance.choice([*_WRONG])
        letters, values = _WRONG[field]
        kind = chance.choice([kind for kind in _ROWS if kind[0] in letters])
        content = _coco()
        first, second = chance.sample(range(_ROWS[kind]), 2)
        value = chance.choice(values)
        if value == "twice":
            value = content[kind][second][field]
        content[kind][first][field] = value
        notes.write_text(json.dumps(content))
        yield _refused(folder, notes, "all.json")
        sides = ["<xmin>2</xmin>", "<ymin>2</ymin>", "<xmax>9</xmax>", "<ymax>9</ymax>"]
        place = chance.randrange(4)
        wrong = sides[place][:6] + chance.choice(numbers) + sides[place][7:]
        sides[place] = chance.choice((wrong, "", 2 * sides[place]))
        (folder / "voc" / "0.xml").write_text(
            "<annotation><filename>0.png</filename><object><name>cat</name><bndbox>"
            f"{''.join(sides)}</bndbox></object></annotation>"
        )
        yield _refused(folder, folder / "voc", "0.xml")
        parts = ["0", "0.5", "0.5", "0.2", "0.2"]
        parts[chance.randrange(5)] = chance.choice(numbers) or "0 0"
        (folder / "yolo" / "0.txt").write_text(" ".join(parts))
        (folder / "yolo" / "classes.txt").write_text("cat\ndog\n")
        yield _refused(folder, folder / "yolo", "0.txt")


@fault("rare labels, persons with several pictures", "in every part, on one side")
def divided(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Random tables: a label that 6 of 100 have is in all three parts, and each group in
    one.
    """
    for trial in range(count):
        shares = [chance.uniform(0.06, 0.6) for _ in range(chance.randrange(2, 7))]
        rare = {*chance.sample(range(100), 6)}
        rows = [
            [*(chance.random() < share for share in shares), row in rare]
            for row in range(100)
        ]
        masks = torch.tensor(rows)
        digests = [f"{trial} {row}" for row in range(100)]
        rest, test = stable_split(masks, digests, 0.2, 0)
        inner = [digests[row] for row in rest.tolist()]
        train, validation = stable_split(masks[rest], inner, 0.1, trial)
        parts = (masks[test], masks[rest][validation], masks[rest][train])
        yield all(bool(part[:, -1].any()) for part in parts)
        groups = [f"person {chance.randrange(10)}" for _ in range(100)]
        rest, test = stable_split(masks, digests, 0.2, 0, groups)
        yield not {groups[row] for row in rest} & {groups[row] for row in test}


@fault("byte order marks in every kind of text file", "read alike")
def marks(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Tables, JSON, YAML, labels and lists of classes with and without marks."""
    for part in ("images", "labels"):
        (folder / part).mkdir()
    for number in range(8):
        picture = Image.new("L", (24, 24), 9 * number)
        picture.save(folder / "images" / f"{number}.png")
    coco = _coco()
    rows = [f"images/{number}.png,{'ab'[number % 2]}" for number in range(8)]
    texts = [f"a film {number},{'ab'[number % 2]}" for number in range(8)]
    for _ in range(count):
        encoding = chance.choice(("utf-8", "utf-8-sig", "utf-16"))
        written = {
            "labels/classes.txt": "gold\nnavy\n",
            "labels/0.txt": "1 0.5 0.5 0.2 0.2\n",
            "data.yaml": "train: images\nnames: [gold, navy]\n",
            "all.json": json.dumps(coco),
            "images.csv": "\n".join(["file_name,label", *rows]),
            "texts.csv": "\n".join(["text,label", *texts]),
        }
        for name, text in written.items():
            (folder / name).write_text(text, encoding=encoding)
        images = folder / "images"
        for read, classes in (
            (partial(AnnotatedImages, images, folder / "labels"), ("gold", "navy")),
            (partial(AnnotatedImages, folder, folder / "data.yaml"), ("gold", "navy")),
            (partial(AnnotatedImages, images, folder / "all.json"), ("cat", "dog")),
            (partial(ImageTable, folder / "images.csv"), ("a", "b")),
            (partial(Text, folder / "texts.csv"), ("a", "b")),
        ):
            yield read().classes == classes


@fault("check with a broken file among others", "goes on, exit 1; 0 with skip_broken")
def checked_on(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """An empty file in folders and tables of images, and in folders of texts."""
    for trial in range(count):
        photos = folder / f"photos-{trial}"
        texts = folder / f"texts-{trial}"
        rows = ["file_name,label"]
        for number in range(12):
            label = "ab"[number % 2]
            for root in (photos, texts):
                (root / label).mkdir(parents=True, exist_ok=True)
            grey = Image.new("L", (24, 24), 20 * number)
            grey.save(photos / label / f"{number}.png")
            (texts / label / f"{number}.txt").write_text(f"a film {number}")
            rows.append(f"{label}/{number}.png,{label}")
        (photos / "a" / "wrong.png").write_bytes(chance.randbytes(trial))
        (texts / "a" / "wrong.txt").write_bytes(bytes(1 + trial))
        table = photos / "labels.csv"
        for path in (photos, texts, table):
            if path == table:
                table.write_text("\n".join([*rows, "a/wrong.png,a"]))
            for words, status in (([], 1), (["--data.skip_broken", "true"], 0)):
                printed = StringIO()
                with redirect_stdout(printed), redirect_stderr(StringIO()):
                    exit_status = main(["check", str(path), *words])
                yield exit_status == status and "2 classes" in printed.getvalue()

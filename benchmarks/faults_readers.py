"""Rows of ``python -m benchmarks faults``: files that state what is not so, lead out of
their folder, or never end.
"""

import json
import os
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.faults import fault, finish, no_crash
from torchcaps.whole import read_json
from torchcaps_lab.data import AnnotatedImages, Masks, Series, Text
from torchcaps_lab.options.reading import read_options

SECONDS, MEBIBYTES = 20, 1024
"""What a small file may take at most."""


def _modest(act: Callable[[], Any]) -> bool:
    """Whether a call works or fails with a named error, in little time and memory."""
    start = time.perf_counter()
    before = _peak()
    return (
        no_crash(act)
        and time.perf_counter() - start < SECONDS
        and _peak() - before < MEBIBYTES
    )


def _peak() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _wav(path: Path, rate: int, stated: int) -> None:
    tone = 10_000 * torch.sin(torch.arange(4000) / 3)
    content = tone.to(torch.int16).numpy().tobytes()
    form = struct.pack("<HHIIHH", 1, 1, rate, rate * 2 % 2**32, 2, 16)
    parts = (
        b"RIFF",
        struct.pack("<I", 36 + len(content)),
        b"WAVEfmt ",
        struct.pack("<I", 16),
        form,
        b"data",
        struct.pack("<I", stated),
        content,
    )
    path.write_bytes(b"".join(parts))


def _flac(path: Path, stated: int) -> None:
    import soundfile

    soundfile.write(path, torch.sin(torch.arange(4000) / 3).numpy(), 8000)
    content = bytearray(path.read_bytes())
    content[21] = content[21] & 0xF0 | stated >> 32
    content[22:26] = struct.pack(">I", stated & 0xFFFFFFFF)
    path.write_bytes(content)


@fault(
    "small files that state or hold much", "works, or a named error, in 20 s and 1 GiB"
)
def stated_sizes(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Sounds, tables, vectors, JSON and options of a few KB to a MiB."""
    waves = folder / "waves"
    packed = folder / "packed"
    for sounds in (waves, packed):
        sounds.mkdir()
        _wav(sounds / "low_ann_0.wav", 8000, 8000)
    texts_of_cats = folder / "texts.csv"
    texts_of_cats.write_text("text,label\n" + "a cat,yes\na dog,no\n" * 20)
    network = torch.nn.Sequential()
    network.embedding = torch.nn.Embedding(20, 8)
    for number in range(count):
        size = 2 ** chance.randrange(10, 32)
        _wav(waves / "high_ann_1.wav", size, chance.choice((size, 8000, 2**32 - 1)))
        yield _modest(partial(Series, waves))
        _flac(
            packed / "high_ann_1.flac", min(2**36 - 1, size * 2 ** chance.randrange(5))
        )
        yield _modest(partial(Series, packed))
        letters = "x" * 2 ** chance.randrange(10, 20)
        (folder / "a.csv").write_text(f"series,label,height\n1,up,{letters}\n")
        yield _modest(partial(Series, folder / "a.csv"))
        (folder / "a.vec").write_text(f"{size} {size}\ncat{' 1' * len(letters)}\n")
        cats = Text(texts_of_cats, vectors=folder / "a.vec")
        yield _modest(partial(cats.begin, network))
        piece = chance.choice(("[", '{"a":', '{"a": ' + "9" * 9))
        (folder / "a.json").write_text(piece * (len(letters) // 4))
        yield _modest(partial(read_json, folder / "a.json", 2**26))
        many = min(len(letters), 2**17)
        texts = (
            "epochs: 1" + ":59" * many,
            "epochs: 0x" + "f" * many,
            "[" * many,
            "- " * many,
            "a: !!int 1" + ":1" * many,
            "\n".join(f"k{key}: 1" for key in range(many)),
            "a: &a {b: 1}\nc: {<<: [" + "*a, " * many + "]}",
        )
        (folder / "a.yaml").write_text(texts[number % len(texts)])
        yield _modest(partial(read_options, folder / "a.yaml"))


_BOX = "<object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"


@fault(
    "annotations that name files elsewhere, or state other sizes",
    "the picture in the folder, or a named error",
)
def annotations(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """COCO's and VOC's files with names, sizes, boxes, outlines and runs of pixels that
    are not so.
    """
    root = folder / "root"
    (root / "images").mkdir(parents=True)
    (root / "notes").mkdir()
    os.mkfifo(root / "pipe")
    Image.new("L", (60, 40)).save(folder / "outside.png")
    for name in ("a", "b"):
        Image.new("L", (60, 40)).save(root / "images" / f"{name}.png")
    names = (
        "images/a.png",
        "../outside.png",
        "/dev/zero",
        "pipe",
        "images/../../outside.png",
        str(folder / "outside.png"),
    )
    numbers: tuple[Any, ...] = (60, 40, 0, -1, 1e9, 1e400, "x", None, 2**40, [1])
    for _ in range(count):
        name = chance.choice(names)
        sides = chance.choices(numbers, k=2)
        count_of_runs = chance.randrange(20)
        letters = [chr(chance.randrange(33, 127)) for _ in range(count_of_runs)]
        runs = "".join(letters)
        marks = (
            [chance.choices(numbers, k=8)],
            {"size": [40, 60], "counts": runs},
            {"size": sides, "counts": [0, 10**9]},
        )
        image = {"id": 1, "file_name": name, "width": sides[0], "height": sides[1]}
        row = {
            "id": 1,
            "image_id": 1,
            "category_id": 1,
            "bbox": chance.choices(numbers, k=4),
            "segmentation": chance.choice(marks),
        }
        content = {
            "images": [image],
            "annotations": [row],
            "categories": [{"id": 1, "name": "cat"}],
        }
        (root / "all.json").write_text(json.dumps(content))
        size = f"<size><width>{sides[0]}</width><height>{sides[1]}</height></size>"
        (root / "notes" / "a.xml").write_text(
            f"<annotation><filename>{name}</filename>{size}{_BOX}</annotation>"
        )
        for notes in (root / "all.json", root / "notes"):
            files: list[str] = []
            modest = _modest(partial(_read, root, notes, files))
            yield modest and all("outside" not in file for file in files)
        yield _modest(lambda: Masks(root, masks="all.json", folds=2).train)


def _read(root: Path, notes: Path, files: list[str]) -> None:
    train = AnnotatedImages(
        root, notes, classes=("cat",), channels=1, validation=0.0, test=0.0
    ).train
    files += train.files or ()


@fault(
    "links in the folder of a run that lead out of it",
    "refused, nothing elsewhere changed",
)
def links(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """A run whose folders and files are links is begun, and resumed: nothing is written
    or deleted through them.
    """
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    files = (
        "index.html",
        "epoch00000.ckpt",
        "model.safetensors",
        "config.json",
        "metrics.csv",
    )
    for name in files:
        (elsewhere / name).write_text("precious")
    places = (
        "checkpoints",
        "report",
        "model",
        "tensorboard",
        "metrics.csv",
        "summary.json",
        ".lock",
        "checkpoints/epoch00000.ckpt",
        "report/index.html",
        "model/model.safetensors",
    )
    finish(folder / "whole", epochs=1)
    for number in range(count):
        run = folder / f"run-{number}"
        place = chance.choice(places)
        if number % 2:
            (folder / "whole").rename(run)
        path = run / place
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.aside")
        if path.exists():
            path.rename(aside)
        is_folder = "." not in path.name.lstrip(".")
        path.symlink_to(elsewhere if is_folder else elsewhere / files[0])
        refused = finish(run, epochs=2) == 1
        names = sorted(file.name for file in elsewhere.iterdir())
        yield (
            refused
            and names == sorted(files)
            and all((elsewhere / name).read_text() == "precious" for name in files)
        )
        path.unlink()
        if aside.exists():
            aside.rename(path)
        if number % 2:
            run.rename(folder / "whole")

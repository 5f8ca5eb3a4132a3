"""Rows of ``python -m benchmarks faults``: values that no reader expects, each in a file
that is right otherwise.
"""

import json
import random
import shutil
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image
from torch import Tensor

from benchmarks.faults import CRASH, fault, finish, misfit, no_crash
from torchcaps_lab.data import AnnotatedImages, ImageFolder, Text, read_idx
from torchcaps_lab.run_folder import RunFolder
from torchcaps_lab.training.checkpoints import newest_checkpoint

_NAMES = ("cat\ud800", "cat\ndog", "cat\x1b[2J", "cat\u202e", " ", "", 5, ["cat"], None)
"""What no class is called."""

_SIDES = (0, 1, 2, 28, 2**31 - 1, 2**31, 2**32 - 1)


@fault("names, texts and sizes that nobody writes", CRASH)
def odd_values(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """In data.yaml, COCO's categories, JSON texts, names of folders and idx files."""
    image = Image.new("L", (24, 24))
    image.save(folder / "0.png")
    box = {"id": 0, "image_id": 0, "category_id": 0, "bbox": [2, 3, 8, 6]}
    coco: dict[str, Any] = {
        "images": [{"id": 0, "file_name": "0.png"}],
        "annotations": [box],
        "categories": [{"id": 0, "name": "cat"}],
    }
    text = {"text": "a film", "label": "good"}
    (folder / "classes").mkdir()
    for number in range(count):
        names = misfit({"names": ["cat", "dog"], "train": ".", "nc": 2}, chance)
        (folder / "data.yaml").write_text(yaml.safe_dump(names, allow_unicode=True))
        yield no_crash(partial(_boxes, folder, folder / "data.yaml"))
        coco["categories"][0]["name"] = chance.choice(_NAMES)
        (folder / "all.json").write_text(json.dumps(coco))
        yield no_crash(partial(_boxes, folder, folder / "all.json"))
        rows = [text, {**text, chance.choice([*text]): chance.choice(_NAMES)}] * 9
        (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        yield no_crash(partial(_texts, folder / "a.jsonl"))
        classes = folder / "classes" / str(number)
        for place, name in enumerate(chance.sample(_NAMES[1:4], 2)):
            (classes / name).mkdir(parents=True)
            image.save(classes / name / f"{place}.png")
        yield no_crash(partial(_images, classes))
        shape = chance.choices(_SIDES, k=chance.choice((0, 1, 3, 3, 3, 100)))
        header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
        (folder / "a.idx").write_bytes(header + bytes(chance.choice((0, 1, 28))))
        yield no_crash(partial(read_idx, folder / "a.idx"))


def _boxes(root: Path, notes: Path) -> None:
    _ = AnnotatedImages(root, notes, channels=1, test=0.0, validation=0.0).train


def _texts(path: Path) -> None:
    _ = Text(path).train


def _images(path: Path) -> None:
    _ = ImageFolder(path, test=0.0, validation=0.0).train


@fault("checkpoints that hold other values, or are none", CRASH)
def odd_checkpoints(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """A training is resumed from one with a value that does not belong there, or beside
    a folder or a link in a circle of that name.
    """
    whole = folder / "whole"
    finish(whole, epochs=1)
    newest = newest_checkpoint(RunFolder(whole).checkpoints)
    if newest is None:
        yield False
        return
    state = torch.load(newest, weights_only=True)
    for number in range(count):
        run = folder / f"run-{number}"
        shutil.copytree(whole, run)
        path = RunFolder(run).checkpoints / newest.name
        kind = number % 3
        if kind == 0:
            torch.save(_other(state, chance), path)
        elif kind == 1:
            path.unlink()
            path.symlink_to(path.name)
        else:
            path.with_name("x.ckpt").mkdir()
        yield finish(run, epochs=2) in (0, 1)


def _other(content: Any, chance: random.Random) -> Any:
    """The content of a checkpoint with one value, or one shape, replaced."""
    if isinstance(content, Tensor):
        few = content.flatten()[:1]
        return chance.choice((few, few[:0], content * float("nan"), None))
    if isinstance(content, dict | list) and content and chance.random() < 0.9:
        changed: Any = content.copy()
        key = chance.choice([*content] if isinstance(content, dict) else [0])
        changed[key] = _other(content[key], chance)
        return changed
    return chance.choice(("one", -3, 1.5, 10**30, None, [], {}, [1], True))

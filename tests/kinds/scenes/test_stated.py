"""Sizes that COCO's and VOC's files state, beside those of pictures that were resized,
or are turned when shown.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from torchcaps_lab.data import AnnotatedImages, Masks, MaskSet

SIZE = (60, 40)
BOX = (6, 4, 30, 14)
ORIENTATIONS = range(1, 9)
Corners = tuple[int, int, int, int]


def stored(path: Path, turn: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """Saves a black picture with a white box, as it is stored by a camera that was held
    in some way; it is returned.
    """
    image = Image.new("L", SIZE)
    image.paste(255, BOX)
    image = image.resize(size, Image.Resampling.NEAREST)
    exif = image.getexif()
    exif[0x0112] = turn
    path.parent.mkdir(exist_ok=True)
    image.save(path, exif=exif)
    return image


def box_of(pixels: Tensor) -> Corners:
    """Around what is white in (H, W)."""
    white = (pixels > 127).nonzero()
    top, left = white.amin(0).tolist()
    low, right = (white.amax(0) + 1).tolist()
    return left, top, right, low


def annotate(
    folder: Path, kind: str, box: Corners, size: tuple[Any, Any], name: str = "a.png"
) -> Path:
    """One box in one image of a stated size."""
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    left, top, right, low = box
    if kind == "voc":
        sides = dict(
            zip(
                ("xmin", "ymin", "xmax", "ymax"),
                (left + 1, top + 1, right, low),
                strict=True,
            )
        )
        inside = "".join(f"<{side}>{place}</{side}>" for side, place in sides.items())
        (notes / "a.xml").write_text(
            f"<annotation><filename>{name}</filename><size><width>{size[0]}</width><height>{size[1]}</height></size>"
            f"<object><name>cat</name><bndbox>{inside}</bndbox></object></annotation>"
        )
        return notes
    pytest.importorskip("pycocotools")
    outline = [left, top, right, top, right, low, left, low]
    content = {
        "images": [
            {
                "id": 1,
                "file_name": name,
                "width": size[0],
                "height": size[1],
            }
        ],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "category_id": 3,
                "bbox": [left, top, right - left, low - top],
                "segmentation": [outline],
                "area": 1,
                "iscrowd": 0,
            }
        ],
        "categories": [{"id": 3, "name": "cat"}],
    }
    (notes / "all.json").write_text(json.dumps(content))
    return notes / "all.json"


def read(folder: Path, notes: Path) -> tuple[Tensor, Corners]:
    """The pixels of the image, and its box."""
    train = AnnotatedImages(
        folder, notes, classes=("cat",), channels=1, validation=0.0, test=0.0
    ).train
    left, top, right, low = train.boxes[0, 0].tolist()
    return train.inputs[0, 0], (left, top, right, low)


@pytest.mark.parametrize("kind", ["coco", "voc"])
@pytest.mark.parametrize("turn", ORIENTATIONS)
def test_boxes_of_the_turned_picture_stay_and_those_of_the_stored_one_are_turned(
    tmp_path: Path, kind: str, turn: int
) -> None:
    before = stored(tmp_path / "a.png", turn)
    after = ImageOps.exif_transpose(before)
    seen = box_of(
        torch.frombuffer(bytearray(after.tobytes()), dtype=torch.uint8).view(
            after.height, after.width
        )
    )
    pixels, box = read(tmp_path, annotate(tmp_path, kind, seen, after.size))
    assert box == box_of(pixels) == seen
    if turn >= 5:  # the others keep the sides, and cannot be noticed
        assert read(tmp_path, annotate(tmp_path, kind, BOX, SIZE))[1] == seen


@pytest.mark.parametrize("kind", ["coco", "voc"])
@pytest.mark.parametrize("turn", [1, 6, 8])
@pytest.mark.parametrize("factor", [0.5, 2, 3])
def test_boxes_follow_a_picture_that_was_resized(
    tmp_path: Path, kind: str, turn: int, factor: float
) -> None:
    stored(tmp_path / "a.png", turn, (int(60 * factor), int(40 * factor)))
    pixels, box = read(tmp_path, annotate(tmp_path, kind, BOX, SIZE))
    assert box == box_of(pixels)


@pytest.mark.parametrize("sides", [(1920, 1080), (1280, 853), (333, 500)])
def test_sides_of_a_resized_picture_are_rounded(
    tmp_path: Path, sides: tuple[int, int]
) -> None:
    for most in range(20, 60):
        width, height = (max(1, int(side * most / max(sides))) for side in sides)
        Image.new("L", (width, height)).save(tmp_path / "a.png")
        _, box = read(tmp_path, annotate(tmp_path, "voc", (0, 0, *sides), sides))
        assert box == (0, 0, width, height)


@pytest.mark.parametrize("kind", ["coco", "voc"])
@pytest.mark.parametrize(
    ("turn", "size"),
    [(1, (60, 60)), (1, (40, 60)), (6, (60, 60)), (1, (640, 480)), (1, (60, 42))],
)
def test_another_shape_is_an_error_that_names_file_and_sizes(
    tmp_path: Path, kind: str, turn: int, size: tuple[int, int]
) -> None:
    stored(tmp_path / "a.png", turn)
    shown = "60 x 40" if turn == 6 else "40 x 60"
    notes = annotate(tmp_path, kind, BOX, size)
    message = (
        rf"(all.json|a.xml) states {size[1]} x {size[0]} pixels \(height x "
        rf"width\), its picture .*a.png has {shown}"
    )
    with pytest.raises(ValueError, match=message):
        read(tmp_path, notes)


@pytest.mark.parametrize(
    "size", [("", ""), (0, 0), ("-60", "40"), ("wide", "40"), ("60.5", "40"), (0, 40)]
)
def test_sizes_that_are_none(tmp_path: Path, size: tuple[Any, Any]) -> None:
    stored(tmp_path / "a.png", 1)
    notes = annotate(tmp_path, "voc", BOX, size)
    if size == (0, 0):
        assert read(tmp_path, notes)[1] == BOX
    else:
        with pytest.raises(
            ValueError,
            match=r"a\.xml are not as of VOC: width and height must be whole numbers",
        ):
            read(tmp_path, notes)


@pytest.mark.parametrize(
    "size", [(2**40, 2**40), (10**300, 10**300), (1e400, 40), ([1], 40), ("60", None)]
)
def test_sizes_of_coco_that_are_none(tmp_path: Path, size: tuple[Any, Any]) -> None:
    stored(tmp_path / "a.png", 1)
    with pytest.raises(
        ValueError,
        match=r"width and height must be whole numbers|its picture|\.width: expected",
    ):
        read(tmp_path, annotate(tmp_path, "coco", BOX, size))


def masked(folder: Path, masks: str) -> MaskSet:
    """The picture and its mask, twice, since one picture cannot be divided."""
    shutil.copy(folder / "images" / "a.png", folder / "images" / "b.png")
    if masks == "masks":
        shutil.copy(folder / "masks" / "a.png", folder / "masks" / "b.png")
    else:
        content = json.loads((folder / masks).read_text())
        content["images"].append(
            {**content["images"][0], "id": 2, "file_name": "b.png"}
        )
        content["annotations"].append(
            {**content["annotations"][0], "id": 2, "image_id": 2}
        )
        (folder / masks).write_text(json.dumps(content))
    test = Masks(folder, masks=masks, folds=2).test
    assert isinstance(test, MaskSet)
    return test


@pytest.mark.parametrize("turn", ORIENTATIONS)
@pytest.mark.parametrize("kind", ["coco", "pictures"])
def test_masks_lie_over_their_pictures(tmp_path: Path, kind: str, turn: int) -> None:
    image = stored(tmp_path / "images" / "a.png", turn)
    shown = ImageOps.exif_transpose(image)
    name = "masks"
    for mask in (image, shown):
        if mask.size == shown.size and mask is image and turn in (2, 3, 4):
            continue  # nothing says which of both it is
        if kind == "pictures":
            (tmp_path / "masks").mkdir(exist_ok=True)
            mask.point([0] * 255 + [1]).save(tmp_path / "masks" / "a.png", exif=b"")
        else:
            pixels = torch.frombuffer(
                bytearray(mask.tobytes()), dtype=torch.uint8
            ).view(mask.height, mask.width)
            name = (
                annotate(tmp_path, "coco", box_of(pixels), mask.size)
                .relative_to(tmp_path)
                .as_posix()
            )
        test = masked(tmp_path, name)
        assert torch.equal(test.inputs[0, 0] > 127, test.labels[0] == 1)


def test_a_mask_of_a_picture_that_was_resized(tmp_path: Path) -> None:
    stored(tmp_path / "images" / "a.png", 6, (120, 80))
    annotate(tmp_path, "coco", BOX, SIZE)
    test = masked(tmp_path, "notes/all.json")
    assert torch.equal(test.inputs[0, 0] > 127, test.labels[0] == 1)


@pytest.mark.parametrize(
    "marks",
    [
        {"size": [2**15, 2**16], "counts": [0, 2**31]},
        {"size": [2**15, 2**16], "counts": "PPYo0000"},
        {"size": [40, 60], "counts": [0, 2**31]},
        [[0, 0, 1e9, 0, 1e9, 1e9]],
        [[0, 0, float("nan"), 0, 9, 9]],
        [[0, 0]],
        [[]],
        [],
        {},
        3,
        "x",
        {"size": [40, 60]},
        {"size": [40, 60], "counts": [-5, 3]},
    ],
)
def test_outlines_and_runs_outside_the_picture_take_no_memory(
    tmp_path: Path, marks: Any
) -> None:
    stored(tmp_path / "images" / "a.png", 1)
    notes = annotate(tmp_path, "coco", BOX, SIZE)
    content = json.loads(notes.read_text())
    content["annotations"][0]["segmentation"] = marks
    notes.write_text(json.dumps(content))
    with pytest.raises(
        ValueError,
        match=r"all\.json: annotation 1 of a\.png has no mask|empty annotation|"
        r"all\.json are not as of COCO: annotations\[0\] \(id 1\)\.segmentation",
    ):
        masked(tmp_path, "notes/all.json")


@pytest.mark.parametrize("form", ["list", "text"])
def test_runs_of_pixels(tmp_path: Path, form: str) -> None:
    stored(tmp_path / "images" / "a.png", 1)
    notes = annotate(tmp_path, "coco", BOX, SIZE)
    from pycocotools import mask as masks

    written = masks.frPyObjects(
        [[BOX[0], BOX[1], BOX[2], BOX[1], BOX[2], BOX[3], BOX[0], BOX[3]]], 40, 60
    )[0]
    gap = [40 - (BOX[3] - BOX[1]), BOX[3] - BOX[1]]
    runs = [
        BOX[0] * 40 + BOX[1],
        gap[1],
        *(gap * (BOX[2] - BOX[0] - 1)),
        30 * 40 + 40 - BOX[3],
    ]
    content = json.loads(notes.read_text())
    counts = runs if form == "list" else written["counts"].decode()
    content["annotations"][0]["segmentation"] = {"size": [40, 60], "counts": counts}
    notes.write_text(json.dumps(content))
    test = masked(tmp_path, "notes/all.json")
    assert torch.equal(test.inputs[0, 0] > 127, test.labels[0] == 1)


def test_text_of_runs_that_make_up_no_picture_reaches_no_other_code() -> None:
    """Thousands of random texts: pycocotools alone writes beyond its memory, and ends
    the process.
    """
    from torchcaps_lab.kinds.scenes.coco import Runs, marked_pixels

    chance = random.Random(0)
    whole = 0
    for _ in range(5000):
        text = "".join(
            chr(chance.randrange(33, 127)) for _ in range(chance.randrange(12))
        )
        try:
            whole += len(marked_pixels(Runs((40, 60), text), SIZE)) == 40
        except ValueError:
            continue
    assert whole < 10


def test_pictures_of_one_name_have_the_masks_of_their_folders(tmp_path: Path) -> None:
    for name, box in (("left", (0, 0, 20, 40)), ("right", (40, 0, 60, 40))):
        image = Image.new("L", SIZE)
        image.paste(255, box)
        (tmp_path / "images" / name).mkdir(parents=True)
        image.save(tmp_path / "images" / name / "a.png")
    content = json.loads(
        annotate(tmp_path, "coco", (0, 0, 20, 40), SIZE, "left/a.png").read_text()
    )
    content["images"].append(
        {**content["images"][0], "id": 2, "file_name": "right/a.png"}
    )
    outline = [[40, 0, 60, 0, 60, 40, 40, 40]]
    content["annotations"].append(
        {**content["annotations"][0], "id": 2, "image_id": 2, "segmentation": outline}
    )
    (tmp_path / "all.json").write_text(json.dumps(content))
    data = Masks(tmp_path, masks="all.json", folds=2, validation=0.0)
    for part in (data.train, data.test):
        assert torch.equal(part.inputs[0, 0] > 127, part.labels[0] == 1)


OUTSIDE = [
    "../a.png",
    "/dev/zero",
    "b/../../a.png",
    "..\\a.png",
    "C:\\a.png",
    "\\\\host\\a.png",
    "",
    "pipe",
    "b",
    7,
    None,
    ["a.png"],
    "a\0.png",
]


@pytest.mark.parametrize("kind", ["coco", "voc"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_annotations_name_files_of_their_folder_alone(
    tmp_path: Path, kind: str, name: Any
) -> None:
    import os

    root = tmp_path / "root"
    (root / "b").mkdir(parents=True)
    stored(tmp_path / "a.png", 1)
    if hasattr(os, "mkfifo"):
        os.mkfifo(root / "pipe")
    if kind == "voc" and not (isinstance(name, str) and name.isprintable()):
        pytest.skip("no text of XML")
    with pytest.raises(
        ValueError,
        match=r"leads out of|by its path below|is not a regular file|not as of COCO",
    ):
        read(root, annotate(root, kind, BOX, SIZE, name))


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_links_that_lie_in_the_folder_are_followed(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    stored(tmp_path / "elsewhere.png", 1)
    (root / "a.png").symlink_to(tmp_path / "elsewhere.png")
    (root / "sub").symlink_to(tmp_path)
    assert read(root, annotate(root, kind, BOX, SIZE))[1] == BOX
    assert read(root, annotate(root, kind, BOX, SIZE, "sub/elsewhere.png"))[1] == BOX

"""Annotations that contradict themselves: an error that names the file and the value,
before anything is used, whoever wrote them.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.kinds import shapes
from tests.kinds.shapes import masks, voc, yolo
from tests.kinds.shapes import picture as photo
from tests.runs import status
from torchcaps_lab.data import AnnotatedImages, Masks
from torchcaps_lab.look import number_in

Change = Callable[[dict[str, Any]], object]


def content() -> dict[str, Any]:
    """Two images with a box each."""
    images = [
        {"id": number, "file_name": f"{number}.png", "width": 40, "height": 24}
        for number in range(2)
    ]
    outline = [2.0, 3.0, 10.0, 3.0, 10.0, 9.0, 2.0, 9.0]
    rows = [
        {
            "id": 10 + number,
            "image_id": number,
            "category_id": number,
            "bbox": [2, 3, 8, 6],
            "iscrowd": 0,
            "segmentation": [outline],
        }
        for number in range(2)
    ]
    categories = [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    return {"images": images, "annotations": rows, "categories": categories}


def read_coco(folder: Path, text: str) -> AnnotatedImages:
    for number in range(2):
        Image.new("L", (40, 24), number).save(folder / f"{number}.png")
    (folder / "all.json").write_text(text)
    data = AnnotatedImages(
        folder, folder / "all.json", channels=1, validation=0.0, test=0.0
    )
    assert len(data.train) == 2
    return data


def set_in(kind: str, **values: Any) -> Change:
    return lambda file: file[kind][1].update(values)


COCO: dict[str, tuple[Change, str]] = {
    "box of texts": (
        set_in("annotations", bbox=["1", "2", "3", "4"]),
        r"annotations\[1\] \(id 11\)\.bbox\[0\].*`str`.*'1'",
    ),
    "box of truth": (set_in("annotations", bbox=[1, 2, True, 4]), r"bbox\[2\].*`bool`"),
    "box of three": (set_in("annotations", bbox=[1, 2, 3]), r"bbox.*length 4"),
    "box in a box": (set_in("annotations", bbox=[[1, 2, 3, 4]]), r"\.bbox"),
    "box by name": (set_in("annotations", bbox={"left": 1}), r"\.bbox.*`object`"),
    "no box": (set_in("annotations", bbox=None), "bbox of the annotation 11"),
    "not a number": (
        set_in("annotations", bbox=[1, float("nan"), 3, 4]),
        r"bbox\[1\]: expected `float`.*nan",
    ),
    "no end": (set_in("annotations", bbox=[1, 2, float("inf"), 4]), r"bbox\[2\].*inf"),
    "negative width": (
        set_in("annotations", bbox=[20, 2, -5, 4]),
        r"bbox of the annotation 11 .* got \(20.0, 2.0, -5.0, 4.0\)",
    ),
    "no height": (set_in("annotations", bbox=[1, 2, 5, 0]), "is empty"),
    "outside": (set_in("annotations", bbox=[30, 2, 20, 4]), "is outside the image"),
    "crowd of text": (set_in("annotations", iscrowd="0"), r"\.iscrowd.*`str`: '0'"),
    "crowd of truth": (set_in("annotations", iscrowd=False), r"\.iscrowd.*`bool`"),
    "crowd of two": (set_in("annotations", iscrowd=2), r"\.iscrowd.*2"),
    "image by name": (set_in("annotations", image_id="1"), r"\.image_id.*`str`"),
    "image of truth": (set_in("annotations", image_id=True), r"\.image_id.*`bool`"),
    "image nowhere": (set_in("annotations", image_id=7), "the image 7, which they do"),
    "no image": (lambda file: file["annotations"][1].pop("image_id"), "`image_id`"),
    "class nowhere": (set_in("annotations", category_id=7), "'id 7', which is none of"),
    "class of a half": (set_in("annotations", category_id=0.5), r"\.category_id"),
    "annotations of one number": (
        set_in("annotations", id=10),
        "id of an annotation 10 stands twice",
    ),
    "flat outline": (
        set_in("annotations", segmentation=[1, 2, 3, 4, 5, 6]),
        r"\.segmentation\[0\]",
    ),
    "outline of two corners": (
        set_in("annotations", segmentation=[[1, 2, 3, 4]]),
        r"\.segmentation\[0\].*length >= 6",
    ),
    "images of one number": (set_in("images", id=0), "id of an image 0 stands twice"),
    "one file twice": (set_in("images", file_name="0.png"), "'0.png' stands twice"),
    "one file, two names": (set_in("images", file_name="./0.png"), "stands twice"),
    "file of a number": (set_in("images", file_name=1), r"\.file_name.*`int`"),
    "another shape": (set_in("images", width=20), "neither a resize nor a turn"),
    "width of text": (set_in("images", width="40"), r"\.width.*`str`: '40'"),
    "width of truth": (set_in("images", width=True), r"\.width.*`bool`"),
    "negative width of an image": (set_in("images", width=-40), "whole numbers, 1 or"),
    "no width": (set_in("images", width=None), "whole numbers, 1 or more"),
    "classes of one number": (set_in("categories", id=0), "category 0 stands twice"),
    "classes of one name": (set_in("categories", name="cat"), "'cat' is that of 2"),
    "blank class": (set_in("categories", name=" "), "class 1 must have a name"),
    "class of a list": (set_in("categories", name=["dog"]), r"\.name.*`array`"),
    "class of a number": (set_in("categories", name=3), r"\.name.*`int`: 3"),
    "half a letter": (set_in("categories", name="\ud800"), "half of a character"),
    "no lists": (lambda file: file.update(images={}), r"images: expected `array`"),
    "no images": (lambda file: file.pop("images"), "missing required field `images`"),
}


@pytest.mark.parametrize("name", COCO)
def test_coco(name: str, tmp_path: Path) -> None:
    change, why = COCO[name]
    file = content()
    change(file)
    with pytest.raises(ValueError, match=rf"(?s)all\.json.*{why}|{why}") as caught:
        read_coco(tmp_path, json.dumps(file))
    assert str(tmp_path) in str(caught.value)


def test_coco_without_contradictions(tmp_path: Path) -> None:
    """Floats for whole numbers, byte order marks, fields that nobody reads."""
    file = content()
    file["annotations"][1] |= {"area": "wide", "iscrowd": 1}
    file["images"][1]["width"] = 40.0
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / encoding).mkdir()
        text = json.dumps(file).encode(encoding).decode("latin-1")
        (tmp_path / encoding / "all.json").write_text("")
        for number in range(2):
            Image.new("L", (40, 24)).save(tmp_path / encoding / f"{number}.png")
        path = tmp_path / encoding / "all.json"
        path.write_bytes(text.encode("latin-1"))
        data = AnnotatedImages(path.parent, path, channels=1, validation=0.0, test=0.0)
        assert data.train.boxes[:, 0].tolist() == [[2, 3, 10, 9], [0, 0, 0, 0]]
        assert any("are left out: 1" in note for note in data.notes())


def test_shares_in_place_of_pixels(tmp_path: Path) -> None:
    file = content()
    for row in file["annotations"]:
        row["bbox"] = [0.1, 0.2, 0.5, 0.3]
    with pytest.raises(ValueError, match=r"all\.json must be in pixels"):
        read_coco(tmp_path, json.dumps(file))


def test_one_place_of_two_classes_is_told(tmp_path: Path) -> None:
    file = content()
    file["annotations"].append({**file["annotations"][0], "id": 20, "category_id": 1})
    notes = read_coco(tmp_path, json.dumps(file)).notes()
    assert any("of another class: 1" in note for note in notes)


def test_an_object_with_one_name_twice(tmp_path: Path) -> None:
    text = json.dumps(content()).replace('"iscrowd": 0', '"bbox": [1, 1, 2, 2]', 1)
    with pytest.raises(ValueError, match="the name 'bbox' stands twice"):
        read_coco(tmp_path, text)


def test_pictures_that_no_annotation_names_are_told(tmp_path: Path) -> None:
    Image.new("L", (40, 24)).save(tmp_path / "more.png")
    notes = read_coco(tmp_path, json.dumps(content())).notes()
    (note,) = [note for note in notes if "left out" in note]
    assert note.startswith("left out 1 file: no annotation in")
    assert note.endswith("more.png")


YAML = {
    "names: 5": "names: expected `object | array`, got `str`: '5'",
    "names: abc": "names: expected `object | array`, got `str`: 'abc'",
    "names: [gold, gold]": "'gold' is that of 2 classes",
    "names: [gold, [navy]]": r"names\[1\]: expected `str`, got `array`",
    "names: [gold, {a: b}]": r"names\[1\]: expected `str`, got `object`",
    "names: [gold, null]": r"names\[1\]: expected `str`, got `null`",
    "names: [gold, '']": "class 1 must have a name",
    "names: {0: gold, 2: navy}": "must be numbered from 0 to 1",
    "names: {0: gold, 0_1: navy}": "must be numbered from 0 to 1",
    "names: {a: gold, b: navy}": "must be numbered from 0 to 1",
    "names: {0: gold, 0: navy}": "0 occurs twice",
    "names: [gold, navy]\nnames: [a, b]": "names occurs twice",
    "names: [gold, navy]\nnc: 3": "nc must be the number of names, 2, got 3",
    "names: [gold, navy]\nnc: 0_2": "nc must be the number of names, 2, got 0_2",
}


@pytest.mark.parametrize("lines", YAML)
def test_names_of_data_yaml(lines: str, tmp_path: Path) -> None:
    root = yolo(tmp_path)
    file = root / "data.yaml"
    file.write_text(f"train: images/train\nval: images/val\n{lines}\n")
    with pytest.raises(ValueError, match=rf"data\.yaml.*{YAML[lines]}"):
        AnnotatedImages(root, file)


def test_names_of_data_yaml_are_what_stands_there(tmp_path: Path) -> None:
    root = yolo(tmp_path)
    lines = "train: images/train\nval: images/val\nnc: 2\ntest:\n"
    text = f"{lines}names: [no, 1_0]\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (root / "data.yaml").write_text(text, encoding=encoding)
        assert AnnotatedImages(root, root / "data.yaml").classes == ("no", "1_0")


def test_folders_of_data_yaml(tmp_path: Path) -> None:
    root = yolo(tmp_path)
    names = "val: images/val\nnames: [gold, navy]\n"
    file = root / "data.yaml"
    for train in ("[images/train, images/train]", "[images/train, images]"):
        file.write_text(f"train: {train}\n{names}")
        with pytest.raises(ValueError, match="must be annotated once, and is twice"):
            AnnotatedImages(root, file)
    file.write_text(f"train: {{a: b}}\n{names}")
    with pytest.raises(ValueError, match="train: expected `str"):
        AnnotatedImages(root, file)


def test_two_images_with_one_file_of_labels(tmp_path: Path) -> None:
    root = yolo(tmp_path)
    photo(root / "images" / "train" / "0.jpg", "navy", 3, 64)
    with pytest.raises(ValueError, match=r"0\.txt must be of one image, and is of"):
        AnnotatedImages(root, root / "data.yaml")
    labels, images = root / "labels" / "train", root / "images" / "train"
    with pytest.raises(ValueError, match=r"0\.txt would be of both"):
        AnnotatedImages(images, labels, classes=("gold", "navy"))


def test_labels_of_no_image_are_told(tmp_path: Path) -> None:
    root = yolo(tmp_path)
    (root / "labels" / "train" / "more.txt").write_text("0 0.5 0.5 0.2 0.2")
    notes = AnnotatedImages(root, root / "data.yaml", size=64).notes()
    assert any("left out 1 file: it has the name of no image" in note for note in notes)


@pytest.mark.parametrize(
    "line",
    [
        "1_0 0.5 0.5 0.2 0.2",
        "0 0_5 0.5 0.2 0.2",
        "0 nan 0.5 0.2 0.2",
        "0 0.5 inf 0.2 0.2",
        "0 0.5 0.5 1e999 0.2",
        "٠ 0.5 0.5 0.2 0.2",
        "0 ０.5 0.5 0.2 0.2",
        "0 0.5 0.5 0.2",
        "0 0.5 0.5 0.2 0.2 0.9",
        "0 0.1 0.1 0.2 0.2 0.3 0.3 0.4",
        "0,0.5,0.5,0.2,0.2",
        "2 0.5 0.5 0.2 0.2",
        "-1 0.5 0.5 0.2 0.2",
        "0.5 0.5 0.5 0.2 0.2",
        "0 0.5 0.5 -0.2 0.2",
        "0 0.5 0.5 0.2 0",
    ],
)
def test_lines_of_yolo(line: str, tmp_path: Path) -> None:
    root = yolo(tmp_path)
    (root / "labels" / "train" / "0.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    with pytest.raises(ValueError, match=r"0\.(txt|png)"):
        _ = AnnotatedImages(root, root / "data.yaml", size=64).train


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marks_of_the_byte_order_in_labels(encoding: str, tmp_path: Path) -> None:
    root = yolo(tmp_path)
    images, labels = root / "images" / "train", root / "labels" / "train"
    (labels / "0.txt").write_text("1 0.5 0.5 0.5 0.5\n", encoding=encoding)
    (labels / "classes.txt").write_text("gold\nnavy\n", encoding=encoding)
    data = AnnotatedImages(images, labels, size=64, test=0.0, validation=0.0)
    assert data.classes == ("gold", "navy")
    assert data.train.boxes[0, 0].tolist() == [16, 16, 48, 48]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gold\n\nnavy\n", "class 1 must have a name"),
        ("gold\ngold\n", "'gold' is that of 2 classes"),
    ],
)
def test_lists_of_classes(text: str, why: str, tmp_path: Path) -> None:
    root = yolo(tmp_path)
    labels = root / "labels" / "train"
    (labels / "classes.txt").write_text(text)
    with pytest.raises(ValueError, match=rf"classes\.txt: .*{why}"):
        AnnotatedImages(root / "images" / "train", labels)
    why = "classes: class 1 must have a name|classes must have different names"
    with pytest.raises(ValueError, match=why):
        AnnotatedImages(root, root / "data.yaml", classes=text.strip().split("\n"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<xmin>3</xmin>", "<xmin>1_0</xmin>"),
        ("<xmin>3</xmin>", "<xmin>nan</xmin>"),
        ("<xmin>3</xmin>", "<xmin>-inf</xmin>"),
        ("<xmin>3</xmin>", "<xmin>３</xmin>"),
        ("<xmin>3</xmin>", "<xmin></xmin>"),
        ("<xmin>3</xmin>", ""),
        ("<xmin>3</xmin>", "<xmin>3</xmin><xmin>4</xmin>"),
        ("<xmin>3</xmin>", "<xmin>40</xmin>"),
        ("<name>gold</name>", "<name>gold</name><name>navy</name>"),
        ("<name>gold</name>", "<name></name>"),
        ("<name>", "<difficult>yes</difficult><name>"),
        ("<name>", "<difficult>0</difficult><difficult>1</difficult><name>"),
        ("<width>64</width>", "<width>6_4</width>"),
        ("<width>64</width>", "<width>32</width>"),
        ("<width>64</width>", "<width>64</width><width>32</width>"),
        ("<filename>0.png", "<filename>2.png"),
        ("<filename>0.png</filename>", ""),
        ("<filename>", "<filename>2.png</filename><filename>"),
    ],
)
def test_voc(old: str, new: str, tmp_path: Path) -> None:
    root = voc(tmp_path)
    file = root / "Annotations" / "0.xml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=r"0\.(xml|png)|2\.png"):
        _ = AnnotatedImages(root / "JPEGImages", file.parent, size=64).train


def test_difficult_things_of_voc_are_left_out(tmp_path: Path) -> None:
    """As crowds of COCO: neither found nor missed."""
    root = voc(tmp_path)
    for number, mark in enumerate(("1", "0", "")):
        file = root / "Annotations" / f"{number}.xml"
        marked = f"<difficult>{mark}</difficult><name>"
        file.write_text(file.read_text().replace("<name>", marked))
    data = AnnotatedImages(
        root / "JPEGImages", root / "Annotations", validation=0.0, test=0.0
    )
    assert (data.train.boxes[:, 0].sum(-1) == 0).tolist() == [True] + 23 * [False]
    assert any("are left out: 1" in note for note in data.notes())


@pytest.mark.parametrize(
    ("break_it", "arguments", "why"),
    [
        (None, {"names": ("a", "a")}, "names: .*'a' is that of 2 classes"),
        (None, {"values": (255, 255)}, "value of a class 255 stands twice"),
        (None, {"values": (0, 255), "ignore": 255}, "ignore must be none of values"),
        ("masks/0.gif", {}, r"must have one mask, and has .*0\.gif and .*0\.png"),
        ("images/0.gif", {}, r"images: the name '0' stands twice"),
    ],
)
def test_masks(
    break_it: str | None, arguments: dict[str, Any], why: str, tmp_path: Path
) -> None:
    root = masks(tmp_path)
    if break_it is not None:
        Image.new("L", (40, 40)).save(root / break_it)
    with pytest.raises(ValueError, match=why):
        Masks(root, channels=3, **arguments)


def test_pictures_that_are_listed_twice(tmp_path: Path) -> None:
    root = masks(tmp_path)
    names = [*map(str, range(6)), "3"]
    (root / "list.txt").write_text("\n".join(names), encoding="utf-8-sig")
    with pytest.raises(ValueError, match=r"list\.txt: the picture '3' stands twice"):
        Masks(root, channels=3, listed="list.txt")


def test_a_mask_of_no_picture_is_told(tmp_path: Path) -> None:
    root = masks(tmp_path)
    Image.new("L", (40, 40)).save(root / "masks" / "more.png")
    assert any(
        "it is of no picture" in note for note in Masks(root, channels=3).notes()
    )


@pytest.mark.parametrize("text", ["0", "-1.5", "+2", ".5", "5.", "1e-3", "1E+3", "007"])
def test_numbers(text: str) -> None:
    assert number_in(text) == float(text)


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1_0", "nan", "inf", "1e400", "0x10", "١", "1,5", "1\n", "."],
)
def test_texts_that_are_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number, got"):
        number_in(text)


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_file_whose_images_are_missing_is_named(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other split was trained on if they are those to train on."""
    scenes = shapes.coco(tmp_path)
    (file,) = (scenes / "annotations").glob(f"*{part}*")
    file.write_text(re.sub(r'"\d+.png"', '"gone.png"', file.read_text(), count=1))
    assert status("check", str(scenes)) == int(part == "train")
    missing = {"train": "is missing: 'gone.png'", "val": "(images are missing)"}
    printed = capsys.readouterr().out
    assert file.name in printed
    assert missing[part] in printed

"""Images with boxes, as of COCO, VOC and YOLO: the same things, whoever wrote them
down, and clear errors.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from torchcaps.spec import fit
from torchcaps_lab.data import AnnotatedImages, DataSet, Preprocess
from torchcaps_lab.options.guess import guess
from torchcaps_lab.run_folder import RunFolder
from torchcaps_lab.tasks import Detection, create_task, true_things
from torchcaps_lab.training.record import follow_record, images_apart, write_record

CLASSES = ("cat", "dog")
BOXES = {
    "a": [("dog", (2, 4, 10, 16)), ("dog", (10, 4, 18, 12)), ("cat", (0, 0, 4, 4))],
    "b": [("cat", (1, 1, 20, 21))],
    "c": [],
}


def write(folder: Path, kind: str, boxes: dict[str, list[Any]] = BOXES) -> Path:
    """Images of 40 x 20 pixels, black with white boxes, and annotations of a kind,
    which are returned.
    """
    (folder / "notes").mkdir()
    rows, images = [], []
    for number, (name, things) in enumerate(boxes.items()):
        image = Image.new("L", (40, 24))
        for _, box in things:
            image.paste(255, box)
        image.save(folder / f"{name}.png")
        images.append({"id": number, "file_name": f"{name}.png"})
        text = ""
        xml = f"<annotation><filename>{name}.png</filename>"
        for label, (left, top, right, low) in things:
            size = right - left, low - top
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": number,
                    "category_id": 7 * CLASSES.index(label) + 1,
                    "bbox": [left, top, *size],
                }
            )
            shares = (left + right) / 80, (top + low) / 48, size[0] / 40, size[1] / 24
            text += " ".join(map(str, (CLASSES.index(label), *shares))) + "\n"
            sides = zip(
                ("xmin", "ymin", "xmax", "ymax"),
                (left + 1, top + 1, right, low),
                strict=True,
            )
            inside = "".join(f"<{side}>{place}</{side}>" for side, place in sides)
            xml += f"<object><name>{label}</name><bndbox>{inside}</bndbox></object>"
        if kind == "yolo" and things:
            (folder / "notes" / f"{name}.txt").write_text(text)
        elif kind == "voc":
            (folder / "notes" / f"{name}.xml").write_text(xml + "</annotation>")
    if kind == "yolo":
        (folder / "notes" / "classes.txt").write_text("cat\ndog\n")
        (folder / "notes" / "._a.txt").write_bytes(b"\xff")
    if kind != "coco":
        return folder / "notes"
    categories = [
        {"id": 7 * label + 1, "name": name} for label, name in enumerate(CLASSES)
    ]
    file = folder / "notes" / "all.json"
    file.write_text(
        json.dumps({"images": images, "annotations": rows, "categories": categories})
    )
    return file


def data(folder: Path, annotations: Path, **more: Any) -> AnnotatedImages:
    return AnnotatedImages(
        folder,
        annotations=annotations,
        **{"channels": 1, "validation": 0.0, "test": 0.0, **more},
    )


def boxes_of(images: Any) -> dict[str, list[Any]]:
    """The boxes of the things in each image, as a task learns them."""
    batch = images.__getitems__(list(range(len(images))))
    answers = {}
    for file, labels, boxes in zip(images.files, *true_things(batch), strict=True):
        rows = [
            (CLASSES[label], (*map(int, box),))
            for label, box in zip(labels.tolist(), boxes.tolist(), strict=True)
        ]
        answers[Path(file).stem] = [row for row in rows if any(row[1])]
    return answers


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_any_number_of_things_of_a_class(tmp_path: Path, kind: str) -> None:
    if kind == "coco":
        pytest.importorskip("pycocotools")
    images = data(tmp_path, write(tmp_path, kind))
    assert images.classes == CLASSES
    assert boxes_of(images.train) == BOXES
    assert images.train.labels.tolist() == [[True, True], [True, False], [False, False]]
    assert isinstance(create_task(images.task), Detection)
    assert images.train.several
    assert boxes_of(images.train.subset(torch.tensor([1]))) == {"b": BOXES["b"]}


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_names_without_a_suffix_are_those_of_the_only_images(
    tmp_path: Path, kind: str
) -> None:
    if kind == "coco":
        pytest.importorskip("pycocotools")
    notes = write(tmp_path, kind)
    (tmp_path / "b.png").rename(tmp_path / "b.PNG")
    for file in [notes] if kind == "coco" else notes.iterdir():
        file.write_text(file.read_text().replace(".png", ""))
    assert boxes_of(data(tmp_path, notes).train) == BOXES
    (tmp_path / "a.jpg").touch()
    with pytest.raises(FileNotFoundError, match="a does not exist"):
        data(tmp_path, notes)


def test_boxes_lie_where_white_is_however_images_are_resized(tmp_path: Path) -> None:
    notes = write(
        tmp_path,
        "voc",
        {"b": [("cat", (10, 4, 24, 20))], "c": [("dog", (30, 0, 40, 6))]},
    )
    for resize in ("pad", "crop", "stretch"):
        train = data(tmp_path, notes, size=(48, 48), resize=resize).train
        (box,), (second,) = boxes_of(train).values()
        white = (train.inputs[0, 0] > 127).nonzero()
        assert (
            torch.tensor([*white.amin(0).flip(0), *(white.amax(0) + 1).flip(0)])
            - torch.tensor(box[1])
        ).abs().max() <= 1
        assert second[1][2] <= 48


@pytest.mark.parametrize("resize", ["pad", "crop", "stretch"])
def test_thin_things_at_every_border_keep_a_pixel(tmp_path: Path, resize: str) -> None:
    thin = [(0, 8, 1, 20), (39, 8, 40, 20), (8, 0, 20, 1), (8, 23, 20, 24)]
    notes = write(tmp_path, "voc", {"a": [("cat", place) for place in thin]})
    sides = {"pad": (20, 12), "crop": (20, 12), "stretch": (12, 9)}[resize]
    images = data(tmp_path, notes, size=sides[::-1], resize=resize).train
    things = boxes_of(images)["a"]
    assert len(things) == 4
    for _, (left, top, right, bottom) in things:
        assert 0 <= left < right <= sides[0]
        assert 0 <= top < bottom <= sides[1]


def test_what_a_crop_cuts_off_is_gone(tmp_path: Path) -> None:
    notes = write(
        tmp_path, "voc", {"a": [("cat", (0, 0, 6, 6)), ("dog", (16, 8, 24, 16))]}
    )
    train = data(
        tmp_path, notes, size=24, resize="crop"
    ).train  # the middle 24 of 40 columns
    assert boxes_of(train) == {"a": [("dog", (8, 8, 16, 16))]}
    assert train.labels.tolist() == [[False, True]]


def test_boxes_move_with_images_in_training(tmp_path: Path) -> None:
    train = data(tmp_path, write(tmp_path, "yolo")).train
    batch = train._fetch([0, 1])
    moved = batch.prepared(
        lambda images: Preprocess(flip=True).train(images, batch.indices, epoch=1)
    )
    flipped = (moved.inputs != batch.inputs).flatten(1).any(1)
    assert flipped.any()
    _, before = true_things(batch)
    _, after = true_things(moved)
    mirror = torch.stack(
        [40 - before[..., 2], before[..., 1], 40 - before[..., 0], before[..., 3]], -1
    )
    mirror = mirror * (before[..., 2:] > 0).all(-1, keepdim=True)
    assert torch.equal(after, torch.where(flipped[:, None, None], mirror, before))


def test_splits(tmp_path: Path) -> None:
    boxes = {
        str(number): [("cat", (0, 0, number + 2, 9)), ("dog", (20, 0, 22, number + 2))]
        for number in range(10)
    }
    images = data(tmp_path, write(tmp_path, "voc", boxes), test=0.3, validation=0.2)
    assert [len(part) for part in (images.train, images.validation, images.test)] == [
        6,
        1,
        3,
    ]
    assert {
        **boxes_of(images.train),
        **boxes_of(images.validation),
        **boxes_of(images.test),
    } == boxes


@pytest.mark.parametrize(
    ("kind", "boxes", "why"),
    [
        (
            "voc",
            {"a": [("cat", (3, 3, 3, 9))], "b": [("dog", (0, 0, 4, 4))]},
            r"'cat' in .*a.png, .* is empty",
        ),
        (
            "yolo",
            {"a": [("cat", (3, 3, 43, 9))]},
            r"\[3.0, 3.0, 43.0, 9.0\] .* outside the image of 40 x 24 pixels",
        ),
    ],
)
def test_wrong_boxes(
    tmp_path: Path, kind: str, boxes: dict[str, list[Any]], why: str
) -> None:
    images = data(tmp_path, write(tmp_path, kind, boxes))
    with pytest.raises(ValueError, match=why):
        _ = images.train


def test_what_is_missing_or_unknown(tmp_path: Path) -> None:
    notes = write(tmp_path, "yolo")
    with pytest.raises(
        FileNotFoundError, match=r"annotations .*none\.json does not exist"
    ):
        data(tmp_path, tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match=r"root .*nowhere does not exist"):
        data(tmp_path / "nowhere", notes)
    with pytest.raises(
        ValueError,
        match=(
            r"a folder of either \.xml files as of VOC or \.txt files as of YOLO, "
            r"got"
        ),
    ):
        data(tmp_path, tmp_path)
    with pytest.raises(ValueError, match="have the class 'dog', which is none of"):
        data(tmp_path, notes, classes=("cat",))
    (notes / "a.txt").write_text("0 0.5 0.5 zero 1")
    with pytest.raises(ValueError, match="must be five numbers"):
        data(tmp_path, notes)
    (notes / "a.txt").unlink()
    (notes / "z.txt").write_text("0 0.5 0.5 1 1")
    with pytest.raises(FileNotFoundError, match=r"the image .*z\.\* does not exist"):
        data(tmp_path, notes)
    (notes / "classes.txt").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"pass classes, .*classes\.txt does not exist"
    ):
        data(tmp_path, notes)


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (
            {"images": [{"id": 0, "file_name": "gone.png"}], "annotations": []},
            FileNotFoundError,
            "image .*gone.png",
        ),
        ({"images": []}, ValueError, "boxes in the image 0, which they do not list"),
        (
            {"categories": [{"id": 1, "name": "cat"}]},
            ValueError,
            "have the class 'id 8', which is none of",
        ),
        ({"categories": [], "annotations": []}, ValueError, "name no classes"),
        (
            {"categories": [{"id": 1}]},
            ValueError,
            r"not as of COCO: categories\[0\] \(id 1\): .*missing required field `name`",
        ),
    ],
)
def test_wrong_coco_files(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], why: str
) -> None:
    pytest.importorskip("pycocotools")
    file = write(tmp_path, "coco")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(error, match=why):
        data(tmp_path, file)
    file.write_text("{")
    with pytest.raises(ValueError, match="are not as of COCO: Expecting property name"):
        data(tmp_path, file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "<annotation><object><name>cat</name></object></annotation>",
            "bndbox/xmin is missing in object",
        ),
        ("<annotation>", "no element found"),
    ],
)
def test_broken_voc_files(tmp_path: Path, text: str, why: str) -> None:
    (write(tmp_path, "voc") / "a.xml").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.xml are not as of VOC: {why}"):
        data(tmp_path, tmp_path / "notes")


def test_scenes_are_called_as_the_folder_of_images_and_annotations(
    tmp_path: Path,
) -> None:
    """A report said that it was learned from train2017."""
    for folder in (tmp_path / "street" / "images", tmp_path / "street" / "labels"):
        folder.mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "street" / "images" / "0.png")
    (tmp_path / "street" / "labels" / "0.txt").write_text("0 0.5 0.5 0.5 0.5")
    beside = AnnotatedImages(
        tmp_path / "street" / "images",
        tmp_path / "street" / "labels",
        classes=["a", "b"],
        test=0,
    )
    assert beside.called == "street"
    shutil.copy(
        tmp_path / "street" / "labels" / "0.txt", tmp_path / "street" / "images"
    )
    within = AnnotatedImages(
        tmp_path / "street" / "images",
        tmp_path / "street" / "images",
        classes=["a", "b"],
        test=0,
    )
    assert within.called == "images"


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_images_without_any_box_teach_nothing(tmp_path: Path, kind: str) -> None:
    notes = write(tmp_path, kind, {"a": [], "b": []})
    with pytest.raises(ValueError, match="have no box in any of 2 images to train on"):
        AnnotatedImages(tmp_path, annotations=notes, classes=CLASSES)


def test_files_of_boxes_that_lie_elsewhere(tmp_path: Path) -> None:
    """All images were taken for empty ones, and a network learned to find nothing."""
    for part in ("images", "annos"):
        (tmp_path / part).mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "images" / "a.png")
    (tmp_path / "annos" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    yaml = tmp_path / "data.yaml"
    yaml.write_text("train: images\nnames: [cat, dog]\n")
    with pytest.raises(ValueError, match=r"such as .*labels/a\.txt"):
        AnnotatedImages(tmp_path, annotations=yaml)
    (tmp_path / "annos").rename(tmp_path / "labels")
    assert AnnotatedImages(tmp_path, annotations=yaml, test=0.0).classes == CLASSES


def test_numbers_of_yolo_count_its_own_names(tmp_path: Path) -> None:
    """A network with other places for its classes took cats for dogs."""
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "images" / "a.png")
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    yaml = tmp_path / "data.yaml"
    yaml.write_text("train: images\nnames: [dog, cat]\n")
    data = AnnotatedImages(
        tmp_path, annotations=yaml, classes=("cat", "dog"), validation=0.0, test=0.0
    )
    assert (data.classes, data.train.labels.tolist()) == (CLASSES, [[False, True]])


@pytest.mark.parametrize("kind", ["coco", "yolo"])
def test_validation_images_of_their_own(tmp_path: Path, kind: str) -> None:
    """Beside a test, they were used for nothing, without a word."""
    root = tmp_path / "cells"
    shown = {"train": range(6), "valid": range(6, 9), "test": range(9, 13)}
    for part, numbers in shown.items():
        rows = [{"id": row, "file_name": f"{row}.png"} for row in numbers]
        boxes = [
            {"id": row, "image_id": row, "category_id": row % 2, "bbox": [2, 3, 6, 8]}
            for row in numbers
        ]
        names = [{"id": place, "name": name} for place, name in enumerate("ab")]
        for row in numbers:
            path = root / part / "images" / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (24, 20), 9 * row).save(path)
            label = root / part / "labels" / f"{row}.txt"
            label.parent.mkdir(exist_ok=True)
            label.write_text(f"{row % 2} 0.5 0.5 0.2 0.4" if kind == "yolo" else "")
        content = {"images": rows, "annotations": boxes, "categories": names}
        if kind == "coco":
            (root / part / "labels.json").write_text(json.dumps(content))
    if kind == "yolo":
        folders = "train: train/images\nval: valid/images\ntest: test/images\n"
        (root / "data.yaml").write_text(f"names: [a, b]\n{folders}")
    data: Any = fit(DataSet, guess(root).options["data"], "data").make()
    for part, numbers in (("train", shown["train"]), ("validation", shown["valid"])):
        files = getattr(data, part).files
        assert {int(Path(file).stem) for file in files} == {*numbers}
    assert len(data.test) == 4


def in_folders(tmp_path: Path, kind: str, folders: dict[str, str]) -> Path:
    """Images of each folder, with their annotations in another, or among them."""
    for number, (images, notes) in enumerate(folders.items()):
        part = tmp_path / str(number)
        part.mkdir(parents=True)
        write(part, kind)
        for target, pattern in ((images, "*.png"), (notes, "notes/*.*")):
            (tmp_path / "all" / target).mkdir(parents=True, exist_ok=True)
            for file in part.glob(pattern):
                file.rename(tmp_path / "all" / target / file.name)
    return tmp_path / "all"


def guessed(root: Path) -> AnnotatedImages:
    options = {**guess(root).options["data"], "validation": 0.0}
    made: Any = fit(DataSet, options, "data").make()
    assert isinstance(made, AnnotatedImages)
    return made


def test_annotations_without_boxes_count_to_their_split(tmp_path: Path) -> None:
    """The test split was trained on if the first file of train had no box."""
    root = in_folders(tmp_path, "voc", {"train": "train", "test": "test"})
    Image.new("L", (40, 24)).save(root / "train" / "0.png")
    first = root / "train" / "0.xml"
    first.write_text("<annotation><filename>0.png</filename></annotation>")
    made = guessed(root)
    assert {Path(file).parent.name for file in made.train.files} == {"train"}
    assert {Path(file).parent.name for file in made.test.files} == {"test"}


def test_annotations_of_no_train_are_refused(tmp_path: Path) -> None:
    root = in_folders(tmp_path, "voc", {"valid": "valid", "test": "test"})
    with pytest.raises(
        ValueError, match="of validation and test and of no train, in test, valid"
    ):
        guess(root)


@pytest.mark.parametrize(
    "folders",
    [
        {".": "."},
        {"train": "train", "val": "val"},
        {"images/train": "labels/train", "images/val": "labels/val"},
        {"train/images": "train/labels", "val/images": "val/labels"},
    ],
)
def test_labels_of_yolo_beside_images_and_in_folders(
    folders: dict[str, str], tmp_path: Path
) -> None:
    """They were read as class folders, or as boxes without names of classes."""
    made = guessed(in_folders(tmp_path / "images", "yolo", folders))
    assert made.classes == CLASSES
    if len(folders) > 1:
        assert all("train" in file for file in made.train.files)
        assert all("val" in file for file in made.test.files)
    assert any(map(any, boxes_of(made.train).values()))


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [("voc", "a.png", "d"), ("coco", "a.png", "/elsewhere/a.png")],
)
def test_annotations_of_images_that_are_not_there(
    kind: str, old: str, new: str, tmp_path: Path
) -> None:
    """The folders of the images were the classes."""
    for name in ("first", "second"):
        folder = tmp_path / "all" / name
        folder.mkdir(parents=True)
        write(folder, kind)
        for notes in (folder / "notes").glob("a*.*"):
            notes.write_text(notes.read_text().replace(old, new))
    with pytest.raises(ValueError, match=f"is missing: '{new}'"):
        guess(tmp_path / "all")


def test_points_of_yolo_are_no_corners(tmp_path: Path) -> None:
    """They were read as a polygon."""
    root = in_folders(tmp_path, "yolo", {"images": "labels"})
    for file in (root / "labels").glob("?.txt"):
        lines = file.read_text().split("\n")
        file.write_text("\n".join(f"{line} 0.1 0.2 0.9 0.4" for line in lines if line))
    yaml = root / "data.yaml"
    names = "names: [cat, dog]\ntrain: images\nkpt_shape: "
    yaml.write_text(names + "[2, 2]")
    assert boxes_of(data(root, yaml).train)["a"] == BOXES["a"]
    for shape, why in (("[3, 2]", "must be 11 numbers, 6"), ("[2, 5]", "2 or 3")):
        yaml.write_text(names + shape)
        with pytest.raises(ValueError, match=why):
            data(root, yaml)


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_no_run_tests_on_images_that_it_was_trained_on(
    tmp_path: Path, kind: str
) -> None:
    """Images that are added are left out, also if others are gone or took the names of
    others.
    """
    run = RunFolder(tmp_path)
    run.config.write_text("")
    names = [f"image {number}" for number in range(14)]
    boxes = {
        name: [(CLASSES[number % 2], (0, 0, number + 5, 9))]
        for number, name in enumerate(names[:12])
    }
    shares = {"validation": 0.2, "test": 0.3}
    before = tmp_path / "before"
    before.mkdir()
    first = data(before, write(before, kind, boxes), **shares)
    write_record(run, first)
    trained = {*first.train.contents()}
    tested = {*first.test.contents()}
    parts = first.manifest().parts
    gone, renamed, *_ = (Path(entry.name).stem for entry in parts["train"])
    replaced = Path(parts["test"][0].name).stem
    later = {name: rows for name, rows in boxes.items() if name not in (gone, renamed)}
    later |= {replaced: boxes[renamed], "image 13": [("cat", (3, 3, 9, 9))]}
    after = tmp_path / "after"
    after.mkdir()
    follower = data(after, write(after, kind, later), **shares)
    lines = "\n".join(follow_record(run, follower))
    assert "1 image added since the training, left out of all parts: image 13" in lines
    assert "2 images gone since the training: " in lines
    assert f"1 image renamed since the training: {renamed}.png -> {replaced}" in lines
    assert {*follower.train.contents()} < trained
    assert {*follower.test.contents()} < tested
    assert not trained & {*follower.test.contents(), *follower.validation.contents()}
    assert follower.test.things.tolist()
    other = data(after, follower.annotations, **shares)
    images, notes = images_apart(run, other, "all")
    assert not trained & {*images.contents()}
    assert "the run was trained on them" in notes[-1]


def test_images_of_one_name_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    for part, box in (("train", (0, 0, 9, 9)), ("test", (5, 5, 20, 20))):
        (tmp_path / part).mkdir()
        write(tmp_path / part, "voc", {"a": [("cat", box)], "b": [("dog", box)]})
    images = data(
        tmp_path / "train",
        tmp_path / "train/notes",
        test_annotations=tmp_path / "test/notes",
        test_root=tmp_path / "test",
    )
    assert {entry.name for entry in images.manifest().parts["test"]} == {
        "test/a.png",
        "test/b.png",
    }
    assert boxes_of(images.test)["a"] == [("cat", (5, 5, 20, 20))]


def test_a_broken_image_is_left_out_with_its_boxes(tmp_path: Path) -> None:
    notes = write(tmp_path, "voc")
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"a\.png: it is not an image"):
        _ = data(tmp_path, notes).train
    images = data(tmp_path, notes, skip_broken=True)
    assert {*boxes_of(images.train)} == {"b", "c"}
    assert {*images.manifest().left_out} == {"a.png"}


def test_an_image_in_several_splits_has_the_same_boxes_in_each(tmp_path: Path) -> None:
    first = write(tmp_path, "coco", {"a": [("cat", (0, 0, 9, 9))], "b": []})
    again = tmp_path / "again.json"
    again.write_text(first.read_text())
    images = data(tmp_path, first, test_annotations=again)
    assert boxes_of(images.test) == boxes_of(images.train)
    again.write_text(first.read_text().replace("9", "8"))
    with pytest.raises(ValueError, match=r"a\.png must have the same boxes in each"):
        data(tmp_path, first, test_annotations=again)

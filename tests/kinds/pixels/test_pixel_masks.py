"""Masks beside pictures: which labels they become, which pictures are put aside, and
what is wrong with files.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from torchcaps_lab.cli import runs
from torchcaps_lab.cli.runs import other_data
from torchcaps_lab.data import (
    NO_CLASS,
    Cuts,
    Digits,
    Masks,
    MaskSet,
    Pictures,
    Preprocess,
    ScenePixels,
    Shapes,
)
from torchcaps_lab.run_folder import RunFolder
from torchcaps_lab.tasks.base import as_task
from torchcaps_lab.training.record import follow_record, images_apart, write_record

VALUES = torch.tensor([0, 9, 200], dtype=torch.uint8)


def labels_of(number: int, height: int = 12, width: int = 10) -> Tensor:
    """Three classes in a pattern that is another one for each picture."""
    place = torch.arange(height * width).view(height, width)
    return (place * (number + 2) // 7) % 3


def save(path: Path, values: Tensor, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values.to(torch.uint8).numpy())
    if mode == "P":
        image.putpalette(
            [level for shade in range(256) for level in (shade, 255 - shade, 7)]
        )
    image.convert(mode).save(path) if mode != "P" else image.save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures 0 to 11, each 20 times its labels and as bright as its number is
    high.
    """
    for number in range(12):
        labels = labels_of(number)
        save(tmp_path / f"images/cell{number}.png", 20 * labels + number)
        save(
            tmp_path / f"masks/cell{number}.png",
            VALUES[labels],
            "P" if number % 2 else "L",
        )
    return tmp_path


def test_values_become_classes_and_stay_with_their_pictures(folder: Path) -> None:
    data = Masks(
        folder, names=("none", "wall", "cell"), folds=4, fold=1, validation=1 / 3
    )
    assert data.classes == ("none", "wall", "cell")
    assert [Path(name).name for name in data.test.files or ()] == [
        "cell3.png",
        "cell4.png",
        "cell5.png",
    ]
    for images, count in ((data.train, 6), (data.validation, 3), (data.test, 3)):
        assert len(images) == count
        batch = images.__getitems__(list(range(count)))
        assert batch.labels.dtype == torch.int64
        torch.testing.assert_close(
            (255 * batch.inputs[:, 0]).round().long() // 20, batch.labels
        )
    swapped = Masks(folder, values=(200, 0, 9)).test
    assert torch.equal(swapped.labels[0].long(), (labels_of(0) + 1) % 3)


def test_folds_are_blocks_that_make_up_all(folder: Path) -> None:
    tested = [Masks(folder, fold=fold).test.files or () for fold in range(5)]
    assert [Path(name).stem for fold in tested for name in fold] == [
        f"cell{number}" for number in range(12)
    ]


def test_no_run_tests_on_pictures_that_it_was_trained_on(folder: Path) -> None:
    """A picture that was added moved the blocks; it is left out, also if others are
    gone, or took the names of others, with their masks.
    """
    run = RunFolder(folder / "run")
    run.path.mkdir()
    run.config.write_text("")
    first = Masks(folder, fold=1)
    write_record(run, first)
    trained = {*first.train.contents()}
    assert not follow_record(run, Masks(folder, fold=1))
    save(folder / "images/a.png", 20 * labels_of(12))
    save(folder / "masks/a.png", VALUES[labels_of(12)])
    for place in ("images", "masks"):
        (folder / place / "cell11.png").unlink()
        (folder / place / "cell10.png").rename(folder / place / "cell2.png")
    later = Masks(folder, fold=1)
    lines = "\n".join(follow_record(run, later))
    assert "1 image added since the training, left out of all parts: images/a" in lines
    assert "2 images gone since the training: " in lines
    assert "1 image renamed since the training: images/cell10.png -> " in lines
    assert [Path(name).stem for name in later.test.files or ()] == ["cell3"]
    assert {*later.train.contents()} < trained
    assert not trained & {*later.test.contents(), *later.validation.contents()}
    images, notes = images_apart(run, Masks(folder, fold=1), "all")
    assert not trained & {*images.contents()}
    assert "the run was trained on them" in notes[-1]


def test_a_broken_picture_or_mask_is_left_out_of_the_record(folder: Path) -> None:
    (folder / "images/cell0.png").write_bytes(b"no picture")
    (folder / "masks/cell7.png").write_bytes(b"no mask")
    with pytest.raises(ValueError, match=r"2 images cannot be read.* skip_broken"):
        _ = Masks(folder).train
    data = Masks(folder, skip_broken=True)
    assert {*data.manifest().left_out} == {"images/cell0.png", "images/cell7.png"}
    assert (
        sum(len(getattr(data, part)) for part in ("train", "validation", "test")) == 10
    )


def test_cuts_take_the_same_square_of_both_and_another_in_each_epoch() -> None:
    place = torch.arange(12 * 10).view(1, 12, 10).to(torch.uint8)
    images = MaskSet(place[:, None], place % 5, tuple("abcde"))
    whole = images.__getitems__([0])
    seen = set()
    for epoch in range(40):
        cut = Cuts(4, count=2)(whole, epoch, seed=0)
        assert cut.inputs.shape == (2, 1, 4, 4)
        assert cut.indices.tolist() == [0, 0]
        at = (255 * cut.inputs[:, 0]).round().long()
        assert torch.equal(at % 5, cut.labels)
        seen |= {tuple(square.flatten().tolist()) for square in at}
    assert len(seen) > 60  # of 63 places, in 8 positions
    assert torch.equal(Cuts(4)(whole, 3, 0).inputs, Cuts(4)(whole, 3, 0).inputs)


def test_smaller_pictures_get_margins_without_a_class(folder: Path) -> None:
    save(folder / "images/cell0.png", labels_of(0, 9, 8))
    save(folder / "masks/cell0.png", VALUES[labels_of(0, 9, 8)])
    labels = Masks(folder).test.labels[0]
    assert torch.equal(labels[:9, :8].long(), labels_of(0, 9, 8))
    assert (labels[9:] == NO_CLASS).all()
    assert (labels[:, 8:] == NO_CLASS).all()


def test_ignored_values_and_listed_pictures(folder: Path) -> None:
    (folder / "part.txt").write_text("cell7\ncell2\ncell11\n")
    data = Masks(folder, listed="part.txt", ignore=200, folds=3, validation=0.0)
    assert data.classes == ("0", "9")
    assert [
        Path(name).stem
        for name in (*(data.test.files or ()), *(data.train.files or ()))
    ] == [
        "cell2",
        "cell7",
        "cell11",
    ]
    assert torch.equal(data.test.labels[0] == NO_CLASS, labels_of(2) == 2)


def coco(
    folder: Path, change: Callable[[dict[str, Any]], None] = lambda content: None
) -> Masks:
    square = {
        "segmentation": [[0, 0, 10, 0, 10, 12, 0, 12]],
        "area": 120,
        "bbox": [0, 0, 10, 12],
        "iscrowd": 0,
    }
    small = {
        "segmentation": [[2, 3, 5, 3, 5, 7, 2, 7]],
        "area": 12,
        "bbox": [2, 3, 3, 4],
        "iscrowd": 0,
    }
    images = [
        {"id": n, "file_name": f"cell{n}.png", "height": 12, "width": 10}
        for n in range(12)
    ]
    results = [
        {"id": 2 * n + place, "image_id": n, "category_id": label, **region}
        for n in range(12)
        for place, (label, region) in enumerate(((4, small), (8, square)))
    ]
    categories = [{"id": 8, "name": "sky"}, {"id": 4, "name": "kite"}]
    content: dict[str, Any] = {
        "images": images,
        "annotations": results,
        "categories": categories,
    }
    change(content)
    (folder / "marks.json").write_text(json.dumps(content))
    return Masks(folder, masks="marks.json")


def test_coco_annotations_with_small_things_over_large_ones(folder: Path) -> None:
    data = coco(folder)
    assert data.classes == ("background", "kite", "sky")
    expected = torch.full((12, 10), 2, dtype=torch.uint8)
    expected[3:7, 2:5] = 1
    assert torch.equal(data.test.labels[0], expected)


def test_coco_annotations_may_name_pictures_in_another_way(folder: Path) -> None:
    """Without suffixes, and with letters like ä of two characters on the disk."""
    old = folder / "images/cell3.png"
    old.rename(folder / "images" / "cella\u0308.png")

    def change(content: dict[str, Any]) -> None:
        content["images"][3]["file_name"] = "cell\u00e4"
        content["images"][5]["file_name"] = "cell5"

    assert len(coco(folder, change).train) == 9


def without_image(content: dict[str, Any]) -> None:
    """Without the image 5 and its annotations."""
    cut_out("images", "id", 5)(content)
    cut_out("annotations", "image_id", 5)(content)


def cut_out(name: str, key: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content[name] = [entry for entry in content[name] if entry[key] != value]

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            without_image,
            FileNotFoundError,
            r"cell5.png has no mask: .*marks.json has no entry for it",
        ),
        (
            cut_out("annotations", "image_id", 5),
            ValueError,
            "has an empty annotation: it marks nothing in .*cell5.png",
        ),
        (
            lambda content: content["images"][5].update(width=11),
            ValueError,
            r"12 x 11 pixels .*cell5.png has 12 x 10",
        ),
        (
            lambda content: content["annotations"][3].pop("segmentation"),
            ValueError,
            "annotation 3 of cell1.png",
        ),
    ],
)
def test_wrong_coco_annotations_are_named(
    folder: Path, change: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _ = coco(folder, change).train


def unlink(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        (unlink, {}, r"cell4.png has no mask: expected .*masks/cell4.png"),
        (
            lambda mask: save(mask, labels_of(4, 12, 9)),
            {},
            r"cell4.png has 12 x 9 pixels .*images/cell4.png has 12 x 1",
        ),
        (
            lambda mask: save(mask, 7 + labels_of(4)),
            {"values": (0, 9, 200)},
            r"masks/cell4.png has the values \[7, 8\]",
        ),
        (
            lambda mask: save(mask, 0 * labels_of(4)),
            {"ignore": 0},
            "masks/cell4.png is an empty mask",
        ),
        (
            lambda mask: save(mask, labels_of(4), "RGB"),
            {},
            "masks/cell4.png must have grey values .*got mode RGB",
        ),
        (
            lambda mask: mask.write_bytes(b""),
            {},
            "cannot read the image .*masks/cell4.png: the file is empty",
        ),
        (
            lambda mask: save(mask, torch.arange(120).view(12, 10)),
            {},
            "the masks have 121 values, but look as if",
        ),
        (
            lambda mask: None,
            {"names": ("wall",)},
            r"names must be 3, one for each of the values \[0, 9, 200\]",
        ),
        (
            lambda mask: None,
            {"values": (0, 256)},
            "values must be at most 255, got 256",
        ),
        (
            lambda mask: None,
            {"cut": 11},
            "cut must be at most 10 for images of 12 x 10",
        ),
        (lambda mask: None, {"fold": 5}, "fold must be less than folds, 5, got 5"),
        (
            lambda mask: None,
            {"folds": 13},
            "folds must be at most the number of pictures, 12, got 13",
        ),
        (lambda mask: None, {"images": "photos"}, "has no folder 'photos' of pictures"),
    ],
)
def test_what_is_wrong_is_named(
    folder: Path, spoil: Callable[[Path], None], arguments: dict[str, Any], message: str
) -> None:
    spoil(folder / "masks/cell4.png")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        _ = Masks(folder, **arguments).train


def test_nothing_may_move_pixels_away_from_their_labels(folder: Path) -> None:
    data = Masks(folder)
    assert data.arguments(Preprocess(brightness=0.1)) == {"image_shape": (1, 12, 10)}
    with pytest.raises(
        ValueError, match=r"preprocess\.flip would move pixels away from their labels"
    ):
        data.arguments(Preprocess(flip=True))


@pytest.mark.parametrize("change", [{"shift": 2}, {"crop": 12}, {"rescale": 40}])
def test_nor_does_any_data_set(change: dict[str, int]) -> None:
    """Scenes were trained on labels of other pixels, and crops of shapes failed."""
    scenes = ScenePixels(Digits(), canvas=(48, 48), most=2)
    for data in (scenes, Shapes(count=20, tests=2)):
        with pytest.raises(ValueError, match="would move pixels away from their"):
            data.arguments(Preprocess(**change))
    pictures = Pictures(torch.rand(6, 3, 20, 20), size=16)
    pictures.arguments(Preprocess(shift=1))  # of no known objects


def test_pixels_of_scenes_are_the_ink_of_their_digits() -> None:
    scenes = ScenePixels(
        Digits(), canvas=(40, 44), most=2, clutter=2, smallest=10, largest=14
    )
    batch = scenes.test.__getitems__(list(range(20)))
    assert batch.labels.shape == (20, 40, 44)
    first = torch.stack(
        [(batch.labels == 1 + label).flatten(1).any(1) for label in range(10)], 1
    )
    assert first[
        torch.arange(20), scenes.data.test.labels[:20]
    ].all()  # the digit that the scene is made around
    assert set(first.sum(1).tolist()) == {1, 2}
    assert (batch.inputs[:, 0][batch.labels > 0] >= 0.25).all()


def test_other_masks_are_read_as_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evaluate RUN FOLDER` took pixels that training ignored for a class."""
    network = SimpleNamespace(
        named=True, classes=("ground", "cell"), task=as_task("segmentation")
    )
    monkeypatch.setattr(runs, "open_classifier", lambda run: network)
    for number in range(5):
        labels = labels_of(number)
        save(tmp_path / "new/images" / f"{number}.png", labels)
        save(tmp_path / "new/masks" / f"{number}.png", VALUES[labels])
    own: dict[str, Any] = {"names": ["ground", "cell"], "values": [0, 9], "ignore": 200}
    own["channels"] = 3
    # A data set of the user's own may not be imported.
    for name, shared in (("mine.Masks", {}), ("masks", own)):
        data = {"data": {"name": name, "root": "moved", "fold": 2, **own}}
        (tmp_path / "config.yaml").write_text(json.dumps(data))
        named, _ = other_data(str(tmp_path), str(tmp_path / "new"), None, None)
        assert named.arguments.get("ignore") == shared.get("ignore")
        assert named.arguments.get("fold") == 0
    data = named.make()
    assert (data.classes, data.channels) == (("ground", "cell"), 3)

"""Classes of splits, of other images and of annotations are matched by their names,
never by their places.
"""

import shutil
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

import torchcaps as tc
from torchcaps.spec import Spec, fit
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli.runs import open_run
from torchcaps_lab.data import (
    AnnotatedImages,
    AnnotatedSet,
    DataSet,
    Digits,
    Examples,
    ImageFolder,
    MapStyle,
    MaskSet,
    Series,
    Text,
)
from torchcaps_lab.data.listed import ListedData

SHADES = {"black": 10, "grey": 120, "white": 240}


def save(root: Path, counts: dict[str, int], start: int = 0) -> Path:
    """Pictures whose classes can be read off their pixels."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(start, start + count):
            picture = Image.new("L", (6, 6), SHADES.get(name, 60))
            picture.putpixel((number % 6, number // 6), SHADES.get(name, 60) + 9)
            picture.save(root / name / f"{number}.png")
    return root


def shades(images: Examples) -> list[int]:
    """The shade that the class of each image has by its name."""
    return [SHADES[images.classes[label]] for label in images.labels.tolist()]


def assert_named_as_drawn(images: Examples) -> None:
    assert shades(images) == images.inputs.flatten(1).median(1).values.tolist()


@pytest.mark.parametrize("empty", [False, True], ids=["no folder", "an empty folder"])
@pytest.mark.parametrize("part", ["test", "val"])
def test_a_split_may_lack_classes(tmp_path: Path, part: str, empty: bool) -> None:
    save(tmp_path / "train", {"black": 3, "grey": 3, "white": 3})
    save(tmp_path / part, {"black": 0, "white": 2} if empty else {"white": 2}, 9)
    data = ImageFolder(tmp_path)
    assert data.classes == ("black", "grey", "white")
    assert_named_as_drawn(data.train)
    assert_named_as_drawn(data.test)
    assert shades(data.test) == [240, 240]
    assert any(
        "classes without a test image" in note and "black, grey" in note
        for note in data.notes()
    )


def save_sounds(root: Path, names: Sequence[str]) -> None:
    for name in names:
        root.joinpath(name).mkdir(parents=True)
        for number in range(4):
            samples = torch.randint(-999, 999, (4000,), dtype=torch.int16)
            with wave.open(str(root / name / f"{number}.wav"), "wb") as file:
                file.setparams((1, 2, 8000, 0, "NONE", ""))
                file.writeframes(samples.numpy().tobytes())


def save_texts(root: Path, names: Sequence[str]) -> None:
    for name in names:
        root.joinpath(name).mkdir(parents=True)
        for number in range(4):
            (root / name / f"{number}.txt").write_text(f"{name} {number}")


def save_images(root: Path, names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        save(root, {name: 4}, 4 * place)


@pytest.mark.parametrize(
    ("write", "kind"),
    [(save_images, ImageFolder), (save_texts, Text), (save_sounds, Series)],
)
@pytest.mark.parametrize("split", ["", "train"])
def test_folders_inside_class_folders_are_noted(
    tmp_path: Path,
    write: Callable[[Path, Sequence[str]], None],
    kind: type[ListedData],
    split: str,
) -> None:
    inner = ("animals/cats", "animals/dogs", "vehicles/cars", "vehicles/vans")
    write(tmp_path / split, inner)
    if split:
        shutil.copytree(tmp_path / split, tmp_path / "test")
    data = kind(tmp_path)
    assert data.classes == ("animals", "vehicles")
    (note,) = [note for note in data.notes() if "inside class folders" in note]
    assert "animals/cats, animals/dogs, vehicles/cars, vehicles/vans" in note
    inner = kind(tmp_path, class_folders="inner")
    assert inner.classes == ("cars", "cats", "dogs", "vans")
    assert not any("inside class folders" in note for note in inner.notes())


@pytest.mark.parametrize(
    ("write", "kind"), [(save_images, ImageFolder), (save_texts, Text)]
)
def test_the_same_folders_in_class_folders_may_be_the_classes(
    tmp_path: Path,
    write: Callable[[Path, Sequence[str]], None],
    kind: type[ListedData],
) -> None:
    times = ("black/morning", "black/evening", "white/morning", "white/evening")
    write(tmp_path, times)
    with pytest.raises(ValueError, match="class_folders"):
        kind(tmp_path)
    assert kind(tmp_path, class_folders="outer").classes == ("black", "white")
    assert kind(tmp_path, class_folders="inner").classes == ("evening", "morning")


def test_the_same_speakers_in_class_folders_are_groups(tmp_path: Path) -> None:
    save_sounds(tmp_path, ("yes/anna", "yes/ben", "no/anna", "no/ben"))
    assert Series(tmp_path).classes == ("no", "yes")


def test_an_extra_class_is_named(tmp_path: Path) -> None:
    save(tmp_path / "train", {"black": 3, "white": 3})
    save(tmp_path / "test", {"black": 1, "whit": 1}, 9)
    with pytest.raises(
        ValueError,
        match=(r"test: whit is none of the classes black, white; did you mean white\?"),
    ):
        ImageFolder(tmp_path)


def test_an_empty_class_of_the_training_is_still_refused(tmp_path: Path) -> None:
    save(tmp_path / "train", {"black": 3, "white": 3, "grey": 0})
    save(tmp_path / "test", {"black": 1}, 9)
    with pytest.raises(ValueError, match=r"class folder .*grey holds no images"):
        ImageFolder(tmp_path)


def test_texts_of_a_test_table_may_lack_classes(tmp_path: Path) -> None:
    rows = "\n".join(f"it is {name} {n},{name}" for name in SHADES for n in range(4))
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
    (tmp_path / "test.csv").write_text("text,label\nquite white,white\nwhite,white")
    data = Text(tmp_path)
    assert [data.classes[label] for label in data.test.labels.tolist()] == [
        "white",
        "white",
    ]
    (tmp_path / "test.csv").write_text("text,label\nquite white,white\nred,red")
    with pytest.raises(
        ValueError,
        match=(r"the test texts of .*: red is none of the classes black, grey, white"),
    ):
        _ = Text(tmp_path).train


class Pairs(Sequence):
    """Pairs with the names of their labels."""

    def __init__(self, classes: tuple[str, ...], count: int) -> None:
        self.classes = classes
        shape = (1, 6, 6)
        self.pairs = [
            (torch.full(shape, SHADES[name], dtype=torch.uint8), label)
            for _ in range(count)
            for label, name in enumerate(classes)
        ]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pairs[index]


def test_pairs_with_names_in_another_order() -> None:
    train = Pairs(("black", "grey", "white"), 4)
    test = Pairs(("white", "black"), 2)
    data = MapStyle(train, test_data=test, validation_data=test)
    for part in (data.train, data.validation, data.test):
        assert_named_as_drawn(part)
    renamed = MapStyle(train, test_data=test, classes=["schwarz", "grau", "weiss"])
    assert [renamed.classes[label] for label in renamed.test.labels.tolist()] == [
        "weiss",
        "schwarz",
    ] * 2
    with pytest.raises(
        ValueError,
        match=r"the test data: grey is none of the classes white, black",
    ):
        _ = MapStyle(test, test_data=train).train


def test_labels_that_only_the_test_pairs_have_are_named() -> None:
    images = [torch.full((1, 6, 6), 10 * n, dtype=torch.uint8) for n in range(12)]
    train = [(image, n % 2) for n, image in enumerate(images)]
    test = [(images[0], 2)]
    with pytest.raises(
        ValueError, match="the test images: 2 is none of the classes 0, 1"
    ):
        _ = MapStyle(train, test_data=test).train


def test_numbers_of_yolo_count_the_lines_beside_them(tmp_path: Path) -> None:
    for part, names in (("train", "cat\ndog"), ("test", "dog\ncat")):
        (tmp_path / part).mkdir()
        (tmp_path / part / "classes.txt").write_text(names)
        for number in range(3):
            Image.new("L", (20, 20), 9).save(tmp_path / part / f"{number}.png")
            label = names.split("\n").index("cat")
            (tmp_path / part / f"{number}.txt").write_text(f"{label} 0.5 0.5 0.2 0.2")
    for number in range(3):
        (tmp_path / f"test/{number}.png").rename(tmp_path / f"train/t{number}.png")
        (tmp_path / f"test/{number}.txt").rename(tmp_path / f"test/t{number}.txt")
    data = AnnotatedImages(
        tmp_path / "train",
        tmp_path / "train",
        test_annotations=tmp_path / "test",
        validation=0.0,
    )
    assert data.classes == ("cat", "dog")
    boxed = data.test.labels.sum(1) > 0
    assert data.test.labels[boxed].tolist() == [[True, False]] * 3


def small(classes: tuple[str, ...]) -> Classifier:
    return Classifier(
        tc.create_model("capsnet_digits", classes=len(classes)), classes=classes
    )


def test_a_classifier_is_tested_on_a_subset_in_any_order() -> None:
    digits = Digits().test
    whole = small(digits.classes)
    swapped = Examples(digits.inputs, 9 - digits.labels, digits.classes[::-1])
    assert whole.examine(swapped).figures == whole.examine(digits).figures
    rows = ((digits.labels == 7) | (digits.labels == 2)).nonzero().flatten()
    few = Examples(digits.inputs[rows], (digits.labels[rows] == 2).long(), ("7", "2"))
    assert (
        whole.examine(few).figures["accuracy"]
        == whole.examine(digits.subset(rows)).figures["accuracy"]
    )
    with pytest.raises(ValueError, match=r"seven is none of the classes 0, 1"):
        whole.examine(Examples(few.inputs, few.labels, ("seven", "2")))


def test_masks_of_classes_pixels_and_boxes_are_renumbered() -> None:
    images = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
    several = Examples(images, torch.tensor([[True, False, True]]), ("a", "b", "c"))
    assert several.in_classes(("c", "x", "a")).labels.tolist() == [[True, False, True]]
    assert several.in_classes(("x", "c", "a", "b")).labels.tolist() == [
        [False, True, True, False]
    ]
    pixels = MaskSet(
        images, torch.tensor([[[0, 1], [255, 1]]], dtype=torch.uint8), ("a", "b")
    )
    assert pixels.in_classes(("b", "c", "a")).labels.tolist() == [[[2, 0], [255, 0]]]
    boxes = torch.tensor([[[0, 0, 1, 1]]])
    things = torch.tensor([[1]])
    boxed = AnnotatedSet(
        images, torch.tensor([[False, True]]), ("a", "b"), things=things, boxes=boxes
    )
    assert boxed.in_classes(("b", "z", "a")).things.tolist() == [[0]]
    assert boxed.in_classes(("b", "z", "a")).labels.tolist() == [[True, False, False]]


def folder(root: Path) -> Spec:
    return fit(DataSet, {"name": "ImageFolder", "root": str(root)}, "data")


def test_a_run_is_evaluated_on_a_folder_of_some_of_its_classes(tmp_path: Path) -> None:
    root = save(
        tmp_path / "photos",
        {
            "black": 8,
            "grey": 8,
            "white": 8,
        },
    )
    tc.train(
        str(root), run=tmp_path / "run", epochs=1, show=None, report=False, size=16
    )
    second = save(
        tmp_path / "other",
        {
            "white": 3,
            "black": 2,
            "grey": 0,
        },
        20,
    )
    classifier, images = open_run(str(tmp_path / "run"), folder(second), "all")
    assert images.classes == classifier.classes == ("black", "grey", "white")
    assert sorted(shades(images)) == [10, 10, 240, 240, 240]
    assert len(classifier.examine(images).lines) > 0
    alone = save(tmp_path / "alone", {"white": 3}, 20)
    assert set(shades(open_run(str(tmp_path / "run"), folder(alone), "all")[1])) == {
        240
    }
    strange = save(tmp_path / "strange", {"white": 3, "red": 3}, 20)
    with pytest.raises(
        ValueError, match="strange: red is none of the classes black, grey, white"
    ):
        open_run(str(tmp_path / "run"), folder(strange), "all")


def test_classes_that_are_numbers_are_counted(tmp_path: Path) -> None:
    """10 came before 2, in folders and in names beside arrays."""
    names = ("2", "10", "x")
    save(tmp_path, dict.fromkeys(names, 4))
    assert ImageFolder(str(tmp_path)).classes == names
    labels = [*names] * 4
    assert MapStyle((torch.zeros(12, 5, 5), labels), test=0.3).classes == names

"""A guard holds for every kind of data and every part: groups, rare labels, broken
files, copies.
"""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.kinds import shapes
from tests.runs import status
from torchcaps_lab.data import (
    AnnotatedImages,
    DataSet,
    ImageFolder,
    ImageTable,
    Masks,
    Series,
    Text,
)
from torchcaps_lab.data.base import share_of_labels, stable_split, stratified_split
from torchcaps_lab.data.listed import ListedData

PEOPLE = 6


def table(path: Path, rows: list[list[str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def images_of_people(root: Path) -> ListedData:
    rows = [["file_name", "label", "who"]]
    for number in range(48):
        colour = [*shapes.COLOURS][number % 2]
        shapes.picture(root / f"{number}.png", colour, number)
        rows.append([f"{number}.png", colour, f"p{number // 2 % PEOPLE}"])
    return ImageTable(table(root / "labels.csv", rows), group="who", validation=0.3)


def tags_of_people(root: Path) -> ListedData:
    rows = [["file_name", "label", "who"]]
    for number in range(48):
        colour = [*shapes.COLOURS][number % 2]
        shapes.picture(root / f"{number}.png", colour, number)
        tags = f"{colour} bright" if number % 3 else colour
        rows.append([f"{number}.png", tags, f"p{number // 2 % PEOPLE}"])
    path = table(root / "labels.csv", rows)
    return ImageTable(path, group="who", delimiter=" ", validation=0.3)


def texts_of_people(root: Path) -> ListedData:
    rows = [["text", "label", "who"]]
    for number in range(48):
        word = ("good", "bad")[number % 2]
        rows.append([f"a {word} film {number}", word, f"p{number // 2 % PEOPLE}"])
    return Text(table(root / "texts.csv", rows), group="who", validation=0.3)


def series_of_people(root: Path) -> ListedData:
    rows = [["series", "label", "who", "a"]]
    for number in range(48):
        word = ("up", "down")[number % 2]
        who = f"p{number // 2 % PEOPLE}"
        rows += [[str(number), word, who, str(number * k)] for k in range(3)]
    return Series(table(root / "series.csv", rows), group="who", validation=0.3)


def sounds_of_people(root: Path) -> ListedData:
    sounds = shapes.sounds(root)
    for number, path in enumerate(sorted(sounds.glob("*/*.wav"))):
        folder = path.parent / f"p{number % PEOPLE}"
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    return Series(sounds, validation=0.3)


OF_PEOPLE = (
    images_of_people,
    tags_of_people,
    texts_of_people,
    series_of_people,
    sounds_of_people,
)


@pytest.mark.parametrize("make", OF_PEOPLE)
def test_nobody_is_on_both_sides(
    make: Callable[[Path], ListedData], tmp_path: Path
) -> None:
    data = make(tmp_path)
    group_of = {item.name: item.group for item in data.listed.items}
    people = {
        part: {group_of[entry.name] for entry in entries}
        for part, entries in data.manifest().parts.items()
    }
    assert all(people.values())
    assert sum(map(len, people.values())) == PEOPLE
    assert set.union(*people.values()) == {f"p{k}" for k in range(PEOPLE)}
    assert data.contradictions() == ()
    named = type(data)(
        data.root,
        **{
            name: getattr(data, name)
            for name in ("group", "delimiter")
            if hasattr(data, name)
        },
        test_groups=("p1", "p2"),
        validation_groups=("p3",),
    )
    tested = {group_of[entry.name] for entry in named.manifest().parts["test"]}
    assert tested == {"p1", "p2"}
    with pytest.raises(ValueError, match=r"must be among .* got \['nobody'\]"):
        type(data)(
            data.root,
            **{
                name: getattr(data, name)
                for name in ("group", "delimiter")
                if hasattr(data, name)
            },
            test_groups=("nobody",),
        )


def named_after(root: Path) -> None:
    """Pictures, their masks and their annotations get the names of people."""
    for path in sorted(root.rglob("*.*")):
        number = int(path.stem)
        path.rename(path.with_name(f"p{number // 2 % PEOPLE}_{path.name}"))
        if path.suffix == ".xml":
            named = path.with_name(f"p{number // 2 % PEOPLE}_{path.name}")
            text = named.read_text()
            named.write_text(text.replace("<filename>", f"<filename>{named.stem[:3]}"))


def folder_of_people(root: Path) -> DataSet:
    photos = shapes.class_folders(root)
    named_after(photos)
    return ImageFolder(photos, group_before="_", validation=0.3)


def scenes_of_people(root: Path) -> DataSet:
    scenes = shapes.voc(root)
    named_after(scenes)
    images = scenes / "JPEGImages"
    annotations = scenes / "Annotations"
    return AnnotatedImages(images, annotations, group_before="_", validation=0.3)


def masks_of_people(root: Path) -> DataSet:
    cells = shapes.masks(root)
    named_after(cells)
    return Masks(cells, group_before="_", validation=0.3)


@pytest.mark.parametrize("make", [folder_of_people, scenes_of_people, masks_of_people])
def test_nobody_named_in_files_is_on_both_sides(
    make: Callable[[Path], DataSet], tmp_path: Path
) -> None:
    data = make(tmp_path)
    record = data.record()
    assert record is not None
    people = {
        part: {Path(entry.name).name[:2] for entry in entries}
        for part, entries in record.parts.items()
    }
    assert all(people.values())
    assert sum(map(len, people.values())) == PEOPLE
    for part in ("train", "validation", "test"):
        assert len(getattr(data, part)) == len(record.parts[part])


def test_people_that_the_table_itself_has_on_both_sides_are_told(
    tmp_path: Path,
) -> None:
    rows = [["file_name", "label", "who", "split"]]
    for number in range(24):
        colour = [*shapes.COLOURS][number % 2]
        shapes.picture(tmp_path / f"{number}.png", colour, number)
        part = "test" if number % 4 > 1 else "train"
        rows.append([f"{number}.png", colour, f"p{number % 3}", part])
    path = table(tmp_path / "labels.csv", rows)
    data = ImageTable(path, group="who", split="split")
    (line,) = [line for line in data.contradictions() if "groups" in line]
    assert line == "3 groups in several parts of the data: p0, p1, p2"
    assert status("check", str(path), "--data.group", "who") == 1
    assert status("check", str(path)) == 0
    with pytest.raises(ValueError, match="the source has a test part of its own"):
        ImageTable(path, group="who", split="split", test_groups=("p1",))


# Rare labels


@pytest.mark.parametrize("seed", range(12))
def test_a_rare_label_is_in_every_part(seed: int) -> None:
    """Of 100 images, 6 show the rarest of six labels; the others are independent."""
    chance = torch.Generator().manual_seed(seed)
    shares = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1])
    masks = torch.rand(100, 5, generator=chance) < shares
    rare = torch.zeros(100, 1, dtype=torch.bool)
    rare[torch.randperm(100, generator=chance)[:6]] = True
    masks = torch.cat([masks, rare], 1)
    digests = [f"{seed} {place}" for place in range(100)]
    rest, test = stable_split(masks, digests, 0.2, 0)
    train, validation = stable_split(masks[rest], [digests[i] for i in rest], 0.1, seed)
    parts = masks[test], masks[rest][validation], masks[rest][train]
    assert all(part.any(0).all() for part in parts)
    assert sum(map(len, parts)) == 100
    assert 12 <= len(test) <= 28
    again, aside = stratified_split(masks, 0.2, seed)
    assert masks[again].any(0).all()
    assert masks[aside].any(0).all()


def test_labels_that_exclude_each_other_are_put_aside_as_classes_are() -> None:
    labels = torch.arange(60) % 3
    digests = [str(place) for place in range(60)]
    masks = labels[:, None] == torch.arange(3)
    of_classes = stable_split(labels, digests, 0.3, 5)[1]
    assert torch.equal(stable_split(masks, digests, 0.3, 5)[1], of_classes)


def test_copies_and_groups_stay_whole() -> None:
    masks = torch.ones(40, 2, dtype=torch.bool)
    digests = [str(place // 4) for place in range(40)]
    rest, aside = stable_split(masks, digests, 0.3, 0)
    assert not {digests[i] for i in rest} & {digests[i] for i in aside}
    assert len(aside) == 12


def test_one_of_a_label_is_never_put_aside() -> None:
    masks = torch.eye(5, dtype=torch.bool)
    assert not share_of_labels(masks, torch.arange(5), 0.5).any()
    assert not share_of_labels(masks.repeat(2, 1), torch.arange(10), 0.0).any()
    assert share_of_labels(masks.repeat(2, 1), torch.arange(10), 0.5).sum() == 5
    none = torch.zeros(4, 3, dtype=torch.bool)
    assert (
        share_of_labels(none, torch.arange(4), 0.5).tolist() == [True] * 2 + [False] * 2
    )


def test_a_label_that_a_part_lacks_is_told(tmp_path: Path) -> None:
    rows = [["file_name", "label"]]
    for number in range(20):
        colour = [*shapes.COLOURS][number % 2]
        shapes.picture(tmp_path / f"{number}.png", colour, number)
        rows.append([f"{number}.png", f"{colour} rare" if number < 2 else colour])
    path = table(tmp_path / "labels.csv", rows)
    notes = ImageTable(path, delimiter=" ").notes()
    assert any(
        "without a validation image" in note and "rare" in note for note in notes
    )


# Check


def rows_of(root: Path, count: int = 24) -> list[list[str]]:
    rows = [["file_name", "label"]]
    for number in range(count):
        colour = [*shapes.COLOURS][number % 2]
        shapes.picture(root / f"{number}.png", colour, number)
        rows.append([f"{number}.png", colour])
    return rows


def test_check_of_a_table_tells_what_that_of_a_folder_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(tmp_path)
    Image.open(tmp_path / "0.png").save(tmp_path / "24.bmp")
    path = str(table(tmp_path / "labels.csv", [*rows, ["24.bmp", "gold"]]))
    assert status("check", path) == 0
    printed = capsys.readouterr().out
    assert "all: 25 images of 2 classes" in printed
    assert "formats: PNG (24), BMP (1)" in printed
    assert "sizes: 24 x 24 (25)" in printed
    assert "with copies: 0.png = 24.bmp" in printed


def test_one_picture_in_two_classes_of_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(tmp_path)
    shutil.copy(tmp_path / "0.png", tmp_path / "24.png")
    path = str(table(tmp_path / "labels.csv", [*rows, ["24.png", "navy"]]))
    assert status("check", str(path)) == 1
    printed = capsys.readouterr().out
    assert "PROBLEM: 1 image of the same content in several classes: 0.png" in printed
    path = str(table(tmp_path / "labels.csv", [*rows, ["0.png", "navy"]]))
    assert status("check", str(path)) == 1
    assert (
        "must have one label, and has 'gold' by labels.csv" in capsys.readouterr().out
    )
    with pytest.raises(ValueError, match=r"0\.png must have one label, and has 'gold'"):
        ImageTable(path)


def test_labels_in_another_order_are_the_same(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    rows = [rows[0], *([name, f"{label}|x"] for name, label in rows[1:])]
    path = table(tmp_path / "labels.csv", [*rows, ["0.png", "x|gold"]])
    assert ImageTable(path, delimiter="|").classes == ("gold", "navy", "x")


def empty_image(root: Path) -> Path:
    path = table(root / "labels.csv", [*rows_of(root), ["empty.png", "gold"]])
    (root / "empty.png").touch()
    return path


def empty_sound(root: Path) -> Path:
    sounds = shapes.sounds(root)
    (sounds / "low" / "empty.wav").touch()
    return sounds


def text_of_zeros(root: Path) -> Path:
    texts = shapes.text_folders(root)
    (texts / "good" / "zeros.txt").write_bytes(bytes(4))
    return texts


def image_in_folder(root: Path) -> Path:
    photos = shapes.class_folders(root)
    (photos / "gold" / "empty.png").touch()
    return photos


def cut_short(folder: Path) -> None:
    """Half of a picture, of which the header alone can be read."""
    picture = folder / "3.png"
    picture.write_bytes(picture.read_bytes()[:1000])


def image_of_coco(root: Path) -> Path:
    scenes = shapes.coco(root)
    cut_short(scenes / "train2017")
    return scenes


def image_of_yolo(root: Path) -> Path:
    scenes = shapes.yolo(root)
    cut_short(scenes / "images" / "val")
    return scenes


def image_with_mask(root: Path) -> Path:
    cells = shapes.masks(root)
    cut_short(cells / "images")
    return cells


@pytest.mark.parametrize(
    "make",
    [
        empty_sound,
        text_of_zeros,
        image_in_folder,
        *(
            pytest.param(make, marks=pytest.mark.thorough)
            for make in (empty_image, image_of_coco, image_of_yolo, image_with_mask)
        ),
    ],
)
def test_check_goes_on_past_a_broken_file(
    make: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(make(tmp_path))
    assert status("check", str(path)) == 1
    printed = capsys.readouterr().out
    assert "cannot" in printed
    assert "of 2 classes" in printed
    advised = next(line for line in printed.splitlines() if "train on it" in line)
    assert "--data.skip_broken true" in advised
    assert status("check", path, "--data.skip_broken", "true") == 0
    printed = capsys.readouterr().out
    assert "left out 1" in printed
    assert "PROBLEM" not in printed


def twice_in_folder(root: Path, classes: int) -> Path:
    photos = shapes.class_folders(root)
    other = photos / ("gold" if classes == 1 else "navy") / "a.png"
    shutil.copy(photos / "gold" / "0.png", other)
    return photos


def twice_in_texts(root: Path, classes: int) -> Path:
    reviews = shapes.text_folders(root)
    other = reviews / ("good" if classes == 1 else "bad") / "a.txt"
    shutil.copy(reviews / "good" / "0.txt", other)
    return reviews


def twice_in_series(root: Path, classes: int) -> Path:
    path = shapes.series_file(root)
    *lines, last = path.read_text().splitlines()
    values = last.partition(":")[0]
    label = "up" if classes == 1 else "down"
    path.write_text("\n".join([*lines, last, f"{values}:{label}", ""]))
    return path


def twice_in_sounds(root: Path, classes: int) -> Path:
    sounds = shapes.sounds(root)
    other = sounds / ("low" if classes == 1 else "high") / "a.wav"
    shutil.copy(sounds / "low" / "0.wav", other)
    return sounds


def twice_in_voc(root: Path, classes: int) -> Path:
    scenes = shapes.voc(root)
    shutil.copy(scenes / "JPEGImages" / "0.png", scenes / "JPEGImages" / "a.png")
    text = (scenes / "Annotations" / "0.xml").read_text().replace("0.png", "a.png")
    text = text.replace("gold", "gold" if classes == 1 else "navy")
    (scenes / "Annotations" / "a.xml").write_text(text)
    return scenes


def twice_in_yolo(root: Path, classes: int) -> Path:
    scenes = shapes.yolo(root)
    for folder, ending in (("images", "png"), ("labels", "txt")):
        place = scenes / folder / "train"
        shutil.copy(place / f"0.{ending}", place / f"a.{ending}")
    label = scenes / "labels" / "train" / "a.txt"
    label.write_text(f"{classes - 1}{label.read_text()[1:]}")
    return scenes


def twice_in_masks(root: Path, classes: int) -> Path:
    cells = shapes.masks(root)
    shutil.copy(cells / "images" / "4.png", cells / "images" / "4a.png")
    mask = Image.open(cells / "masks" / "4.png")
    mask.rotate(0 if classes == 1 else 90).save(cells / "masks" / "4a.png")
    return cells


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        twice_in_folder,
        twice_in_texts,
        twice_in_series,
        twice_in_sounds,
        twice_in_voc,
        twice_in_yolo,
        twice_in_masks,
    ],
)
def test_check_tells_what_is_there_twice(
    make: Callable[[Path, int], Path],
    classes: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In two classes it is a problem: the command fails."""
    assert status("check", str(make(tmp_path, classes))) == classes - 1
    printed = capsys.readouterr().out
    assert "with copies: " in printed
    assert ("in several classes: " in printed) == (classes == 2)


def test_half_a_letter_in_a_text(tmp_path: Path) -> None:
    lines = [f'{{"text": "a film {k}", "label": "{k % 2}"}}' for k in range(20)]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join([*lines, '{"text": "x \\ud800", "label": "1"}']))
    with pytest.raises(ValueError, match=r"texts\.jsonl, row 21: text .*'\\ud800'"):
        Text(path)
    path.write_text("\n".join([*lines, '{"text": "\\ud83d\\ude00", "label": "1"}']))
    words = Text(path).words
    with pytest.raises(
        ValueError, match=r"a text must be text, .* half of a character"
    ):
        words.read(["x \ud800"])


@pytest.mark.parametrize("name", [name for name in shapes.SHAPES if name != "masks"])
def test_the_name_of_a_class_is_one_line_that_can_be_shown(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name could print lines of its own, or turn around what stands behind it."""
    shape = shapes.SHAPES[name]
    path = shape.make(tmp_path)
    turned = f"{shape.classes[-1]}\N{RIGHT-TO-LEFT OVERRIDE}"
    for place in sorted(tmp_path.rglob("*"), reverse=True):
        if place.name == shape.classes[-1]:
            place.rename(place.with_name(turned))
        elif place.suffix in (".csv", ".json", ".yaml", ".xml", ".ts"):
            place.write_text(place.read_text().replace(shape.classes[-1], turned))
    assert status("check", str(path)) == 1
    output = capsys.readouterr()
    assert "characters that can be shown" in output.out + output.err

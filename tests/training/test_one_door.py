"""``tc.train`` takes what ``torchcaps train`` takes and what the documents call data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps as tc
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import DataSet, Digits, Examples, MapStyle, Shapes
from torchcaps_lab.data.base import create_dataset
from torchcaps_lab.kinds.images.reader import ImageReader
from torchcaps_lab.kinds.series.reader import SeriesReader
from torchcaps_lab.kinds.texts.reader import TextReader
from torchcaps_lab.options.guess import guess
from torchcaps_lab.options.reading import read_options

SMALL = {
    "model": "capsnet_digits",
    "model_args": {"channels": 4, "types": 2, "decoder_hidden": None},
}
SMALL_SLOTS = {"model_args": {"channels": 8, "dim": 8}, "batch_size": 4}

IMAGES = torch.linspace(0, 1, 40 * 64).reshape(40, 8, 8)
TAGS = [["sea", "sky"] if place % 2 else ["sea"] for place in range(40)]
ROWS = np.stack([np.ones(40), np.arange(40) % 2, np.arange(40) % 3 == 0], 1)


class HalfDigits(DataSet):
    """A data set of a program's own."""

    def load_train(self) -> Examples:
        return Digits(validation=0).train.subset(torch.arange(200))

    def load_test(self) -> Examples:
        return Digits().test


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Classifier]:
    """Trains on something for an epoch."""

    def train(*data: Any, **options: Any) -> Classifier:
        return tc.train(
            *data,
            run=tmp_path / "run",
            **{"epochs": 1, "report": False, "show": None, **options},
        )

    return train


def test_numbers_and_texts_of_numpy_are_options(
    trained: Callable[..., Classifier],
) -> None:
    classifier = trained(
        IMAGES,
        np.arange(40) % 2,
        seed=np.int64(3),
        lr=np.float32(0.5),
        model=np.str_("capsnet_digits"),
        model_args={"channels": np.int64(4), "init_std": np.float64(0.5)},
    )
    saved = read_options(classifier.run / "config.yaml")
    assert (saved["seed"], saved["lr"], saved["model"]) == (3, 0.5, SMALL["model"])
    assert saved["model_args"] == {"channels": 4, "init_std": 0.5}


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_a_program_are_trained_as_those_of_a_folder(
    channels: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, 32, 32, channels), dtype=np.uint8)
    labels = ["day" if place % 2 else "night" for place in range(60)]
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = tmp_path / "photos" / label / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.squeeze()).save(file)
    in_program = ImageReader.of_program(images, labels, {}).options
    in_folder = guess(tmp_path / "photos").options
    where = ("name", "root", "data")
    for options in in_program, in_folder:
        kept = {name: options["data"][name] for name in {*options["data"]} - {*where}}
        options["data"] = kept
    assert in_program == {
        name: value for name, value in in_folder.items() if name != "run"
    }


def test_a_run_without_a_name_gets_one_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = {"epochs": 1, "report": False, "show": None, **SMALL}
    runs = [tc.train(IMAGES, [0, 1] * 20, **few).run for _ in range(2)]
    assert [run.as_posix() for run in runs] == ["runs/arrays", "runs/arrays-2"]


def test_a_few_texts_and_series_of_a_program_are_many_steps() -> None:
    labels = [place % 2 for place in range(100)]
    texts = TextReader.of_program([f"text {place}" for place in range(100)], labels, {})
    series = SeriesReader.of_program([torch.zeros(1, 9)] * 100, labels, {})
    assert texts.options["batch_size"] == series.options["batch_size"] == 4
    assert 18 * series.options["epochs"] >= 600


def test_a_run_goes_on_with_changes_that_are_allowed(
    trained: Callable[..., Classifier],
) -> None:
    data = (IMAGES, np.arange(40) % 2)
    trained(*data, **SMALL)
    again = {"resume": True, "epochs": 2, "lr": 0.5}
    with pytest.raises(ValueError, match="lr was None"):
        trained(*data, **again)
    with pytest.warns(UserWarning, match="lr was None"):
        classifier = trained(*data, allow_changes=True, **again)
    assert classifier.summary["epochs"] == 2


@pytest.mark.parametrize(
    ("data", "size"),
    [(Digits(size=12, validation=0.3), (1, 12, 12)), (Digits, (1, 8, 8))],
    ids=["object", "class"],
)
def test_a_data_set_is_taken_as_its_name_is(
    trained: Callable[..., Classifier], data: Any, size: tuple[int, int, int]
) -> None:
    classifier = trained(data, **SMALL)
    assert classifier.image_shape == size
    written = read_options(classifier.run / "config.yaml")["data"]
    again = create_dataset(**written)
    assert isinstance(again, Digits)
    assert classifier.summary["examples"]["train"] == len(again.train)
    if isinstance(data, Digits):
        assert (written["size"], written["validation"]) == (12, 0.3)


def test_an_argument_beside_a_data_set_wins(
    trained: Callable[..., Classifier],
) -> None:
    assert trained(Digits(size=12), size=10, **SMALL).image_shape == (1, 10, 10)


def test_a_data_set_of_ones_own(trained: Callable[..., Classifier]) -> None:
    data = HalfDigits(validation=0.5)
    classifier = trained(data, **SMALL)
    assert classifier.summary["examples"]["train"] == len(data.train)


def test_a_data_set_of_pairs(trained: Callable[..., Classifier]) -> None:
    classifier = trained(MapStyle((IMAGES, [0, 1] * 20), test=0.25), **SMALL)
    assert classifier.summary["examples"]["test"] == 10


@pytest.mark.parametrize(
    "data",
    [
        (IMAGES, TAGS),
        ([*zip(IMAGES[:, None], TAGS, strict=True)],),
        ([*zip(IMAGES[:, None], map(set, TAGS), strict=True)],),
        (list(IMAGES.numpy()), TAGS),
    ],
    ids=["array", "pairs", "sets", "list"],
)
def test_images_with_several_labels(
    trained: Callable[..., Classifier], data: tuple[Any, ...]
) -> None:
    classifier = trained(*data, **SMALL)
    assert classifier.classes == ("sea", "sky")
    assert classifier.summary["task"] == "several_labels"


@pytest.mark.parametrize("make", [np.array, torch.tensor, np.ndarray.tolist])
@pytest.mark.parametrize("kind", [bool, float, int])
def test_a_column_of_0_and_1_for_each_class(make: Any, kind: type) -> None:
    rows = make(ROWS.astype(kind))
    for data in ((IMAGES, rows), [*zip(IMAGES[:, None], rows, strict=True)]):
        read = MapStyle(data, classes=("sea", "sky", "sun"))
        assert read.classes == ("sea", "sky", "sun")
        for part in (read.train, read.validation, read.test):
            places = [int(name.split("/")[1]) for name in part.files]
            assert part.labels.tolist() == ROWS[places].astype(bool).tolist()
        assert any("3 columns of 0 and 1" in note for note in read.notes())


def test_rows_with_exactly_one_1_have_one_class_each() -> None:
    numbers = np.arange(40) % 4
    read = MapStyle((IMAGES, np.eye(5)[numbers]))
    assert (read.classes, read.default_task()) == (tuple("01234"), "classification")
    places = [int(name.split("/")[1]) for name in read.train.files]
    assert read.train.labels.tolist() == numbers[places].tolist()
    assert any("exactly one" in note for note in read.notes())


def test_the_columns_of_a_table_of_labels_name_the_classes() -> None:
    class Frame:
        """As pandas has it."""

        columns = ("sea", "sky", "sun")
        shape = ROWS.shape

        def to_numpy(self) -> np.ndarray:
            return ROWS

        def __len__(self) -> int:
            return len(ROWS)

        ndim = 2

    assert MapStyle((IMAGES, Frame())).classes == ("sea", "sky", "sun")


def test_no_label_means_none_of_the_classes() -> None:
    read = MapStyle((IMAGES, [tags[place % 2 :] for place, tags in enumerate(TAGS)]))
    assert MapStyle((IMAGES, [["sea"], [], ["sky"], []] * 10)).classes == ("sea", "sky")
    assert read.train.labels.dtype == torch.int64
    read = MapStyle((IMAGES, [["sea"], [], ["sky"], []] * 10))
    assert int((~read.train.labels.any(1)).sum()) > 0
    assert any("20 images without a label" in note for note in read.notes())


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([["a|b", "c"], ["c"]] * 20, {}, r"must not hold '\|'"),
        (ROWS, {"classes": ("a", "b")}, "3 columns of the labels, got 2"),
        (ROWS / 3, {}, r"label of train 0 .*classifies"),
        ([["a", 0.5]] * 40, {}, "label of train 0"),
    ],
)
def test_labels_that_cannot_be_read_are_errors(
    labels: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _ = MapStyle((IMAGES, labels), **options).classes


def test_shapes_as_an_object(trained: Callable[..., Classifier]) -> None:
    shapes = Shapes(size=16, least=1, most=2, count=24, tests=6)
    classifier = trained(shapes, **SMALL_SLOTS)
    assert classifier.summary["examples"]["test"] == 6


@pytest.mark.parametrize(
    "pictures",
    [
        pytest.param(
            np.linspace(0, 255, 20 * 3 * 256).astype(np.uint8).reshape(20, 16, 16, 3),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            torch.linspace(0, 1, 20 * 3 * 256).reshape(20, 3, 16, 16),
            marks=pytest.mark.thorough,
        ),
        [Image.new("RGB", (20, 18), (12 * shade, 0, 0)) for shade in range(20)],
    ],
    ids=["array", "tensor", "list"],
)
def test_objects_are_learnt_from_pictures_alone(
    trained: Callable[..., Classifier], pictures: Any
) -> None:
    classifier = trained(pictures, task="objects", size=16, slots=3, **SMALL_SLOTS)
    assert classifier.summary["task"] == "objects"
    assert classifier.image_shape == (3, 16, 16)
    resumed = tc.train(pictures, run=classifier.run, resume=True, epochs=2, show=None)
    assert resumed.summary["epochs"] == 2


def test_pictures_alone_need_the_task(trained: Callable[..., Classifier]) -> None:
    with pytest.raises(ValueError, match=r'labels are missing.*task="objects"'):
        trained(IMAGES)
    with pytest.raises(ValueError, match="without labels: picture"):
        trained([(IMAGES[0], 1)] * 9, task="objects", size=16)


@pytest.mark.parametrize(
    ("base", "columns", "example"),
    [
        (object, "columns", r"train\(data\['text'\], data\['label'\]\)"),
        (dict, "column_names", r"train\(data\['train'\]\['text'\]"),
    ],
)
def test_a_table_is_given_by_its_columns(base: Any, columns: str, example: str) -> None:
    """Data sets of Hugging Face were to be saved as .csv, with their images."""
    table = type("Table", (base,), {columns: None, "shape": (8, 2)})()
    with pytest.raises(ValueError, match=example):
        tc.train(table, show=None)

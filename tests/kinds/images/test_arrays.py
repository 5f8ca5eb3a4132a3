"""Images and labels in two arrays, in any order of axes; the weights of classes by name
and number.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps_lab.data import MapStyle
from torchcaps_lab.options.reading import read_options
from torchcaps_lab.training.options import weights_of

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (40, 9, 12, 3), dtype=np.uint8)
LABELS = np.arange(40) % 2
PLAIN = MapStyle(
    [(pixels, int(label)) for pixels, label in zip(PIXELS, LABELS, strict=True)]
)


@pytest.mark.parametrize(
    ("images", "order"),
    [
        (PIXELS, "NHWC"),
        (PIXELS.transpose(0, 3, 1, 2), "NCHW"),
        (torch.from_numpy(PIXELS), "NHWC"),
        (torch.from_numpy(PIXELS).permute(0, 3, 1, 2), "NCHW"),
        (PIXELS / 255, "NHWC"),
        ((torch.from_numpy(PIXELS) / 255).permute(0, 3, 1, 2), "NCHW"),
    ],
)
def test_both_orders_and_kinds_of_numbers_are_the_same_data(
    images: object, order: str
) -> None:
    data = MapStyle((images, LABELS))
    assert data.classes == ("0", "1")
    for part in ("train", "validation", "test"):
        first = getattr(data, part)
        second = getattr(PLAIN, part)
        assert torch.equal(first.inputs, second.inputs)
        assert torch.equal(first.labels, second.labels)
    assert any(f"are {order}: 3 channels" in note for note in data.notes())


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        LABELS.tolist(),
        torch.tensor(LABELS),
        LABELS.astype(float),
        LABELS[:, None],
    ],
)
def test_labels_of_all_kinds(labels: object) -> None:
    assert torch.equal(MapStyle((PIXELS, labels)).train.labels, PLAIN.train.labels)


def test_labels_may_be_names() -> None:
    data = MapStyle([PIXELS, np.array(["cat", "dog"])[LABELS]])
    assert data.classes == ("cat", "dog")
    assert torch.equal(data.test.labels, PLAIN.test.labels)


def test_grey_images_need_no_channels() -> None:
    assert MapStyle((PIXELS[..., 0], LABELS)).image_shape == (1, 9, 12)
    assert MapStyle((PIXELS[..., :1], LABELS)).image_shape == (1, 9, 12)


@pytest.mark.parametrize("form", ["flat", "nested", "named"])
def test_test_arrays_are_kept_apart(form: str) -> None:
    train = (PIXELS[:30], LABELS[:30])
    test = (PIXELS[30:], LABELS[30:])
    given = {
        "flat": ((*train, *test),),
        "nested": ((train, test),),
        "named": (train, test),
    }[form]
    data = MapStyle(*given, validation=0)
    assert torch.equal(
        data.test.inputs, torch.from_numpy(PIXELS[30:]).permute(0, 3, 1, 2)
    )
    assert len(data.train) == 30


def test_two_pairs_are_no_arrays() -> None:
    pairs = (PIXELS[0], "cat"), (PIXELS[1], "dog")
    assert MapStyle(pairs, test=0, validation=0).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            (np.zeros((40, 3, 20, 3), np.uint8), LABELS),
            r"not clear: .* may be last, 3 of 3 x 20 pixels, or first, 3 .*NCHW",
        ),
        (
            (np.zeros((40, 8, 8, 8), np.uint8), LABELS),
            r"not clear: .* 8 of 8 x 8",
        ),
        (
            (np.zeros((40, 12, 3), np.uint8), LABELS),
            r"may be grey images of 12 x 3 .* or sets of 12 points: axes=.*SetCapsNet",
        ),
        ((PIXELS, LABELS[:7]), "a label for each image, got 40 images and 7 labels"),
        ((PIXELS, np.zeros((40, 2, 2))), r"labels of train must be \(N,\).*each class"),
        ((PIXELS, LABELS + 0.5), "label of train 0 must be a whole number.*classifies"),
        ((PIXELS.reshape(40, -1), LABELS), r"must be \(N, H, W\).*CapsNetClassifier"),
        (PIXELS, r"train is one array: give the images with their labels"),
        ((PIXELS[..., 0] / 16, LABELS), r"must lie in \[0, 1\], got 0 to 15.9.*range"),
        ((PIXELS.astype(np.int64), LABELS), "pixels must be bytes .* or pass range"),
    ],
)
def test_errors(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = MapStyle(given, size=8).train


def test_the_order_of_axes_and_the_range_can_be_given() -> None:
    images = DRAW.integers(0, 17, (40, 3, 20, 3)).astype(float)
    assert MapStyle((images, LABELS), axes="NHWC", range=(0, 16)).image_shape == (
        3,
        3,
        20,
    )
    data = MapStyle((images, LABELS), axes="NCHW", range=(0, 16))
    assert data.image_shape == (3, 20, 3)
    place = int(data.train.files[0].removeprefix("train/"))
    assert data.train.inputs[0].tolist() == (images[place] * 255 / 16).round().tolist()


def test_four_channels_are_bands_if_that_is_said() -> None:
    """The fourth was taken for opacity without a word, and channels=4 was refused."""
    images = DRAW.integers(0, 256, (40, 4, 8, 9), dtype=np.uint8)
    assert any("opacity" in note for note in MapStyle((images, LABELS)).notes())
    bands = MapStyle((images, LABELS), channels=4)
    assert not any("opacity" in note for note in bands.notes())
    data = MapStyle((images, LABELS), channels=4)
    place = int(data.train.files[0].removeprefix("train/"))
    assert data.train.inputs[0].tolist() == images[place].tolist()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            PIXELS[:1, :, :, 0],
            r"an array is \(H, W, C\): this one, \(1, 9, 12\), would have 12 channels "
            r".*transpose\(1, 2, 0\)",
        ),
        (
            torch.zeros(9, 12, 3),
            r"a tensor is \(C, H, W\): this one, \(9, 12, 3\), would have 9 channels "
            r".*permute\(2, 0, 1\)",
        ),
    ],
)
def test_an_image_whose_channels_stand_elsewhere_is_an_error_that_names_the_order(
    image: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _ = MapStyle([(image, number % 2) for number in range(9)]).train
    with pytest.raises(ValueError, match=message):
        tc.Classifier(tc.create_model("capsnet_digits")).predict(image)


def test_arrays_are_trained_on_in_one_line(tmp_path: Path) -> None:
    images = PIXELS[..., 0]
    labels = np.array(["cat", "dog"])[LABELS]
    how = {
        "run": tmp_path / "run",
        "epochs": 1,
        "model": "capsnet_digits",
        "size": 8,
        "report": False,
        "show": None,
    }
    classifier = tc.train(images, labels, class_weights={1: 2}, **how)
    assert classifier.classes == ("cat", "dog")
    options = read_options(tmp_path / "run/config.yaml")
    assert options["class_weights"] == {"1": 2.0}
    assert "PIXELS" not in str(options)
    assert (
        len(
            tc.train(
                (images, labels), run=tmp_path / "run", resume=True, epochs=2, show=None
            ).classes
        )
        == 2
    )
    with pytest.raises(ValueError, match="labels are for examples in an array"):
        tc.train("photos", labels)


def test_weights_of_classes_by_name_number_and_order() -> None:
    classes = ("cat", "dog", "1")
    assert weights_of({"dog": 3, "cat": 0}, classes).tolist() == [0, 3, 1]
    assert weights_of({"0": 3, "1": 2}, classes).tolist() == [
        3,
        1,
        2,
    ]  # "1" is a name here
    assert weights_of((1, 2, 3), classes).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fish": 1}, "class_weights: fish is none of the classes cat, dog"),
        ({"2": 1}, "2 is none of the classes"),
        ((1.0,), "must be 2 numbers, one a class, got 1"),
        ({"cat": -1}, "0 or more"),
        ((0.0, 0.0), "not all 0"),
        ({"cat": float("nan")}, "finite"),
        ({"cat": 1, "0": 2}, "one number a class"),
    ],
)
def test_weights_that_fit_no_classes(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weights_of(given, ("cat", "dog"))

"""Exhibits: plain data that becomes JSON with all that is shown, and nothing larger."""

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.report.small import image_set, look
from torchcaps import create_model
from torchcaps.models import ImageClassifier
from torchcaps_lab import report
from torchcaps_lab.evaluate import ask, examine
from torchcaps_lab.report import (
    Exhibit,
    Picture,
    exhibits_of_classifier,
    page,
    register_exhibit,
)
from torchcaps_lab.report.exhibit import PNG, pngs
from torchcaps_lab.report.pictures import (
    Assignments,
    LearningCurves,
    Mistakes,
    Perturbations,
    Summary,
)
from torchcaps_lab.report.pictures.summary import Quantity
from torchcaps_lab.tasks import Classification

METRICS = [
    {"epoch": 0.0, "train_loss": math.nan, "assignment_entropy_conv": 0.5},
    {"train_loss": math.inf},
]


def tiny(name: str) -> ImageClassifier:
    settings: dict[str, dict[str, Any]] = {
        "capsnet_digits": {
            "channels": 4,
            "types": 2,
            "pose_dim": 3,
            "image_shape": (3, 8, 10),
        },
        "matrixcapsnet": {
            "channels": 4,
            "types": (2, 3, 2),
            "pose": (2, 2),
            "image_shape": (1, 23, 26),
        },
        "sharedcapsnet_cnn": {
            "channels": (4, 4, 4, 4),
            "hidden": 4,
            "image_shape": (2, 19, 21),
        },
    }
    torch.manual_seed(0)
    return create_model(name, classes=3, **settings[name])


def read_png(address: str) -> np.ndarray:
    head, data = address.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(BytesIO(base64.b64decode(data))))


def valid(exhibit: Exhibit) -> dict[str, Any]:
    """The JSON of an exhibit, read back."""
    described = exhibit.to_json()
    read = json.loads(json.dumps(described, allow_nan=False))
    assert read == described
    return read


def png_pixels(value: Any) -> int:
    """Of all images in a JSON value together."""
    if isinstance(value, dict):
        return sum(map(png_pixels, value.values()))
    if isinstance(value, list):
        return sum(map(png_pixels, value))
    return (
        read_png(value).size
        if isinstance(value, str) and value.startswith("data:")
        else 0
    )


@pytest.mark.parametrize(
    "name", ["capsnet_digits", "matrixcapsnet", "sharedcapsnet_cnn"]
)
def test_every_exhibit_is_valid_json_and_holds_no_more_than_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drawing takes long and adds nothing here.
    monkeypatch.setattr(
        page, "_drawn", lambda exhibit, *_: page._Section(exhibit, [], {})
    )
    model = tiny(name)
    images = image_set(model.image_shape)
    exhibits = list(
        exhibits_of_classifier(
            model, images, examine(model, images), {"rate": math.nan}, METRICS
        )
    )
    kinds = ["headline", "advice", "learning_curves", "confusion", "mistakes"]
    if name == "capsnet_digits":
        kinds += ["reconstructions", "perturbations"]
    if name != "sharedcapsnet_cnn":
        kinds += ["layer_activations", "layer_poses", "assignments"]
    kinds.append("summary")
    assert [exhibit.kind for exhibit in exhibits] == kinds
    for exhibit in exhibits:
        assert type(exhibit) is report.list_exhibits()[exhibit.kind]
        assert exhibit.title
        assert exhibit.text
        read = valid(exhibit)
        assert set(read) == {
            "kind",
            *(described_field.name for described_field in fields(exhibit)),
        }
        tensors = [
            value for value in vars(exhibit).values() if isinstance(value, Tensor)
        ]
        assert png_pixels(read) <= sum(value.numel() for value in tensors)
    Classification().report(tmp_path, model, images, {"rate": math.nan}, METRICS)
    written = json.loads(
        (tmp_path / "report" / "exhibits.json").read_text(), parse_constant=pytest.fail
    )
    assert written == {
        "format": 1,
        "exhibits": [exhibit.to_json() for exhibit in exhibits],
    }


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_images_are_the_pixels_that_are_drawn(channels: int) -> None:
    images = torch.randint(256, (2, channels, 4, 7), dtype=torch.uint8)
    first, second = map(read_png, pngs(images.float() / 255))
    for image, shown in zip(images, (first, second), strict=True):
        np.testing.assert_array_equal(
            shown, image[:3].permute(1, 2, 0) if channels >= 3 else image[0]
        )
    beyond = torch.tensor([[[-1.0, 0.2, 2.0, torch.nan]]])
    assert read_png(pngs(beyond)).tolist() == [[0, 51, 255, 0]]


def test_a_sheet_has_dimensions_down_and_values_across() -> None:
    grids = torch.randint(256, (2, 3, 5, 3, 4, 6), dtype=torch.uint8)
    exhibit = Perturbations(
        title="",
        text="",
        grids=grids.float() / 255,
        values=torch.zeros(5),
        changes=torch.zeros(2, 3),
        targets=torch.tensor([0, 1]),
        classes=("a", "b"),
    )
    sheets = [read_png(address) for address in valid(exhibit)["grids"]]
    assert [sheet.shape for sheet in sheets] == [(12, 30, 3)] * 2
    np.testing.assert_array_equal(
        sheets[1][8:12, 6:12], grids[1, 2, 1].permute(1, 2, 0)
    )


def test_what_is_not_finite_is_null() -> None:
    curves = valid(LearningCurves.of(METRICS))
    assert curves["panels"][0]["curves"]["training"] == {
        "epochs": [0.0, 1],
        "values": [None, None],
    }
    assert curves["health"][0] == {
        "quantity": "entropy of the assignment",
        "unit": "0 hard, 1 even",
        "curves": {"conv": {"epochs": [0.0], "values": [0.5]}},
    }
    summary = Summary.of(
        "t",
        {
            "a": [math.inf, (1, "two")],
            "b": {3: None},
            "path": Path("x"),
        },
        [Quantity("m", 0.1)],
    )
    assert valid(summary)["recorded"] == {
        "a": [None, [1, "two"]],
        "b": {"3": None},
        "path": "x",
    }
    assert valid(summary)["measured"] == [
        {
            "name": "m",
            "value": 0.1,
            "percent": False,
        }
    ]


def test_a_summary_is_words_not_python() -> None:
    images = {"train": 1200, "test": {"b": 0.12345, "c": None}}
    rows = Summary.of("t", {"images": images, "notes": ["one", "two"]}, []).table().rows
    assert rows == [
        ["images", "train 1,200; test (b 0.1235; c None)"],
        ["notes", "one; two"],
    ]


def test_positions_that_no_window_sees_are_null() -> None:
    model = tiny("matrixcapsnet")
    images = torch.rand(3, 1, 23, 26)
    exhibit = Assignments.of(look(model, images))
    assert exhibit is not None
    lowest = valid(exhibit)["layers"][-1]
    assert lowest["layer"] == "primary_caps"
    assert lowest["share"][0][9] == [None] * 11  # the last row of a grid of 10 x 11
    share = exhibit.layers[-1].share
    assert lowest["share"][2][0] == pytest.approx(share[2, 0].tolist(), rel=1e-5)
    assert lowest["extent"] == {
        "left": 1.5,
        "right": 23.5,
        "bottom": 21.5,
        "top": 1.5,
    }


def test_names_of_files_may_be_any_bytes() -> None:
    model = tiny("sharedcapsnet_cnn")
    images = image_set(model.image_shape, files="undecoded \udcff")
    mistakes = valid(Mistakes.of(examine(model, images), images))["mistakes"]
    assert mistakes[0]["name"].startswith("undecoded \\udcff")


@torch.no_grad()
def test_answers_need_no_labels() -> None:
    model = tiny("capsnet_digits")
    images = image_set(model.image_shape)
    answers = ask(model, images, batch_size=5)
    findings = examine(model, images, batch_size=5)
    assert torch.equal(answers.activation, findings.activation)
    assert answers.entropy == findings.entropy


@pytest.mark.thorough
def test_a_task_of_several_labels_shows_each_image_for_each_of_its_classes(
    tmp_path: Path,
) -> None:
    model = tiny("capsnet_digits")
    images = image_set(model.image_shape, count=3)
    activation = ask(model, images).activation
    predicted = torch.zeros(3, 3, dtype=torch.bool).scatter(
        1, activation.topk(2, 1).indices, True
    )
    places, target = predicted.nonzero().T  # an image for each of its two classes
    batch = images.__getitems__(places.tolist())
    titles = tuple(
        f"{place}: {images.classes[label]}"
        for place, label in predicted.nonzero().tolist()
    )
    shown = look(
        model, batch.inputs, target=target, titles=titles, about="a class that was said"
    )
    summary = Summary.of(
        "What it learned", {}, [Quantity("exactly right", 0.5, percent=True)]
    )
    index = report.write_page(tmp_path, [summary, *report.exhibits_of(shown)])
    assert "numbers of the capsule of a class that was said" in index.read_text()
    read = json.loads((index.parent / "exhibits.json").read_text())["exhibits"]
    assert [part["kind"] for part in read[:2]] == ["summary", "reconstructions"]
    assert read[1]["titles"] == list(titles)
    assert len(read[1]["pictures"]) == 6
    assert "true class" not in index.read_text()
    assert len(list(index.parent.glob("perturbation_*.png"))) == 6


@register_exhibit("test_own")
@dataclass(frozen=True, eq=False, kw_only=True)
class Own(Exhibit):
    """An exhibit from somebody else's file."""

    pictures: Tensor = field(metadata=PNG)

    def draw(self) -> Iterator[Picture]:
        yield Picture("own.png", 'one\'s "own"', report.new_figure(1, 1))


@register_exhibit("test_undrawn")
@dataclass(frozen=True, eq=False, kw_only=True)
class Undrawn(Exhibit):
    """An exhibit that nobody draws."""


def test_exhibits_of_ones_own_are_shown(tmp_path: Path) -> None:
    exhibit = Own(title="Own <b>", text="see", pictures=torch.zeros(1, 1, 2, 2))
    index = report.write_page(
        tmp_path, iter([Undrawn(title="first", text="words"), exhibit])
    )
    page = index.read_text()
    assert "<h1>first</h1>\n<p>words</p>\n<h2>Own &lt;b&gt;</h2>" in page
    assert 'alt="one&#39;s &#34;own&#34;"' in page
    assert (index.parent / "own.png").read_bytes().startswith(b"\x89PNG")
    kinds = [
        part["kind"]
        for part in json.loads((index.parent / "exhibits.json").read_text())["exhibits"]
    ]
    assert kinds == ["test_undrawn", "test_own"]


def test_misfits_are_named(tmp_path: Path) -> None:
    exhibit = Own(title="", text="", pictures=torch.zeros(1, 1, 2, 2))
    with pytest.raises(ValueError, match=r"names of their own, got own\.png twice"):
        report.write_page(tmp_path, [exhibit, exhibit])
    with pytest.raises(
        ValueError, match="a kind of exhibit named 'mistakes' exists already: Mistakes"
    ):
        register_exhibit("mistakes")(Undrawn)

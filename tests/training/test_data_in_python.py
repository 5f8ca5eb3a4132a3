"""Trainings on pairs of an image and a label that a program has."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import Dataset

import torchcaps as tc
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main
from torchcaps_lab.data import MapStyle, SeriesArrays, TextList

OPTIONS = {
    "model": "capsnet_digits",
    "model_args": {"channels": 4, "types": 2, "decoder_hidden": None},
    "trainer": {"accelerator": "cpu"},
    "report": False,
}


class Shades(Dataset):
    """Dark and light pictures."""

    classes = ("dark", "light")

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((1, 8, 8), index, dtype=torch.uint8) * 6, index // 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """Trained for an epoch, by a program that has gradients off."""
    with torch.inference_mode():
        return tc.train(
            data=Shades(),
            test=0.25,
            run=tmp_path_factory.mktemp("run") / "shades",
            epochs=1,
            **OPTIONS,
        )


def test_the_options_have_everything_but_the_pairs(trained: Classifier) -> None:
    written = yaml.safe_load((trained.run / "config.yaml").read_text())["data"]
    assert (written["name"], written["test"], written["validation"]) == (
        "MapStyle",
        0.25,
        0.1,
    )
    assert "data" not in written
    assert trained.classes == ("dark", "light")
    assert trained.summary["examples"] == {"train": 26, "validation": 4, "test": 10}
    assert trained.summary["command"].startswith("torchcaps.train('Shades', ")


@pytest.mark.parametrize(
    "command", [["train", "--resume"], ["evaluate"]], ids=["resume", "evaluate"]
)
def test_the_command_line_says_that_python_has_the_data(
    trained: Classifier, command: list[str], capsys
) -> None:
    assert main([*command, str(trained.run)]) != 0
    assert "call it in Python with data=" in capsys.readouterr().err


def test_it_is_resumed_with_the_pairs(trained: Classifier) -> None:
    resumed = tc.train(data=Shades(), run=trained.run, resume=True, epochs=2)
    assert resumed.summary["epochs"] == 2
    assert resumed.summary["examples"] == trained.summary["examples"]
    assert (
        yaml.safe_load((resumed.run / "config.yaml").read_text())["data"]["test"]
        == 0.25
    )
    more_pairs = [
        (255 - image, label) for image, label in map(Shades().__getitem__, range(40))
    ]
    with pytest.raises(
        ValueError,
        match=(
            "none of the images that the run was trained and tested on exists any more"
        ),
    ):
        tc.train(data=more_pairs, run=trained.run, resume=True, epochs=3)
    with pytest.raises(ValueError, match="images"):
        tc.train(
            data=more_pairs,
            classes=("dark", "light"),
            run=trained.run,
            resume=True,
            epochs=3,
        )


def test_what_cannot_be_trained_on_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ValueError, match="the train data must have a length and items, got int"
    ):
        tc.train(data=3, run=tmp_path / "run")
    with pytest.raises(ValueError, match=r"the name of a network, .* got a Linear: "):
        tc.train(data=Shades(), run=tmp_path / "run", model=torch.nn.Linear(1, 1))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        tc.train(data=Shades(), run=tmp_path / "nowhere", resume=True)
    assert not (tmp_path / "run").exists()


def test_series_and_texts_are_not_taken_for_images() -> None:
    """Series of two channels in [0, 1] were trained on as pictures two pixels high."""
    series, labels = torch.rand(30, 2, 60), [0, 1] * 15
    with pytest.raises(ValueError, match=r"\(30, 2, 60\).*series.*axes"):
        tc.train(series, labels)
    assert MapStyle((series, labels), axes="NHW").image_shape == (1, 2, 60)
    texts = [("a good one", "good"), ("a bad one", "bad")] * 20
    with pytest.raises(ValueError, match="names no file") as refusal:
        MapStyle(texts)
    assert "\n" not in str(refusal.value)


FEW = {"epochs": 1, "show": None, "trainer": {"accelerator": "cpu"}, "report": False}


def test_series_in_arrays(tmp_path: Path) -> None:
    """Only files of series could be trained on."""
    series = torch.arange(40.0)[:, None, None] + torch.randn(40, 3, 20)
    labels = ["low"] * 20 + ["high"] * 20
    trained = tc.train(series, labels, kind="series", run=tmp_path / "run", **FEW)
    assert trained.classes == ("high", "low")
    assert trained(series[0]).classes
    pairs = [*zip(series.numpy(), labels, strict=True)]
    resumed = tc.train(
        pairs, kind="series", run=trained.run, resume=True, epochs=2, show=None
    )
    assert resumed.summary["examples"] == trained.summary["examples"]
    assert main(["evaluate", str(trained.run)]) != 0


def test_texts_in_lists(tmp_path: Path) -> None:
    """Only files of texts could be trained on."""
    texts = [f"No. {place} was {'fun' if place % 2 else 'dull'}" for place in range(40)]
    labels = [place % 2 for place in range(40)]
    trained = tc.train(texts, labels, run=tmp_path / "run", **FEW)
    assert trained.summary["data"] == "TextList"
    pairs = list(zip(texts, labels, strict=True))
    again = tc.train(pairs, kind="texts", run=tmp_path / "pairs", **FEW)
    assert again.summary["test_per_class"] == trained.summary["test_per_class"]


@pytest.mark.parametrize("kind", [object, np.dtypes.StringDType(na_object=None)])
def test_texts_in_an_array(kind: Any) -> None:
    """They were images that are no numbers, and with one missing, missing files."""
    texts = np.array(["a fine one", None, "a dull one"], dtype=kind)
    with pytest.raises(ValueError, match="text 1 must be a text, got None"):
        tc.train(texts, [0, 1, 0], show=None)


def test_labels_of_texts_and_series_are_read_as_those_of_images() -> None:
    """Numbers were in the order of their digits, and columns of 0 and 1 an error."""
    numbers = [place % 12 for place in range(60)]
    names = tuple(map(str, range(12)))
    texts = TextList([f"No. {place}" for place in range(60)], numbers)
    assert texts.classes == names
    series = SeriesArrays(torch.rand(60, 30, 4), torch.eye(12)[numbers])
    assert series.classes == names
    # The order of axes cannot be seen, so it is told.
    assert any("30 channels" in note for note in series.notes())


def test_a_finished_run_without_checkpoints_is_not_trained_anew(
    trained: Classifier, tmp_path: Path
) -> None:
    """The network was overwritten by one from the start."""
    run = shutil.copytree(trained.run, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ValueError, match="no whole checkpoint"):
        tc.train(data=Shades(), run=run, resume=True, epochs=2, show=None)


@pytest.mark.parametrize(
    ("given", "labels", "message"),
    [
        (torch.rand(9, 2, 20), None, "labels are missing"),
        (torch.rand(9, 2, 20), [0, 1], "9 examples and 2 labels"),
        (torch.full((4, 2, 20), torch.nan), [0, 1, 0, 1], "series 0 .*NaN"),
        (torch.rand(4, 2, 20), [0.5, 1.5, 0.5, 1.5], "label of example 0"),
        ([{"x": [1, 2]}] * 4, [0, 1, 0, 1], "series 0 must be an array .*got a dict"),
    ],
)
def test_what_is_wrong_with_series_is_named(
    given: object, labels: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tc.train(given, labels, kind="series", show=None)

"""Reports of very many classes, and of classes whose names are in any script."""

import json
import unicodedata

import pytest
import torch

from tests.report.small import answers
from torchcaps import create_model
from torchcaps_lab.data import Examples
from torchcaps_lab.report import select_examples, write_page
from torchcaps_lab.report.canvas import make_legible
from torchcaps_lab.report.pictures import Confusion, Mistakes
from torchcaps_lab.tasks import Classification


class TestManyClasses:
    @pytest.mark.slow
    def test_a_report_of_300_classes_is_bounded(self, tmp_path):
        torch.manual_seed(0)
        small = {"channels": 4, "types": 1, "decoder_hidden": (4,), "pose_dim": 4}
        network = create_model("capsnet_digits", classes=300, **small)
        images = torch.randint(256, (300, 1, 8, 8), dtype=torch.uint8)
        images = Examples(
            images, torch.arange(300), tuple(f"class {number}" for number in range(300))
        )
        Classification().report(tmp_path, network, images, {}, [])
        pictures = list((tmp_path / "report").glob("*.png"))
        assert (
            len([file for file in pictures if file.name.startswith("perturbation")])
            <= 20
        )
        assert (
            sum(file.stat().st_size for file in (tmp_path / "report").iterdir())
            < 5 * 2**20
        )
        exhibits = json.loads((tmp_path / "report" / "exhibits.json").read_text())[
            "exhibits"
        ]
        (confusion,) = [
            exhibit for exhibit in exhibits if exhibit["kind"] == "confusion"
        ]
        assert len(confusion["counts"]) == 300  # the data hold everything
        assert "Of 300 classes the picture has the 40" in confusion["text"]

    def test_the_most_confused_classes_are_drawn_and_named(self):
        labels = torch.arange(100).repeat(4)
        predicted = labels.clone()
        predicted[7], predicted[107], predicted[207] = (
            93,
            93,
            93,
        )  # three of four images of class 7
        predicted[12] = 50
        confusion = Confusion.of(
            answers(100, labels, predicted), [f"c{number}" for number in range(100)]
        )
        assert confusion.pairs(9) == [(7, 93, 3), (12, 50, 1)]
        assert {7, 93, 12, 50} <= set(confusion.shown().tolist())
        assert len(confusion.shown()) == 40
        assert "Most often confused: c7 for c93 (3), c12 for c50 (1)." in confusion.text

    def test_half_the_examples_are_of_mistaken_classes(self):
        labels = torch.arange(30).repeat(2)
        predicted = labels.clone()
        predicted[:3] = 29
        actual = answers(30, labels, predicted)
        assert {0, 1, 2} <= set(actual.telling(6).tolist())
        assert len(actual.telling(6)) == 6
        assert actual.telling(30).tolist() == list(range(30))
        images = Examples(
            torch.zeros(60, 1, 4, 4, dtype=torch.uint8),
            labels,
            tuple(map(str, range(30))),
        )
        assert len(select_examples(actual, images, 6)) == 6
        assert len(select_examples(actual, images, 40)) == 30


NAMES = ("cat", "собака", "ζέβρα", "猫", "हाथी", "قطة")


class TestScripts:
    def test_names_in_other_scripts_are_drawn_or_explained(self, tmp_path):
        labels = torch.arange(6)
        actual = answers(6, labels, labels.roll(1))
        images = Examples(torch.zeros(6, 1, 4, 4, dtype=torch.uint8), labels, NAMES)
        page = write_page(
            tmp_path, [Confusion.of(actual, NAMES), Mistakes.of(actual, images)]
        )  # a missing glyph warns
        text = page.read_text()
        explained = text.partition("In the pictures: ")[2].partition("</p>")[0]
        for name in ("हाथी", "قطة"):  # written in ways that matplotlib does not know
            assert f"<bdi>{unicodedata.normalize('NFC', name)}</bdi>" in explained
        for name in ("cat", "собака", "ζέβρα"):
            assert name not in explained

    @pytest.mark.parametrize("word", ["\U0010fffd", "x\U0010fffdy"])
    def test_what_no_font_has_becomes_a_mark(self, word):
        from matplotlib.figure import Figure

        figure = Figure()
        axes = figure.add_subplot()
        axes.set_title(f"a {word} b")
        axes.set_xticks([0, 1], [word, "c"])
        marks = {"before": "[1]"}
        assert make_legible(figure, marks) == {"[2]": word}
        assert marks == {"before": "[1]", word: "[2]"}
        assert axes.get_title() == "a [2] b"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["[2]", "c"]
        figure.canvas.draw()  # a missing glyph warns, and warnings are errors

"""The web page: complete, self-contained, escaped, the same every time."""

from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from tests.report.small import image_set
from torchcaps import create_model
from torchcaps.models import ImageClassifier
from torchcaps_lab.data import Digits, Scenery
from torchcaps_lab.report.exhibit import Exhibit, Table
from torchcaps_lab.report.page import _page, _Section, _with_commands
from torchcaps_lab.tasks import Classification

METRICS = [
    {"epoch": 0.0, "train_loss": 0.5},
    {"epoch": 1.0, "train_loss": 0.3, "val_accuracy": 0.5},
]
ALWAYS = {"confusion_matrix.png", "worst_mistakes.png"}
WEIRD = (
    "<b>&",
    'quote"s',
    "$\\frac{$",
    "a very long name of a class of images",
    "undecoded \udcff",
)


class Page(HTMLParser):
    """Links, headings, text and tags of a page."""

    def __init__(self, index: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(index.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value for name, value in attrs if name in ("src", "href") and value
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


def tiny(name: str, classes: int, **arguments: object) -> ImageClassifier:
    small = {
        "shared": {"channels": (4, 4, 4, 4)},
        "capsne": {"channels": 4, "types": 2, "pose_dim": 3},
        "matrix": {
            "channels": 4,
            "types": (2, 3, 2),
            "pose": (2, 2),
            "image_shape": (1, 19, 21),
        },
    }
    torch.manual_seed(0)
    return create_model(name, classes=classes, **{**small[name[:6]], **arguments})


def check(index: Path) -> set[str]:
    """The pictures of a report, every one linked and there, and nothing else beside
    them and their data.
    """
    links = set(Page(index).links)
    beside = {path.name for path in index.parent.iterdir()} - {index.name}
    assert links == beside
    pictures = links - {"exhibits.json"}
    assert len(pictures) == len(links) - 1
    assert all(
        (index.parent / link).read_bytes().startswith(b"\x89PNG") for link in pictures
    )
    return pictures


def test_a_network_with_everything(tmp_path: Path) -> None:
    model = tiny("capsnet_digits", 2).train()
    images = image_set((1, 8, 8), 4, ("a", "b"))
    index = Classification().report(
        tmp_path, model, images, {"seed": 7, "rate": 0.123456}, METRICS
    )
    assert index == tmp_path / "report" / "index.html"
    assert check(index) == {
        "learning_curves.png",
        "confusion_matrix.png",
        "worst_mistakes.png",
        "reconstructions.png",
        "perturbation_000.png",
        "perturbation_001.png",
        "layer_activations.png",
        "layer_poses.png",
        "assignments.png",
    }
    assert all(module.training for module in model.modules())
    assert "0.1235" in Page(index).text
    assert "<title>What this CapsNet learned · torchcaps</title>" in index.read_text(
        encoding="utf-8"
    )

    first = {path.name: path.read_bytes() for path in index.parent.iterdir()}
    Classification().report(
        tmp_path, model, images, {"seed": 7, "rate": 0.123456}, METRICS
    )
    assert {path.name: path.read_bytes() for path in index.parent.iterdir()} == first


def test_colour_images_and_names_that_are_markup(tmp_path: Path) -> None:
    model = tiny("capsnet_digits", 5, image_shape=(3, 8, 10)).eval()
    images = image_set((3, 8, 10), 6, WEIRD, "folder/<i> & co.png")
    index = Classification().report(
        tmp_path, model, images, {"<u>": "<s>&amp;"}, METRICS
    )
    check(index)
    page = Page(index)
    assert not {"b", "i", "u", "s"} & set(page.tags)
    assert "<s>&amp;" in page.text
    assert "folder/<i>" in page.text
    assert "<b>&" in page.text
    assert not model.training


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        (
            "sharedcapsnet",
            {*ALWAYS, "assignments.png", "layer_activations.png", "layer_poses.png"},
        ),
        ("sharedcapsnet_cnn", ALWAYS),
        pytest.param(
            "matrixcapsnet",
            {*ALWAYS, "assignments.png", "layer_activations.png", "layer_poses.png"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_a_network_lacks_is_left_out(
    name: str, pictures: set[str], tmp_path: Path
) -> None:
    images = image_set((1, 19, 21), 6, ("cat", "dog"))
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "perturbation_000.png").touch()  # of an earlier network
    assert (
        check(Classification().report(tmp_path, tiny(name, 2), images, {}, []))
        == pictures
    )


def test_a_network_without_mistakes_has_none_to_show(tmp_path: Path) -> None:
    images = image_set((1, 16, 16), 2, ("only",))
    index = Classification().report(
        tmp_path, tiny("sharedcapsnet_cnn", 1), images, {}, []
    )
    assert check(index) == {"confusion_matrix.png"}
    assert "All 2 images are classified correctly" in Page(index).text


def test_misfits_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 classes, but the model has 3"):
        Classification().report(
            tmp_path,
            tiny("sharedcapsnet_cnn", 3),
            image_set((1, 16, 16), classes=("a", "b")),
            {},
            [],
        )
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Exhibit):
    rows: Table

    def table(self) -> Table:
        return self.rows


def table_of(rows: Table) -> str:
    """A page with nothing but a table, without its style."""
    exhibit = Rows(title="", text="", rows=rows)
    return _page([_Section(exhibit, [], {})]).partition("<body>")[2]


def test_options_to_type_are_not_broken() -> None:
    """Browsers break lines behind hyphens."""
    page = table_of(Table([["--model_args.weights imagenet <b>", "two--hyphens"]]))
    assert (
        "<td><code>--model_args.weights</code> imagenet "
        "&lt;b&gt;</td><td>two--hyphens</td>" in page
    )


def test_a_table_of_sentences_names_its_columns_in_each_cell() -> None:
    """The third column was cut off on a screen of 500 pixels."""
    header = ["measured", "what to do", "type"]
    wide = table_of(Table([["few images " * 5, "add images", "--epochs 20"]], header))
    assert 'class="table sentences"' in wide
    assert [f'data-name="{name}"' in wide for name in header] == [True] * 3
    narrow = table_of(Table([["cat", "12", "90 %"]], ["class", "images", "recall"]))
    assert "<td>cat</td>" in narrow
    assert "sentences" not in narrow


def test_what_is_to_be_typed_is_code() -> None:
    assert _with_commands("Use `a 'b c' <d>`.") == (
        "Use <code>a &#x27;b c&#x27; &lt;d&gt;</code>."
    )


def test_tables_break_no_words_but_long_ones() -> None:
    """A wide neighbour, or a narrow window, broke words and figures anywhere."""
    page = table_of(
        Table(
            [
                [
                    "test_balanced_accuracy",
                    "95.8%",
                    "a few words of some length",
                    25 * "x",
                ]
            ]
        )
    )
    assert page.count('class="long"') == 1
    assert f'<td class="long">{25 * "x"}</td>' in page
    assert '<div class="table">' in page  # which scrolls


@pytest.mark.parametrize("composed", [False, True])
def test_images_of_several_classes_are_refused_in_words(
    tmp_path: Path, composed: bool
) -> None:
    """It failed at a tensor of too many axes; scenes, whose masks are made later, were
    compared with nonsense.
    """
    digits = Digits().test.subset(torch.arange(12))
    masked = replace(digits, labels=torch.eye(10, dtype=torch.bool)[digits.labels])
    images = (
        replace(digits, composition=Scenery(digits, (24, 24), 1, 2, 8, 12))
        if composed
        else masked
    )
    model = create_model("capsnet_digits", image_shape=images.image_shape)
    with pytest.raises(
        ValueError,
        match=r"of one class each, these have masks of several.*SeveralLabels",
    ):
        Classification().report(tmp_path, model, images, {}, [])
    assert not list(tmp_path.iterdir())

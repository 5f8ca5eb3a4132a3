"""Pictures: what is drawn is what the exhibit holds, and it can be rendered."""

import math
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from torchcaps import create_model
from torchcaps_lab.data import Digits, ImageFolder, MapStyle, Padded
from torchcaps_lab.kinds.pixels.pictures import ShownSegments, segments_figure
from torchcaps_lab.report import Exhibit, Extent
from torchcaps_lab.report.boxes import Boxed, boxed_image
from torchcaps_lab.report.pictures.assignments import Assignments, ShareMaps
from torchcaps_lab.report.pictures.confusion import Confusion
from torchcaps_lab.report.pictures.headline import page_title
from torchcaps_lab.report.pictures.layer_activations import (
    ActivationMaps,
    LayerActivations,
)
from torchcaps_lab.report.pictures.layer_poses import LayerPoses, PoseMaps
from torchcaps_lab.report.pictures.learning_curves import LearningCurves
from torchcaps_lab.report.pictures.mistakes import Mistake, Mistakes
from torchcaps_lab.report.pictures.perturbations import Perturbations
from torchcaps_lab.report.pictures.reconstructions import Reconstructions


def render(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file)
    return file.getvalue()


def drawn(exhibit: Exhibit | None) -> Figure:
    """The figure of the one picture of an exhibit."""
    assert exhibit is not None
    (picture,) = exhibit.draw()
    return picture.figure


def curves(metrics: list[dict[str, float]]) -> Figure:
    return drawn(LearningCurves.of(metrics))


def activations(
    images: Tensor,
    maps: dict[str, Tensor],
    classes: Tensor,
    extent: Extent | None = None,
) -> Figure:
    layers = tuple(
        ActivationMaps(name, None, part, extent) for name, part in maps.items()
    )
    titles = ("a",) * len(images)
    answer = {
        "names": tuple(f"class {label}" for label in range(classes.shape[1])),
        "layers": layers,
        "classes": classes,
    }
    return drawn(
        LayerActivations(title="", text="", pictures=images, titles=titles, **answer)
    )


def shares(images: Tensor, *layers: ShareMaps, even: float = 0.5) -> Figure:
    answer = {
        "titles": ("a",) * len(images),
        "targets": torch.zeros(len(images)),
        "layers": layers,
        "even": even,
    }
    return drawn(Assignments(title="", text="", pictures=images, **answer))


def confusion(counts: Tensor, classes: Sequence[str]) -> Figure:
    return drawn(Confusion(title="", text="", counts=counts, classes=tuple(classes)))


def reconstructed(
    images: Tensor, drawn_images: Tensor, titles: Sequence[str]
) -> Figure:
    return drawn(
        Reconstructions(
            title="",
            text="",
            pictures=images,
            reconstructions=drawn_images,
            titles=tuple(titles),
        )
    )


METRICS = [
    {"epoch": 0.0, "train_loss": 0.5, "val_loss": 0.4, "val_accuracy": 0.8},
    {"epoch": 1.0, "train_loss": 0.3},
    {"epoch": 2.0, "train_loss": 0.2, "val_loss": 0.3, "val_accuracy": 0.9, "lr": 1e-3},
]


def test_no_text_lies_on_curves_or_beside_its_row() -> None:
    """The legend lay on the end of the lower curve, and the row's label reached into
    the row above.
    """
    falls = [
        {"epoch": epoch, "val_accuracy": 0.5 - 0.1 * epoch, "train_accuracy": 0.2}
        for epoch in (0.0, 1.0)
    ]
    figure = curves(falls)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    frame = legend.get_window_extent()
    for line in axes.lines:
        along = np.linspace(*line.get_xydata(), 50)
        assert not any(frame.contains(x, y) for x, y in axes.transData.transform(along))

    maps = {"class_caps.children": torch.rand(3, 6, 8)}
    wide = activations(torch.rand(3, 1, 30, 40), maps, torch.rand(3, 2))
    wide.draw_without_rendering()
    above, row = (wide.axes[place].yaxis.label.get_window_extent() for place in (0, 3))
    assert row.y1 < wide.axes[0].get_window_extent().y0 < above.y0


@pytest.mark.parametrize(("count", "named"), [(3, 3), (14, 14), (40, 1)])
def test_bars_of_classes_have_their_names(count: int, named: int) -> None:
    """Only the strongest one had a number."""
    classes = torch.rand(2, count)
    figure = activations(torch.rand(2, 1, 8, 9), {"low": torch.rand(2, 3, 3)}, classes)
    assert figure.axes[0].yaxis.label.get_text() == "image\n9 x 8"
    bars = [
        axes
        for axes in figure.axes
        if axes.get_xticklabels() and axes.get_ylim()[0] == 0
    ][:2]
    for axes, row in zip(bars, classes, strict=True):
        shown = [label.get_text() for label in axes.get_xticklabels()]
        assert shown == (
            [f"class {label}" for label in range(count)]
            if named > 1
            else [f"class {row.argmax()}"]
        )


@pytest.mark.parametrize("top", [0.0, 20.0])
def test_names_of_boxes_are_read_wherever_they_are(top: float) -> None:
    """White ones stood on yellow, and those at the upper edge were cut off."""
    names = [str(label) for label in range(10)]
    figure = boxed_image(
        Boxed(
            torch.zeros(1, 48, 96),
            [(name, (9.0 * int(name), top, 95, 40)) for name in names],
        ),
        names,
    )
    assert [side * figure.dpi for side in figure.get_size_inches()] == [
        480,
        240,
    ]  # five pixels for each of the image's
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for text in axes.texts:
        assert text.get_window_extent().y1 <= figure.bbox.y1
        ink, paper = (
            _luminance(colour)
            for colour in (text.get_color(), text.get_bbox_patch().get_facecolor())
        )
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 3.5


def _luminance(colour: str) -> float:
    linear = [
        channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in to_rgb(colour)
    ]
    return sum(
        share * part
        for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


@pytest.mark.thorough
def test_labels_of_rows_of_very_wide_images_stay_apart() -> None:
    """They were written over each other."""
    images = torch.rand(3, 1, 8, 40)
    maps = {"block3.convolution": torch.rand(3, 2, 6), "high": torch.rand(3, 2, 6)}
    for figure in (
        shares(images, *(ShareMaps(name, part, None) for name, part in maps.items())),
        shares(images, ShareMaps("high", maps["high"], None)),
        reconstructed(images, images, ["a"] * 3),
        activations(images, maps, torch.rand(3, 2)),
    ):
        figure.draw_without_rendering()
        labels = [
            axes.yaxis.label.get_window_extent()
            for axes in figure.axes
            if axes.get_subplotspec()
        ]
        shown = sorted((box for box in labels if box.width), key=lambda box: -box.y0)
        assert len(shown) > 1
        assert all(upper.y0 > lower.y1 for upper, lower in pairwise(shown))
        assert min(box.x0 for box in shown) > 0


def test_learning_curves_hold_the_numbers() -> None:
    loss, accuracy = curves(METRICS).axes
    lines = {str(line.get_label()): line.get_xydata().tolist() for line in loss.lines}
    assert lines == {
        "training": [[0, 0.5], [1, 0.3], [2, 0.2]],
        "validation": [[0, 0.4], [2, 0.3]],
    }
    assert accuracy.lines[0].get_xydata().tolist() == [[0, 0.8], [2, 0.9]]
    assert (loss.get_xlabel(), loss.get_ylabel(), accuracy.get_ylabel()) == (
        "epoch",
        "loss",
        "accuracy",
    )


@pytest.mark.parametrize(
    ("metrics", "panels"),
    [
        ([{"train_loss": 0.5}], ["loss"]),
        ([{"val_error": 0.5}, {"val_error": 0.4}], ["error"]),
        ([{"val_accuracy": 0.5, "val_error": 0.5}], ["accuracy"]),
        ([{"train_loss": 0.9, "val_loss": 0.001}, {"train_loss": math.nan}], ["loss"]),
    ],
)
def test_missing_metrics_are_left_out(
    metrics: list[dict[str, float]], panels: list[str]
) -> None:
    figure = curves(metrics)
    assert [axes.get_ylabel() for axes in figure.axes] == panels
    render(figure)


@pytest.mark.parametrize("epochs", [1, 2, 3, 7])
def test_epochs_are_whole_numbers(epochs: int) -> None:
    (axes,) = curves(
        [{"epoch": epoch, "train_loss": 1.0} for epoch in range(1, epochs + 1)]
    ).axes
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks == list(range(1, epochs + 1))


def test_the_routing_has_panels_of_its_own() -> None:
    health = {
        "assignment_entropy_conv": 0.9,
        "assignment_entropy_class_caps": 0.5,
        "dead_capsules_class_caps": 0.0,
    }
    loss, accuracy, entropy, dead = curves([*METRICS, {"epoch": 3.0, **health}]).axes
    assert (len(loss.lines), len(accuracy.lines)) == (2, 1)
    assert {
        str(line.get_label()): line.get_xydata().tolist() for line in entropy.lines
    } == {
        "conv": [[3, 0.9]],
        "class_caps": [[3, 0.5]],
    }
    assert entropy.lines[1].get_color() == dead.lines[0].get_color()  # of one layer
    assert entropy.get_title() == "entropy of the assignment"
    assert dead.get_ylabel() == "share of the types"
    render(entropy.figure)
    alone = curves([{"dead_capsules_conv": 0.5}])
    assert [axes.get_title() for axes in alone.axes] == ["dead capsules"]


def shown(axes: object) -> np.ndarray:
    return np.asarray(axes.images[-1].get_array())


def test_activations_layer_by_layer() -> None:
    images = torch.rand(3, 1, 8, 6)
    maps = {"low": torch.rand(3, 4, 3), "high": torch.rand(3, 2, 2)}
    classes = torch.tensor([[0.1, 0.9], [0.8, 0.3], [0.2, 0.4]])
    figure = activations(images, maps, classes, Extent(1, 5, 7, 1))
    render(figure)
    by_label = {
        axes.get_ylabel(): place
        for place, axes in enumerate(figure.axes)
        if axes.get_ylabel()
    }
    start = by_label["low"]
    for place in range(3):
        np.testing.assert_allclose(
            shown(figure.axes[start + place]), maps["low"][place]
        )
        assert figure.axes[start + place].images[0].get_extent() == [1, 5, 7, 1]
        np.testing.assert_allclose(
            shown(figure.axes[by_label["high"] + place]), maps["high"][place]
        )
    bars = figure.axes[by_label["classes"]].patches
    assert [bar.get_height() for bar in bars] == pytest.approx([0.1, 0.9])
    assert bars[1].get_facecolor() != bars[0].get_facecolor()


@pytest.mark.parametrize(("shape", "maps"), [((2, 3), 6), ((6,), 6), ((3,), 3)])
def test_every_number_of_a_pose_has_a_map(shape: tuple[int, ...], maps: int) -> None:
    pose = torch.randn(3, 2, *shape)
    layers = (PoseMaps("caps", None, pose),)
    figure = drawn(
        LayerPoses(
            title="",
            text="",
            picture=torch.rand(1, 6, 4),
            image_title="",
            layers=layers,
        )
    )
    render(figure)
    actual = [axes for axes in figure.axes[1:] if axes.images]
    assert len(actual) == maps
    largest = pose.abs().max().item()
    for axes, expected in zip(actual, pose.flatten(2).unbind(-1), strict=True):
        np.testing.assert_allclose(shown(axes), expected)
        assert axes.images[0].get_clim() == (
            -largest,
            largest,
        )  # one scale, and nothing in it that is not a number


def test_shares_lie_where_they_belong() -> None:
    images = torch.rand(2, 1, 8, 8)
    low = torch.rand(2, 4, 4)
    low[:, 3] = torch.nan
    high = ShareMaps("high", torch.rand(2, 2, 2), Extent(2, 6, 6, 2))
    figure = shares(images, high, ShareMaps("low", low, Extent(0, 8, 8, 0)))
    render(figure)
    rows = [axes for axes in figure.axes if len(axes.images) == 2]
    assert [axes.images[1].get_extent() for axes in rows] == [
        [2, 6, 6, 2],
        [0, 8, 8, 0],
    ] * 2
    assert all((axes.get_xlim(), axes.get_ylim()) == ((0, 8), (8, 0)) for axes in rows)
    opacity = shown(rows[1])[..., 3]
    assert (opacity[:3] > 0).all()
    assert (opacity[3] == 0).all()  # what no window sees
    render(shares(images, ShareMaps("low", torch.full((2, 2, 2), torch.nan), None)))


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_maps_of_one_value(share: float) -> None:
    render(
        shares(
            torch.rand(1, 3, 8, 8),
            ShareMaps("caps", torch.full((1, 2, 2), share), None),
            even=0.1,
        )
    )


@pytest.mark.parametrize("metrics", [[], [{"epoch": 1.0}]])
def test_no_metrics_are_no_picture(metrics: list[dict[str, float]]) -> None:
    assert LearningCurves.of(metrics) is None


def test_a_confusion_matrix_holds_its_numbers() -> None:
    counts = torch.tensor([[3, 1, 0], [0, 0, 0], [2, 0, 2]])
    figure = confusion(counts, ["a", "b", "c"])
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == [
        str(count) for count in counts.flatten().tolist()
    ]
    shares = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(shares, [[0.75, 0.25, 0], [0, 0, 0], [0.5, 0, 0.5]])
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("true", "predicted")


def test_every_label_lies_inside_the_figure() -> None:
    figure = confusion(
        torch.eye(4), ["a very, very long name of a class", "$x_{", "<b>&", "d\ne"]
    )
    render(figure)
    axes = figure.axes[0]
    labels = [
        axes.xaxis.label,
        axes.yaxis.label,
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
    ]
    for label in labels:
        box = label.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width, label.get_text()
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height, label.get_text()


@pytest.mark.parametrize("classes", [1, 150])
def test_confusion_matrices_of_any_size(classes: int) -> None:
    figure = confusion(
        torch.eye(classes), [f"class {label}" for label in range(classes)]
    )
    assert len(figure.axes[0].texts) == (1 if classes == 1 else 0)
    assert len(figure.axes[0].get_xticks()) <= 60
    render(figure)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_pictures_of_any_number_of_channels(channels: int) -> None:
    images = torch.rand(2, channels, 4, 6, dtype=torch.float64)
    top, bottom = reconstructed(images, 1 - images, ["a", "b"]).axes[:2]
    shown = (
        images[:, :3] if channels >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    ).permute(0, 2, 3, 1)
    np.testing.assert_allclose(
        np.asarray(top.images[0].get_array()), shown[0], rtol=1e-6
    )
    np.testing.assert_allclose(
        np.asarray(bottom.images[0].get_array()), 1 - shown[0], rtol=1e-5, atol=1e-7
    )


def test_many_reconstructions_are_wrapped() -> None:
    images = torch.rand(12, 1, 4, 4)
    figure = reconstructed(images, images, [str(place) for place in range(12)])
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == [
        str(place) for place in range(12)
    ]
    assert sum(len(axes.images) for axes in figure.axes) == 24


def test_the_grid_has_dimensions_down_and_values_across() -> None:
    D, V = 3, 5
    grids = (torch.arange(D * V) / (D * V)).reshape(D, V, 1, 1, 1).expand(D, V, 1, 4, 4)
    moved = {
        "grids": grids[None].expand(2, -1, -1, -1, -1, -1),
        "values": torch.linspace(-1, 1, V),
    }
    answer = {
        "changes": torch.full((2, D), (V - 1) / (D * V)),
        "targets": torch.tensor([7, 1]),
        "classes": ("$1", "b"),
    }
    first, second = Perturbations(title="", text="", **moved, **answer).draw()
    assert (first.file, second.file) == ("perturbation_007.png", "perturbation_001.png")
    axes = first.figure.axes[0]
    assert axes.get_title() == "class $1"
    mosaic = np.asarray(axes.images[0].get_array())
    rows = mosaic.shape[0] // D
    columns = mosaic.shape[1] // V
    centres = mosaic[rows // 2 :: rows, columns // 2 :: columns, 0]
    np.testing.assert_allclose(centres, grids[:, :, 0, 0, 0], rtol=1e-6)
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "-1",
        "-0.5",
        "0",
        "+0.5",
        "+1",
    ]
    changes = [float(text.get_text()) for text in axes.texts[1:]]
    assert changes == pytest.approx([(V - 1) / (D * V)] * D, abs=1e-3)


def test_headings_of_mistakes() -> None:
    assert (
        Mistake("", "4", "9", 0.81, 0.12).heading()
        == "true 4 → answer 9\n(0.81 / 0.12)"
    )
    lines = (
        Mistake("", "Greater white-toothed shrew of the north", "dog", 1, 0)
        .heading()
        .split("\n")
    )
    assert len(lines) == 3
    assert max(map(len, lines)) < 32


def test_headings_of_mistakes_do_not_overlap() -> None:
    mistakes = (Mistake("", "W" * 30, "M" * 30, 0.5, 0.4),) * 5
    arguments = {"mistakes": mistakes, "wrong": 5, "images": 5, "files": False}
    figure = drawn(
        Mistakes(title="", text="", pictures=torch.rand(5, 3, 8, 8), **arguments)
    )
    render(figure)
    boxes = [axes.title.get_window_extent() for axes in figure.axes]
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])


def test_rows_of_pictures_have_a_title_each() -> None:
    images = torch.rand(2, 1, 4, 4)
    with pytest.raises(ValueError, match="titles must be one for each of 2"):
        reconstructed(images, images, ["a"])
    with pytest.raises(ValueError, match="images must hold at least one"):
        reconstructed(images[:0], images[:0], [])


def test_what_a_task_measures_has_a_curve() -> None:
    """The report of masks had the loss alone."""
    metrics = [
        {
            "epoch": n,
            "train_loss": 1 / n,
            "val_loss": 1 / n,
            "val_iou": 1 - 1 / n,
        }
        for n in (1.0, 2.0)
    ]
    curves = LearningCurves.of(metrics)
    assert curves is not None
    assert [panel.quantity for panel in curves.panels] == ["loss", "iou"]
    accuracy = LearningCurves.of([{"epoch": 1.0, "val_accuracy": 0.5, "val_iou": 0.1}])
    assert accuracy is not None
    assert [panel.quantity for panel in accuracy.panels] == ["accuracy"]


def test_the_names_of_many_layers_lie_beside_the_curves() -> None:
    """Twelve of them covered the axis."""
    names = [f"assignment_entropy_layer{n}" for n in range(12)]
    metrics = [{"epoch": 1.0, "train_loss": 1.0, **dict.fromkeys(names, 0.5)}]
    curves = LearningCurves.of(metrics)
    assert curves is not None
    (picture,) = curves.draw()
    (legend,) = picture.figure.legends
    assert len(legend.get_texts()) == 12
    inside = [axes.get_legend() for axes in picture.figure.axes]
    assert [axes_legend is None for axes_legend in inside] == [False, True]


def test_the_class_that_is_not_painted_is_in_the_legend() -> None:
    mask = torch.tensor([[0, 1], [0, 0]])
    shown = ShownSegments("a", torch.rand(1, 2, 2), mask, mask)
    (legend,) = segments_figure([shown], ("ground", "cell")).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["not painted: ground", "cell"]


def test_a_report_is_titled_by_its_run_and_its_data() -> None:
    network = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
    summary = {"run": "runs/photos", "model": "capsnet_small", "data": "ImageFolder"}
    assert page_title(network, summary) == (
        "photos: what capsnet_small learned from ImageFolder"
    )
    named = {**summary, "source": "holiday"}
    assert (
        page_title(network, named) == "photos: what capsnet_small learned from holiday"
    )
    assert page_title(network, {}) == "What this CapsNet learned"
    saved = {"run": "mnist/capsnet_small"}
    assert page_title(network, saved) == "What mnist/capsnet_small learned"


def test_data_are_called_what_people_call_them(tmp_path: Path) -> None:
    """Titles had the class that wraps the data, such as Padded or ImageFolder."""
    for name in ("a", "b"):
        (tmp_path / "holiday" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "holiday" / name / "0.png")
    photos = ImageFolder(tmp_path / "holiday")
    assert photos.called == "holiday"
    assert Padded(photos, pad=1).called == "holiday"
    assert Padded(Digits(), pad=1).called == "Digits"
    assert MapStyle([(Image.new("L", (4, 4)), 0)]).called == "MapStyle"

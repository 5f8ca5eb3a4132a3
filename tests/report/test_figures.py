"""Figures: what is drawn is what was given, and it can be rendered."""

import math
import subprocess
import sys
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from torchcaps import report
from torchcaps.report.exhibits import LearningCurves


def render(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file)
    return file.getvalue()


def test_importing_needs_no_matplotlib_and_drawing_no_window() -> None:
    code = (
        "import sys, torch, torchcaps.report as e; assert 'matplotlib' not in sys.modules;"
        "e.confusion_matrix(torch.eye(2), 'ab').savefig(sys.argv[1]); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, "/dev/null"], check=True)


METRICS = [
    {"epoch": 0.0, "train_loss": 0.5, "val_loss": 0.4, "val_accuracy": 0.8},
    {"epoch": 1.0, "train_loss": 0.3},
    {"epoch": 2.0, "train_loss": 0.2, "val_loss": 0.3, "val_accuracy": 0.9, "lr": 1e-3},
]


def test_no_text_lies_on_curves_or_beside_its_row() -> None:
    """The legend lay on the end of the lower curve, and the row's label reached into the row above."""
    falls = [{"epoch": epoch, "val_accuracy": 0.5 - 0.1 * epoch, "train_accuracy": 0.2} for epoch in (0.0, 1.0)]
    figure = report.learning_curves(falls)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    frame = legend.get_window_extent()
    for line in axes.lines:
        along = np.linspace(*line.get_xydata(), 50)
        assert not any(frame.contains(x, y) for x, y in axes.transData.transform(along))

    wide = report.activation_figure(torch.rand(3, 1, 30, 40), {"class_caps.children": torch.rand(3, 6, 8)}, ["a"] * 3)
    wide.draw_without_rendering()
    above, row = (wide.axes[place].yaxis.label.get_window_extent() for place in (0, 3))
    assert row.y1 < wide.axes[0].get_window_extent().y0 < above.y0


def test_labels_of_rows_of_very_wide_images_stay_apart() -> None:
    """They were written over each other."""
    images, maps = torch.rand(3, 1, 8, 40), {"block3.convolution": torch.rand(3, 2, 6), "high": torch.rand(3, 2, 6)}
    for figure in (
        report.flow_figure(images, maps, ["a"] * 3, even=0.5),
        report.assignment_figure(images, maps["high"], ["a"] * 3),
        report.reconstructions(images, images, ["a"] * 3),
        report.activation_figure(images, maps, ["a"] * 3),
    ):
        figure.draw_without_rendering()
        labels = [axes.yaxis.label.get_window_extent() for axes in figure.axes if axes.get_subplotspec()]
        shown = sorted((box for box in labels if box.width), key=lambda box: -box.y0)
        assert len(shown) > 1
        assert all(upper.y0 > lower.y1 for upper, lower in pairwise(shown))
        assert min(box.x0 for box in shown) > 0


def test_learning_curves_hold_the_numbers() -> None:
    loss, accuracy = report.learning_curves(METRICS).axes
    curves = {str(line.get_label()): line.get_xydata().tolist() for line in loss.lines}
    assert curves == {"training": [[0, 0.5], [1, 0.3], [2, 0.2]], "validation": [[0, 0.4], [2, 0.3]]}
    assert accuracy.lines[0].get_xydata().tolist() == [[0, 0.8], [2, 0.9]]
    assert (loss.get_xlabel(), loss.get_ylabel(), accuracy.get_ylabel()) == ("epoch", "loss", "accuracy")


@pytest.mark.parametrize(
    ("metrics", "panels"),
    [
        ([{"train_loss": 0.5}], ["loss"]),
        ([{"val_error": 0.5}, {"val_error": 0.4}], ["error"]),
        ([{"val_accuracy": 0.5, "val_error": 0.5}], ["accuracy"]),
        ([{"train_loss": 0.9, "val_loss": 0.001}, {"train_loss": math.nan}], ["loss"]),
    ],
)
def test_missing_metrics_are_left_out(metrics: list[dict[str, float]], panels: list[str]) -> None:
    figure = report.learning_curves(metrics)
    assert [axes.get_ylabel() for axes in figure.axes] == panels
    render(figure)


@pytest.mark.parametrize("epochs", [1, 2, 3, 7])
def test_epochs_are_whole_numbers(epochs: int) -> None:
    (axes,) = report.learning_curves([{"epoch": epoch, "train_loss": 1.0} for epoch in range(1, epochs + 1)]).axes
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks == list(range(1, epochs + 1))


def test_the_routing_has_panels_of_its_own() -> None:
    health = {"assignment_entropy_conv": 0.9, "assignment_entropy_class_caps": 0.5, "dead_capsules_class_caps": 0.0}
    loss, accuracy, entropy, dead = report.learning_curves([*METRICS, {"epoch": 3.0, **health}]).axes
    assert (len(loss.lines), len(accuracy.lines)) == (2, 1)
    assert {str(line.get_label()): line.get_xydata().tolist() for line in entropy.lines} == {
        "conv": [[3, 0.9]],
        "class_caps": [[3, 0.5]],
    }
    assert entropy.lines[1].get_color() == dead.lines[0].get_color()  # of one layer
    assert entropy.get_title() == "entropy of the assignment"
    assert dead.get_ylabel() == "share of the types"
    render(entropy.figure)
    alone = report.learning_curves([{"dead_capsules_conv": 0.5}])
    assert [axes.get_title() for axes in alone.axes] == ["dead capsules"]


def shown(axes: object) -> np.ndarray:
    return np.asarray(axes.images[-1].get_array())


def test_activations_layer_by_layer() -> None:
    images = torch.rand(3, 1, 8, 6)
    maps = {"low": torch.rand(3, 4, 3), "high": torch.rand(3, 2, 2)}
    classes = torch.tensor([[0.1, 0.9], [0.8, 0.3], [0.2, 0.4]])
    extents = {"low": report.Extent(1, 5, 7, 1)}
    figure = report.activation_figure(images, maps, ["a", "b", "c"], extents, classes)
    render(figure)
    by_label = {axes.get_ylabel(): place for place, axes in enumerate(figure.axes) if axes.get_ylabel()}
    start = by_label["low"]
    for place in range(3):
        np.testing.assert_allclose(shown(figure.axes[start + place]), maps["low"][place])
        assert figure.axes[start + place].images[0].get_extent() == [1, 5, 7, 1]
        np.testing.assert_allclose(shown(figure.axes[by_label["high"] + place]), maps["high"][place])
    bars = figure.axes[by_label["classes"]].patches
    assert [bar.get_height() for bar in bars] == pytest.approx([0.1, 0.9])
    assert bars[1].get_facecolor() != bars[0].get_facecolor()


def test_the_most_active_types_come_first() -> None:
    activation = torch.zeros(2, 2, 5)
    activation[0, 1] = torch.tensor([0.1, 0.9, 0.3, 0.2, 0.5])
    figure = report.types_figure(torch.rand(1, 4, 4), {"caps": activation}, "8", count=3)
    render(figure)
    assert [axes.get_title() for axes in figure.axes[:4]] == ["8", "type 1", "type 4", "type 2"]
    np.testing.assert_allclose(shown(figure.axes[2]), activation[..., 4])


@pytest.mark.parametrize(("shape", "drawn"), [((2, 3), 6), ((6,), 6), ((3,), 3)])
def test_every_number_of_a_pose_has_a_map(shape: tuple[int, ...], drawn: int) -> None:
    pose = torch.randn(3, 2, *shape)
    figure = report.pose_figure(torch.rand(1, 6, 4), {"caps": pose})
    render(figure)
    maps = [axes for axes in figure.axes[1:] if axes.images]
    assert len(maps) == drawn
    largest = pose.abs().max().item()
    for axes, expected in zip(maps, pose.flatten(2).unbind(-1), strict=True):
        np.testing.assert_allclose(shown(axes), expected)
        assert axes.images[0].get_clim() == (-largest, largest)  # one scale, and nothing in it that is not a number


def test_flow_lays_every_layer_where_it_belongs() -> None:
    images = torch.rand(2, 1, 8, 8)
    low = torch.rand(2, 4, 4)
    low[:, 3] = torch.nan
    extents = {"high": report.Extent(2, 6, 6, 2), "low": report.Extent(0, 8, 8, 0)}
    figure = report.flow_figure(images, {"high": torch.rand(2, 2, 2), "low": low}, ["a", "b"], extents, 0.5)
    render(figure)
    rows = [axes for axes in figure.axes if len(axes.images) == 2]
    assert [axes.images[1].get_extent() for axes in rows] == [[2, 6, 6, 2], [0, 8, 8, 0]] * 2
    opacity = shown(rows[1])[..., 3]
    assert (opacity[:3] > 0).all()
    assert (opacity[3] == 0).all()  # what no window sees
    render(report.flow_figure(images, {"low": torch.full((2, 2, 2), torch.nan)}, ["a", "b"]))


@pytest.mark.parametrize("metrics", [[], [{"epoch": 1.0}]])
def test_no_metrics_are_no_figure(metrics: list[dict[str, float]]) -> None:
    assert LearningCurves.of(metrics) is None
    with pytest.raises(ValueError, match="metrics must hold"):
        report.learning_curves(metrics)


def test_a_confusion_matrix_holds_its_numbers() -> None:
    counts = torch.tensor([[3, 1, 0], [0, 0, 0], [2, 0, 2]])
    figure = report.confusion_matrix(counts, ["a", "b", "c"])
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == [str(count) for count in counts.flatten().tolist()]
    shares = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(shares, [[0.75, 0.25, 0], [0, 0, 0], [0.5, 0, 0.5]])
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("true", "said")


def test_every_label_lies_inside_the_figure() -> None:
    figure = report.confusion_matrix(torch.eye(4), ["a very, very long name of a class", "$x_{", "<b>&", "d\ne"])
    render(figure)
    axes = figure.axes[0]
    labels = [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
    for label in labels:
        box = label.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width, label.get_text()
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height, label.get_text()


@pytest.mark.parametrize("classes", [1, 150])
def test_confusion_matrices_of_any_size(classes: int) -> None:
    figure = report.confusion_matrix(torch.eye(classes), [f"class {label}" for label in range(classes)])
    assert len(figure.axes[0].texts) == (1 if classes == 1 else 0)
    assert len(figure.axes[0].get_xticks()) <= 60
    render(figure)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_pictures_of_any_number_of_channels(channels: int) -> None:
    images = torch.rand(2, channels, 4, 6, dtype=torch.float64)
    top, bottom = report.reconstructions(images, 1 - images, ["a", "b"]).axes[:2]
    shown = (images if channels == 3 else images[:, :1].expand(-1, 3, -1, -1)).permute(0, 2, 3, 1)
    np.testing.assert_allclose(np.asarray(top.images[0].get_array()), shown[0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(bottom.images[0].get_array()), 1 - shown[0], rtol=1e-5, atol=1e-7)


def test_many_reconstructions_are_wrapped() -> None:
    images = torch.rand(12, 1, 4, 4)
    figure = report.reconstructions(images, images, [str(place) for place in range(12)])
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == [str(place) for place in range(12)]
    assert sum(len(axes.images) for axes in figure.axes) == 24


def test_the_grid_has_dimensions_down_and_values_across() -> None:
    D, V = 3, 5
    grids = (torch.arange(D * V) / (D * V)).reshape(D, V, 1, 1, 1).expand(D, V, 1, 4, 4)
    figure = report.perturbation_grid(grids, torch.linspace(-1, 1, V), "class $1")
    axes = figure.axes[0]
    mosaic = np.asarray(axes.images[0].get_array())
    rows, columns = mosaic.shape[0] // D, mosaic.shape[1] // V
    centres = mosaic[rows // 2 :: rows, columns // 2 :: columns, 0]
    np.testing.assert_allclose(centres, grids[:, :, 0, 0, 0], rtol=1e-6)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["-1", "-0.5", "0", "+0.5", "+1"]
    changes = [float(text.get_text()) for text in axes.texts[1:]]
    assert changes == pytest.approx([(V - 1) / (D * V)] * D, abs=1e-3)


def test_an_atlas_has_a_figure_for_each_image() -> None:
    grids = torch.rand(2, 3, 5, 3, 4, 4)
    atlas = report.perturbation_atlas(grids, torch.zeros(5), ["a", "b"])
    assert [figure.axes[0].get_title() for figure in atlas] == ["a", "b"]


def test_titles_of_mistakes() -> None:
    assert report.mistake_title("4", "9", 0.81, 0.12) == "true 4 → said 9\n(0.81 / 0.12)"
    lines = report.mistake_title("Greater white-toothed shrew of the north", "dog", 1, 0).split("\n")
    assert len(lines) == 3
    assert max(map(len, lines)) < 32


def test_titles_of_mistakes_do_not_overlap() -> None:
    title = report.mistake_title("W" * 30, "M" * 30, 0.5, 0.4)
    figure = report.worst_mistakes(torch.rand(5, 3, 8, 8), [title] * 5)
    render(figure)
    boxes = [axes.title.get_window_extent() for axes in figure.axes]
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])


def test_maps_lie_over_their_part_of_the_image() -> None:
    images, maps = torch.rand(2, 1, 8, 8), torch.rand(2, 2, 2)
    figure = report.assignment_figure(images, maps, ["a", "b"], report.Extent(2, 6, 6, 2), even=0.5)
    overlay = figure.axes[1]
    assert list(overlay.images[1].get_extent()) == [2, 6, 6, 2]
    assert overlay.get_xlim() == (0, 8)
    assert overlay.get_ylim() == (8, 0)
    render(figure)


@pytest.mark.parametrize("even", [None, 0.1])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_maps_of_one_value(share: float, even: float | None) -> None:
    render(report.assignment_figure(torch.rand(1, 3, 8, 8), torch.full((1, 2, 2), share), ["a"], even=even))


def test_misfits_are_named() -> None:
    images = torch.rand(2, 1, 4, 4)
    with pytest.raises(ValueError, match="counts must be"):
        report.confusion_matrix(torch.eye(2), ["a"])
    with pytest.raises(ValueError, match="reconstructions must have the shape"):
        report.reconstructions(images, images[:1], ["a", "b"])
    with pytest.raises(ValueError, match="titles must be one for each of 2"):
        report.reconstructions(images, images, ["a"])
    with pytest.raises(ValueError, match="images must hold at least one"):
        report.reconstructions(images[:0], images[:0], [])
    with pytest.raises(ValueError, match="grids must be"):
        report.perturbation_grid(torch.rand(3, 5, 1, 4, 4), torch.zeros(3))
    with pytest.raises(ValueError, match="titles must be one for each of 1 grids"):
        report.perturbation_atlas(torch.rand(1, 3, 5, 1, 4, 4), torch.zeros(5), [])
    with pytest.raises(ValueError, match="titles must be"):
        report.worst_mistakes(images, ["a"])
    with pytest.raises(ValueError, match="maps must be"):
        report.activation_figure(images, {"low": torch.rand(1, 2, 2)}, ["a", "b"])
    with pytest.raises(ValueError, match="titles must be one for each image"):
        report.activation_figure(images, {}, ["a"])
    with pytest.raises(ValueError, match="activations of low must be"):
        report.types_figure(images[0], {"low": torch.rand(2, 2)})
    with pytest.raises(ValueError, match="poses of low must be"):
        report.pose_figure(images[0], {"low": torch.rand(2, 2)})
    with pytest.raises(ValueError, match="maps must be"):
        report.assignment_figure(images, torch.rand(1, 2, 2), ["a", "b"])

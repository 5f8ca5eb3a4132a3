"""Charts of experiments."""

import dataclasses

import pytest
import torch

from recipes import words
from recipes.kit.base import TEST_ERROR, Line, error_bars
from recipes.kit.charts import (
    Cell,
    Dots,
    Factor,
    bars_across,
    bars_under_images,
    dot_panels,
    factor_curves,
    image_grid,
    tiles,
    two_colours,
)
from recipes.routing_health import steps_figure


def test_tiles_stand_in_rows_and_columns() -> None:
    grid = torch.arange(6.0).div(10).reshape(2, 3, 1, 1, 1).expand(2, 3, 1, 2, 4)
    picture = tiles(grid)
    assert picture.shape == (2 * 3, 3 * 5, 3)
    assert picture[0::3, 0::5, 0].tolist() == [
        pytest.approx([0, 0.1, 0.2]),
        pytest.approx([0.3, 0.4, 0.5]),
    ]
    assert (picture[2::3] == 0.5).all()
    assert (picture[:, 4::5] == 0.5).all()


def test_images_stand_in_named_rows() -> None:
    rows = {
        name: [Cell(torch.rand(4, 5), f"{name} {place}") for place in range(3)]
        for name in ("above", "below")
    }
    axes = image_grid(rows).axes
    assert [ax.get_title() for ax in axes] == [
        cell.title for cells in rows.values() for cell in cells
    ]
    assert [axes[0].get_ylabel(), axes[3].get_ylabel()] == ["above", "below"]
    assert torch.equal(
        torch.tensor(axes[4].images[0].get_array().data), rows["below"][1].image
    )


def test_a_bar_that_is_not_there_is_left_out() -> None:
    (axes,) = bars_across(["a", "b"], [1.0, None], [None, 2.0]).axes
    assert [[patch.get_width() for patch in bars] for bars in axes.containers] == [
        [1.0],
        [2.0],
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_bars_of_every_group_under_its_image() -> None:
    images = {"one": torch.zeros(2, 2), "two": torch.ones(2, 2)}
    figure = bars_under_images(
        images, {"x": [10.0, 20.0], "y": [30.0, 40.0]}, "share, %"
    )
    assert [axes.get_title() for axes in figure.axes[:2]] == ["one", "two"]
    bars = figure.axes[2].containers
    assert [[patch.get_height() for patch in bar] for bar in bars] == [
        [10, 20],
        [30, 40],
    ]
    centres = [[patch.get_x() + patch.get_width() / 2 for patch in bar] for bar in bars]
    assert [sum(pair) / 2 for pair in zip(*centres, strict=True)] == pytest.approx(
        [0, 1]
    )


def test_curves_over_what_training_showed() -> None:
    factor = Factor(
        "angle, degrees",
        (-1.0, 0.0, 1.0),
        (0.0, 0.0),
        (-0.5, 0.5),
    )
    (axes,) = factor_curves(
        {"angle": factor}, {"angle": {"net": [1.0, 3.0, 2.0]}}, ["net"]
    ).axes
    assert axes.lines[0].get_xydata().tolist() == [[-1, 1], [0, 3], [1, 2]]
    assert axes.get_legend_handles_labels()[1] == ["affine test", "in training", "net"]


def test_two_colours_are_red_and_green() -> None:
    picture = two_colours(
        torch.stack([torch.full((2, 3), 2.0), torch.full((2, 3), -1.0)])
    )
    assert picture.shape == (2, 3, 3)
    assert picture[0, 0].tolist() == [1, 0, 0]


def test_a_panel_without_any_dot_keeps_its_place() -> None:
    nothing = Dots(
        "kept for the backward pass, KiB", [None, None], [0.0, 0.0], log=True
    )
    panels = dot_panels(
        ["a", "b"], [nothing, Dots("error, %", [None, 2.0], [0.0, 0.5])]
    ).axes
    assert [len(axes.lines[0].get_xdata()) for axes in panels] == [0, 1]
    assert [axes.get_xlabel() for axes in panels] == [
        "kept for the backward pass,\nKiB",
        "error, %",
    ]  # long: broken
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["a", "b"]


def test_a_figure_of_steps_says_of_what() -> None:
    layer = {"entropy": [1.0, 0.8], "dead": [0.0, 0.0]}
    curves = {
        "trained": 1,
        "steps": [1, 2],
        "accuracy": [90.0, 91.0],
        "layers": {"class_caps": layer},
    }
    figure = steps_figure("digits", {"1 step": curves})
    assert figure.get_suptitle() == "digits"
    assert [axes.get_title() for axes in figure.axes] == [
        "test accuracy",
        "entropy of the assignment",
    ]


def test_joined_questions_of_all_seeds() -> None:
    row = f"TREC: {words.CNN}"
    seeds = [
        {(row, words.MOST_ACTIVE): accuracy, (row, words.ABOVE): 10.0}
        for accuracy in (60.0, 64.0)
    ]
    first, second = words.pairs(seeds).axes
    assert [list(axes.lines[0].get_xdata()) for axes in (first, second)] == [[62], [10]]
    (spread,) = first.collections[0].get_segments()
    assert (spread[1] - spread[0])[0] == pytest.approx(
        2 * 8**0.5
    )  # the sample's deviation, to both sides


class TestErrorBars:
    LINES = (
        Line("both", TEST_ERROR, 3.0),
        Line("ours alone", TEST_ERROR),
        Line("neither", TEST_ERROR),
        Line("both", "another measure", 7.0),
        Line("published alone", TEST_ERROR, 2.0),
    )

    def test_a_pair_of_bars_for_each_row_that_has_a_figure(self) -> None:
        picture = error_bars(
            self.LINES,
            {("both", TEST_ERROR): 5.0, ("ours alone", TEST_ERROR): 4.0},
            "Title",
        )
        (axes,) = picture.figure.axes
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            "both",
            "ours alone",
            "published alone",
        ]
        widths = {
            bars.get_label(): [patch.get_width() for patch in bars]
            for bars in axes.containers
        }
        assert widths == {"ours": [5.0, 4.0], "published": [3.0, 2.0]}
        centres = {
            bars.get_label(): [round(p.get_y() + p.get_height() / 2) for p in bars]
            for bars in axes.containers
        }
        assert centres == {"ours": [0, 1], "published": [0, 2]}
        assert axes.get_xlabel() == "test error, %"
        assert axes.get_title() == "Title"
        assert picture.caption.startswith("Title")

    def test_nothing_to_show(self) -> None:
        with pytest.raises(ValueError, match="'test error' must have figures"):
            error_bars((), {}, "Title")

    def test_units_that_differ(self) -> None:
        lines = (
            *self.LINES,
            dataclasses.replace(self.LINES[0], row="seconds", unit="s"),
        )
        with pytest.raises(ValueError, match=r"one unit, got units \['%', 's'\]"):
            error_bars(lines, {}, "Title")

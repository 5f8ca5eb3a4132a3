"""The recipe mnist-dynamic and the bars that it shares with others."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipes import Line, run_recipe
from recipes.kit.comparison import error_bars
from recipes.mnist_dynamic import CAPSNET, CNN, PUBLISHED, ROWS, TEST_ERROR, MnistDynamic
from tests.options import made
from torchcaps.losses import MarginLoss, NegativeLogLikelihood

PRESETS = MnistDynamic.presets
job = MnistDynamic().job


def parsed(config: dict[str, Any]) -> Any:
    """The options as ``torchcaps train`` gets them from YAML."""
    return made(yaml.safe_load(yaml.safe_dump({**config, "run": "unused"})))


class TestJob:
    @pytest.mark.parametrize("row", ROWS)
    def test_options_are_those_of_the_row(self, row: str) -> None:
        settings = PRESETS["quick"]
        options = parsed(job(settings, row)[1])
        if row == CNN:
            assert options.model == settings.cnn == "capsnet_small_cnn"
            assert options.routing is None
            assert isinstance(options.loss, NegativeLogLikelihood)
            return
        assert options.model == settings.model == "capsnet_small"
        assert options.routing.steps == (1 if row.startswith("1 step,") else 3)
        assert isinstance(options.loss, MarginLoss)
        assert options.loss.weighting == ("released" if row.endswith("the code") else "paper")
        assert options.reconstruction == 0.0005
        without = "decoder_hidden" in options.model_args and options.model_args["decoder_hidden"] is None
        assert without == row.endswith("no reconstruction")

    def test_names_are_different(self) -> None:
        names = [job(PRESETS["quick"], row)[0] for row in ROWS]
        assert len(set(names)) == len(ROWS)
        assert names[0] == "mnist-dynamic-1-step-no-reconstruction"

    def test_the_paper_preset_trains_300000_steps_with_the_published_rate(self) -> None:
        settings = PRESETS["paper"]
        options = parsed(job(settings, CAPSNET)[1])
        steps = settings.epochs * (60000 // settings.batch_size)
        assert abs(steps - 300_000) < 60000 // settings.batch_size
        assert settings.data["validation"] == 0
        assert options.scheduler_interval == "step"
        assert settings.scheduler["gamma"] ** 2000 == pytest.approx(0.96)
        assert (options.batch_size, options.preprocess.shift, options.model) == (128, 2, "capsnet")
        assert job(settings, CNN)[1]["model"] == "capsnet_cnn"

    def test_the_quick_preset_ends_at_a_twentieth_of_the_rate(self) -> None:
        settings = PRESETS["quick"]
        assert settings.scheduler["gamma"] ** (settings.epochs - 1) == pytest.approx(1 / 20, rel=0.05)

    def test_unknown_row(self) -> None:
        with pytest.raises(ValueError, match=r"row must be one of 1 step, no reconstruction, .*got '2 steps'"):
            job(PRESETS["smoke"], "2 steps")

    def test_every_row_has_a_published_figure(self) -> None:
        assert list(PUBLISHED) == list(ROWS)
        assert CAPSNET in ROWS


def test_smoke(tmp_path: Path) -> None:
    def run() -> dict[str, Any]:
        folders = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
        return run_recipe("mnist-dynamic", "smoke", trainer={"accelerator": "cpu"}, **folders)

    first = run()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/summary.json")}
    assert len(written) == len(PRESETS["smoke"].rows)
    ours = {row["row"]: row["ours"] for row in first["rows"] if row["ours"]}
    assert set(ours) == set(PRESETS["smoke"].rows)
    assert all(0 <= value <= 100 for values in ours.values() for value in values)
    assert ours[CAPSNET][0] < 80  # of ten classes, 90 is chance
    assert (tmp_path / "results" / "mnist-dynamic-smoke-errors.png").stat().st_size > 1000
    again = run()
    assert again["rows"] == first["rows"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/summary.json")} == written


class TestErrorBars:
    LINES = (
        Line("both", TEST_ERROR, 3.0),
        Line("ours alone", TEST_ERROR),
        Line("neither", TEST_ERROR),
        Line("both", "another measure", 7.0),
        Line("published alone", TEST_ERROR, 2.0),
    )

    def test_a_pair_of_bars_for_each_row_that_has_a_figure(self) -> None:
        picture = error_bars(self.LINES, {("both", TEST_ERROR): 5.0, ("ours alone", TEST_ERROR): 4.0}, "Title")
        (axes,) = picture.figure.axes
        assert [label.get_text() for label in axes.get_yticklabels()] == ["both", "ours alone", "published alone"]
        widths = {bars.get_label(): [patch.get_width() for patch in bars] for bars in axes.containers}
        assert widths == {"ours": [5.0, 4.0], "published": [3.0, 2.0]}
        centres = {bars.get_label(): [round(p.get_y() + p.get_height() / 2) for p in bars] for bars in axes.containers}
        assert centres == {"ours": [0, 1], "published": [0, 2]}
        assert axes.get_xlabel() == "test error, %"
        assert axes.get_title() == "Title"
        assert picture.caption.startswith("Title")

    def test_another_measure(self) -> None:
        picture = error_bars(self.LINES, {}, "Title", "Words.", measure="another measure")
        assert [len(bars) for bars in picture.figure.axes[0].containers] == [0, 1]
        assert picture.caption == "Words."

    def test_nothing_to_show(self) -> None:
        with pytest.raises(ValueError, match="'accuracy' must have figures"):
            error_bars(self.LINES, {}, "Title", measure="accuracy")

    def test_units_that_differ(self) -> None:
        lines = (*self.LINES, dataclasses.replace(self.LINES[0], row="seconds", unit="s"))
        with pytest.raises(ValueError, match=r"one unit, got units \['%', 's'\]"):
            error_bars(lines, {}, "Title")

"""The recipes perturb and transfer: what the numbers of a pose change in what is
drawn.
"""

from pathlib import Path

import pytest
import torch

from recipes import Lab, get_recipe
from recipes.perturb import CHANGE, IDLE, OVERLAID, ROWS, Sweep, digits_for, findings
from recipes.transfer import BOTH, TOLD, Transfer, correlation, pairs_of
from torchcaps_lab.data import create_dataset


def test_figures_of_sweeps() -> None:
    def sweep(*change: float) -> Sweep:
        return Sweep(
            torch.tensor(change), torch.zeros(1, 2, 2), torch.zeros(2, 3, 1, 2, 2)
        )

    actual = findings(
        {
            0: sweep(0.25, 4.0),
            3: sweep(0.5, 2.0),
            4: sweep(0.125, 3.0),
        },
        idle=0.5,
    )
    assert actual == {CHANGE: pytest.approx(1.25), IDLE: pytest.approx(100 / 3)}


def test_rows_are_those_with_a_decoder() -> None:
    recipe = get_recipe("mnist-dynamic")
    for row in recipe.rows:
        config = recipe.job(recipe.presets["quick"], row)[1]
        without = config["model_args"].get("decoder_hidden", ()) is None
        assert (row in ROWS) == ("routing" in config and not without)


@pytest.mark.thorough
def test_overlaid_digits_stand_in_the_middle(tmp_path: Path) -> None:
    lab = Lab("smoke", 0, tmp_path, {"accelerator": "cpu"})
    recipe, row = ROWS[OVERLAID]
    trained = get_recipe(recipe).network(lab, row)
    test = digits_for(trained)
    plain = create_dataset("digits").test.inputs
    assert torch.equal(test.inputs[:, :, 4:12, 4:12], plain)
    assert test.inputs.sum() == plain.sum()
    assert test.image_shape == trained.network.image_shape == (1, 16, 16)


def test_pairs_are_of_different_classes() -> None:
    labels = torch.arange(50) % 3
    contents, styles = pairs_of(labels, 20)
    assert len(contents) == len(styles) == 20
    assert (labels[contents] != labels[styles]).all()
    assert len(contents.unique()) == len(styles.unique()) == 20


def test_correlation_leaves_out_what_could_not_be_measured() -> None:
    measured = torch.tensor([1.0, 2.0, torch.nan, 4.0])
    assert correlation(measured, 3 - 2 * measured) == pytest.approx(-1)
    assert correlation(
        measured, torch.tensor([1.0, torch.nan, 9.0, 5.0])
    ) == pytest.approx(1)


@pytest.mark.parametrize("row", TOLD)
def test_networks_differ_in_what_the_decoder_is_told_alone(row: str) -> None:
    options, first = (
        Transfer().options(Transfer.presets["quick"], row_name)
        for row_name in (row, BOTH)
    )
    arguments = options.pop("model_args"), first.pop("model_args")
    assert options == first
    assert arguments[0]["decoder_input"] == TOLD[row]
    free = {"decoder_input": "", "pose_noise": 0}
    assert arguments[0] | free == arguments[1] | free

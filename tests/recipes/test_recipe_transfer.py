"""The recipe transfer: pairs, correlations, the smoke preset."""

import pytest
import torch

from recipes.transfer import BOTH, TOLD, Transfer, correlation, pairs_of


def test_pairs_are_of_different_classes() -> None:
    labels = torch.arange(50) % 3
    contents, styles = pairs_of(labels, 20)
    assert len(contents) == len(styles) == 20
    assert (labels[contents] != labels[styles]).all()
    assert len(contents.unique()) == len(styles.unique()) == 20


def test_correlation_leaves_out_what_could_not_be_measured() -> None:
    one = torch.tensor([1.0, 2.0, torch.nan, 4.0])
    assert correlation(one, 3 - 2 * one) == pytest.approx(-1)
    assert correlation(one, torch.tensor([1.0, torch.nan, 9.0, 5.0])) == pytest.approx(1)


@pytest.mark.parametrize("row", TOLD)
def test_networks_differ_in_what_the_decoder_is_told_alone(row: str) -> None:
    settings = Transfer.presets["quick"]
    options, first = (Transfer().options(settings, one) for one in (row, BOTH))
    arguments = options.pop("model_args"), first.pop("model_args")
    assert options == first
    assert arguments[0]["decoder_input"] == TOLD[row]
    assert {**arguments[0], "decoder_input": "", "pose_noise": 0} == {
        **arguments[1], "decoder_input": "", "pose_noise": 0}  # fmt: skip

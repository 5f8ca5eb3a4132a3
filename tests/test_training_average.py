"""A training whose weights are averaged, as a training option."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.options import typed
from torchcaps_lab.cli import main
from torchcaps_lab.options.declarations import TrainerOptions

TRAIN = [
    "train",
    "--data",
    "Digits",
    "--model",
    "capsnet_digits",
    "--epochs",
    "2",
    "--trainer.accelerator",
    "cpu",
]
SMALL = [
    "--model_args",
    "{channels: 8, types: 2, decoder_hidden: [16], stem: [4]}",
    "--report",
    "false",
]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.thorough
def test_the_average_is_saved_and_a_resumed_training_ends_with_the_same(
    tmp_path: Path,
) -> None:
    average = ["--trainer.average", "0.9"]
    runs = {name: tmp_path / name for name in ("whole", "resumed", "plain")}
    assert main([*TRAIN, *SMALL, *average, "--run", str(runs["whole"])]) == 0
    assert main([*TRAIN, *SMALL, "--run", str(runs["plain"])]) == 0
    assert any(
        not torch.equal(tensor, weights(runs["plain"])[name])
        for name, tensor in weights(runs["whole"]).items()
    )
    assert (
        main([*TRAIN, *SMALL, *average, "--epochs", "1", "--run", str(runs["resumed"])])
        == 0
    )
    (runs["resumed"] / "summary.json").unlink()
    assert main(["train", "--resume", str(runs["resumed"]), "--epochs", "2"]) == 0
    for name, tensor in weights(runs["whole"]).items():
        torch.testing.assert_close(
            weights(runs["resumed"])[name], tensor, rtol=0, atol=0, msg=name
        )


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_shares_out_of_range(share: float) -> None:
    with pytest.raises(
        ValueError, match="average must be a share between 0 and 1, got"
    ):
        TrainerOptions(average=share)


def test_is_an_option_of_the_command_line() -> None:
    assert (
        typed("--data", "Digits", "--trainer.average", "0.9").plain()["trainer"][
            "average"
        ]
        == 0.9
    )

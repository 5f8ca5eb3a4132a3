"""``--lr find``: the rate is found before the training, the same each time, and kept as
an option of the run.
"""

import pytest
import torch

import torchcaps as tc
from tests.options import made, typed
from tests.runs import TRAIN, rows, status
from torchcaps_lab.options.reading import read_options
from torchcaps_lab.training import rate
from torchcaps_lab.training.options import Optimisation


@pytest.mark.thorough
def test_a_run_with_the_rate_that_was_found_is_the_run_that_found_it(tmp_path, capsys):
    assert status(*TRAIN, "--lr", "find", "--run", str(tmp_path / "found")) == 0
    found_rate = read_options(tmp_path / "found" / "config.yaml")["lr"]
    assert f"lr {found_rate} was found" in capsys.readouterr().out
    assert (
        status(*TRAIN, "--lr", str(found_rate), "--run", str(tmp_path / "given")) == 0
    )
    first, second = (
        tc.load_pretrained(tmp_path / name / "model").state_dict()
        for name in ("found", "given")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert status("train", "--resume", str(tmp_path / "found"), "--epochs", "2") == 0
    assert "was found" not in capsys.readouterr().out
    assert read_options(tmp_path / "found" / "config.yaml")["lr"] == found_rate


def test_batches_that_have_no_loss_do_not_end_the_search(monkeypatch):
    """The mean of five losses is least in the steps 60 to 64, of which the middle is 62."""
    losses = [0.0, *[1.0] * 59, *[0.2] * 5, *[1.0] * 35]
    monkeypatch.setattr(rate, "with_gradients", lambda *_: torch.tensor(losses.pop(0)))
    found_rate = rate.find_rate(*typed(*TRAIN[1:]).make())
    assert found_rate == pytest.approx(10 ** (6 * 62 / 99 - 6) / 10, rel=0.05)


@pytest.mark.thorough
def test_the_loss_falls_farther_with_it_than_with_the_default_and_with_a_rate_a_hundred_times_as_large(
    tmp_path,
):
    groups = typed(*TRAIN[1:], "--batch_size", "32").make()
    found_rate = rate.find_rate(*groups)
    assert found_rate == rate.find_rate(*groups)

    def loss_with(*options: str) -> float:
        run = tmp_path / f"run{options}"
        assert status(*TRAIN, "--batch_size", "32", *options, "--run", str(run)) == 0
        return float(rows(run)[-1]["train_loss"])

    default = loss_with()
    assert (
        loss_with("--lr", str(found_rate))
        < default
        < loss_with("--lr", str(100 * found_rate))
    )


def test_it_is_the_rate_of_the_optimizer_and_the_peak_of_its_schedule():
    actual = made(
        {
            "data": "Digits",
            "lr": 0.02,
            "scheduler": {"name": "OneCycleLR", "max_lr": 1.0},
        }
    )
    assert (
        actual.optimizer([torch.zeros(1, requires_grad=True)]).param_groups[0]["lr"]
        == 0.02
    )
    assert actual.scheduler.keywords["max_lr"] == 0.02


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
def test_a_rate_is_above_0(wrong):
    with pytest.raises(ValueError, match="lr must be"):
        Optimisation(optimizer=torch.optim.Adam, lr=wrong)

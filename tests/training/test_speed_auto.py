"""How a training is made faster is chosen by measurement, and changes nothing else."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.options import made, typed
from torchcaps import create_model
from torchcaps.data import Digits, ImageSet
from torchcaps.training import Learner, Optimisation, Schedule, Speed, TrainerOptions, fit, trial
from torchcaps.training.trial import BUDGET, ChooseSpeed, Trial

SCHEDULE = Schedule(epochs=1, batch_size=8)
EXACT = TrainerOptions(accelerator="cpu", precision="64-true")


class Clock:
    """Gives each step of a trial, forward and backward, the seconds that its layout shall take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.now, self.steps, self.seconds = 0.0, 0, seconds
        ready = Trial._ready

        def slow(trial: Trial, speed: Speed) -> Any:
            step, kind = ready(trial, speed), "compile" if speed.compile else "last" if speed.channels_last else "plain"

            def timed() -> None:
                step()
                self.steps += 1
                self.now += self.seconds[kind]

            return timed

        monkeypatch.setattr(Trial, "_ready", slow)
        monkeypatch.setattr(trial, "time", self)

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter


@pytest.fixture
def images() -> ImageSet:
    few = Digits().train.subset(torch.arange(24))
    return ImageSet(torch.cat([few.images, 255 - few.images], 1), few.labels, few.classes)


def learner(speed: Speed) -> Learner:
    torch.manual_seed(0)
    network = create_model("capsnet_digits", image_shape=(2, 8, 8), channels=4, types=2, decoder_hidden=(8,))
    return Learner(network, Optimisation(optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9)), speed=speed)


def trained(images: ImageSet, speed: Speed, folder: Path, epochs: int = 1) -> tuple[list[dict[str, float]], Learner]:
    one = learner(speed)
    _, rows = fit(one, images, images, folder, Schedule(epochs=epochs, batch_size=8), EXACT)
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows], one


@pytest.mark.parametrize(("last", "chosen"), [(0.8, True), (0.99, False), (1.5, False)])
def test_what_is_clearly_quicker_is_chosen_and_changes_nothing_else(
    last: float, chosen: bool, images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, plain=1.0, last=last)
    rows, one = trained(images, Speed(auto=True), tmp_path / "auto")
    found = json.loads((tmp_path / "auto" / "speed.json").read_text())
    assert found["channels_last"] is one.speed.channels_last is chosen
    assert found["step_milliseconds"] == pytest.approx({"plain": 1e3, "channels_last": 1e3 * last})
    expected, other = trained(images, Speed(channels_last=chosen), tmp_path / "told")
    assert rows == expected
    assert all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))


def test_a_resumed_training_goes_on_with_what_was_chosen(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, plain=1.0, last=0.5)
    trained(images, Speed(auto=True), tmp_path)
    steps, clock.seconds["last"] = clock.steps, 2.0
    _, resumed = trained(images, Speed(auto=True), tmp_path, epochs=2)
    assert resumed.speed == Speed(channels_last=True)
    assert clock.steps == steps
    (tmp_path / "speed.json").write_text('{"channels_last": 1}')
    with pytest.raises(ValueError, match=r"speed\.json is damaged"):
        trained(images, Speed(auto=True), tmp_path, epochs=3)


class TestTrial:
    @pytest.fixture
    def trial(self, images: ImageSet) -> Trial:
        import lightning

        one = learner(Speed(auto=True))
        trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        return Trial(one, images.__getitems__(list(range(8))), trainer)

    def test_time_is_bounded(self, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = Clock(monkeypatch, plain=8.0, last=8.0)
        trial.end = end = BUDGET
        trial.now = clock.perf_counter
        trial.quickest(steps=1)
        assert clock.steps == 4  # two rounds: after the first one there were four seconds left
        assert clock.now <= end + 16

    def test_compiling_is_tried_where_it_can_pay(self, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
        modes: list[str] = []
        monkeypatch.setattr(torch, "compile", lambda run, mode: modes.append(mode) or run)
        clock = Clock(monkeypatch, plain=1.0, last=2.0, compile=0.5)
        trial.now = clock.perf_counter
        assert trial.quickest(steps=1799) == Speed()
        assert not modes
        assert trial.quickest(steps=1800) == Speed(compile="default")
        assert modes == ["default"]

    def test_a_missing_compiler_is_no_end(self, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(run: Any, mode: str) -> Any:
            raise RuntimeError("no compiler")

        monkeypatch.setattr(torch, "compile", missing)
        clock = Clock(monkeypatch, plain=1.0, last=0.5)
        trial.now = clock.perf_counter
        assert trial.quickest(steps=10**6) == Speed(channels_last=True)

    def test_nothing_of_the_training_is_touched(self, trial: Trial) -> None:
        before, state = copy.deepcopy(trial.learner.state_dict()), torch.get_rng_state()
        trial.quickest(steps=1)
        assert all(map(torch.equal, trial.learner.state_dict().values(), before.values()))
        assert all(weight.grad is None for weight in trial.learner.parameters())
        assert trial.learner.model.conv.weight.is_contiguous()
        assert torch.equal(torch.get_rng_state(), state)


def test_random_numbers_of_the_network_are_given_back(images: ImageSet, tmp_path: Path) -> None:
    class Trainer:
        world_size, strategy = 1, type("Strategy", (), {"root_device": torch.device("cpu")})
        precision_plugin = __import__("lightning").pytorch.plugins.Precision()

    torch.manual_seed(0)
    network = create_model("capsnet_small_cnn", image_shape=(2, 8, 8), channels=(2, 2, 2), hidden=(4, 4))  # dropout
    one = Learner(network, Optimisation(optimizer=torch.optim.Adam), speed=Speed(auto=True))
    state = torch.get_rng_state()
    trainer: Any = Trainer
    ChooseSpeed(tmp_path / "speed.json", images, SCHEDULE)._choose(trainer, one)
    assert torch.equal(torch.get_rng_state(), state)


class TestFused:
    @pytest.mark.parametrize("name", ["AdamW", "SGD"])
    def test_steps_are_the_same(self, name: str, images: ImageSet, tmp_path: Path) -> None:
        found = []
        for fused in (True, False):
            one = learner(Speed(fused=fused))
            one.optimisation.optimizer = partial(getattr(torch.optim, name), lr=0.01, weight_decay=0.1)
            trainer, _ = fit(one, images, images, tmp_path / str(fused), SCHEDULE, EXACT)
            assert bool(trainer.optimizers[0].param_groups[0]["fused"]) is fused
            found.append(one.model.state_dict())
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("told", [{"foreach": True}, {"fused": False}, {"differentiable": True}])
    def test_what_was_told_stays(self, told: dict[str, bool]) -> None:
        optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], **told)
        Speed().fuse(optimizer)
        assert not optimizer.param_groups[0]["fused"]

    def test_other_optimizers_are_left_alone(self) -> None:
        optimizer = torch.optim.RMSprop([torch.zeros(2, requires_grad=True)])
        Speed().fuse(optimizer)
        assert "fused" not in optimizer.param_groups[0]

    def test_moments_in_another_order_are_laid_out_like_their_weights(self, images: ImageSet, tmp_path: Path) -> None:
        """The kernel takes all tensors as they lie in memory."""
        ends = []
        for last in (False, True):
            one, folder = learner(Speed(channels_last=True)), tmp_path / str(last)
            one.optimisation.optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
            fit(one, images, images, folder, SCHEDULE, EXACT)
            other = learner(Speed(channels_last=last))
            fit(other, images, images, folder, Schedule(epochs=2, batch_size=8), EXACT)
            ends.append(other.model.state_dict())
        torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)


def test_command_line() -> None:
    parsed = typed("--data", "Digits", "--speed.auto", "true", "--speed.fused", "false")
    assert made(parsed.plain()).speed == Speed(auto=True, fused=False)

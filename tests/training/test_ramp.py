"""Settings of the routing that change over a training: a function of the epoch alone,
recorded, and saved.
"""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import Callback

from tests.runs import CPU, FEW, TRAIN
from torchcaps import create_model, create_routing, load_pretrained
from torchcaps.numerics import Progress, Ramp
from torchcaps_lab.cli import main
from torchcaps_lab.options.declarations import Schedule
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.options import Caller, Optimisation
from torchcaps_lab.training.ramp import Ramps
from torchcaps_lab.training.speed import Speed

EPOCHS = 3
VALUES = [0.5, 1.25, 2.0]


def learner(
    ramp: dict[str, Any] | None, routing: str = "kmeans", speed: Speed | None = None
) -> Learner:
    """A small network with that routing."""
    torch.manual_seed(0)
    model = create_model(
        "capsnet_digits",
        channels=4,
        types=2,
        decoder_hidden=None,
        routing=create_routing(routing, steps=2),
    )
    return Learner(
        model,
        Optimisation(optimizer=partial(torch.optim.Adam, lr=0.01), ramp=ramp),
        speed=speed,
    )


class Seen(Callback):
    """Notes the sharpness in the batches of each epoch, and may stop the training
    there.
    """

    def __init__(self, stop_in: int | None = None) -> None:
        self.stop_in = stop_in
        self.values: dict[int, float] = {}

    def on_train_batch_start(
        self, trainer: L.Trainer, module: Any, batch: Any, number: int
    ) -> None:
        if trainer.current_epoch == self.stop_in:
            raise KeyError
        self.values[trainer.current_epoch] = module.model.routing.sharpness


def fitted(folder: Path, seen: Seen, ramp: dict[str, Any] | None) -> Fitting:
    """A training in that folder, begun or continued."""
    schedule = Schedule(epochs=EPOCHS, batch_size=32)
    training = Fitting(
        learner(ramp), FEW, FEW, folder, schedule, CPU, Caller(callbacks=[seen])
    )
    training.run()
    return training


class TestRamp:
    def test_it_is_even_from_the_first_epoch_to_the_last(self) -> None:
        values = torch.tensor(
            [Ramp(3, -5).at(Progress(epoch, 9)) for epoch in range(9)]
        )
        torch.testing.assert_close(values, torch.linspace(3, -5, 9))
        assert [Ramp(0.1, 0.7).at(Progress(epoch, 5)) for epoch in (0, 4, 5, 99)] == [
            0.1,
            0.7,
            0.7,
            0.7,
        ]

    def test_one_epoch_has_the_first_value(self) -> None:
        assert Ramp(2, 3).at(Progress(0, 1)) == 2


class TestTraining:
    def test_each_epoch_has_its_value(self, tmp_path: Path) -> None:
        seen = Seen()
        training = fitted(tmp_path, seen, {"sharpness": (0.5, 2.0)})
        assert [*seen.values.values()] == VALUES
        assert training.take_best()["epoch"] == EPOCHS
        assert training.learner.model.routing.sharpness == 2.0

    def test_a_resumed_training_is_the_same(self, tmp_path: Path) -> None:
        ramp = {"sharpness": (0.5, 2.0)}
        unbroken = fitted(tmp_path / "whole", Seen(), ramp).learner.model.state_dict()
        with pytest.raises(KeyError):
            fitted(tmp_path / "parts", Seen(stop_in=1), ramp)
        seen = Seen()
        resumed = fitted(tmp_path / "parts", seen, ramp).learner.model.state_dict()
        assert seen.values == {1: VALUES[1], 2: VALUES[2]}
        constant = fitted(
            tmp_path / "constant", Seen(), None
        ).learner.model.state_dict()
        assert all(
            torch.equal(weight, resumed[name]) for name, weight in unbroken.items()
        )
        assert any(
            not torch.equal(weight, constant[name]) for name, weight in unbroken.items()
        )

    def test_the_epoch_that_is_kept_has_its_own_value(self, tmp_path: Path) -> None:
        training = fitted(tmp_path, Seen(), {"sharpness": (0.5, 2.0)})
        training.history.rows = training.history.rows[:2]
        assert training.take_best()["epoch"] == 2
        assert training.learner.model.routing.sharpness == VALUES[1]

    def test_it_is_recorded_and_saved_at_its_final_value(self, tmp_path: Path) -> None:
        routing = [
            "--routing",
            "kmeans",
            "--routing.steps",
            "2",
            "--ramp",
            "{sharpness: [0.5, 2.0]}",
        ]
        assert (
            main([*TRAIN, "--run", str(tmp_path / "run"), *routing, "--epochs", "2"])
            == 0
        )
        assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())[
            "ramp"
        ] == {"sharpness": [0.5, 2.0]}
        assert load_pretrained(tmp_path / "run" / "model").routing.sharpness == 2.0
        assert main(["train", "--resume", str(tmp_path / "run"), "--epochs", "3"]) == 0
        assert load_pretrained(tmp_path / "run" / "model").routing.sharpness == 2.0


class TestRefused:
    @pytest.mark.parametrize("name", ["steepness", "steps", "evidence", "squash"])
    def test_what_is_no_number_of_the_routing(self, name: str) -> None:
        with pytest.raises(
            ValueError,
            match=f"ramp must name a number .*'{name}' for InnerProductKMeansRouting",
        ):
            learner({name: (1, 2)})

    def test_values_out_of_range(self) -> None:
        with pytest.raises(ValueError, match=r"ramp\.variance_floor must be "):
            learner({"variance_floor": (0.0, 1.0)}, "em")

    def test_compiled_steps(self) -> None:
        with pytest.raises(
            ValueError, match=r"ramp cannot be combined with speed\.compile"
        ):
            learner({"sharpness": (1, 2)}, speed=Speed(compile="default"))


def test_all_layers_with_the_setting_follow() -> None:
    network = create_model("matrixcapsnet_small", image_shape=(1, 28, 28), classes=5)
    Ramps(network, {"inverse_temperature": (0.1, 1.0)}).set(Progress(9, 10))
    config = network.config()
    assert [
        config[name]["inverse_temperature"] for name in ("routing", "class_routing")
    ] == [1.0, 1.0]

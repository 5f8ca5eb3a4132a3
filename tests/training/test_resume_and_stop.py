"""A run goes on with what it was started with; it stops at NaN, with its name. Which
epoch is kept.
"""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, StepLR
from torch.optim.swa_utils import AveragedModel

import torchcaps as tc
from tests.runs import CPU, FEW, TINY, TRAIN, learner, summary
from torchcaps.losses import MarginLoss
from torchcaps.models import create_model
from torchcaps_lab.cli import main
from torchcaps_lab.data import Digits, Examples
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.options.reading import read_options
from torchcaps_lab.tasks import Criteria, Measure
from torchcaps_lab.training.callbacks import History, StopEarly
from torchcaps_lab.training.checkpoints import differences, newest_checkpoint
from torchcaps_lab.training.diverged import TrainingDiverged, first_not_finite
from torchcaps_lab.training.fitting import Fitting, rehearse
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.options import Caller, Optimisation, moving_average


def trained(
    folder: Path,
    images: Examples = FEW,
    caller: Caller | None = None,
    **schedule: object,
) -> list[dict]:
    how = Schedule(**{"epochs": 1, "batch_size": 16, **schedule})
    return Fitting(learner(), images, images, folder, how, CPU, caller).run()[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resumed")
    trained(folder)
    return folder


class TestResume:
    def replaced(self) -> Examples:
        images = FEW.inputs.clone()
        images[3] = 255 - images[3]
        return Examples(images, FEW.labels, FEW.classes)

    def test_what_differs_is_named(self, folder: Path) -> None:
        swapped = Examples(FEW.inputs, FEW.labels, ("one", "zero", *FEW.classes[2:]))
        for changes, message in [
            ({"seed": 1}, "seed was 0, is 1"),
            ({"batch_size": 32}, "batch_size was 16, is 32"),
            (
                {"images": FEW.subset(torch.arange(60))},
                "images were 64 train, 64 validation, are 60 train",
            ),
            ({"images": self.replaced()}, "the images or their labels are others"),
            ({"images": swapped}, "classes were 0, 1, .*are one, zero"),
        ]:
            with pytest.raises(ValueError, match=rf"(?s){message}.*--allow_changes"):
                trained(folder, **changes)

    def test_is_allowed_by_name(self, folder: Path, tmp_path: Path) -> None:
        trained(tmp_path)
        with pytest.warns(
            UserWarning, match="continues with changes: seed was 0, is 1"
        ):
            assert (
                len(
                    trained(
                        tmp_path, caller=Caller(allow_changes=True), seed=1, epochs=2
                    )
                )
                == 2
            )

    def test_fewer_epochs_than_are_done_are_told(self, tmp_path: Path) -> None:
        trained(tmp_path, epochs=2)
        with pytest.raises(
            ValueError,
            match="epochs must be 2 or more, as many as are done already, got 1",
        ):
            trained(tmp_path, epochs=1)

    def test_more_epochs_need_no_word(self, tmp_path: Path) -> None:
        trained(tmp_path)
        assert len(trained(tmp_path, epochs=2)) == 2

    def test_a_checkpoint_without_its_options_is_refused(self, tmp_path: Path) -> None:
        trained(tmp_path)
        checkpoint = newest_checkpoint(tmp_path / "checkpoints")
        content = torch.load(checkpoint, weights_only=True)
        del content["callbacks"]["Fingerprint"]
        torch.save(content, checkpoint)
        with pytest.raises(ValueError, match="must hold the options and the digests"):
            trained(tmp_path, epochs=2)

    def test_on_the_command_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture
    ) -> None:
        run = tmp_path / "run"
        assert main([*TRAIN, "--run", str(run)]) == 0
        resume = ["train", "--resume", str(run), "--epochs", "2"]
        changes = ["--optimizer.lr", "0.01", "--data.validation", "0.2"]
        assert main([*resume, *changes]) == 1
        error = capsys.readouterr().err
        for message in (
            "data.validation was 0.1, is 0.2",
            "optimizer.lr was 0.001, is 0.01",
            "images were 1295 train",
        ):
            assert message in error
        assert main([*resume, "--data.seed", "3"]) == 1
        assert "data.seed was 0, is 3" in capsys.readouterr().err
        other = ["--allow_changes", "--optimizer", "SGD", "--optimizer.lr", "0.1"]
        with pytest.warns(UserWarning, match="optimizer was Adam, is SGD"):
            assert main([*resume, *other]) == 1
        assert "optimizer was Adam, is SGD" in capsys.readouterr().err
        assert read_options(run / "config.yaml")["optimizer"]["name"] == "Adam"
        assert summary(run)["epochs"] == 1
        with pytest.warns(
            UserWarning,
            match=r"continues with changes: .*optimizer\.lr was 0\.001, is 0\.01",
        ):
            assert main([*resume, "--allow_changes", *changes]) == 0
        assert summary(run)["epochs"] == 2
        assert summary(run)["last_epoch"]["learning_rate"] == 0.01
        assert (
            main(["train", "--resume", str(run)]) == 0
        )  # the options of the run are the new ones now

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({"lr": 0.01}, {"lr": 0.001}),
            ({"optimizer": Adam}, {"optimizer": partial(AdamW, weight_decay=0.1)}),
            ({"scheduler": partial(ExponentialLR, gamma=0.5)}, {}),
            ({}, {"scheduler": partial(ExponentialLR, gamma=0.5)}),
            (
                {"scheduler": partial(ExponentialLR, gamma=0.9)},
                {"scheduler": partial(StepLR, step_size=1, gamma=0.1)},
            ),
            (
                {"scheduler": partial(OneCycleLR, max_lr=0.01, total_steps=None)},
                {"scheduler": partial(OneCycleLR, max_lr=0.0001, total_steps=None)},
            ),
        ],
    )
    def test_changed_settings_of_the_optimizer_are_used(
        self, tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        def settings(folder: Path, options: dict[str, Any], epochs: int) -> list[Any]:
            optimisation = Optimisation(**{"optimizer": Adam, **options})
            caller = Caller(options={"optimizer": repr(options)}, allow_changes=True)
            network = create_model("capsnet_digits", **TINY)
            how = Schedule(epochs=epochs, batch_size=16)
            fitting = Fitting(
                Learner(network, optimisation), FEW, FEW, folder, how, CPU, caller
            )
            rows = fitting.run()[1]
            (group,) = fitting.trainer.optimizers[0].param_groups
            return [rows[-1]["learning_rate"], group["weight_decay"]]

        settings(tmp_path / "resumed", before, 1)
        with pytest.warns(UserWarning, match="continues with changes: optimizer"):
            resumed = settings(tmp_path / "resumed", after, 3)
        assert resumed == settings(tmp_path / "whole", after, 3)

    @pytest.mark.thorough
    def test_a_longer_training_goes_on_after_a_kill(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The defect: config.yaml kept the old number of epochs, and --resume ended
        there, or refused to.
        """

        def ctrl_c(learner: Learner) -> None:
            raise KeyboardInterrupt

        run = tmp_path / "run"
        assert main([*TRAIN, "--run", str(run)]) == 0
        with monkeypatch.context() as killed:
            killed.setattr(Learner, "on_train_epoch_start", ctrl_c)
            assert main(["train", "--resume", str(run), "--epochs", "3"]) == 130
        assert (
            main(["train", "--resume", str(run), "--optimizer.lr", "1"]) == 1
        )  # refused, and not kept
        assert main(["train", "--resume", str(run)]) == 0
        assert summary(run)["epochs"] == 3

    @pytest.mark.parametrize(
        ("was", "now", "expected"),
        [
            (
                {"scheduler": None},
                {"scheduler": {"name": "B"}},
                ["scheduler was None, is B"],
            ),
            ({"loss": {"name": "B"}}, {"loss": {"name": "C"}}, ["loss was B, is C"]),
            (
                {"model_args": {"a": 1}},
                {"model_args": {"a": 2}},
                ["model_args.a was 1, is 2"],
            ),
            (
                {"model_args": {}},
                {"model_args": {"b": 1}},
                ["model_args.b was None, is 1"],
            ),
            (
                {"trainer": {"precision": "1"}},
                {"trainer": {"precision": "2"}},
                ["trainer.precision was 1, is 2"],
            ),
            (
                {"trainer": {"devices": 1}, "run": "a"},
                {"trainer": {"devices": 2}, "run": "b"},
                [],
            ),
            (
                {"preprocess": {"shift": 1}},
                {"preprocess": {"shift": 1, "new": 3}, "newer": 4},
                [],
            ),
            ({"data": {"root": "a"}}, {"data": {"root": "b"}}, []),
        ],
    )
    def test_comparison(self, was: dict, now: dict, expected: list[str]) -> None:
        unchanged = {"classes": [], "images": {}, "data": "x"}
        assert (
            differences({"options": was, **unchanged}, {"options": now, **unchanged})
            == expected
        )


class TestOptions:
    """What the help offers: it works, or is told before anything is written."""

    @pytest.mark.parametrize(
        "options",
        [
            ["--optimizer", "LBFGS", "--routing", "mean"],  # makes its steps itself
            pytest.param(
                ["--scheduler", "ReduceLROnPlateau"], marks=pytest.mark.thorough
            ),
            [
                "--scheduler",
                "ReduceLROnPlateau",
                "--data.validation",
                "0",
                "--scheduler_interval",
                "step",
            ],
            pytest.param(
                ["--trainer.precision", "64-true"], marks=pytest.mark.thorough
            ),
            ["--trainer.precision", "bf16-true"],
        ],
        ids=lambda options: "-".join(options[1::2]),
    )
    def test_works(self, options: list[str], tmp_path: Path) -> None:
        run = tmp_path / "run"
        assert main([*TRAIN, "--run", str(run), "--batch_size", "700", *options]) == 0
        assert 0 <= summary(run)["test_accuracy"] <= 1

    @pytest.mark.parametrize(
        "options", [{}, {"capturable": True}], ids=["step", "only on a GPU"]
    )
    def test_a_rehearsal_changes_nothing(self, options: dict[str, bool]) -> None:
        rehearsed = learner()
        rehearsed.optimisation.optimizer = partial(torch.optim.Adam, lr=1.0, **options)
        before = {
            name: tensor.clone() for name, tensor in rehearsed.state_dict().items()
        }
        state = torch.get_rng_state()
        rehearse(rehearsed, FEW, steps=4, epochs=1)
        assert all(
            torch.equal(before[name], tensor)
            for name, tensor in rehearsed.state_dict().items()
        )
        assert all(weight.grad is None for weight in rehearsed.parameters())
        assert torch.equal(state, torch.get_rng_state())

    def test_a_scheduler_that_watches_lowers_the_rate(self, tmp_path: Path) -> None:
        trained = learner()
        trained.optimisation.scheduler = partial(
            torch.optim.lr_scheduler.ReduceLROnPlateau,
            patience=0,
            threshold=1e9,
            threshold_mode="abs",
        )
        trainer, _ = Fitting(
            trained, FEW, FEW, tmp_path, Schedule(epochs=4, batch_size=16), CPU
        ).run()
        assert trainer.optimizers[0].param_groups[0]["lr"] < 1e-3

    @pytest.mark.parametrize(
        ("steps", "notes"),
        [
            (3, ["max_steps 3 ends the training in the middle of epoch 1, of 4 steps"]),
            (4, []),
        ],
    )
    def test_a_training_that_ends_inside_an_epoch_is_noted(
        self, steps: int, notes: list[str], tmp_path: Path
    ) -> None:
        trainer = TrainerOptions(accelerator="cpu", extra={"max_steps": steps})
        assert (
            Fitting(
                learner(),
                FEW,
                FEW,
                tmp_path,
                Schedule(epochs=2, batch_size=16),
                trainer,
            ).notes()
            == notes
        )

    def test_an_average_forgets_where_it_began(self) -> None:
        """Running variances begin at 1, however small those of the features are."""
        norm = torch.nn.BatchNorm1d(3)
        averaged = AveragedModel(norm, avg_fn=moving_average(0.99), use_buffers=True)
        averaged.update_parameters(norm)
        torch.nn.init.constant_(norm.running_var, 1e-3)
        for _ in range(60):
            averaged.update_parameters(norm)
        torch.testing.assert_close(
            averaged.module.running_var, norm.running_var, rtol=1e-3, atol=0
        )
        assert moving_average(0.99)(*torch.tensor([1.0, 2.0, 2000.0])) == pytest.approx(
            1.01
        )

    def test_without_test_images_nothing_is_tested(
        self, tmp_path: Path, capsys: pytest.CaptureFixture
    ) -> None:
        for number in range(8):
            (tmp_path / "data" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(Digits().test.inputs[number, 0].numpy())
            image.save(tmp_path / "data" / "ab"[number % 2] / f"{number}.png")
        options = [
            "--data",
            "ImageFolder",
            "--data.root",
            str(tmp_path / "data"),
            "--data.test",
            "0",
        ]
        assert (
            main(
                [
                    *TRAIN,
                    *options,
                    "--data.validation",
                    "0",
                    "--run",
                    str(tmp_path / "run"),
                    "--report",
                    "true",
                ]
            )
            == 0
        )
        output = capsys.readouterr().out
        assert "note: there are no test images: nothing is tested" in output
        assert "\nafter 1 epoch\n" in output
        actual = summary(tmp_path / "run")
        assert "test_accuracy" not in actual
        assert tc.load_pretrained(tmp_path / "run" / "model").image_shape == (1, 8, 8)


class TestWhatTheNetworkDraws:
    """Noise, as dropout, is that of the seed, the epoch and the batch, whatever else
    draws in between.
    """

    @staticmethod
    def weights(folder: Path, epochs: int, **extra: object) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = create_model(
            "capsnet_digits", channels=4, types=2, decoder_input="pose", pose_noise=1.0
        )
        trained = Learner(
            model,
            Optimisation(
                optimizer=partial(torch.optim.Adam, lr=1e-2), reconstruction=1.0
            ),
        )
        Fitting(
            trained,
            FEW,
            FEW,
            folder,
            Schedule(epochs=epochs, batch_size=16),
            TrainerOptions("cpu", extra=extra),
        ).run()
        return model.state_dict()

    def test_it_is_the_same_after_an_interruption(self, tmp_path: Path) -> None:
        expected = self.weights(tmp_path / "whole", 2)
        self.weights(tmp_path / "resumed", 1)
        resumed = self.weights(tmp_path / "resumed", 2)
        assert all(torch.equal(expected[name], resumed[name]) for name in expected)

    def test_it_is_the_same_when_validation_is_in_mid_epoch(
        self, tmp_path: Path
    ) -> None:
        expected = self.weights(tmp_path / "end", 1)
        halved = self.weights(tmp_path / "middle", 1, val_check_interval=0.5)
        assert all(torch.equal(expected[name], halved[name]) for name in expected)


class SickAfter(MarginLoss):
    """NaN from a step on."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.now = step, 0

    def advance(self, epoch: int, epochs: int, step: int) -> None:
        self.now = step

    def forward(self, activation: Tensor, target: Tensor) -> Tensor:
        return super().forward(activation, target) * (
            torch.nan if self.now >= self.step else 1
        )


class Stopped(MarginLoss):
    """Somebody presses Ctrl-C."""

    def forward(self, activation: Tensor, target: Tensor) -> Tensor:
        raise KeyboardInterrupt


class Terminated(MarginLoss):
    """A time limit is over."""

    def forward(self, activation: Tensor, target: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(activation, target)


def test_a_terminated_training_is_no_success(tmp_path: Path) -> None:
    how = Schedule(epochs=1, batch_size=16)
    with pytest.raises(SystemExit) as ended:
        Fitting(learner(Terminated()), FEW, FEW, tmp_path, how, CPU).run()
    assert ended.value.code == 128 + signal.SIGTERM


def test_ctrl_c_in_a_training_is_ctrl_c(tmp_path: Path) -> None:
    listening = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            Fitting(
                learner(Stopped()),
                FEW,
                FEW,
                tmp_path,
                Schedule(epochs=1, batch_size=16),
                CPU,
            ).run()
        assert (
            signal.getsignal(signal.SIGINT) == listening
        )  # a notebook goes on, and can be stopped again
    finally:
        signal.signal(signal.SIGINT, listening)


def test_a_stopped_run_is_told_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(fitting: Fitting) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Fitting, "run", stopped)
    run = str(tmp_path / "run")
    assert main([*TRAIN, "--run", run, "--import", "json"]) == 130
    assert capsys.readouterr().err.startswith(
        f"stopped; continue with: torchcaps train --resume {run} --import json\n"
    )
    again = [
        "train",
        "--resume",
        run,
        "--import",
        "json",
        "--epochs",
        "2",
    ]  # its config.yaml has 1 epoch
    assert main(again) == 130
    assert f"continue with: torchcaps {' '.join(again)}\n" in capsys.readouterr().err


class TestDiverged:
    def test_the_last_good_checkpoint_stays(self, tmp_path: Path) -> None:
        with pytest.raises(
            TrainingDiverged, match="since epoch 2, step 3: class_loss is nan"
        ):
            Fitting(
                learner(SickAfter(6)),
                FEW,
                FEW,
                tmp_path,
                Schedule(epochs=3, batch_size=16),
                CPU,
            ).run()
        (checkpoint,) = (tmp_path / "checkpoints").iterdir()
        assert torch.load(checkpoint, weights_only=True)["epoch"] == 0

    def test_the_layer_is_named(self, tmp_path: Path) -> None:
        sick = learner()
        sick.model.class_caps.register_forward_hook(
            lambda module, inputs, output: output._replace(
                activation=output.activation * torch.nan
            )
        )
        with pytest.raises(
            TrainingDiverged,
            match=r"epoch 1, step 1: layer class_caps \(\w+\) is the first",
        ):
            Fitting(sick, FEW, FEW, tmp_path, Schedule(batch_size=16), CPU).run()

    def test_weights_are_named(self) -> None:
        sick = learner()
        with torch.no_grad():
            sick.model.conv.weight[0, 0, 0, 0] = torch.nan
        message = first_not_finite(
            sick.model, sick.task, FEW[0], Criteria(sick.loss, sick.reconstruction)
        )
        assert message == "weights are not finite since a step before: conv.weight"

    def test_weights_of_the_last_step_are_not_kept(self, tmp_path: Path) -> None:
        with pytest.raises(
            TrainingDiverged,
            match=r"weights are not finite after epoch 1: conv\.weight",
        ):
            Fitting(
                learner(lr=torch.inf), FEW, FEW, tmp_path, Schedule(batch_size=64), CPU
            ).run()
        assert newest_checkpoint(tmp_path / "checkpoints") is None

    def test_weights_too_large_for_the_next_step_are_not_kept(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(
            TrainingDiverged, match="validation loss is nan after epoch"
        ):
            Fitting(
                learner(lr=1e10), FEW, FEW, tmp_path, Schedule(batch_size=64), CPU
            ).run()
        assert newest_checkpoint(tmp_path / "checkpoints") is None

    def test_exit_status(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        assert (
            main(
                [
                    *TRAIN,
                    "--optimizer",
                    "SGD",
                    "--optimizer.lr",
                    "1e30",
                    "--run",
                    str(tmp_path / "run"),
                ]
            )
            == 1
        )
        assert "not finite" in capsys.readouterr().err


class TestEnd:
    """By the validation: stopping early, and the best epoch."""

    def falling(self) -> Examples:
        """Labels at random: the validation gets no better."""
        labels = torch.randint(10, (64,), generator=torch.Generator().manual_seed(1))
        return Examples(FEW.inputs, labels, FEW.classes)

    def run(self, folder: Path, epochs: int, **how: object) -> list[dict]:
        schedule = Schedule(epochs=epochs, batch_size=16, **how)
        return Fitting(learner(), FEW, self.falling(), folder, schedule, CPU).run()[1]

    @pytest.mark.thorough
    def test_early_and_resumed_is_the_same(self, tmp_path: Path) -> None:
        rows = self.run(tmp_path / "whole", 12, patience=2)
        values = [row["val_accuracy"] for row in rows]
        assert len(rows) < 12
        assert max(values[:-2]) >= max(values[-2:])
        for epochs in (1, len(rows)):
            self.run(tmp_path / f"{epochs}", epochs, patience=2)
            resumed = self.run(tmp_path / f"{epochs}", 12, patience=2)
            assert [row["val_accuracy"] for row in resumed] == values

    def test_more_patience_after_the_end_goes_on(self, tmp_path: Path) -> None:
        """The defect: the patience in the checkpoint stayed, whatever --patience the
        run was resumed with.
        """
        few = self.run(tmp_path / "run", 12, patience=2)
        more = self.run(tmp_path / "run", len(few) + 1, patience=9)
        assert len(more) == len(few) + 1
        assert more == [*few, more[-1]]

    def test_patience_is_of_epochs_and_an_aim_is_reached_exactly(self) -> None:
        history = History(Path("none.csv"), None, "accuracy")
        stop = StopEarly(0.9, 3, history, Measure("accuracy"))
        for epoch in range(1, 11):
            assert not stop.why()
            of_fifth = {"val_accuracy": 0.5} if epoch % 5 == 0 else {}
            history.rows.append({"epoch": epoch, **of_fifth})
        assert stop.why() == "val_accuracy has not improved for 5 epochs"
        nine_of_ten = float(torch.tensor([True] * 9 + [False]).float().mean())
        history.rows[-1]["val_accuracy"] = nine_of_ten
        assert stop.why() == "val_accuracy has reached stop_at 0.9"

    @pytest.mark.parametrize(
        ("how", "why"),
        [
            ({"stop_at": 0.001}, "val_accuracy has reached stop_at 0.001"),
            (
                {"patience": 1},
                "val_accuracy has not improved for 1 epoch",
            ),
        ],
    )
    def test_the_line_that_says_why(
        self, how: dict[str, Any], why: str, tmp_path: Path
    ) -> None:
        lines = list[str]()
        schedule = Schedule(epochs=12, batch_size=16, **how)
        caller = Caller(show=lines.append)
        for _ in ("trained", "resumed after the end"):
            Fitting(
                learner(), FEW, self.falling(), tmp_path, schedule, CPU, caller
            ).run()
            assert lines[-1] == f"training ended: {why}"

    @pytest.mark.parametrize(
        ("epochs", "used"),
        [(1, "the last: no epoch ended with a validation"), (3, "the best")],
    )
    def test_validation_every_second_epoch(
        self, epochs: int, used: str, tmp_path: Path
    ) -> None:
        """The defects: errors before the first one, and its values in the rows of later
        epochs.
        """
        run = tmp_path / "run"
        more = [
            "--keep",
            "best",
            "--scheduler",
            "ReduceLROnPlateau",
            "--epochs",
            str(epochs),
            "--batch_size",
            "700",
        ]
        assert (
            main(
                [
                    *TRAIN,
                    *more,
                    "--trainer.extra",
                    "{check_val_every_n_epoch: 2}",
                    "--run",
                    str(run),
                ]
            )
            == 0
        )
        actual = summary(run)
        assert actual["used_epoch"]["by"].startswith(used)
        assert actual["epochs"] == epochs
        assert "val_loss" not in actual["last_epoch"]

    def test_the_best_epoch_is_kept_and_told(
        self, tmp_path: Path, capsys: pytest.CaptureFixture
    ) -> None:
        small = [
            *TRAIN,
            "--batch_size",
            "256",
            "--keep",
            "best",
            "--optimizer.lr",
            "0.03",
            # Soon too large: the last epoch is not the best.
            "--scheduler",
            "ExponentialLR",
            "--scheduler.gamma",
            "6",
        ]
        unbroken = tmp_path / "whole"
        moved = tmp_path / "moved"
        assert main([*small, "--epochs", "4", "--run", str(unbroken)]) == 0
        assert main([*small, "--epochs", "3", "--run", str(tmp_path / "first")]) == 0
        (tmp_path / "first").rename(moved)
        assert main(["train", "--resume", str(moved), "--epochs", "4"]) == 0
        actual = summary(unbroken)
        text = (unbroken / "metrics.csv").read_text().splitlines()
        column = text[0].split(",").index("val_accuracy")
        values = [float(row.split(",")[column]) for row in text[1:]]
        best = values.index(max(values))
        used = {
            "epoch": best + 1,
            "by": f"the best accuracy on validation images, {100 * max(values):.2f} %",
        }
        assert actual["used_epoch"] == used
        assert best + 1 < 4
        assert f"after epoch {best + 1} of 4 (the best" in capsys.readouterr().out
        assert summary(moved)["used_epoch"] == used
        kept, resumed = (
            load_file(run / "model" / "model.safetensors") for run in (unbroken, moved)
        )
        assert all(torch.equal(kept[name], resumed[name]) for name in kept)
        checkpoint = torch.load(
            unbroken / "checkpoints" / "best" / f"epoch{best:05d}.ckpt",
            weights_only=True,
        )
        assert all(
            torch.equal(checkpoint["state_dict"][f"model.{name}"], kept[name])
            for name in kept
        )
        capsys.readouterr()

    @pytest.mark.thorough
    def test_the_best_of_averaged_weights_is_what_was_validated(
        self, tmp_path: Path, capsys
    ) -> None:
        run = tmp_path / "run"
        options = [
            "--keep",
            "best",
            "--trainer.average",
            "0.9",
            "--optimizer.lr",
            "0.1",
            "--epochs",
            "3",
        ]
        assert main([*TRAIN, *options, "--run", str(run)]) == 0
        capsys.readouterr()
        assert main(["evaluate", str(run), "--split", "validation", "--json"]) == 0
        actual = json.loads(capsys.readouterr().out)["accuracy"]
        assert f", {100 * actual:.2f} %" in summary(run)["used_epoch"]["by"]


@pytest.mark.thorough
def test_a_run_goes_on_without_the_files_of_its_first_weights(
    tmp_path: Path, capsys
) -> None:
    small = {
        "image_shape": [1, 8, 8],
        "widths": [2],
        "blocks": 1,
        "decoder_hidden": None,
    }
    tc.create_model("capsnet_on_backbone", **small).save_pretrained(tmp_path / "first")
    model = [
        "--model",
        "capsnet_on_backbone",
        "--model_args",
        json.dumps({**small, "weights": str(tmp_path / "first")}),
    ]
    few = ["--trainer.extra", "{limit_train_batches: 1}"]
    run = tmp_path / "run"
    assert (
        main(
            [
                "train",
                "--data",
                "Digits",
                *model,
                *few,
                "--epochs",
                "1",
                "--report",
                "false",
                "--run",
                str(run),
            ]
        )
        == 0
    )
    (tmp_path / "first" / "model.safetensors").unlink()
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    assert summary(run)["epochs"] == 2
    newest_checkpoint(run / "checkpoints").unlink()
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 1
    assert (
        "error: weights must be 'hub', 'imagenet', a file, or a folder"
        in capsys.readouterr().err
    )

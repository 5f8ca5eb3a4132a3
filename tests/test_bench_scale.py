"""Where the time of a step goes, what is predicted of a network, and the measurement of two processes."""

import json
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps.bench import processes, training
from torchcaps.bench.cases import NetworkCase
from torchcaps.bench.predict import LAUNCH, REACHED, Layer, Parts, Rates, on_paper, parts_of
from torchcaps.bench.stages import CONVOLUTIONS, DECODER, LOSS, PARTS, ROUTING, Stages
from torchcaps.capsules import Capsules
from torchcaps.cli import main
from torchcaps.data import Digits
from torchcaps.models import Prediction
from torchcaps.training import Speed

PREDICT = ["bench", "predict", "--model", "capsnet_digits", "--shape", "1", "8", "8", "--batch", "4", "--no-memory"]


def slowed(function: Callable[..., Any], clock: list[float], forward: float, backward: float) -> Callable[..., Any]:
    """The same, with so many seconds of a clock in either direction."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: Tensor) -> Tensor:
            clock[0] += forward
            return values.clone()

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            clock[0] += backward
            return gradients[0]

    def slow(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        if isinstance(found, Capsules):
            return Capsules(Slow.apply(found.pose), found.activation)
        return Slow.apply(found)

    return slow


def test_each_part_of_a_step_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(training, "Stages", partial(Stages, clock=lambda: clock[0]))
    task = training.task_of("capsnet_small", Speed())
    seconds = {CONVOLUTIONS: (1.0, 2.0), ROUTING: (4.0, 8.0), DECODER: (16.0, 32.0), LOSS: (64.0, 128.0)}
    parts = {
        CONVOLUTIONS: task.model.conv,
        ROUTING: task.model.class_caps,
        DECODER: task.model.decoder,
        LOSS: task.loss,
    }
    for name, module in parts.items():
        monkeypatch.setattr(module, "forward", slowed(module.forward, clock, *seconds[name]))
    images = Digits(size=28).train.subset(torch.arange(24))
    found = training.shares(task, images, batch=4, steps=3)
    assert found == {part: sum(seconds.get(part, (0.0,))) for part in PARTS}
    one, two = dict.fromkeys(PARTS, 0.1), {**dict.fromkeys(PARTS, 0.0), ROUTING: 0.9, LOSS: 0.1}
    assert training.shares_table({"one": one, "two": two}).splitlines()[-1].split() == [
        *("neither", "convolutions", "nor", "routing", "600", "ms,", "75.0%", "100", "ms,", "10.0%")
    ]


class TestPredict:
    def test_layers_of_a_network_and_their_products(self) -> None:
        parts = parts_of(NetworkCase("capsnet_small", 2))
        operations = {layer.name: layer.operations for layer in parts.layers}
        assert operations["conv (Conv2d)"] == 2 * 64 * 25 * 12**2
        assert operations["primary_caps.conv (Conv2d)"] == 2 * 128 * 25 * 64 * 4**2
        assert operations["decoder.layers.0 (Linear)"] == 2 * 160 * 256
        assert operations["class_caps (CapsLinear)"] >= 2 * 256 * 10 * 8 * 16  # the votes, and what is done with them
        assert parts.layers[0].given[0].requires_grad is False
        assert parts.calls > 10

    def test_rates_grow_by_a_straight_line(self) -> None:
        """Two layers of 1 ms and 2 ms an image over 3 ms a call."""
        layers = {
            "a": [(0.003 + 0.001 * batch, 0.006 + 0.003 * batch) for batch in (16, 32)],
            "b": [(0.002 * batch, 0.006 * batch) for batch in (16, 32)],
        }
        rates = Rates([16, 32], layers, overhead=1e-5, bandwidth=1e9, peaks=[100, 180])
        parts = Parts(images=32, weights=1000, calls=7, bytes=3.2e6)
        forward, step = rates.times(parts, 100)
        other = 7e-5 + 1e-2
        assert forward == pytest.approx(0.303 + other)
        assert step == pytest.approx(0.906 + 3 * other + 7 * 4000 / 1e9)
        assert rates.memory(100) == 180 + 68 * 5

    def test_on_paper_each_layer_takes_the_longer_of_arithmetic_and_traffic(self) -> None:
        nothing = torch.nn.Identity()
        layers = [Layer("a", nothing, (), {}, operations=2e9, moved=1.0), Layer("b", nothing, (), {}, 1.0, moved=3e6)]
        forward, step = on_paper(Parts(1, 0, layers), batch=10, flops=1e12, bandwidth=1e9, devices=2)
        assert forward == pytest.approx(5 * (2e9 / 1e12 + 3e6 / 1e9) / REACHED + 8 * LAUNCH)
        assert step == pytest.approx(3 * forward)

    def test_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        paper = ["--tflops", "60", "--gbs", "3350", "--devices", "8"]
        assert main([*PREDICT, "--runs", "1", "--check", *paper, "--out", str(first)]) == 0
        (row,) = json.loads((first / "predict.json").read_text())["rows"]
        assert row["measured training"] > row["measured forward"] > 0
        assert row["paper training"] > row["paper forward"] > 0
        assert main([*PREDICT, "--rates", str(first / "predict.json"), "--out", str(second)]) == 0
        (again,) = json.loads((second / "predict.json").read_text())["rows"]
        assert (again["forward"], again["training"]) == (row["forward"], row["training"])
        assert "an estimate for 8 x 60 TFLOP/s" in capsys.readouterr().out

    def test_rates_are_of_the_same_network(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It measured anew where there were none, and took those of another number of classes."""
        file = tmp_path / "predict.json"
        file.write_text(json.dumps({"rates": {"capsnet_digits 1x8x8 10 4": {}}}))
        assert main([*PREDICT, "--rates", str(file), "--classes", "5"]) == 1
        told = "has no rates for capsnet_digits 1x8x8 5 4, only for capsnet_digits 1x8x8 10 4"
        assert told in capsys.readouterr().err
        file.write_text("[]")
        assert main([*PREDICT, "--rates", str(file)]) == 1
        assert "predict.json must be the predict.json of an earlier run" in capsys.readouterr().err

    def test_a_layer_that_runs_twice_counts_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Twice(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(64, 64)

            def forward(self, images: Tensor, target: Tensor) -> Prediction:
                return Prediction(self.layer(self.layer(images.flatten(1))).sigmoid()[:, :10], None, None)

        monkeypatch.setattr(NetworkCase, "build", lambda self: Twice())
        parts = parts_of(NetworkCase("twice", 2, (1, 8, 8)))
        assert [layer.name for layer in parts.layers] == ["layer (Linear)", "layer (Linear), 2"]

    @pytest.mark.parametrize(
        ("option", "value"), [("--runs", "0"), ("--batch", "-1"), ("--devices", "0"), ("--threads", "0")]
    )
    def test_numbers_out_of_range(self, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main([*PREDICT, option, value])
        assert f"argument {option}: must be 1 or more, got {value}" in capsys.readouterr().err

    @pytest.mark.parametrize("wrong", [["--tflops", "60"], ["--check", "--rates", "predict.json"]])
    def test_options_that_do_not_fit(self, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main([*PREDICT, *wrong])
        assert wrong[-1 if wrong[0] == "--tflops" else 1].removesuffix("60") in capsys.readouterr().err


class TestProcesses:
    def test_a_batch_must_be_shared(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["bench", "processes", "--batch", "7"])
        assert "--batch must be shared by two processes, got 7" in capsys.readouterr().err

    def test_one_that_has_ended_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The command ended without a word, as if nobody read its output."""
        monkeypatch.setattr(processes.sys, "executable", shutil.which("false"))
        one = processes.Process(0, Namespace(model="capsnet_small", batch=2, steps=1))
        one.process.wait()
        with pytest.raises(OSError, match="a training process ended with status 1") as found:
            one.begin(2, 1, 2)
        assert not isinstance(found.value, BrokenPipeError)
        one.end()

    def test_one_that_waits_for_ever_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "PATIENCE", 0.1)
        waiting = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        one = processes.Process.__new__(processes.Process)
        one.process = waiting
        one.end()
        assert waiting.returncode < 0

    @pytest.mark.slow
    def test_both_train(self, tmp_path: Path) -> None:
        assert main(["bench", "processes", "--batch", "8", "--steps", "1", "--runs", "1", "--out", str(tmp_path)]) == 0
        found = json.loads((tmp_path / "processes.json").read_text())
        one, apart, two = (row["milliseconds"][0] for row in found["rows"])
        assert found["faster"]["median"] == pytest.approx(one / two)
        assert found["limit"]["median"] == pytest.approx(one / apart)

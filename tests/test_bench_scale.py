"""Where the time of a step goes, and the measurement of two processes."""

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
from torchcaps.bench.stages import CONVOLUTIONS, DECODER, LOSS, PARTS, ROUTING, Stages
from torchcaps.capsules import Capsules
from torchcaps.cli import main
from torchcaps.data import Digits
from torchcaps.training import Speed


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

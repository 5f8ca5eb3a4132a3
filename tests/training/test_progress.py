"""What a training says of itself while it runs: what was guessed, its header, its time,
and a line in place.
"""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import torchcaps as tc
from tests.runs import TINY, status
from torchcaps_lab.options.guess import guess
from torchcaps_lab.training.progress import ProgressLine

FEW = {"model": "capsnet_digits", "model_args": TINY, "epochs": 2, "report": False}


def test_python_guesses_and_says_what_the_command_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(
        sys.modules, "ipykernel", raising=False
    )  # another test may have been a notebook
    assert guess("Digits").options["run"] == str(Path("runs/digits"))
    trained = tc.train("Digits", trainer={"accelerator": "cpu"}, **FEW)
    in_python = capsys.readouterr().out
    assert trained.run == Path("runs/digits")
    options = [
        "--model",
        "capsnet_digits",
        "--epochs",
        "2",
        "--report",
        "false",
        "--trainer.accelerator",
        "cpu",
    ]
    options += ["--model_args", str(TINY).replace("'", "").replace("None", "null")]
    assert status("train", "Digits", *options) == 0
    command = capsys.readouterr().out
    assert "guessed: run runs/digits-2" in command
    for line in in_python.replace("runs/digits", "runs/digits-2").splitlines():
        if not re.search(r" left$| s a step", line):  # times differ
            assert line in command
    header = (
        r"Digits: 1,295 train, 143 validation, 359 test images of 1 x 8 x 8 \(C x "
        r"H x W\), 10 classes of 12\d to 13\d"
    )
    assert re.search(header, in_python)
    assert re.search(
        r"\n\d+\.\d+ s a step, about .* for all of them; votes: "
        r"(naive|native|chunked)\nepoch 1/2: ",
        in_python,
    )
    assert "\r" not in in_python  # which a file would keep


def test_a_terminal_gets_one_line_that_is_rewritten_and_removed(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr("torchcaps_lab.training.progress.OFTEN", 0.0)
    tc.train("Digits", run=tmp_path / "run", trainer={"accelerator": "cpu"}, **FEW)
    message = sys.stdout.getvalue()
    assert "\repoch 1, step 2 of 10" in message
    assert all(
        not line.partition("\r")[0] for line in message.split("\n") if "\r" in line
    )
    shown = [line.rpartition("\r")[2] for line in message.split("\n")]
    assert not [line for line in shown if " step " in line]
    assert [line[:9] for line in shown if line.startswith("epoch")] == [
        "epoch 1/2",
        "epoch 2/2",
    ]


@pytest.mark.parametrize("talks", [None, [].append])
def test_nothing_is_told_to_who_did_not_ask(talks, tmp_path, capsys):
    tc.train(
        "Digits",
        run=tmp_path / "run",
        show=talks,
        trainer={"accelerator": "cpu"},
        **FEW,
    )
    assert not capsys.readouterr().out


def test_the_time_of_all_steps_includes_those_that_are_done(monkeypatch):
    """Two steps of 11 s were "about 0 s for all of them"."""
    trainer = SimpleNamespace(
        max_epochs=1, current_epoch=0, num_training_batches=2, is_global_zero=True
    )
    clock = iter([0.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    lines = []
    progress = ProgressLine(lines.append, in_place=False)
    progress.on_train_start(trainer, torch.nn.Identity())
    for _ in range(2):
        progress.on_train_batch_end(trainer)
    monkeypatch.undo()
    assert lines == ["11 s a step, about 22 s for all of them"]

"""CUDA graphs where they pay. A GPU is made believe: compilers that run on a CPU take the
place of the one that records graphs.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchcaps import create_model
from torchcaps_lab.data import Digits, Examples
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training import graphs
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.graphs import COMPILING, GAIN, graphs_pay
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.options import Caller, Optimisation
from torchcaps_lab.training.speed import Speed

LONG: dict[str, Any] = {"device": "cuda", "steps": 1e6}
CPU = TrainerOptions(accelerator="cpu")


class TestTheyPay:
    def test_where_they_save_more_than_compiling_takes(self) -> None:
        steps = COMPILING / GAIN
        assert graphs_pay("cuda", 1.01 * steps)
        assert not graphs_pay("cuda", 0.99 * steps)

    @pytest.mark.parametrize(
        "change",
        [{"device": "cpu"}, {"processes": 2}, {"group": 2}, {"ramps": True}],
        ids=str,
    )
    def test_nowhere_else(self, change: dict[str, Any]) -> None:
        assert graphs_pay(**LONG)
        assert not graphs_pay(**LONG | change)


def learner(speed: Speed | None = None) -> Learner:
    """Of a network with dropout and running statistics."""
    torch.manual_seed(0)
    network: Any = create_model(
        "capsnet_digits", channels=4, types=2, decoder_hidden=None
    )
    network.conv = nn.Sequential(network.conv, nn.BatchNorm2d(4), nn.Dropout(0.2))
    # Adam would blow up the rounding of a gradient that is about 0.
    sgd = partial(torch.optim.SGD, lr=0.01)
    return Learner(network, Optimisation(optimizer=sgd), speed=speed)


@pytest.fixture
def images() -> Examples:
    """No multiple of the batch: three batches and a half."""
    return Digits().train.subset(torch.arange(28))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Pretends a long training on a GPU, and compiles with this backend instead."""

    def pretend(backend: Any) -> list[str]:
        modes: list[str] = []
        compiled = torch.compile

        def compile_instead(run: Any, mode: str) -> Any:
            modes.append(mode)
            return compiled(run, backend=backend)

        monkeypatch.setattr(graphs, "graphs_pay", lambda *_: True)
        monkeypatch.setattr(torch, "compile", compile_instead)
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        return modes

    return pretend


def trained(
    images: Examples, folder: Path, speed: Speed | None = None
) -> tuple[list[dict[str, float]], Learner, list[str]]:
    """Metrics but the seconds, the learner, and what was shown of compiling."""
    shown: list[str] = []
    task = learner(speed)
    caller = Caller(show=shown.append)
    schedule = Schedule(epochs=2, batch_size=8)
    _, rows = Fitting(task, images, images, folder, schedule, CPU, caller).run()
    metrics = [{**row, "seconds": 0.0} for row in rows]
    return metrics, task, [line for line in shown if line.startswith("steps are")]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_a_long_training_on_a_gpu_replays_graphs(
    on_gpu: Any, images: Examples, tmp_path: Path
) -> None:
    """Once compiled for all batches, with the same results as without; the rehearsals
    leave nothing behind.
    """
    plain, _, silent = trained(images, tmp_path / "plain")
    assert not silent
    modes = on_gpu("aot_eager")
    metrics, task, shown = trained(images, tmp_path / "graphs")
    assert modes == ["reduce-overhead"]
    assert task.compiled
    assert shown == [
        "steps are replayed as CUDA graphs, which pays for 6 steps; "
        "--speed.compile off trains without"
    ]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for row, expected in zip(metrics, plain, strict=True):
        assert row == pytest.approx(expected, rel=1e-4)


@pytest.mark.thorough
def test_a_failure_is_told_and_the_training_goes_on(
    on_gpu: Any, images: Examples, tmp_path: Path
) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here\nand a long explanation")

    plain, *_ = trained(images, tmp_path / "plain")
    on_gpu(broken)
    metrics, task, (sentence,) = trained(images, tmp_path / "graphs")
    assert sentence.startswith("steps are not compiled, since that failed: ")
    assert "no compiler here" in sentence
    assert "explanation" not in sentence
    assert not task.compiled
    assert metrics == plain


def test_off_is_off(on_gpu: Any, images: Examples, tmp_path: Path) -> None:
    modes = on_gpu("eager")
    _, task, shown = trained(images, tmp_path, Speed(compile="off"))
    assert modes == shown == []
    assert not task.compiled


def test_a_rehearsal_has_no_effect() -> None:
    task: Any = learner()
    batch = Digits().train.__getitems__(list(range(8)))
    state = {name: value.clone() for name, value in task.state_dict().items()}
    numbers = torch.get_rng_state()
    task.train()
    task.trainer = SimpleNamespace(current_epoch=0)
    task.step_without_effect(batch)
    torch.testing.assert_close(dict(task.state_dict()), state, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(weight.grad is None for weight in task.parameters())

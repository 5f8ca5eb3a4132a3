"""The command for a GPU, tried on the CPU."""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.__main__ import main
from tests.small_networks import shipped


def test_what_falls_short_is_said() -> None:
    slow = gpu.Timing("DigitCaps 128", "eager", 1.0, 99.0, None)
    fast = gpu.Timing("DigitCaps 128", "graph", None, 0.1, None)
    other = gpu.Timing("something else", "eager", 1.0, 99.0, None)
    (line,) = gpu.short_of([slow, fast, other])
    assert "DigitCaps 128, eager" in line
    assert "99.00" in line


def test_aims_are_of_cases_that_are_timed() -> None:
    names = {trial.name for trial in gpu.trials(small=False)}
    assert {case for case, _ in gpu.AIMS} <= names


DOCUMENTED = {
    "DigitCaps, batch 128": "DigitCaps 128",
    "DigitCaps, batch 2048": "DigitCaps 2048",
    "EM ConvCaps1, batch 64": "ConvCaps1 64",
    "MatrixCapsNet 64-8-16, batch 64": "MatrixCapsNet 64-8-16 64",
    "CapsNet, batch 128, with decoder": "CapsNet 128",
}
"""What is timed, by its name in docs/speed.md."""


@pytest.mark.parametrize("row", DOCUMENTED)
def test_the_table_is_what_was_measured(row: str) -> None:
    docs = Path(__file__).parents[1] / "docs"
    results = json.loads((docs / "results/gpu-h200.json").read_text())["timings"]
    timings = {
        timing["way"]: timing for timing in results if timing["case"] == DOCUMENTED[row]
    }
    (line,) = [
        line
        for line in (docs / "speed.md").read_text().splitlines()
        if line.startswith(f"| {row} |")
    ]
    *_, graph, eager, stored, memory = line.strip("| ").split(" | ")
    least, most = memory.removesuffix(" MiB").replace(",", "").split(" / ")
    for way, key, figure in (
        ("graph", "step", graph),
        ("eager", "step", eager),
        ("naive", "step", stored),
        ("eager", "memory", least),
        ("naive", "memory", most),
    ):
        digits = len(figure.partition(".")[2])
        assert float(figure) == round(timings[way][key], digits), (way, key)


@pytest.mark.parametrize("wrong", [0.0, 0.01, math.nan])
def test_a_wrong_gradient_is_found(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = gpu._results

    def disturbed(*arguments: object) -> list[torch.Tensor]:
        *others, last = results(*arguments)
        return [*others, last if last.dtype == torch.float64 else last * (1 + wrong)]

    monkeypatch.setattr(gpu, "_results", disturbed)
    monkeypatch.setattr(gpu, "_rounding", lambda *_: 0.0)
    monkeypatch.setattr(gpu, "list_routings", lambda: ["dynamic"])
    monkeypatch.setattr(gpu, "ON_CPU", ["capsnet_digits"])
    lines = gpu.check("cpu", print, math.inf)
    assert len(lines) == (0 if wrong == 0 else 5)  # four layers and a network


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_how_to_try_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["gpu"]) == 1
    assert "--device cpu" in capsys.readouterr().err


BARE = """
import sys
for name in ("torchcaps_lab", "safetensors", "yaml", "lightning", "torchvision", "timm"):
    sys.modules[name] = None  # an import of it fails
from benchmarks import gpu
for trial in gpu.trials(small=True):
    trial.case.build()
print(len([*gpu._checked_networks("cuda")]))
"""


@pytest.mark.thorough
def test_torch_triton_and_numpy_are_enough() -> None:
    root = Path(gpu.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", BARE], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(shipped("images"))


@pytest.mark.thorough
def test_on_the_cpu(tmp_path: Path) -> None:
    """All of it, at small sizes: values of every routing, and times."""
    lines: list[str] = []
    out = tmp_path / "gpu.json"
    gpu.run(argparse.Namespace(device="cpu", out=out), lines.append)
    content = json.loads(out.read_text())
    assert not content["wrong"]
    ways = {(timing["case"], timing["way"]) for timing in content["timings"]}
    trials = gpu.trials(small=True)
    assert len(ways) == 1 + sum(1 + trial.stored for trial in trials)
    assert {*content["profiles"]} == {trial.name for trial in trials if trial.profiled}
    assert all(timing["step"] > 0 for timing in content["timings"])

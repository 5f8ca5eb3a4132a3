"""Measurements: their formulas give the published counts, their measures see what is there, their commands run."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from torchcaps.bench import bars, command, compare, measure, report, small, suite, sweep, training
from torchcaps.bench.cases import BESIDE, CASES, Case, LayerCase, LinearCase, NetworkCase, call_of, with_batch
from torchcaps.bench.measure import Measured, Spread
from torchcaps.bench.work import Map, RoutedShape, Work, convolution, routed
from torchcaps.cli import main
from torchcaps.models import CapsNet
from torchcaps.ops import Votes

ROOT = Path(__file__).parent.parent
LINUX = pytest.mark.skipif(not measure.HAVE_PEAK, reason="this system does not tell the peak of resident memory")
TINY = ["--batch", "1", "--runs", "1", "--threads", "1", "--no-memory", "--backends", "naive", "chunked"]


class TestWork:
    @pytest.mark.parametrize(("training", "count"), [(False, 0.61e9), (True, 1.84e9)])
    def test_digitcaps_has_the_published_count(self, training: bool, count: float) -> None:
        assert CASES["digitcaps"].work(training).operations == pytest.approx(count, rel=0.01)

    def test_matrixcapsnet_trains_on_about_a_gigaflop_an_image(self) -> None:
        work = CASES["matrixcapsnet"].work(training=True)
        assert (work.operations + work.again) / 8 == pytest.approx(1e9, rel=0.05)
        assert work.operations / 8 == pytest.approx(0.53e9, rel=0.01)  # votes formed once

    def test_convcaps1_has_the_published_sizes(self) -> None:
        case = with_batch(CASES["convcaps1"], 1)
        assert isinstance(case, LayerCase)
        assert case.votes * 4 == 20.25 * 2**20
        assert case.shape.inputs * 4 == pytest.approx(0.41 * 2**20, rel=0.01)

    @pytest.mark.parametrize("name", [name for name in CASES if isinstance(CASES[name], LayerCase)])
    def test_votes_are_those_of_the_layer(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        case, shapes = with_batch(CASES[name], 2), []
        original = Votes.moments
        monkeypatch.setattr(Votes, "moments", lambda s, *a, **k: shapes.append(s.shape) or original(s, *a, **k))
        call_of(case, "chunked", training=False)()
        assert {torch.Size(shape).numel() for shape in shapes} == {case.votes}
        assert len(shapes) == 3

    @pytest.mark.parametrize("name", [*BESIDE, "sharedcapsnet", "matrixcapsnet"])
    def test_products_of_a_network_are_those_that_torch_counts(self, name: str) -> None:
        """All products but the votes', which the chunked backend contracts, come from torch's own counter."""
        from torch.utils.flop_counter import FlopCounterMode

        case = with_batch(BESIDE.get(name, CASES[name]), 2)
        module, inputs = case.build(), case.inputs("cpu")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            case.forward(module, inputs)
        counts = counter.get_flop_counts()["Global"]
        convolutions = sum(count for operator, count in counts.items() if "convolution" in str(operator))
        assert convolutions <= case.work(False).operations
        if name in BESIDE:
            assert counter.get_total_flops() == case.work(False).operations

    def test_convolution_counts_two_operations_a_multiply_add(self) -> None:
        before = Map(3, 8, 8)
        after = before.convolved(5, 3, 2)
        assert after == (5, 3, 3)
        forward = convolution(2, before, after, 3, training=False)
        assert forward.operations == 2 * 2 * 9 * 27 * 5
        assert forward.bytes == 4 * (2 * 192 + 27 * 5 + 2 * 45)
        assert convolution(2, before, after, 3, training=True).operations == 3 * forward.operations
        assert convolution(2, before, after, 3, training=True, first=True).operations == 2 * forward.operations

    def test_shared_inner_products_need_no_votes(self) -> None:
        shape = RoutedShape(2, 50, 1, 50, 4, 1, 16, 8, 3, False, False, 4)
        assert routed(shape, False).operations < routed(shape._replace(transforms=200), False).operations

    def test_limit_is_the_longer_of_arithmetic_and_traffic(self) -> None:
        work = Work(100.0, 0.0, 60.0) + Work(100.0, 5.0, 0.0)
        assert work.seconds(rate=10.0, bandwidth=1.0) == 60.0
        assert work.seconds(rate=2.0, bandwidth=1.0) == 100.0


class TestMeasure:
    @LINUX
    def test_peak_sees_a_known_allocation(self) -> None:
        def call() -> None:
            torch.ones(48, 2**18)  # 48 MiB, dropped at once

        assert measure.peak_growth(call) == pytest.approx(48 * 2**20, rel=0.1)
        assert measure.peak_growth(lambda: None) < 2**20

    @LINUX
    def test_peak_in_a_process_of_its_own_sees_the_votes(self) -> None:
        case = LinearCase("layer", 256, children=256, parents=16)  # 64 MiB of votes
        peaks = [measure.peak_memory(case, backend, False, "cpu", 1) for backend in ("naive", "chunked")]
        assert peaks[0] is not None
        assert peaks[1] is not None
        assert peaks[0] > case.votes * 4 > peaks[1]

    @pytest.mark.slow
    def test_a_killed_process_has_no_peak(self) -> None:
        assert measure.in_new_process(_end, Measured(CASES["digitcaps"], "naive", False, 1)) is None

    def test_runs_are_interleaved(self) -> None:
        order: list[str] = []
        seconds = measure.interleaved({name: partial(order.append, name) for name in "ab"}, runs=3)
        assert "".join(order) == "ab" + "ababab"
        assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}

    def test_time_ends_the_rounds_but_not_before_three(self) -> None:
        assert len(measure.interleaved({"a": lambda: None}, runs=50, seconds=0.0)["a"]) == measure.FEWEST

    def test_rates_count_products_and_both_ways_of_a_copy(self) -> None:
        machine = measure.Machine("cpu", size=100, copied=1000)
        assert machine.rate(1.0) == 2e6
        assert machine.bandwidth(1.0) == 8000
        for call in machine.calls.values():
            call()


def _end(_: Measured) -> int:
    os._exit(9)


@pytest.mark.parametrize("name", CASES)
def test_every_case_trains(name: str) -> None:
    case: Case = with_batch(CASES[name], 1)
    call = call_of(case, "chunked", training=True)
    assert call() is None
    assert case.work(True).operations > case.work(False).operations > 0
    assert suite.tensor_bytes(case) > 0
    assert isinstance(case, NetworkCase) or call_of(case, "naive", training=False)() is not None


def row(case: str, seconds: list[float], training: bool = True, backend: str = "native", **more: Any) -> suite.Row:
    work = Work(10e9, 10e9, 1e6)
    return suite.Row(case, 2, training, backend, seconds, [100e9] * 3, [10e9] * 3, work, **more)


class TestBars:
    def test_ratios_are_taken_round_by_round(self) -> None:
        slow, fast = row("ConvCaps1", [4.0, 8.0, 12.0], backend="naive"), row("ConvCaps1", [1.0, 2.0, 3.0])
        assert slow.ratio(fast) == Spread(4.0, 4.0, 4.0)
        assert fast.times_limit == Spread(20.0, 10.0, 30.0)

    def test_each_bar_is_judged(self) -> None:
        rows = [
            row("DigitCaps", [0.2, 0.29, 0.4], training=False),  # 2.9 times its arithmetic
            row("DigitCaps", [0.36, 0.36, 0.36]),
            row("DigitCaps, batch 4", [2.9, 2.9, 2.9], backend="naive"),
            row("DigitCaps, batch 4", [1.0, 1.0, 1.0]),
            row("DigitCaps, batch 1", [1.0, 1.0, 1.0], training=False, backend="naive"),
            row("DigitCaps, batch 1", [0.9, 0.9, 0.9], training=False),
            row("poses of 32", [2.0, 2.0, 2.0], backend="chunked"),
            row("poses of 32", [0.9, 0.9, 0.9]),
            row("ConvCaps1", [4.0, 4.0, 4.0], backend="naive", peak=1000),
            row("ConvCaps1", [1.0, 1.0, 1.0], peak=101),
            row("matrixcapsnet", [0.29, 0.29, 0.29], tensors=100_000_000, peak=149_000_000),  # 0.145 s at 200 GFLOP/s
            row("capsnet", [1.07, 1.07, 1.07]),
            row("yardstick", [1.0, 1.0, 1.0], backend="cnn"),
        ]
        found = bars.bars(rows, "cpu")
        assert [bar.met for bar in found] == [
            True, False, None, True, False, True, False, True, False, None, False, True, True
        ]  # fmt: skip
        assert "MISSED" in report.bar_table(found)

    def test_gpu_bars(self) -> None:
        rows = [
            row("ConvCaps2", [9.0, 9.0, 9.0], backend="naive"),
            row("ConvCaps2", [1.0, 1.0, 1.0], backend="triton", tensors=100, peak=150),
        ]
        assert [bar.met for bar in bars.bars(rows, "cuda")] == [True, True, False]

    def test_what_was_not_measured_has_no_bar(self) -> None:
        assert bars.bars([suite.Row("ConvCaps1", 16, True, "naive", trouble="may need 9 GiB")], "cpu") == []


def test_naive_is_not_begun_where_memory_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "available_memory", lambda device: 1e6)
    options = suite.Options(runs=1, threads=1, backends=("naive", "chunked"), memory=False, matrix=64, copied=64)
    rows = suite.compare(with_batch(CASES["classcaps"], 4), True, options, options.machine)
    assert [(row.backend, bool(row.seconds), row.trouble[:8]) for row in rows] == [
        ("chunked", True, ""),
        ("naive", False, "may need"),
    ]
    assert "may need" in report.suite_table(rows)


class TestCommand:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(suite.Options, "machine", property(lambda _: measure.Machine("cpu", 64, 64)))
        monkeypatch.setattr(measure, "FEWEST", 1)
        monkeypatch.setattr(measure, "full_float32", lambda: None)

    def test_suite(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["bench", "--cases", "classcaps", "sharedcapsnet", *TINY, "--out", str(tmp_path)]) == 0
        result = json.loads((tmp_path / "suite.json").read_text())
        assert result["versions"]["torch"] == torch.__version__
        assert result["settings"]["threads"] == 1
        assert [(r["case"], r["training"], r["backend"]) for r in result["rows"]] == [
            ("ClassCaps", False, "naive"),
            ("ClassCaps", False, "chunked"),
            ("ClassCaps", True, "naive"),
            ("ClassCaps", True, "chunked"),
            ("sharedcapsnet", True, "naive"),
            ("sharedcapsnet", True, "chunked"),
        ]
        assert (tmp_path / "suite.png").stat().st_size > 10_000
        assert "time / limit" in capsys.readouterr().out

    def test_sweep(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sweep, "FACTORS", {"steps": (1, 2), "parents": (2, 4)})
        arguments = ["sweep", "--routing", "em", "--factors", "steps", "parents", *TINY, "--out", str(tmp_path)]
        command.main(arguments, lambda line: None)
        points = json.loads((tmp_path / "sweep.json").read_text())["points"]["em"]
        votes = {(point["factor"], point["value"]): point["votes"] for point in points}
        assert votes["parents", 4] == 2 * votes["parents", 2]
        assert votes["steps", 1] == votes["steps", 2]
        assert (tmp_path / "sweep-em.png").exists()

    def test_small(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(small, "FUSED", {"cpu": "chunked"})
        options = suite.Options(runs=1, threads=1)
        sizes = small.small(options, lambda line: None, range(8, 10))
        assert [size.numbers for size in sizes] == [2**8, 2**9] * 2
        assert "2^9" in small.small_table(sizes, "chunked")
        small.draw_small(sizes, "chunked", tmp_path / "small.png")
        assert (tmp_path / "small.png").exists()

    def test_huge_pages_are_set_in_processes_of_their_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ran: list[tuple[list[str], str]] = []

        def run(arguments: list[str], env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
            ran.append((arguments[3:], env[report.HUGE_PAGES]))
            return subprocess.CompletedProcess(arguments, 0, stdout="table")

        monkeypatch.setattr(command.subprocess, "run", run)
        assert main(["bench", "sweep", "--huge-pages", "both", "--runs", "2", "--out", str(tmp_path)]) == 0
        rest = ["bench", "sweep", "--runs", "2", "--out"]
        assert ran == [([*rest, str(tmp_path / f"huge-pages-{value}")], value) for value in "01"]
        assert capsys.readouterr().out.count("table") == 2

    def test_a_gpu_that_is_not_there_is_told(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert main(["bench", "--device", "cuda"]) == 1
        assert "needs a GPU" in capsys.readouterr().err

    def test_compare_needs_another_version(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["bench", "compare"]) == 1
        assert main(["bench", "compare", "--against", str(tmp_path)]) == 1
        assert "folder torchcaps in it" in capsys.readouterr().err


def test_crossover_is_the_largest_size_where_storing_wins() -> None:
    sizes = [small.Size("em", 2**k, [1.0], [2.0 if k < 10 else 0.5]) for k in range(8, 13)]
    assert small.crossover(sizes, "em") == 2**9
    assert small.crossover(sizes, "dynamic") is None


@pytest.mark.slow
def test_compare_times_both_versions_as_often() -> None:
    options = suite.Options(runs=3, threads=1, batch=1)
    (pair,) = compare.compare(["sharedcapsnet"], ROOT, "chunked", options, lambda line: None)
    assert len(pair.this) == len(pair.other) == 3
    assert min(pair.this + pair.other) > 0
    assert pair.ratio == Spread.of([other / this for other, this in zip(pair.other, pair.this, strict=True)])
    assert "other / this" in compare.compare_table([pair])


@pytest.mark.slow
def test_compare_runs_the_other_version_from_its_own_tree(tmp_path: Path) -> None:
    """A copy of this version whose CapsLinear sleeps."""
    shutil.copytree(ROOT / "torchcaps", tmp_path / "torchcaps", ignore=shutil.ignore_patterns("__pycache__", "bench"))
    layer = tmp_path / "torchcaps" / "layers" / "linear.py"
    line = "        pose, activation = self._as_children(children, mask)\n"
    assert line in layer.read_text()
    layer.write_text(layer.read_text().replace(line, "        __import__('time').sleep(0.1)\n" + line))
    with compare.Worker(tmp_path, ["sharedcapsnet", "chunked", "0", "cpu", "1", "1"]) as worker:
        worker.answer()
        assert worker.run() > 0.1


class Clock:
    """Stands in for the module ``time``; moves only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds


class TestTraining:
    TINY = ("--model", "capsnet_small", "--batch", "4", "--images", "24", "--seconds", "0", "--runs", "2")

    def test_rates_are_those_of_the_steps(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A network that takes 20 ms trains on 200 images a second, four at a time."""
        clock, forward = Clock(), CapsNet.forward

        def slow(*arguments: Any) -> Any:
            clock.seconds += 0.02
            return forward(*arguments)

        monkeypatch.setattr(CapsNet, "forward", slow)
        monkeypatch.setattr(measure, "time", clock)
        monkeypatch.setattr(training, "time", clock)
        out = ["--out", str(tmp_path), "--variants", "channels-last", "bf16"]
        assert main(["bench", "training", *self.TINY, *out]) == 0
        rows = json.loads((tmp_path / "training.json").read_text())["rows"]
        assert [row["variant"] for row in rows] == ["bare step", "default", "channels-last", "bf16"]
        for row in rows:
            assert row["rates"] == pytest.approx([200, 200])
            shares = [rate / ceiling for rate, ceiling in zip(row["rates"], rows[0]["rates"], strict=True)]
            assert row["over bare step"]["low"] == pytest.approx(min(shares))
        assert rows[1]["over default"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        assert "/ default" in capsys.readouterr().out

    def test_too_few_images(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["bench", "training", "--batch", "100", "--images", "300"])
        assert "--images must be 4 batches or more" in capsys.readouterr().err


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["digitcaps", "--runs", "0"], "--runs: must be 1 or more, got 0"),
            (["sweep", "--runs", "0"], "--runs: must be 1 or more, got 0"),
            (["digitcaps", "--batch", "0"], "--batch: must be 1 or more, got 0"),
            (["digitcaps", "--threads", "-3"], "--threads: must be 1 or more, got -3"),
            (["digitcaps", "--seconds", "nan"], "--seconds: must be a finite number, 0 or more, got nan"),
            (["digitcaps", "--seconds", "-1"], "--seconds: must be a finite number, 0 or more, got -1"),
            (["training", "--runs", "-1"], "--runs: must be 0 or more, got -1"),
            (["routings", "--runs", "-2"], "--runs: must be 1 or more, got -2"),
            (["processes", "--steps", "0"], "--steps: must be 1 or more, got 0"),
            (["folder", "nowhere", "--gigabytes", "-1"], "--gigabytes: must be a finite number above 0, got -1"),
            (["nosuch"], "there is no 'nosuch'; parts are suite, sweep, .*, training, .*; cases are digitcaps"),
            (["--runs", "2", "training"], "training must come before the options"),
        ],
        ids=str,
    )  # fmt: skip
    def test_numbers_and_names_that_cannot_be(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as end:
            main(["bench", *arguments])
        assert end.value.code == 2
        assert re.search(message, capsys.readouterr().err)

    @pytest.mark.parametrize("part", ["digitcaps", "sweep", "training", "processes"])
    def test_a_file_as_folder_is_told_before_anything_is_measured(
        self, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").touch()
        for out in (tmp_path / "file", tmp_path / "file" / "deeper"):
            with pytest.raises(SystemExit):
                main(["bench", part, "--out", str(out)])
            told = capsys.readouterr()
            assert f"--out: must be a folder, and {tmp_path / 'file'} is a file" in told.err
            assert not told.out

    def test_a_file_of_results_that_cannot_be_written(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["bench", "folder", str(tmp_path / "photos"), "--out", str(tmp_path / "nowhere" / "x.json")]) == 1
        assert "--out must be the name of a file in a folder that is there" in capsys.readouterr().err
        assert not (tmp_path / "photos").exists()

    def test_a_backend_that_does_not_run_there(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("triton")
        monkeypatch.setattr("torchcaps.ops.fused.triton_launch.interpreted", lambda: False)
        assert main(["bench", "digitcaps", "--backends", "triton"]) == 1
        told = capsys.readouterr()
        assert "error: --backends triton on cpu: torchcaps' Triton kernels run on a GPU" in told.err
        assert not told.out


class TestNames:
    def test_a_case_is_a_suite_of_that_case(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as end:
            main(["bench", "digitcaps", "--help"])
        assert end.value.code == 0
        assert "--against" in capsys.readouterr().out

    @pytest.mark.parametrize("name", command.OWN_OPTIONS)
    def test_each_part_tells_its_own_options(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as end:
            main(["bench", name, "--help"])
        assert end.value.code == 0
        assert f"usage: torchcaps bench {name} " in capsys.readouterr().out

    def test_help_names_every_part(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["bench", "--help"])
        out = capsys.readouterr().out
        assert all(name in out for name in (*command.PARTS, *command.OWN_OPTIONS))

    def test_a_missing_extra_is_told(self) -> None:
        program = "import sys; sys.modules['lightning'] = None; from torchcaps.cli import main; sys.exit(main())"
        done = subprocess.run([sys.executable, "-c", program, "bench", "training"], capture_output=True, text=True)
        assert done.returncode == 1
        assert "training needs the package lightning: pip install 'torchcaps[train]'" in done.stderr

    def test_python_m_benchmarks_is_torchcaps_bench(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["benchmarks", "digitcaps", "--device", "nowhere"])
        with pytest.raises(SystemExit) as end:
            runpy.run_module("benchmarks", run_name="__main__")
        assert end.value.code == 2
        told = capsys.readouterr().err
        assert "usage: torchcaps bench" in told
        assert "nowhere" in told


def test_the_page_about_the_algorithm_has_the_figures_of_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["docs.algorithm", "--pictures", str(tmp_path)])
    runpy.run_module("docs.algorithm", run_name="__main__")
    page = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    assert f"```text\n{capsys.readouterr().out}```" in page
    assert "20.25 MiB" in page
    assert (tmp_path / "algorithm.png").stat().st_size > 10_000
    assert (ROOT / "docs" / "pictures" / "algorithm.png").exists()

"""Measurements: their formulas give the published counts, their measures see what is there, their commands run."""

import json
import os
import re
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import compare, measure, report, suite
from benchmarks.__main__ import PARTS, main
from benchmarks.cases import BESIDE, CASES, LayerCase, LinearCase, NetworkCase, call_of, with_batch
from benchmarks.measure import Measured, Spread
from benchmarks.work import Map, RoutedShape, Work, convolution, routed
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
    case = with_batch(CASES[name], 1)
    call = call_of(case, "chunked", training=True)
    assert call() is None
    assert case.work(True).operations > case.work(False).operations > 0
    assert isinstance(case, NetworkCase) or call_of(case, "naive", training=False)() is not None


def test_ratios_are_taken_round_by_round() -> None:
    fast = suite.Row("x", 2, True, "native", [1.0, 2.0, 3.0], [100e9] * 3, [10e9] * 3, Work(10e9, 10e9, 1e6))
    assert fast.times_limit == Spread(20.0, 10.0, 30.0)


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
        monkeypatch.setattr(suite, "full_float32", lambda: None)

    def test_suite(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--cases", "classcaps", "sharedcapsnet", *TINY, "--out", str(tmp_path / "suite.json")]) == 0
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
        assert "time / limit" in capsys.readouterr().out

    def test_a_gpu_that_is_not_there_is_told(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert main(["--device", "cuda"]) == 1
        assert "needs a GPU" in capsys.readouterr().err

    def test_compare_needs_another_version(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["compare", "--against", str(tmp_path)]) == 1
        assert "folder torchcaps in it" in capsys.readouterr().err


@pytest.mark.slow
def test_compare_times_both_versions_as_often() -> None:
    options = suite.Options(runs=3, threads=1, batch=1)
    pair = compare.paired("sharedcapsnet", True, ROOT, "chunked", options)
    assert len(pair.this) == len(pair.other) == 3
    assert min(pair.this + pair.other) > 0
    assert pair.ratio == Spread.of([other / this for other, this in zip(pair.other, pair.this, strict=True)])
    assert "other / this" in compare.compare_table([pair])


@pytest.mark.slow
def test_compare_runs_the_other_version_from_its_own_tree(tmp_path: Path) -> None:
    """A copy of this version whose CapsLinear sleeps."""
    shutil.copytree(ROOT / "torchcaps", tmp_path / "torchcaps", ignore=shutil.ignore_patterns("__pycache__"))
    layer = tmp_path / "torchcaps" / "layers" / "linear.py"
    line = "        pose, activation = self._as_children(children, mask)\n"
    assert line in layer.read_text()
    layer.write_text(layer.read_text().replace(line, "        __import__('time').sleep(0.1)\n" + line))
    with compare.Worker(tmp_path, ["sharedcapsnet", "chunked", "0", "cpu", "1", "1"]) as worker:
        worker.answer()
        assert worker.run() > 0.1


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--runs", "0"], "--runs: must be 1 or more, got 0"),
            (["suite", "--batch", "0"], "--batch: must be 1 or more, got 0"),
            (["suite", "--threads", "-3"], "--threads: must be 1 or more, got -3"),
            (["suite", "--seconds", "nan"], "--seconds: must be a finite number, 0 or more, got nan"),
            (["compare", "--seconds", "-1"], "--seconds: must be a finite number, 0 or more, got -1"),
            (["routings", "--runs", "-2"], "--runs: must be 1 or more, got -2"),
            (["suite", "--cases", "nosuch"], "invalid choice: 'nosuch'"),
            (["compare"], "required: --against"),
        ],
        ids=str,
    )
    def test_numbers_and_names_that_cannot_be(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2
        assert re.search(message, capsys.readouterr().err)

    def test_a_backend_that_does_not_run_there(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("triton")
        monkeypatch.setattr("torchcaps.ops.fused.triton_launch.interpreted", lambda: False)
        assert main(["--cases", "digitcaps", "--backends", "triton"]) == 1
        told = capsys.readouterr()
        assert "error: --backends triton on cpu: torchcaps' Triton kernels run on a GPU" in told.err
        assert not told.out

    @pytest.mark.parametrize("name", PARTS)
    def test_each_part_tells_its_own_options(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code == 0
        assert f"usage: python -m benchmarks {name} " in capsys.readouterr().out


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

"""Measurements: they see what is there, and their commands run."""

import json
import os
import re
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path

import matplotlib
import pytest
import torch

import torchcaps as tc
from benchmarks import compare, first_minutes, measure, report, suite
from benchmarks.__main__ import PARTS, main
from benchmarks.cases import CASES, LayerCase, NetworkCase, call_of, with_batch
from benchmarks.measure import Spread

ROOT = Path(__file__).parent.parent
LINUX = pytest.mark.skipif(
    not measure.HAVE_PEAK,
    reason="this system does not tell the peak of resident memory",
)
TINY = [
    "--batch",
    "1",
    "--runs",
    "1",
    "--threads",
    "1",
    "--no-memory",
    "--backends",
    "naive",
    "chunked",
]


@pytest.mark.parametrize(
    ("name", "votes"),
    [
        ("digitcaps", 1152 * 10 * 16),
        ("convcaps1", 6 * 6 * 288 * 32 * 16),
        ("capsnet", 1152 * 10 * 16),
    ],
)
def test_votes_are_counted(name: str, votes: int) -> None:
    assert with_batch(CASES[name], 2).votes == 2 * votes


class TestMeasure:
    @LINUX
    def test_peak_sees_a_known_allocation(self) -> None:
        def call() -> None:
            torch.ones(48, 2**18)  # 48 MiB, dropped at once

        assert measure.peak_growth(call) == pytest.approx(48 * 2**20, rel=0.1)
        assert measure.peak_growth(lambda: None) < 2**20

    @LINUX
    @pytest.mark.thorough
    def test_peak_in_a_process_of_its_own_sees_the_votes(self) -> None:
        case = LayerCase(
            "layer", 256, partial(tc.CapsLinear, 256, 16, 8, 16), (256,), (8,)
        )  # 64 MiB of votes
        peaks = [
            measure.peak_memory(case, backend, False, "cpu", 1)
            for backend in ("naive", "chunked")
        ]
        assert peaks[0] is not None
        assert peaks[1] is not None
        assert peaks[0] > case.votes * 4 > peaks[1]

    @pytest.mark.slow
    def test_a_killed_process_has_no_peak(self) -> None:
        assert measure.in_new_process(_end) is None

    def test_runs_are_interleaved(self) -> None:
        order: list[str] = []
        seconds = measure.interleaved(
            {name: partial(order.append, name) for name in "ab"}, runs=3
        )
        assert "".join(order) == "ab" + "ababab"
        assert {name: len(values) for name, values in seconds.items()} == {
            "a": 3,
            "b": 3,
        }

    def test_time_ends_the_rounds_but_not_before_three(self) -> None:
        assert (
            len(measure.interleaved({"a": lambda: None}, runs=50, seconds=0.0)["a"])
            == measure.FEWEST
        )


def _end() -> int:
    os._exit(9)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("digitcaps1", "convcaps2", "classes10", "capsnet")
        else pytest.param(name, marks=pytest.mark.thorough)
        for name in CASES
    ],
)
def test_every_case_trains(name: str) -> None:
    case = with_batch(CASES[name], 1)
    call = call_of(case, "chunked", training=True)
    assert call() is None
    assert (
        isinstance(case, NetworkCase)
        or call_of(case, "naive", training=False)() is not None
    )


def test_naive_is_not_begun_where_memory_is_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite, "available_memory", lambda device: 1e6)
    options = suite.Options(
        runs=1, threads=1, backends=("naive", "chunked"), memory=False
    )
    rows = suite.compare(with_batch(CASES["classcaps"], 4), True, options)
    assert [(row.backend, bool(row.seconds), row.trouble[:8]) for row in rows] == [
        ("chunked", True, ""),
        ("naive", False, "may need"),
    ]
    assert "may need" in report.suite_table(rows)


class TestCommand:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measure, "FEWEST", 1)
        monkeypatch.setattr(suite, "full_float32", lambda: None)

    def test_suite(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert (
            main(
                [
                    "--cases",
                    "classcaps",
                    "sharedcapsnet",
                    *TINY,
                    "--out",
                    str(tmp_path / "suite.json"),
                ]
            )
            == 0
        )
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
        assert "median ms" in capsys.readouterr().out

    def test_a_gpu_that_is_not_there_is_told(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert main(["--device", "cuda"]) == 1
        assert "needs a GPU" in capsys.readouterr().err

    def test_compare_needs_another_version(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["compare", "--against", str(tmp_path)]) == 1
        assert "folder torchcaps in it" in capsys.readouterr().err


@pytest.mark.slow
def test_compare_times_both_versions_as_often() -> None:
    options = suite.Options(runs=3, threads=1, batch=1)
    pair = compare.paired("sharedcapsnet", True, ROOT, "chunked", options)
    assert len(pair.this) == len(pair.other) == 3
    assert min(pair.this + pair.other) > 0
    assert pair.ratio == Spread.of(
        [other / this for other, this in zip(pair.other, pair.this, strict=True)]
    )
    assert "other / this" in compare.compare_table([pair])


SLOWER = """
import time

class CapsLinear(CapsLinear):
    def route(self, *args, **kwargs):
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        return super().route(*args, **kwargs)
"""


@pytest.mark.slow
def test_compare_runs_the_other_version_from_its_own_tree(tmp_path: Path) -> None:
    """A copy of this version whose CapsLinear takes longer."""
    shutil.copytree(
        ROOT / "torchcaps",
        tmp_path / "torchcaps",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    with (tmp_path / "torchcaps" / "layers" / "linear.py").open("a") as layer:
        layer.write(SLOWER)
    with compare.Worker(
        tmp_path, ["sharedcapsnet", "chunked", "0", "cpu", "1", "1"]
    ) as worker:
        worker.answer()
        assert worker.run() > 0.1


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--runs", "0"], "--runs: must be 1 or more, got 0"),
            (["suite", "--batch", "0"], "--batch: must be 1 or more, got 0"),
            (["suite", "--threads", "-3"], "--threads: must be 1 or more, got -3"),
            (
                ["suite", "--seconds", "nan"],
                "--seconds: must be a finite number, 0 or more, got nan",
            ),
            (
                ["compare", "--seconds", "-1"],
                "--seconds: must be a finite number, 0 or more, got -1",
            ),
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
        monkeypatch.setattr(
            "torchcaps.ops.fused.triton_launch.interpreted", lambda: False
        )
        assert main(["--cases", "digitcaps", "--backends", "triton"]) == 1
        output = capsys.readouterr()
        assert (
            "error: --backends triton on cpu: torchcaps' Triton kernels run on a GPU"
            in output.err
        )
        assert not output.out

    @pytest.mark.parametrize("name", PARTS)
    def test_each_part_tells_its_own_options(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code == 0
        assert f"usage: python -m benchmarks {name} " in capsys.readouterr().out


class TestFirstMinutes:
    @pytest.mark.thorough  # two processes train
    @pytest.mark.skipif(
        os.name != "posix", reason="processor seconds of a child are told by wait4"
    )
    def test_waits_are_measured_up_to_a_line_or_the_end(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        few = {
            name: first_minutes.WAITS[name]
            for name in ("`torchcaps --help`", "training: the first line")
        }
        monkeypatch.setattr(first_minutes, "WAITS", few)
        out = tmp_path / "found.json"
        assert (
            main(
                [
                    "first-minutes",
                    "--runs",
                    "1",
                    "--against",
                    str(ROOT),
                    "--out",
                    str(out),
                ]
            )
            == 0
        )
        actual = json.loads(out.read_text())["processor_seconds"]
        (helped, again), (line, second) = actual.values()
        assert 0 < max(helped, again) < min(line, second)  # which waits for torch
        assert (
            f"| `torchcaps --help` | {helped:.2f} | {again:.2f} |"
            in capsys.readouterr().out
        )
        monkeypatch.setattr(
            first_minutes,
            "WAITS",
            {"never": first_minutes.Wait(("train", "nowhere"), "epoch 1/")},
        )
        assert main(["first-minutes", "--runs", "1"]) == 1
        assert (
            "train nowhere did not say 'epoch 1/': torchcaps train: error: there is no"
            in capsys.readouterr().err
        )

    def test_the_page_about_speed_has_the_figures_of_its_file(self) -> None:
        kept = json.loads(
            (ROOT / "docs" / "results" / "first-minutes.json").read_text()
        )
        page = (ROOT / "docs" / "speed.md").read_text()
        for what, (_, now) in kept["processor_seconds"].items():
            assert f"| {what} | {now:.2f} |" in page
        assert [*kept["processor_seconds"]] == [*first_minutes.WAITS]
        assert kept["command"].split(" --against")[0] in page


def test_the_page_about_the_algorithm_has_the_figures_of_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["docs.algorithm", "--pictures", str(tmp_path)])
    with matplotlib.rc_context():  # the guide's style would be that of all pictures
        runpy.run_module("docs.algorithm", run_name="__main__")
    page = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    assert f"```text\n{capsys.readouterr().out}```" in page
    assert "20.25 MiB" in page
    assert (tmp_path / "algorithm.png").stat().st_size > 10_000
    assert (ROOT / "docs" / "pictures" / "algorithm.png").exists()

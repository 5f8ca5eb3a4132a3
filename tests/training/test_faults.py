"""The short form of ``python -m benchmarks faults``: no outcome without a name."""

import random
from pathlib import Path

import pytest

from benchmarks import faults


@pytest.fixture
def chance() -> random.Random:
    return random.Random(1)


class TestFaults:
    @pytest.mark.parametrize(
        "fuzzed", [faults.fuzzed_options, faults.fuzzed_networks, faults.fuzzed_images]
    )
    def test_no_crash_without_a_named_error(
        self, fuzzed, tmp_path: Path, chance: random.Random
    ) -> None:
        assert all(fuzzed(tmp_path, 15, chance))

    def test_hostile_options_are_refused(
        self, tmp_path: Path, chance: random.Random
    ) -> None:
        actual = list(faults.hostile_options(tmp_path, 1, chance))
        assert len(actual) > 25
        assert all(actual)

    # Trainings in other processes take a warning, as of a missing compiler, for an error.
    @pytest.mark.usefixtures("kernels")
    def test_damaged_and_hostile_checkpoints_are_refused(
        self, tmp_path: Path, chance: random.Random
    ) -> None:
        actual = list(faults.damaged_checkpoints(tmp_path, 40, chance))
        assert len(actual) == 41
        assert all(actual)

    @pytest.mark.usefixtures("kernels")
    @pytest.mark.parametrize(
        "interrupted", [faults.kills, faults.full_disks, faults.starts]
    )
    def test_work_is_kept(
        self, interrupted, tmp_path: Path, chance: random.Random, monkeypatch
    ) -> None:
        monkeypatch.setitem(faults.OPTIONS, "epochs", 3)
        assert all(interrupted(tmp_path, 1, chance))

    def test_what_a_crash_is(self, capsys: pytest.CaptureFixture) -> None:
        assert faults.no_crash(lambda: int("x"))  # a ValueError
        assert not faults.no_crash(lambda: {}["x"])
        assert "KeyError" in capsys.readouterr().err

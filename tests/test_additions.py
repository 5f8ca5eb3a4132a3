"""What is new in the package touches two files at most, and little has to be read for
it: each by a commit's diff.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIFFS = ROOT / "tests" / "additions"
MOST = {
    "routing": 5,
    "data set": 3,
    "task": 4,
    "picture of the report": 3,
    "backend": 5,
}
"""Files to read for each, at most."""

WORKS = """
import torch, torchcaps as tc
from torchcaps.testing import check_backend, check_routing
from torchcaps_lab.data import create_dataset
from torchcaps_lab.report import Observation, Selection, list_exhibits
from torchcaps_lab.tasks import create_task
check_routing(tc.create_routing("cosine", steps=2))
data = create_dataset("stripes", size=8)
images = data.test[0].inputs
network = tc.create_model("capsnet_digits", classes=2)
assert set(create_task("shortlist", length=1).examine(network, data.test).figures) >= {"accuracy"}
shown = list_exhibits()["longest_poses"].of(Observation(network, Selection(images, images)))
assert [picture.file for picture in shown.draw()] == ["longest_poses.png"]
check_backend(tc.ops.BACKENDS["one_by_one"])
"""


def table() -> dict[str, list[Path]]:
    """What to read for each addition, as the table of CONTRIBUTING says."""
    rows = re.findall(
        r"^\| ([\w ]+) \| (.+?) \| .+\|$",
        (ROOT / "CONTRIBUTING.md").read_text(),
        re.MULTILINE,
    )
    return {
        what: [ROOT / file for file in re.findall(r"`([\w/]+\.py)`", read)]
        for what, read in rows
    }


def test_what_is_to_be_read_is_there() -> None:
    assert not [
        file for files in table().values() for file in files if not file.is_file()
    ]


@pytest.mark.parametrize("what", MOST)
def test_little_is_to_be_read(what: str) -> None:
    assert 0 < len(table()[what]) <= MOST[what]


@pytest.mark.parametrize(
    "diff", sorted(DIFFS.glob("*.diff")), ids=lambda diff: diff.stem
)
def test_two_files_are_touched(diff: Path) -> None:
    touched = re.findall(r"^\+\+\+ b/(.+)$", diff.read_text(), re.MULTILINE)
    assert len(touched) <= 2


@pytest.mark.thorough
def test_they_work(tmp_path: Path) -> None:
    """All of them, on a copy of the two packages."""
    for package in ("torchcaps", "lab/torchcaps_lab"):
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=shutil.ignore_patterns("__pycache__", "weights"),
        )
    for diff in DIFFS.glob("*.diff"):
        subprocess.run(
            ["git", "apply", "--recount", diff],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    paths = f"{tmp_path}{os.pathsep}{tmp_path / 'lab'}"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": paths,
        "PYTHONSAFEPATH": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", WORKS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr

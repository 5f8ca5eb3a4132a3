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
    "kind of input": 3,
    "task": 4,
    "picture of the report": 3,
    "backend": 5,
    "similarity": 1,
    "competition": 1,
    "fast path": 2,
}
TOUCHED = {"setting": 1, "similarity": 1, "competition": 1}
"""Files that a change touches at most, where it is not the usual two."""
"""Files to read for each, at most."""

KINDS = "lab/torchcaps_lab/kinds/"

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

# A setting that no fast path knows, a similarity, a competition, a fast path.
check_routing(tc.create_routing("em", variance_shrinkage=0.2))
from torchcaps.ops.competition import Weighted
from torchcaps.ops.similarity import Laplace
from torchcaps.routing.base import FAST
from torchcaps.routing import MeanRouting
votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5), backend="chunked")
weighted = votes.under(Weighted(torch.tensor([1.0, 2.0, 0.0])))
laplace = Laplace(votes.moments().mean, torch.ones(3))
factor = torch.tensor([1.0, 2.0, 0.0])
assert torch.allclose(weighted.moments(laplace).mass, votes.moments(laplace).mass * factor)
assert (MeanRouting, "chunked") in FAST
assert torch.allclose(MeanRouting()(votes).pose, votes.dense().mean(1), atol=1e-6)
"""

KIND_WORKS = """
from pathlib import Path
from torchcaps_lab.cli import main
lines = []
for k in range(80):
    sign, name = (1, "up") if k % 2 else (-1, "down")
    numbers = " ".join(f"{sign * (j + k / 100):.3f}" for j in range(5))
    lines.append(f"{name}: {numbers}")
Path("slopes.vec").write_text("\\n".join(lines))
commands = [
    ["check", "slopes.vec"],
    ["train", "slopes.vec"],
    ["predict", "runs/slopes", "slopes.vec"],
    ["explain", "runs/slopes"],
    ["export", "runs/slopes", "--to", "slopes.onnx"],
]
for words in commands:
    assert main(words) == 0, words
assert "Mean vectors" in Path("runs/slopes/report/index.html").read_text()
"""


def table() -> dict[str, list[Path]]:
    """What to read for each addition, as the table of CONTRIBUTING says."""
    rows = re.findall(
        r"^\| ([\w ]+) \| (.+?) \| .+\|$",
        (ROOT / "CONTRIBUTING.md").read_text(),
        re.MULTILINE,
    )
    return {
        row: [ROOT / file for file in re.findall(r"`([\w/]+\.py)`", read)]
        for row, read in rows
    }


def test_what_is_to_be_read_is_there() -> None:
    assert not [
        file for files in table().values() for file in files if not file.is_file()
    ]


@pytest.mark.parametrize("kind", MOST)
def test_little_is_to_be_read(kind: str) -> None:
    assert 0 < len(table()[kind]) <= MOST[kind]


@pytest.mark.parametrize(
    "diff", sorted(DIFFS.glob("*.diff")), ids=lambda diff: diff.stem
)
def test_two_files_are_touched(diff: Path) -> None:
    """Or a folder and a file, by a kind of input."""
    touched = re.findall(r"^\+\+\+ b/(.+)$", diff.read_text(), re.MULTILINE)
    kinds = {file.rpartition("/")[0] for file in touched if file.startswith(KINDS)}
    if diff.stem == "kind":
        assert {*touched} - {f"{KINDS}__init__.py"}
        assert len(kinds - {KINDS.rstrip("/")}) == 1
        assert all(file.startswith(KINDS) for file in touched)
    else:
        assert len(touched) <= TOUCHED.get(diff.stem, 2)


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize(
    "diff", sorted(DIFFS.glob("*.diff")), ids=lambda diff: diff.stem
)
def test_they_apply(diff: Path) -> None:
    """To the code as it is now."""
    done = subprocess.run(
        ["git", "apply", "--check", "--recount", diff],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def run_with(diffs: list[Path], code: str, folder: Path) -> subprocess.CompletedProcess:
    """Run code in a folder, on a copy of the two packages with these changes."""
    for package in ("torchcaps", "lab/torchcaps_lab"):
        shutil.copytree(
            ROOT / package,
            folder / package,
            ignore=shutil.ignore_patterns("__pycache__", "weights"),
        )
    for diff in diffs:
        subprocess.run(
            ["git", "apply", "--recount", diff],
            cwd=folder,
            check=True,
            capture_output=True,
        )
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'lab'}",
        "PYTHONSAFEPATH": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.thorough
def test_they_work(tmp_path: Path) -> None:
    """All of them at once."""
    done = run_with(sorted(DIFFS.glob("*.diff")), WORKS, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_a_new_kind_of_input_is_one_folder_and_one_name(tmp_path: Path) -> None:
    """Its reader, data set, network, task and picture: check, train, predict, explain
    and export know it.
    """
    done = run_with([DIFFS / "kind.diff"], KIND_WORKS, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

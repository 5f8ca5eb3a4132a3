"""The file of CONTRIBUTING works from a folder of its own, on the command line and in
Python.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from torchcaps_lab.cli import main
from torchcaps_lab.data import Digits

pytestmark = pytest.mark.thorough  # processes of their own, which train
ROOT = Path(__file__).parent.parent
PACKAGES = f"{ROOT}{os.pathsep}{ROOT / 'lab'}"
TRAIN = (
    "train --import my_capsules --data Inverted --model plain_caps --routing "
    "CauchyRouting --routing.steps 2 "
    "--epochs 5 --batch_size 32 --optimizer Adam --optimizer.lr 0.005 "
    "--trainer.accelerator cpu --run run"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stranger")
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    (source,) = [block for block in blocks if "my_capsules.py" in block]
    (folder / "my_capsules.py").write_text(source)
    for number in range(3):
        image = 255 - Digits().test.inputs[number, 0]
        Image.fromarray(image.numpy()).save(folder / f"{number}.png")
    done = torchcaps(folder, *TRAIN.split())
    assert done.returncode == 0, done.stderr
    return folder


def torchcaps(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from torchcaps_lab.cli import main; raise SystemExit(main())",
        *arguments,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": PACKAGES,
        "PYTHONSAFEPATH": "1",
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_it_trains_reports_and_saves(folder: Path) -> None:
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["data"] == "Inverted"
    assert summary["test_accuracy"] > 0.85  # ten classes: it learns, visibly
    assert (folder / "run" / "report" / "index.html").is_file()
    saved = json.loads((folder / "run" / "model" / "config.json").read_text())
    assert saved["network"] == "PlainCaps"
    assert saved["arguments"]["routing"]["steps"] == 2


@pytest.mark.slow
def test_a_run_remembers_the_module(folder: Path) -> None:
    """And says so; it is executed when the command line names it."""
    own = ["--import", "my_capsules"]
    done = torchcaps(folder, "evaluate", "run", "--json")
    assert done.returncode == 1
    assert "add --import my_capsules" in done.stderr
    done = torchcaps(folder, "evaluate", "run", "--json", *own)
    assert done.returncode == 0, done.stderr
    accuracy = json.loads((folder / "run" / "summary.json").read_text())[
        "test_accuracy"
    ]
    assert json.loads(done.stdout)["accuracy"] == accuracy
    done = torchcaps(folder, "train", "--resume", "run", "--report", "false", *own)
    assert done.returncode == 0, done.stderr


def test_a_saved_network_alone_executes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["predict", "run/model", "0.png", "--json"]) == 1
    alone = capsys.readouterr().err
    assert "PlainCaps" in alone
    assert "--import my_capsules" in alone
    assert "my_capsules" not in sys.modules


def test_with_its_file_it_says_what_its_run_says(folder: Path) -> None:
    files = [f"{number}.png" for number in range(3)]
    of_run = torchcaps(
        folder, "predict", "run", *files, "--json", "--import", "my_capsules"
    )
    assert of_run.returncode == 0, of_run.stderr
    named = torchcaps(
        folder, "predict", "run/model", *files, "--json", "--import", "./my_capsules.py"
    )
    assert named.returncode == 0, named.stderr
    assert named.stdout == of_run.stdout


IN_PYTHON = """
import torch, my_capsules, torchcaps as tc
from torchcaps.testing import check_model, check_routing
from torchcaps_lab.testing import check_dataset
check_routing(my_capsules.CauchyRouting(2))
check_dataset(my_capsules.Inverted)
check_model("plain_caps")
classifier = tc.Classifier.open("run")
assert isinstance(classifier.network, my_capsules.PlainCaps)
answer = classifier("0.png")
assert answer.poses["3"].shape == (8,)
print(" ".join(answer.classes))
"""


@pytest.mark.slow
def test_in_python(folder: Path) -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{PACKAGES}{os.pathsep}{folder}",
    }
    command = [sys.executable, "-c", IN_PYTHON]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(
        torchcaps(
            folder, "predict", "run", "0.png", "--json", "--import", "my_capsules"
        ).stdout
    )
    assert done.stdout.split() == row["classes"]
    assert torch.tensor(row["poses"]["3"]).shape == (8,)

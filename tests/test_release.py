"""A release says its version once, and its wheel works alone (TORCHCAPS_SLOW=1: it
compiles, and installs torch).
"""

import os
import re
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import yaml
from PIL import Image, ImageDraw

import torchcaps
from tests.release_check import PACKAGES, metadata_of, metadata_problems

ROOT = Path(__file__).parents[1]
TORCH = os.environ.get("TORCH", "torch==2.13.0")
SLOW = pytest.mark.slow


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == torchcaps.__version__
    for folder in (ROOT, ROOT / "lab"):
        assert not re.search(
            r'^version = "', (folder / "pyproject.toml").read_text(), re.MULTILINE
        )


def test_the_hooks_are_those_of_make_lint() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0][
        "hooks"
    ]
    assert [hook["entry"].split()[0] for hook in hooks] == [
        ".venv/bin/ruff",
        ".venv/bin/ruff",
        ".venv/bin/mypy",
    ]


def test_the_metadata_of_both_packages_are_complete(tmp_path: Path) -> None:
    for source in PACKAGES.values():
        assert list(metadata_problems(metadata_of(source, tmp_path))) == []


def test_missing_metadata_are_named() -> None:
    bare = message_from_string("Metadata-Version: 2.4\nName: torchcaps\n\nShort.")
    problems = set(metadata_problems(bare))
    assert {"no License-Expression", "no classifier for Python 3.14"} <= problems
    assert {"no licence file", "the long description is missing"} <= problems


def test_a_tag_publishes_what_was_checked_without_a_secret() -> None:
    text = (ROOT / ".github" / "workflows" / "publish.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # "on" is a truth value in YAML
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets" not in text
    assert {jobs[name]["needs"] for name in publish["needs"]} == {"check"}
    assert any(
        step.get("run") == "make release-check" for step in jobs["check"]["steps"]
    )
    uses = [
        step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step
    ]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[\w./-]+", action) for action in uses)
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")


def built(source: Path, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "-w",
        str(folder),
    ]
    subprocess.run([*command, str(source)], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT / "lab", tmp_path_factory.mktemp("lab"))


@SLOW
def test_the_wheel_has_all(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "py3-none-linux" in wheel.name
    assert any(name.startswith("torchcaps/ops/fused/built/native-") for name in names)
    assert "torchcaps/pretrained/mnist/efficient_capsnet/model.safetensors" in names
    assert "torchcaps/pretrained/SHA256SUMS" in names
    assert not [name for name in names if name.startswith(("tests", "docs"))]
    assert not [name for name in names if name.startswith("torchcaps_lab")]
    assert wheel.stat().st_size < 10e6


@SLOW
def test_the_wheel_of_the_lab_has_all_and_needs_torchcaps_of_its_version(
    lab: Path,
) -> None:
    with zipfile.ZipFile(lab) as archive:
        names = archive.namelist()
        (metadata,) = (
            archive.read(name).decode() for name in names if name.endswith("METADATA")
        )
        (points,) = (
            archive.read(name).decode()
            for name in names
            if name.endswith("entry_points.txt")
        )
    assert {name.split("/")[0].split("-")[0] for name in names} == {"torchcaps_lab"}
    assert {
        "torchcaps_lab/explore/page/index.html",
        "torchcaps_lab/data/mnist.py",
        "torchcaps_lab/py.typed",
        "torchcaps_lab/report/page.html.jinja",
    } <= {*names}
    assert f"Version: {torchcaps.__version__}\n" in metadata
    assert f"Requires-Dist: torchcaps[hub]=={torchcaps.__version__}\n" in metadata
    assert "torchcaps = torchcaps_lab.cli:main" in points


@SLOW
def test_the_wheels_alone(wheel: Path, lab: Path, tmp_path: Path) -> None:
    """No compiler, no home: the core routes in the kernels, and with the lab a digit is
    named in under 10 seconds.
    """
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = (
        tmp_path / "venv" / "bin" / "python"
    )  # -I: a torchcaps on PYTHONPATH is not the one that is asked about
    subprocess.run([python, "-I", "-m", "pip", "install", "-q", TORCH], check=True)
    subprocess.run(
        [python, "-I", "-m", "pip", "install", "-q", "--no-deps", str(wheel)],
        check=True,
    )
    alone = {"PATH": str(python.parent), "HOME": "/dev/null", "OMP_NUM_THREADS": "1"}
    code = (
        "import torch, torchcaps as tc\n"
        "votes = tc.ops.Votes(torch.rand(64, 512, 8), torch.rand(512, 10, 8, 16))\n"
        "print(tc.choose_backend(votes).backend, votes.moments().mass.shape)\n"
    )
    output = subprocess.run(
        [python, "-c", code], env=alone, cwd=tmp_path, capture_output=True, text=True
    )
    assert output.returncode == 0, output.stderr
    assert output.stdout.startswith("native")
    assert "compil" not in output.stderr

    subprocess.run(
        [python, "-I", "-m", "pip", "install", "-q", str(wheel), str(lab)], check=True
    )
    sheet = Image.new("L", (300, 300), 240)
    ImageDraw.Draw(sheet).line(
        [(80, 60), (210, 60), (140, 240)], fill=30, width=9, joint="curve"
    )
    sheet.save(tmp_path / "seven.png")
    command = [
        python.with_name("torchcaps"),
        "predict",
        "mnist/efficient_capsnet",
        "seven.png",
    ]
    done = subprocess.run(
        command, env=alone, cwd=tmp_path, capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 0, done.stderr
    assert "seven.png: 7 (" in done.stdout

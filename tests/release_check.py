"""Checks that both packages can be released: ``make release-check``.

It builds both wheels and installs them into an empty environment with nothing but what
they declare. There the code of the README runs, and a network is trained on a folder of
images, away from the development tree. ``--quick`` checks the metadata alone.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {"torchcaps": ROOT, "torchcaps-lab": ROOT / "lab"}
TORCH = os.environ.get("TORCH", "torch==2.13.0")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LARGEST = {"torchcaps": 10e6, "torchcaps-lab": 2e6}
"""Bytes of a wheel."""

PREPARE = (
    "import sys; from setuptools import build_meta; "
    "print(build_meta.prepare_metadata_for_build_wheel(sys.argv[1]))"
)


def main(quick: bool) -> int:
    """Prints all problems, and returns how many there are."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        problems = [
            f"{name}: {problem}"
            for name, source in PACKAGES.items()
            for problem in metadata_problems(metadata_of(source, place))
        ]
        if not quick:
            problems += wheel_problems(place)
    result = "ready to be released" if not problems else f"{len(problems)} problems"
    sys.stdout.write("\n".join([*problems, result, ""]))
    return len(problems)


def metadata_of(source: Path, folder: Path) -> Message:
    """What a wheel of these sources would say of itself. Nothing is compiled."""
    out = Path(tempfile.mkdtemp(dir=folder))
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(out)],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    )
    name = done.stdout.splitlines()[-1]
    return message_from_string((out / name / "METADATA").read_text(encoding="utf-8"))


def metadata_problems(metadata: Message) -> Iterator[str]:
    """What is missing in the metadata of a package."""
    for field in ("Summary", "Requires-Python", "License-Expression", "Author"):
        if not metadata[field]:
            yield f"no {field}"
    classifiers = metadata.get_all("Classifier", [])
    for python in PYTHONS:
        if f"Programming Language :: Python :: {python}" not in classifiers:
            yield f"no classifier for Python {python}"
    if "LICENSE" not in metadata.get_all("License-File", []):
        yield "no licence file"
    if metadata["Description-Content-Type"] != "text/markdown":
        yield "the long description is not Markdown"
    description = str(metadata.get_payload())
    if len(description.split()) < 50:
        yield "the long description is missing"
    for url in metadata.get_all("Project-URL", []):
        if not re.fullmatch(r"[^,]+, https://\S+", url):
            yield f"{url!r} is no URL"


def wheel_problems(folder: Path) -> Iterator[str]:
    """What is wrong with the wheels, and with what they do where nothing else is."""
    wheels = {name: built(source, folder / name) for name, source in PACKAGES.items()}
    for name, wheel in wheels.items():
        yield from (f"{name}: {problem}" for problem in content_problems(name, wheel))
    python = folder / "venv" / "bin" / "python"
    run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    for installed in ([TORCH], [str(wheels["torchcaps"])]):
        run([str(python), "-m", "pip", "install", "--quiet", *installed], folder)
    alone = f"import torch\nimport torchcaps as tc\n{code_blocks()[-1]}"
    yield from running_problems("torchcaps alone", [str(python), "-c", alone], folder)
    run(
        [str(python), "-m", "pip", "install", "--quiet", str(wheels["torchcaps-lab"])],
        folder,
    )
    run([str(python), "-c", DRAW_PHOTOS], folder)
    torchcaps = str(python.with_name("torchcaps"))
    for arguments in (
        ["check", "photos"],
        ["train", "photos", "--epochs", "2", "--run", "runs/photos"],
        ["predict", "runs/photos", "new.jpg"],
    ):
        yield from running_problems(
            f"torchcaps {arguments[0]}", [torchcaps, *arguments], folder
        )
    yield from running_problems(
        "the code of the README", [str(python), "-c", "\n".join(code_blocks())], folder
    )


DRAW_PHOTOS = """
from pathlib import Path
from PIL import Image

for name, colour in (("cats", "gold"), ("dogs", "navy")):
    Path("photos", name).mkdir(parents=True)
    for shade in range(30):
        image = Image.new("RGB", (32, 32), colour)
        image.putpixel((shade, 0), (shade, 0, 0))
        image.save(Path("photos", name, f"{shade}.png"))
image.save("new.jpg")
"""


def built(source: Path, folder: Path) -> Path:
    """The wheel of a package."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    run([*command, "--no-build-isolation", "-w", str(folder), str(source)], ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def content_problems(name: str, wheel: Path) -> Iterator[str]:
    """What is too much or missing in a wheel."""
    if wheel.stat().st_size > LARGEST[name]:
        yield f"{wheel.name} has {wheel.stat().st_size:,} bytes"
    with zipfile.ZipFile(wheel) as archive:
        files = {
            file: archive.read(file).decode() if file.endswith("card.md") else ""
            for file in archive.namelist()
        }
    package = name.replace("-", "_")
    foreign = [
        file
        for file in files
        if not re.match(rf"{package}(-[\d.]+\w*\.dist-info)?/", file)
    ]
    if foreign:
        yield f"files that are not of the package: {foreign[:3]}"
    if not any(file.endswith("licenses/LICENSE") for file in files):
        yield "no licence file in the wheel"
    for file in files:
        if file.endswith("model.safetensors"):
            card = files.get(file.replace("model.safetensors", "card.md"), "")
            if "icence" not in card and "icense" not in card:
                yield f"no licence beside {file}"


def code_blocks() -> list[str]:
    """The Python code of the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)


def running_problems(what: str, command: list[str], folder: Path) -> Iterator[str]:
    """How a command fails, if it does."""
    done = run(command, folder, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        yield f"{what} fails: {lines[-1]}"


def run(
    command: list[str], folder: Path, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, without anything of the development tree."""
    outside = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }
    done = subprocess.run(
        command, cwd=folder, env=outside, capture_output=True, text=True
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Checks that a release can be made.")
    parser.add_argument("--quick", action="store_true", help="the metadata alone")
    sys.exit(min(main(parser.parse_args().quick), 1))

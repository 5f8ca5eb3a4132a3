"""Prediction of a picture imports the kind of input that reads it, and no other."""

import subprocess
import sys
from pathlib import Path

from PIL import Image

from torchcaps.models import create_model

PREDICT = """
import sys
from torchcaps_lab import kinds
from torchcaps_lab.cli import main
assert main(["predict", *sys.argv[1:]]) == 0
prefix = "torchcaps_lab.kinds."
loaded = {name.split(".")[2] for name in sys.modules if name.startswith(prefix)}
print(*loaded & {*kinds.FOLDERS})
"""


def test_a_prediction_loads_the_kind_of_its_input(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "digit.png")
    create_model("capsnet_digits").save_pretrained(tmp_path / "network")
    words = [str(tmp_path / "network"), str(tmp_path / "digit.png")]
    command = [sys.executable, "-c", PREDICT, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "images"

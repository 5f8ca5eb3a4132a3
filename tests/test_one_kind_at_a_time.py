"""Only the kinds of input that are needed are imported: to predict that of the input, to
train those that were asked until one recognised the data.
"""

import subprocess
import sys
from pathlib import Path

from PIL import Image

from torchcaps.models import create_model

LOADED = """
import sys
from torchcaps_lab import kinds
from torchcaps_lab.cli import main
assert main(sys.argv[1:]) == 0
prefix = "torchcaps_lab.kinds."
loaded = {name.split(".")[2] for name in sys.modules if name.startswith(prefix)}
print(*loaded & {*kinds.FOLDERS})
"""


def loaded_by(*words: str | Path) -> set[str]:
    """The kinds that a command imports."""
    command = [sys.executable, "-c", LOADED, *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return {*done.stdout.splitlines()[-1].split()}


def test_a_prediction_loads_the_kind_of_its_input(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "digit.png")
    create_model("capsnet_digits").save_pretrained(tmp_path / "network")
    loaded = loaded_by("predict", tmp_path / "network", tmp_path / "digit.png")
    assert loaded == {"images"}


def test_a_training_does_not_load_the_kinds_behind_its_own(tmp_path: Path) -> None:
    for place in range(8):
        folder = tmp_path / "photos" / "ab"[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 48), (20 * place, 90, 9)).save(folder / f"{place}.png")
    loaded = loaded_by("train", tmp_path / "photos", "--print_config")
    assert "images" in loaded
    assert not loaded & {"series", "texts", "objects"}

"""A doubt of your own: what answers, files and pages take from it."""

import ast
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from torchcaps import Classifier, create_model
from torchcaps.models import ClassifierNetwork, Prediction
from torchcaps_lab.cli import main
from torchcaps_lab.data import Examples
from torchcaps_lab.report import Observation
from torchcaps_lab.report.exhibit import Exhibit
from torchcaps_lab.tasks.doubt import DOUBTS, Doubt, register_doubt

ROOT = Path(__file__).parents[2]
# The task that it suits.
NAMED = {"lab/torchcaps_lab/tasks/classification.py"}
"""The files that name a doubt outside of its folder."""


@dataclass(frozen=True)
class Dim(Doubt):
    """Takes dark images for unknown."""

    least: float
    false_alarms: float = 0.05

    says = "too dark"
    needs = "this needs light"

    @classmethod
    def unfit(cls, network: ClassifierNetwork, examples: Examples) -> str:
        return ""

    @classmethod
    def fit(
        cls,
        network: ClassifierNetwork,
        examples: Examples,
        false_alarms: float = 0.05,
    ) -> "Dim":
        return cls(0.5, false_alarms)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Dim":
        return cls(**config)

    def config(self) -> dict[str, Any]:
        return asdict(self)

    def error(self, prediction: Prediction, pictures: Tensor) -> Tensor:
        return 1 - pictures.flatten(1).mean(1)

    def known(self, error: Tensor) -> Tensor:
        return 1 - error > self.least

    def strangeness(self, error: Tensor) -> Tensor:
        return error

    def shown(self, observation: Observation) -> Exhibit | None:
        return None

    def apart(self, known: Tensor, strange: Tensor) -> Mapping[str, float]:
        return {"auc": 1.0}

    def __str__(self) -> str:
        return f"an image is too dark below {self.least}"


@pytest.fixture
def dim() -> Any:
    register_doubt("dim")(Dim)
    yield Dim
    dict.pop(DOUBTS, "dim")


def test_a_doubt_is_opened_asked_and_saved(
    dim: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = create_model("capsnet_digits")
    network.save_pretrained(tmp_path / "net", dim={"least": 0.4})
    classifier = Classifier.open(tmp_path / "net")
    assert classifier.doubts == {"dim": Dim(0.4)}
    assert classifier(torch.ones(1, 8, 8)).known is True
    assert str(classifier(torch.zeros(1, 8, 8))).startswith("none of these")
    assert classifier.card.saved()["dim"] == {"least": 0.4, "false_alarms": 0.05}
    picture = tmp_path / "black.png"
    Image.new("L", (8, 8)).save(picture)
    assert main(["predict", str(tmp_path / "net"), str(picture)]) == 0
    assert "# too dark: an image is too dark below 0.4" in capsys.readouterr().out


def test_nobody_names_a_doubt_but_its_folder_and_its_task() -> None:
    names = set(DOUBTS) - {"dim"}
    assert "strangers" in names
    naming = set()
    for room in ("torchcaps", "lab/torchcaps_lab"):
        for path in (ROOT / room).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            constants = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
            if names & {value for value in constants if isinstance(value, str)}:
                naming.add(path.relative_to(ROOT).as_posix())
    folder = "lab/torchcaps_lab/kinds/none_of_these/"
    assert {file for file in naming if not file.startswith(folder)} == NAMED

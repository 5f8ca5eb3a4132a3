"""Networks of every kind of input that earlier code trained and saved are what they
were.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchcaps as tc
from torchcaps.models import ImageClassifier

SAVED = Path(__file__).parent / "saved"
ANSWERS: dict[str, list[float]] = json.loads((SAVED / "answers.json").read_text())
"""The first activations of each network for :func:`inputs_of`, as it was saved."""

SHAPES = {"words": (2, 7), "series": (2, 2, 11)}
"""The shapes of inputs that are no images."""


WITHOUT_LAB = """
import sys
sys.modules["torchcaps_lab"] = None  # as if it were not installed
import torchcaps as tc
for name in sys.argv[2:]:
    for make, source in (
        (tc.create_model, name), (tc.load_pretrained, sys.argv[1] + "/" + name)
    ):
        try:
            make(source)
            print(name, "works")
        except ModuleNotFoundError as error:
            print(name, error)
assert "capsnet" in tc.list_models() and "text_cnn" not in tc.list_models()
"""


def inputs_of(network: Any) -> Tensor:
    """Inputs that depend on nothing but their shape."""
    shape = SHAPES.get(network.takes, (2, 1, 16, 24))
    numbers = torch.arange(float(torch.Size(shape).numel())).view(shape).sin().square()
    return (9 * numbers).long() if network.takes == "words" else numbers


@pytest.mark.parametrize("name", ANSWERS)
class TestSavedByEarlierCode:
    def test_answers_as_before(self, name: str) -> None:
        network = tc.load_pretrained(SAVED / name)
        with torch.no_grad():
            activation = network(inputs_of(network)).activation.flatten()
        torch.testing.assert_close(
            activation[: len(ANSWERS[name])],
            torch.tensor(ANSWERS[name]),
            rtol=1e-4,
            atol=1e-6,
        )

    def test_is_saved_again_as_before(self, name: str, tmp_path: Path) -> None:
        """With the same card, arguments and weights."""
        classifier = tc.Classifier.open(SAVED / name)
        classifier.network.save_pretrained(tmp_path, **classifier.card.saved())
        for file in ("config.json", "model.safetensors"):
            before = SAVED / name / file
            after = tmp_path / file
            if file.endswith("json"):
                assert json.loads(after.read_text()) == json.loads(before.read_text())
            else:
                assert after.read_bytes() == before.read_bytes()

    def test_only_images_have_a_shape_of_images(self, name: str) -> None:
        network = tc.create_model(name)
        assert hasattr(network, "image_shape") == isinstance(network, ImageClassifier)
        assert isinstance(network, ImageClassifier) == (network.takes not in SHAPES)


def test_networks_of_the_lab_say_what_to_install_where_it_is_missing() -> None:
    """Networks over images need torchcaps alone; the others come with the lab."""
    names = list(ANSWERS)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LAB, str(SAVED), *names],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(names)
    for line in lines:
        name = line.split()[0]
        of_images = isinstance(tc.create_model(name), ImageClassifier)
        assert line.endswith("works" if of_images else "pip install torchcaps-lab")

"""What ``make demo`` claims: two digits are found after training on single ones, routing
decides which part went to which, and the plain network gets what it earned.
"""

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchcaps as tc
from torchcaps_lab.data import Digits, Examples, Padded

EXAMPLE = Path(__file__).parents[1] / "examples" / "two_digits.py"


@pytest.fixture(scope="module")
def demo() -> Iterator[dict[str, Any]]:
    """The script, whose exhibits leave the registry again."""
    from torchcaps_lab.report.exhibit import EXHIBITS

    before = dict(EXHIBITS)
    yield runpy.run_path(str(EXAMPLE))
    for name in EXHIBITS.keys() - before.keys():
        EXHIBITS.pop(name)


@pytest.fixture(scope="module")
def digits() -> Examples:
    return Padded(Digits(size=12), 2).centred_test()


def test_the_pairs_hold_the_digits_that_they_say(
    demo: dict[str, Any], digits: Examples
) -> None:
    for layout in ("side by side", "one above the other"):
        pairs = demo["pairs_of"](digits, layout, count=50)
        assert len(pairs.images) == 50
        assert (pairs.labels[:, 0] != pairs.labels[:, 1]).all()
        assert pairs.present.sum(1).tolist() == [2] * 50
        halves = pairs.halves(pairs.images[:, 0])
        for place, half in enumerate(halves):
            distances = torch.cdist(
                half.flatten(1), digits.inputs.flatten(1).float() / 255
            )
            distance, nearest = distances.min(1)
            assert distance.max() < 0.01  # rounding of squares
            assert torch.equal(digits.labels[nearest], pairs.labels[:, place])


def test_all_digits_of_an_image_must_be_found(
    demo: dict[str, Any], digits: Examples
) -> None:
    class Knows(torch.nn.Module):
        """Is sure of 1 and 2, whatever it sees."""

        def forward(self, images: torch.Tensor) -> tc.models.Prediction:
            sure = torch.tensor([0.0, 1.0, 0.9, *[0.1] * 7]).expand(len(images), 10)
            return tc.models.Prediction(sure, None, None)

    present = torch.zeros(4, 10, dtype=torch.bool)
    for row, pair in enumerate([(1, 2), (2, 1), (1, 3), (4, 5)]):
        present[row, list(pair)] = True
    assert demo["all_found"](Knows(), torch.zeros(4, 1, 16, 16), present) == 0.5


def test_the_decoder_sees_how_a_digit_differs_from_its_class(
    demo: dict[str, Any],
) -> None:
    """It saw poses that differ a twentieth as much as classes do, and drew the mean of
    each class, or shapeless strokes where poses moved.
    """
    torch.manual_seed(0)
    labels = torch.arange(300) % 3
    noise = torch.tensor([0.01, 0.02]) * torch.randn(300, 2)
    poses = torch.randn(3, 2)[labels] + noise
    layer, spread = demo["deviations_of"](poses, labels, 3)
    classes = torch.nn.functional.one_hot(labels, 3).float()
    seen = layer(torch.cat([poses, classes], 1))
    assert spread == pytest.approx(0.015, rel=0.2)
    assert torch.equal(seen[:, 2:], classes)
    for label in range(3):
        of_class = seen[labels == label, :2]
        assert of_class.mean(0).abs().max() < 1e-3
        assert of_class.std(0).tolist() == pytest.approx([1, 1], rel=0.3)


@pytest.mark.thorough
def test_the_demo_keeps_its_word(
    demo: dict[str, Any], tmp_path: Path, digits: Examples
) -> None:
    page = demo["main"](tmp_path / "run")
    shown = json.loads((page.parent / "exhibits.json").read_text())
    first, second, headline = shown["exhibits"][:3]
    assert first["kind"] == "two_digits"
    assert first["own_share"] > 0.5 > 0.1 > first["other_share"]
    assert first["entropy"] < 0.75
    assert first["decided"] > 0.5
    shares = second["shares"]
    capsules, even, plain = shares["single digits"]
    assert min(capsules, plain) > 0.98
    for layout in ("side by side", "one above the other"):
        capsules, even, plain = shares[f"two digits {layout}"]
        assert capsules > 0.85
        assert even < capsules - 0.3
    ahead = [name for name, (routed, _, share) in shares.items() if share > routed]
    assert all(name in second["text"] for name in ahead)
    assert ("The plain network is ahead" in second["text"]) is bool(ahead)
    assert headline["kind"] == "headline"
    (moves,) = [
        exhibit for exhibit in shown["exhibits"] if exhibit["kind"] == "perturbations"
    ]
    assert max(moves["values"]) < 0.1  # twice what single digits differ by
    assert torch.tensor(moves["changes"]).max(1).values.min() > 0.05
    assert page.read_text().index(
        "two-digits-side-by-side.png"
    ) < page.read_text().index("<h2>")

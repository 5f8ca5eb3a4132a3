"""The examples of a page each run, learn, and are as the page says.

Those over other axes are tested with their layers.
"""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
OF_PAGES = {
    "interests": "interests",
    "slots": "slots",
    "points": "sets",
    "transfer": "poses",
    "few_labels": "few-labels",
}
"""The page that links to each example."""


@pytest.fixture
def example(request: pytest.FixtureRequest) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / f"{request.param}.py"))


@pytest.mark.parametrize(("example", "page"), OF_PAGES.items())
def test_the_page_names_the_example(example: str, page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert f"](../examples/{example}.py)" in text


@pytest.mark.thorough
@pytest.mark.parametrize("example", ["interests"], indirect=True)
def test_interests(example: dict[str, Any]) -> None:
    """A third of the films is right by chance. Their order means nothing."""
    chosen, following = example["histories"](100, seed=1)
    kinds = torch.cat([chosen, following], 1) // example["FILMS"]
    assert all(len({*row}) <= 2 for row in kinds.tolist())
    torch.manual_seed(0)
    model = example["Interests"]()
    order = torch.randperm(chosen.shape[1])
    torch.testing.assert_close(model(chosen[:, order]), model(chosen))
    assert example["main"](interests=2, steps=120) > 0.6


@pytest.mark.parametrize("example", ["slots"], indirect=True)
def test_slots(example: dict[str, Any]) -> None:
    """Every name is one word, whatever its slot; by chance, a third is right."""
    words, slots, intents = example["sentences"](200, seed=0)
    assert {*words[slots > 0].tolist()} == {example["WORDS"].index("NAME")}
    assert {*words.unique().tolist()} == {*range(len(example["WORDS"]))}
    assert {*slots.unique().tolist()} == {0, 1, 2, 3}
    assert {*intents.tolist()} == {0, 1, 2}
    assert min(example["main"](steps=60)) > 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("example", ["points"], indirect=True)
def test_points(example: dict[str, Any]) -> None:
    """Points lie where the equations of the shapes say; by chance, a third is right."""
    generator = torch.Generator().manual_seed(0)
    ball, cube, ring = (example["surface"](k, 50, generator) for k in range(3))
    torch.testing.assert_close(ball.norm(dim=1), torch.ones(50))
    torch.testing.assert_close(cube.abs().amax(1), torch.ones(50))
    torch.testing.assert_close(ring[:, :2].norm(dim=1), torch.ones(50))
    assert not ring[:, 2].any()
    assert example["main"](steps=120) > 0.7


@pytest.mark.thorough
@pytest.mark.parametrize("example", ["transfer"], indirect=True)
def test_transfer(example: dict[str, Any]) -> None:
    """By chance, a tenth of the digits would keep their class."""
    assert example["main"](epochs=8) > 0.3


@pytest.mark.parametrize("example", ["few_labels"], indirect=True)
def test_few_labels(example: dict[str, Any]) -> None:
    """Both networks get the same images, and are of one size."""
    data = example["Digits"](validation=0).train
    few = example["some_of_each"](data, 10, seed=1)
    assert set(few.counts().values()) == {10}
    sizes = []
    for network in example["networks"]().values():
        network.eval()(few)
        sizes.append(sum(parameter.numel() for parameter in network.parameters()))
    assert max(sizes) / min(sizes) < 1.01
    assert max(example["main"](seed=0, steps=60).values()) < 0.5

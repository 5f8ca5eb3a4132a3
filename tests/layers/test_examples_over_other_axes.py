"""The examples over volumes and sequences, of a sketch, and of settings of routings,
run, and learn.
"""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import torchcaps as tc

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{request.param}.py"))


@pytest.mark.parametrize("example", ["volumes"], indirect=True)
def test_volumes(example: dict[str, Any]) -> None:
    images, labels = example["volumes"](12, seed=1)
    assert images.shape == (12, 1, 14, 14, 14)
    assert 0 <= images.min()
    assert images.max() == 1
    assert set(labels.tolist()) == {0, 1, 2}
    assert torch.equal(example["volumes"](12, seed=1)[0], images)
    model = example["network"]().eval()
    capsules = model(images)
    assert capsules.pose.shape == (12, 3, 8)
    capsules.activation.sum().backward()
    assert all((parameter.grad != 0).any() for parameter in model[3:].parameters())


@pytest.mark.parametrize("example", ["sequences"], indirect=True)
def test_what_lies_behind_a_signal_does_not_matter(example: dict[str, Any]) -> None:
    noisy, lengths, _ = example["signals"](8, seed=1)
    assert noisy.shape == (8, 1, 64)
    torch.manual_seed(0)
    model = example["Listener"]().eval()
    changed = noisy.clone()
    for signal, long in zip(changed[:, 0], lengths.tolist(), strict=True):
        signal[long:] = 7
    with torch.no_grad():
        torch.testing.assert_close(
            model(noisy, lengths).pose, model(changed, lengths).pose
        )
        assert not torch.allclose(
            model(noisy, lengths).pose,
            model(changed, torch.full_like(lengths, 64)).pose,
        )


@pytest.mark.parametrize("example", ["sequences"], indirect=True)
def test_sequences_are_learned(example: dict[str, Any]) -> None:
    assert example["main"](steps=40, batch=32) > 0.6


@pytest.mark.thorough
@pytest.mark.parametrize("example", ["sketch"], indirect=True)
def test_the_sketch_routes_by_distance_and_is_learned(example: dict[str, Any]) -> None:
    model = example["Sketch"]()
    images = torch.rand(2, 1, 8, 8).round()
    children = model.primary(images)
    routed = model.classes.route(children)
    earlier = tc.create_routing("euclidean", steps=2, distance="plain").bind(10, 16)(
        routed.votes, tc.length(children)
    )
    distance = (routed.votes.dense() - earlier.pose[:, None]).norm(dim=-1)
    torch.testing.assert_close(routed.assignment, (-distance).softmax(-1))
    assert example["main"](epochs=2) > 0.6


@pytest.mark.thorough
@pytest.mark.parametrize("example", ["routing_variants"], indirect=True)
def test_variants_of_routings_are_learned(example: dict[str, Any]) -> None:
    """By chance, a tenth is right."""
    assert min(example["main"](epochs=1).values()) > 0.3

"""Some devices, such as Apple's, have no float64: what gets float32 computes without
it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torchcaps as tc
from tests.small_networks import SMALLER, shipped
from torchcaps.layers import preserve_deviation
from torchcaps.routing import interests_of


class WithoutFloat64(TorchDispatchMode):
    """Refuses float64, as such a device does."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
                raise TypeError(f"{func} makes float64")
        return result


def scene() -> None:
    network = tc.models.SceneCapsNet((1, 32, 32), classes=3, channels=(4, 8)).eval()
    images = network.examples(2)
    network.things_of(images)
    network.parts_of(images)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda: tc.CapsHead(3)(torch.randn(4, 8)), id="CapsHead"),
        pytest.param(
            lambda: preserve_deviation(
                tc.CapsConv2d(2, 3, 4, 4, 3),
                tc.Capsules(torch.randn(2, 5, 5, 2, 4), torch.rand(2, 5, 5, 2)),
            ),
            id="preserve_deviation",
        ),
        pytest.param(lambda: interests_of(torch.tensor([2, 9]), 4), id="interests_of"),
        pytest.param(scene, id="scene"),
    ],
)
def test_starts_and_counts(act: Callable[[], object]) -> None:
    with WithoutFloat64():
        act()


@pytest.mark.parametrize("name", shipped())
def test_networks(name: str) -> None:
    with WithoutFloat64():
        network = tc.create_model(name, **SMALLER.get(name, {}))
        prediction = network(network.examples(2))
        prediction.activation.sum().backward()
        network.eval()(network.examples(2))

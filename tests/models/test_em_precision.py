"""EM networks in float32 against themselves in float64, trained and not: no rounding
becomes a signal.
"""

import copy
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.small_networks import SMALLER, one_of_each, shipped
from torchcaps.models import create_model, load_pretrained
from torchcaps.models.pretrained import list_pretrained
from torchcaps.models.registry import MODELS
from torchcaps.ops import use_backend
from torchcaps.routing import EMRouting

UNTRAINED = [
    name for name in shipped("images") if "matrixcapsnet" in name and "cnn" not in name
]
TRAINED = [name for name in list_pretrained() if "matrixcapsnet" in name]


def with_em(network: torch.nn.Module) -> bool:
    return any(isinstance(module, EMRouting) for module in network.modules())


@lru_cache
def network_and_images(name: str) -> tuple[Any, Tensor, Tensor]:
    """A network in evaluation mode, two images, and its activations for them in
    float64.
    """
    torch.manual_seed(0)
    network = (load_pretrained(name) if name in TRAINED else create_model(name)).eval()
    images = torch.randn(2, *network.image_shape)
    with torch.no_grad(), use_backend("chunked"):
        expected = copy.deepcopy(network).double()(images.double()).activation
    return network, images, expected


def test_no_other_registered_network_has_em_by_default() -> None:
    """So that the tests below are of all that there are."""
    with torch.device("meta"):
        assert [
            name
            for name in sorted(MODELS)
            if with_em(create_model(name, **SMALLER.get(name, {})))
        ] == UNTRAINED


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("naive", marks=pytest.mark.thorough),
        pytest.param("chunked", marks=pytest.mark.thorough),
        "native",
    ],
)
@pytest.mark.parametrize("name", [*one_of_each(UNTRAINED), *TRAINED])
@torch.no_grad()
def test_float32_is_float64_and_one_image_as_in_a_batch(
    name: str, backend: str
) -> None:
    network, images, expected = network_and_images(name)
    with use_backend(backend):
        activation = network(images).activation
        alone = network(images[1:]).activation
    torch.testing.assert_close(activation.double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(alone.double(), expected[1:], rtol=0, atol=1e-4)

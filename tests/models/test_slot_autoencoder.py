"""Slots of images: what they draw does not depend on their order."""

from typing import Any

import pytest
import torch

import torchcaps as tc

NETWORK: dict[str, Any] = {"channels": 4, "dim": 6, "image_shape": (3, 8, 9)}


@pytest.mark.parametrize("name", ["slot_autoencoder", "slot_autoencoder_mixture"])
def test_slots_in_another_order_draw_the_same_image(name: str) -> None:
    torch.manual_seed(0)
    network = tc.create_model(name, classes=4, **NETWORK).double().eval()
    images, order = network.examples(2).double(), torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        before = network(images)
        noise = network.slots.routing.first.noise
        noise.copy_(noise[order].clone())
        after = network(images)
    torch.testing.assert_close(after.reconstruction, before.reconstruction)
    torch.testing.assert_close(after.masks, before.masks[:, order])
    torch.testing.assert_close(after.capsules.pose, before.capsules.pose[:, order])

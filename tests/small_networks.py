"""Arguments that make the larger networks small, with all that they are made of; a
network that tests share.
"""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from torchcaps import create_model, create_routing, list_models
from torchcaps.models.registry import MODELS
from torchcaps.spec import package_of

SMALLER: dict[str, dict[str, Any]] = {
    "attentioncapsnet": {
        "channels": (4, 6),
        "blocks": (1, 1),
        "types": 3,
        "pose": (2, 2),
        "image_shape": (3, 16, 16),
    },
    "byerly": {
        "channels": 4,
        "growth": 2,
        "stages": (1, 2),
        "image_shape": (1, 8, 9),
    },
    "byerly_maps": {
        "channels": 4,
        "growth": 2,
        "stages": (1, 2),
        "image_shape": (1, 8, 9),
    },
    "capsnet": {"channels": 4, "types": 2},
    "capsnet_cnn": {"channels": (4, 4, 4), "hidden": (4, 4), "dropout": 0.0},
    "capsnet_released": {"channels": 4, "types": 2},
    "capsnet_small": {"channels": 4, "types": 2},
    "capsnet_small_cnn": {"channels": (4, 4, 4), "hidden": (4, 4), "dropout": 0.0},
    "deepcaps": {"types": 8},
    "heinsen_smallnorb": {"channels": 4, "parts": 3, "image_shape": (2, 30, 30)},
    "matrixcapsnet": {"types": (4, 3, 2)},
    "matrixcapsnet_cifar10": {"types": (4, 3, 2), "channels": 8},
    "matrixcapsnet_cnn": {"channels": (4, 4), "hidden": 4, "dropout": 0.0},
    "matrixcapsnet_mnist": {"types": (4, 3, 2)},
    "matrixcapsnet_paper": {"types": (4, 3, 2)},
    "matrixcapsnet_small": {"types": (4, 3, 2)},
    "segcaps": {
        "channels": (4,),
        "types": (2, 3),
        "image_shape": (1, 8, 9),
    },
    "self_routing_resnet20": {"channels": 4, "blocks": 1, "types": 3, "pose_dim": 4},
    "slot_autoencoder": {"channels": 4, "dim": 6, "image_shape": (3, 8, 9)},
    "slot_autoencoder_mixture": {
        "channels": 4,
        "dim": 6,
        "image_shape": (3, 8, 9),
        "ground": True,
    },
    "slots_on_backbone": {
        "widths": (4, 5),
        "blocks": 1,
        "dim": 6,
        "hidden": 8,
        "image_shape": (3, 8, 9),
    },
    "slots_on_backbone_coco": {
        "widths": (4, 5),
        "blocks": 1,
        "dim": 6,
        "hidden": 8,
        "image_shape": (3, 8, 9),
    },
    "unet": {"channels": (3, 4), "image_shape": (1, 8, 9)},
    "vbcapsnet": {"types": (4, 3, 2)},
}


def matrix_network(**options: object) -> nn.Module:
    """A MatrixCapsNet of three steps of EM, or other options of it, in evaluation
    mode.
    """
    torch.manual_seed(0)
    routing = create_routing(
        "em",
        **{
            "steps": 3,
            "schedule": "linear",
            "inverse_temperature": 1.0,
            "standardise": True,
            **options,
        },
    )
    return create_model(
        "matrixcapsnet",
        image_shape=(1, 17, 17),
        classes=10,
        channels=4,
        types=(2, 3, 2),
        pose=(2, 2),
        routing=routing,
    ).eval()


def shipped(takes: str | None = None) -> list[str]:
    """Names of the networks of the two packages: others may have been registered by
    what another test imports.
    """
    return [
        name
        for name in list_models(takes=takes)
        if package_of(MODELS[name].network.__module__) == "torchcaps"
    ]


def one_of_each(names: Iterable[str]) -> list[Any]:
    """Names of networks, for a test of each: one configuration of each class, and the
    others in a thorough run.
    """
    seen = set()
    parameters = []
    for name in names:
        network = MODELS[name].network
        thorough = [pytest.mark.thorough] if network in seen else []
        seen.add(network)
        parameters.append(pytest.param(name, marks=thorough))
    return parameters

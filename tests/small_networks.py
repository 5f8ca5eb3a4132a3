"""Arguments that make the larger networks small, with all that they are made of."""

from typing import Any

SMALLER: dict[str, dict[str, Any]] = {
    "attentioncapsnet": {"channels": (4, 6), "blocks": (1, 1), "types": 3, "pose": (2, 2), "image_shape": (3, 16, 16)},
    "byerly": {"channels": 4, "growth": 2, "stages": (1, 2), "image_shape": (1, 8, 9)},
    "byerly_maps": {"channels": 4, "growth": 2, "stages": (1, 2), "image_shape": (1, 8, 9)},
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
    "matrixcapsnet_paper": {"types": (4, 3, 2)},
    "matrixcapsnet_small": {"types": (4, 3, 2)},
    "self_routing_resnet20": {"channels": 4, "blocks": 1, "types": 3, "pose_dim": 4},
    "vbcapsnet": {"types": (4, 3, 2)},
}

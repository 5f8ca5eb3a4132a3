"""Capsule networks for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchcaps import layers, losses, models, ops, routing
from torchcaps.capsules import Capsules
from torchcaps.layers import (
    CapsConv1d,
    CapsConv2d,
    CapsConv3d,
    CapsHead,
    CapsLinear,
    ClassCaps,
    FullyConnectedDecoder,
    PrimaryCaps,
    PrimaryCaps1d,
    PrimaryCaps3d,
    mask_capsules,
)
from torchcaps.losses import (
    LengthCrossEntropy,
    MarginLoss,
    NegativeLogLikelihood,
    ReconstructionLoss,
    SpreadLoss,
    length_cross_entropy,
    margin_loss,
    negative_log_likelihood,
    reconstruction_loss,
    spread_loss,
)
from torchcaps.models import CapsNet, MatrixCapsNet, SharedCapsNet, create_model, list_models, load_pretrained
from torchcaps.names import needing
from torchcaps.ops import Votes, choose_backend, use_backend
from torchcaps.routing import create_routing, list_routings
from torchcaps.squash import Squash, length, squash

if TYPE_CHECKING:
    from torchcaps_lab.classifier import Classifier
    from torchcaps_lab.training.simple import train

__version__ = "0.1.0"

__all__ = [
    "CapsConv1d",
    "CapsConv2d",
    "CapsConv3d",
    "CapsHead",
    "CapsLinear",
    "CapsNet",
    "Capsules",
    "ClassCaps",
    "Classifier",
    "FullyConnectedDecoder",
    "LengthCrossEntropy",
    "MarginLoss",
    "MatrixCapsNet",
    "NegativeLogLikelihood",
    "PrimaryCaps",
    "PrimaryCaps1d",
    "PrimaryCaps3d",
    "ReconstructionLoss",
    "SharedCapsNet",
    "SpreadLoss",
    "Squash",
    "Votes",
    "choose_backend",
    "create_model",
    "create_routing",
    "layers",
    "length",
    "length_cross_entropy",
    "list_models",
    "list_routings",
    "load_pretrained",
    "losses",
    "margin_loss",
    "mask_capsules",
    "models",
    "negative_log_likelihood",
    "ops",
    "reconstruction_loss",
    "routing",
    "spread_loss",
    "squash",
    "train",
    "use_backend",
]


_ROOMS = ("mixture", "sklearn", "testing")
"""Rooms that are imported on first use."""


def __dir__() -> list[str]:
    """What is public."""
    return sorted([*__all__, *_ROOMS, "__doc__", "__version__"])


def __getattr__(name: str) -> Any:
    """Imports what torchcaps-lab has, and rooms that need more than torch, on first use."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name == "Classifier":
        with needing("classifiers", "torchcaps-lab"):
            from torchcaps_lab.classifier import Classifier

        return Classifier
    if name == "train":
        with needing("trainings", "torchcaps-lab"):
            from torchcaps_lab.training.simple import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Capsule networks for PyTorch."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchcaps.optional_imports import needing

if TYPE_CHECKING:
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
        PositionCode,
        PrimaryCaps,
        PrimaryCaps1d,
        PrimaryCaps3d,
        Slots,
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
    from torchcaps.models import (
        CapsNet,
        MatrixCapsNet,
        SharedCapsNet,
        create_model,
        list_models,
        load_pretrained,
    )
    from torchcaps.ops import Votes, use_backend
    from torchcaps.routing import create_routing, list_routings
    from torchcaps.squashing import LearnedSquash, Squash, length, squash
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
    "LearnedSquash",
    "LengthCrossEntropy",
    "MarginLoss",
    "MatrixCapsNet",
    "NegativeLogLikelihood",
    "PositionCode",
    "PrimaryCaps",
    "PrimaryCaps1d",
    "PrimaryCaps3d",
    "ReconstructionLoss",
    "SharedCapsNet",
    "Slots",
    "SpreadLoss",
    "Squash",
    "Votes",
    "create_model",
    "create_routing",
    "length",
    "length_cross_entropy",
    "list_models",
    "list_routings",
    "load_pretrained",
    "margin_loss",
    "mask_capsules",
    "negative_log_likelihood",
    "reconstruction_loss",
    "spread_loss",
    "squash",
    "train",
    "use_backend",
]

_ROOMS = (
    "layers",
    "losses",
    "models",
    "ops",
    "routing",
    "mixture",
    "sklearn",
    "testing",
)
"""Packages and modules that are names of this one."""

_HOMES = ("capsules", "squashing", "ops", "routing", "layers", "losses", "models")
"""Where the other names are, in the order in which they are searched: each needs those
before it.
"""

_OF_THE_LAB = {
    "Classifier": ("classifiers", "classifier"),
    "train": ("trainings", "training.simple"),
}
"""Names from torchcaps-lab: what they are, and their modules."""


def __dir__() -> list[str]:
    """What is public."""
    return sorted({*__all__, *_ROOMS, "__doc__", "__version__"})


def __getattr__(name: str) -> Any:
    """Import public names on first use, because importing torch takes seconds and
    reading options does not need it.
    """
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        # With the name and the module, Python suggests a name that is near.
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}",
            name=name,
            obj=sys.modules[__name__],
        )
    if name in _OF_THE_LAB:
        purpose, home = _OF_THE_LAB[name]
        with needing(purpose, "torchcaps-lab"):
            value = getattr(import_module(f"torchcaps_lab.{home}"), name)
    else:
        homes = (import_module(f"{__name__}.{home}") for home in _HOMES)
        value = next(getattr(home, name) for home in homes if hasattr(home, name))
    globals()[name] = value
    return value


# Programs that torch.export saved name our operators, and the results of networks.
if "torch" in sys.modules:
    import_module(f"{__name__}.ops.fused.operators")
    import_module(f"{__name__}.capsules")

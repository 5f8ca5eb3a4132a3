"""Networks that come with torchcaps-lab. This package has those over images; the others
live there, beside the readers and the data of their kind of input.
"""

from importlib import import_module
from importlib.util import find_spec

from torchcaps.optional_imports import needing

MODELS_OF_THE_LAB = (
    "series_capsnet",
    "series_cnn",
    "text_capsnet",
    "text_capsnet_b",
    "text_cnn",
    "text_encoder",
    "text_pooled",
)
"""The names that are registered there, so that an error can say what to install."""

CLASSES_OF_THE_LAB = (
    "SeriesCNN",
    "SeriesCapsNet",
    "SeriesClassifier",
    "TextCNN",
    "TextCapsNet",
    "TextClassifier",
    "TextEncoder",
    "TextPooled",
)
"""The classes of these networks, by which saved ones are known, and their bases."""


def has_lab() -> bool:
    """Whether torchcaps-lab is installed."""
    return find_spec("torchcaps_lab") is not None


def load_lab() -> None:
    """Register the networks of torchcaps-lab.

    Raises:
        ModuleNotFoundError: it is not installed; names what to install.
    """
    with needing("networks over texts and series", "torchcaps-lab"):
        import_module("torchcaps_lab.kinds").load()

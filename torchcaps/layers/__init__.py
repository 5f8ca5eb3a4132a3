"""Capsule layers."""

from torchcaps.layers.classcaps import ClassCaps, coordinate_addition
from torchcaps.layers.conv import CapsConv2d
from torchcaps.layers.decoder import FullyConnectedDecoder, mask_capsules
from torchcaps.layers.linear import CapsLinear
from torchcaps.layers.primary import PrimaryCaps

__all__ = [
    "CapsConv2d",
    "CapsLinear",
    "ClassCaps",
    "FullyConnectedDecoder",
    "PrimaryCaps",
    "coordinate_addition",
    "mask_capsules",
]

"""Capsule layers."""

from torchcaps.layers.decoder import FullyConnectedDecoder, mask_capsules
from torchcaps.layers.linear import CapsLinear
from torchcaps.layers.primary import PrimaryCaps

__all__ = ["CapsLinear", "FullyConnectedDecoder", "PrimaryCaps", "mask_capsules"]

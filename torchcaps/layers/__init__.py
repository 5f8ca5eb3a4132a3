"""Capsule layers."""

from torchcaps.layers.classcaps import ClassCaps, coordinate_addition
from torchcaps.layers.concurrent import concurrent_routing
from torchcaps.layers.conv import CapsConv1d, CapsConv2d, CapsConv3d, CapsConvNd
from torchcaps.layers.decoder import (
    DecoderInput,
    FullyConnectedDecoder,
    PoseInput,
    mask_capsules,
)
from torchcaps.layers.fixed_point import (
    ImplicitActivation,
    SelfWeightedPooling,
    implicit_activation,
    self_weighted_pooling,
)
from torchcaps.layers.head import CapsHead
from torchcaps.layers.identity_path import IdentityPath
from torchcaps.layers.initial import balanced_length, preserve_deviation, start_length
from torchcaps.layers.linear import CapsLinear, reflected
from torchcaps.layers.local import LocalCaps
from torchcaps.layers.pose_norm import PoseMagnitude, PoseNorm
from torchcaps.layers.primary import (
    PrimaryCaps,
    PrimaryCaps1d,
    PrimaryCaps3d,
    PrimaryCapsNd,
)
from torchcaps.layers.slot_filling import SlotAnswer, SlotCaps
from torchcaps.layers.slots import PositionCode, Slots

__all__ = [
    "CapsConv1d",
    "CapsConv2d",
    "CapsConv3d",
    "CapsHead",
    "CapsLinear",
    "ClassCaps",
    "FullyConnectedDecoder",
    "PoseNorm",
    "PositionCode",
    "PrimaryCaps",
    "PrimaryCaps1d",
    "PrimaryCaps3d",
    "SlotCaps",
    "Slots",
    "mask_capsules",
]

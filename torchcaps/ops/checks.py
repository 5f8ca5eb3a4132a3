"""Checks of what goes into votes: the same for all backends, made before one is chosen.

They look at shapes, dtypes and devices, which costs next to nothing, and at the numbers of ``sites`` alone, once for
each tensor: these become addresses in memory.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_RANGES = WeakTensorKeyDictionary()
"""Of each tensor of sites that was looked at: its version then, its least and its largest number."""


def check_votes(children: Tensor, transforms: Tensor, coordinates: Tensor | None, sites: Tensor | None) -> None:
    """Checks that children (N, G, M, P) can vote.

    Raises:
        TypeError: if something is no tensor.
        ValueError: if a shape, a dtype or a device does not fit, or a site lies outside the children.
    """
    if children.ndim != 4:
        raise ValueError(f"children must be (N, G, P) or (N, G, M, P), got shape {tuple(children.shape)}")
    check_tensor("transforms", transforms)
    if transforms.ndim != 4:
        raise ValueError(f"transforms must be (I or 1, J, P, D), got shape {tuple(transforms.shape)}")
    if sites is not None:
        _check_sites(sites, children)
    _, I, M, P = children.shape
    if sites is not None:
        I = sites.shape[1]
    if transforms.shape[0] not in (1, I):
        raise ValueError(
            f"transforms are for {transforms.shape[0]} children (1 would mean shared by all), but there are {I}"
        )
    if transforms.shape[2] != P:
        raise ValueError(
            f"transforms take child poses of dimension {transforms.shape[2]}, but children have dimension {P}"
        )
    check_numbers("children", children, children.device)
    check_numbers("transforms", transforms, children.device)
    if coordinates is None:
        return
    check_tensor("coordinates", coordinates)
    if coordinates.shape != (I, M * transforms.shape[3]):
        raise ValueError(
            f"coordinates must be (I, H) = {(I, M * transforms.shape[3])}, got shape {tuple(coordinates.shape)}"
        )
    check_numbers("coordinates", coordinates, children.device)


def check_tensor(name: str, value: Any) -> None:
    """Raises a `TypeError` for a list or an array, say."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def check_mask(mask: Tensor, children: Tensor) -> None:
    """Checks that a mask has one entry for each of these children.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if its shape, dtype or device does not fit.
    """
    check_tensor("mask", mask)
    if mask.dtype != torch.bool or mask.shape != children.shape[:2]:
        raise ValueError(
            f"mask must be bool (N, G) = {tuple(children.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}"
        )
    check_numbers("mask", mask, children.device)


def check_field(name: str, field: Tensor, children: Tensor, parents: int | None = None) -> None:
    """Checks that a field has a number for each child, (N, G), or, if ``parents`` are given, for each pair.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if its shape, dtype or device does not fit.
    """
    if not isinstance(field, Tensor):  # at each step of routing: a call takes longer
        check_tensor(name, field)
    sites = children.shape[:2]
    if field.shape != sites and (parents is None or field.shape != (*sites, parents)):
        pairs = "" if parents is None else f" or (N, G, J) = {(*sites, parents)}"
        raise ValueError(f"{name} must be (N, G) = {tuple(sites)}{pairs}, got shape {tuple(field.shape)}")
    check_numbers(name, field, children.device)


def check_numbers(name: str, tensor: Tensor, device: torch.device) -> None:
    """Checks that a tensor is real and on this device; a scalar may be on any.

    Raises:
        ValueError: if it is not.
    """
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    if tensor.device != device and tensor.ndim:
        raise ValueError(f"{name} must be on {device}, where the children are, got {tensor.device}")


def _check_sites(sites: Tensor, children: Tensor) -> None:
    check_tensor("sites", sites)
    if sites.ndim != 2 or sites.dtype != torch.int32:
        raise ValueError(f"sites must be int32 (W, I), got {sites.dtype} {tuple(sites.shape)}")
    check_numbers("sites", sites, children.device)
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or sites.is_meta or not sites.numel():
        return  # there are no numbers to look at
    least, largest = _range(sites)
    if least < 0 or largest >= children.shape[1]:
        raise ValueError(f"sites must be from 0 to {children.shape[1] - 1}, got {least} to {largest}")


def versions(children: Tensor, transforms: Tensor) -> tuple[int, int] | None:
    """How often each was changed in place; None where that is not counted."""
    if torch.compiler.is_compiling() or children.is_inference() or transforms.is_inference():
        return None
    return children._version, transforms._version


def _range(sites: Tensor) -> tuple[int, int]:
    """The least and the largest site, from the table unless the tensor was changed in place since."""
    version = None if sites.is_inference() else sites._version
    known = _RANGES.get(sites)
    if known is None or known[0] is None or known[0] != version:
        least, largest = sites.aminmax()
        known = _RANGES[sites] = (version, int(least), int(largest))
    return known[1], known[2]

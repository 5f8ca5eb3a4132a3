"""The checks of what votes are made of, once and for all backends.

They look at shapes, dtypes and devices, which costs next to nothing, and at the numbers of
``sites`` alone, once for each tensor: these become addresses in memory.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from torchcaps.numerics import check_size
from torchcaps.ops.fields import check_numbers


def check_votes(
    children: Any,
    transforms: Any,
    coordinates: Any,
    sites: Any,
    mask: Any,
    places: int = 1,
) -> tuple[Tensor, tuple[int, int, int, int]]:
    """The children as (N, G, M, P), and the shape (B, I, J, H) of their votes, checked.

    Raises:
        TypeError: if something is not a tensor.
        ValueError: if a shape, a dtype or a device does not fit, or a site lies outside
            the children.
    """
    arguments = (
        ("children", children),
        ("transforms", transforms),
        ("coordinates", coordinates),
        ("mask", mask),
    )
    for name, tensor in arguments:
        if not isinstance(tensor, Tensor) and (
            tensor is not None or name in ("children", "transforms")
        ):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor is not None and (
            tensor.is_complex() or tensor.device != children.device
        ):
            check_numbers(name, tensor, children.device)
    if children.ndim not in (3, 4):
        raise ValueError(
            "children must be (N, G, P) or (N, G, M, P), got shape "
            f"{tuple(children.shape)}"
        )
    if transforms.ndim != 4:
        raise ValueError(
            f"transforms must be (I or 1, J, P, D), got shape {tuple(transforms.shape)}"
        )
    if children.ndim == 3:
        children = children.unsqueeze(2)
    N, G, M, P = children.shape
    distinct, J, dim, D = transforms.shape
    if sites is None:
        W, I = (1, G)
    else:
        W, I = _checked_sites(sites, children).shape
    if places != 1:
        # In an exported program of any size it is a symbol.
        if not isinstance(places, torch.SymInt):
            check_size(places=places)
        if I % places:
            raise ValueError(f"places must divide the {I} children, got {places}")
    # Not ``in (1, ...)``: of a size that is a symbol torch.compile says no.
    if distinct != 1 and distinct != I // places:
        kinds = "children" if places == 1 else f"types of children at {places} places"
        raise ValueError(
            f"transforms are for {distinct} {kinds} (1 would mean shared by all), but "
            f"there are {I // places}"
        )
    if dim != P:
        raise ValueError(
            f"transforms take child poses of dimension {dim}, but children have "
            f"dimension {P}"
        )
    if (
        coordinates is not None
        and coordinates.shape != (I, M * D)
        and not _of_places(coordinates, places, M * D)
    ):
        raise ValueError(
            f"coordinates must be (I, H) = {(I, M * D)}, got shape "
            f"{tuple(coordinates.shape)}"
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (N, G)):
        raise ValueError(
            f"mask must be bool (N, G) = {(N, G)}, got {mask.dtype} {tuple(mask.shape)}"
        )
    return children, (N * W, I, J, M * D)


def _of_places(coordinates: Tensor, places: int, size: int) -> bool:
    """Whether there are coordinates for each place, of at most so many numbers."""
    shape = coordinates.shape
    return len(shape) == 2 and shape[0] == places and 0 < shape[1] <= size


def alike_transforms(transforms: Tensor, alike: int) -> Tensor:
    """The transforms (I or 1, 1, P, D) for so many parents that share them.

    Raises:
        TypeError: if they are no tensor.
        ValueError: if they have another shape.
    """
    if not isinstance(transforms, Tensor):
        raise TypeError(f"transforms must be a tensor, got {type(transforms).__name__}")
    if transforms.ndim != 4 or transforms.shape[1] not in (1, alike):
        raise ValueError(
            f"transforms must be (I or 1, 1, P, D) for {alike} parents alike, got shape "
            f"{tuple(transforms.shape)}"
        )
    return transforms.expand(-1, alike, -1, -1)


def check_child_field(name: str, field: Tensor, children: Tensor) -> None:
    """Checks that a field has a number for each child, (N, G).

    Raises:
        TypeError: if it is not a tensor.
        ValueError: if its shape, dtype or device does not fit.
    """
    if not isinstance(field, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(field).__name__}")
    sites = children.shape[:2]
    if field.shape != sites:
        raise ValueError(
            f"{name} must be (N, G) = {tuple(sites)}, got shape {tuple(field.shape)}"
        )
    if field.is_complex() or field.device != children.device:
        check_numbers(name, field, children.device)


def _checked_sites(sites: Any, children: Tensor) -> Tensor:
    if not isinstance(sites, Tensor):
        raise TypeError(f"sites must be a tensor, got {type(sites).__name__}")
    if sites.ndim != 2 or sites.dtype != torch.int32:
        raise ValueError(
            f"sites must be int32 (W, I), got {sites.dtype} {tuple(sites.shape)}"
        )
    check_numbers("sites", sites, children.device)
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or sites.is_meta
        or not sites.numel()
    ):
        # There are no numbers to look at.
        return sites
    least, largest = _range(sites)
    if least < 0 or largest >= children.shape[1]:
        raise ValueError(
            f"sites must be from 0 to {children.shape[1] - 1}, got {least} to {largest}"
        )
    return sites


_RANGES = WeakTensorKeyDictionary()
"""Of each tensor of sites that was looked at: its version then, its least and its
largest number.
"""


def _range(sites: Tensor) -> tuple[int, int]:
    """The least and the largest site, from the table unless the tensor was changed in
    place since.
    """
    version = None if sites.is_inference() else sites._version
    remembered = _RANGES.get(sites)
    if remembered is None or remembered[0] is None or remembered[0] != version:
        least, largest = sites.aminmax()
        remembered = _RANGES[sites] = (version, int(least), int(largest))
    return remembered[1], remembered[2]

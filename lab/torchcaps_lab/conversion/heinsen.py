"""The state dict of Heinsen's network for smallNORB."""

import pickle
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from torchcaps.models.heinsen import HeinsenCapsNet
from torchcaps.whole import opened
from torchcaps_lab.conversion.base import Converted, Stored, of_smallnorb

_PARTS = {
    "convolve": "features",
    "compute_a": "activations",
    "compute_mu": "poses",
    "routings.0": "part_caps",
    "routings.1": "class_caps",
}
_ROUTING = {
    "W": "weight",
    "B": "routing.bias",
    "beta_use": "routing.benefit",
    "beta_ign": "routing.cost",
}


def read(file: Path) -> Converted:
    """The network of a file; a ``ValueError`` if it holds another one, or anything else
    than tensors.
    """
    state = _declared(file)
    shapes = {
        name: tuple(state[name].shape)
        for name in ("routings.1.W", "compute_a.1.weight")
        if name in state
    }
    if [len(shape) for shape in shapes.values()] != [4, 4]:
        raise ValueError(
            f"{file} is not Heinsen's network for smallNORB: expected tensors "
            "routings.1.W and compute_a.1.weight of "
            f"four axes, got {', '.join(list(state)[:4]) or 'none'}, ..."
        )
    parts, classes, _, size = shapes["routings.1.W"]
    make = partial(
        HeinsenCapsNet,
        (2, 96, 96),
        classes,
        shapes["compute_a.1.weight"][1],
        parts=parts,
        pose=(4, size),
    )
    weights = {}
    for name, tensor in state.items():
        # That buffer holds a 1.
        if not name.endswith("CONST_one"):
            new_name = _renamed(name)
            stored = Stored(
                name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            )
            weights[new_name] = stored
            if new_name.endswith("routing.bias"):
                weights[new_name] = stored._replace(layout=_rows)
    return Converted(make, weights, partial(_tensors, file), of_smallnorb({}))


def _rows(poses: Tensor) -> Tensor:
    """Poses of four rows each."""
    return poses.unflatten(-1, (4, -1))


def _declared(file: Path) -> dict[str, Tensor]:
    """A state dict without memory for its numbers; a ``ValueError`` if the file is too
    short to hold them.
    """
    # Takes a second to import.
    from torch._subclasses.fake_tensor import FakeTensorMode

    size = stated = file.stat().st_size
    # What is not an archive is left to torch, which names it.
    with suppress(BadZipFile), opened(file) as content, ZipFile(content) as archive:
        stated = sum(part.file_size for part in archive.infolist())
    if stated > size:
        raise ValueError(f"{file} states {stated:,} bytes, and has {size:,}")
    with FakeTensorMode():
        state = _tensors(file)
    for name, tensor in state.items():
        room = tensor.untyped_storage().nbytes()
        if room > size or tensor.numel() * tensor.element_size() > room:
            raise ValueError(
                f"{file}: {name} states {tuple(tensor.shape)}, and the file does not "
                "hold so many numbers"
            )
    return state


def _tensors(file: Path) -> dict[str, Tensor]:
    """A state dict, read without executing anything in it."""
    try:
        with opened(file) as content:
            state = torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        held = "other things than tensors, or is damaged"
        if named:
            held = named.group(1)
        raise ValueError(
            f"{file} holds {held}; expected tensors by name, and nothing was executed"
        ) from None
    except Exception as error:  # torch raises many types
        raise ValueError(
            f"{file} is damaged, or holds tensors that are not dense"
        ) from error
    if not isinstance(state, dict):
        raise ValueError(
            f"{file} must hold a state dict, tensors by name, got "
            f"{type(state).__name__}"
        )
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(
                f"{file} must hold a state dict, tensors by name, got "
                f"{type(tensor).__name__} {name!r}"
            )
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(
                f"{file} must hold dense tensors, got {tensor.layout} {tensor.dtype} "
                f"{name!r}"
            )
    return state


def _renamed(name: str) -> str:
    """The name here of a tensor there; one that is not known stays as it is."""
    match = re.fullmatch(rf"({'|'.join(map(re.escape, _PARTS))})\.(.+)", name)
    if match is None:
        return name
    part, parameter = match.groups()
    return f"{_PARTS[part]}.{_ROUTING.get(parameter, parameter) if part.startswith('routings') else parameter}"

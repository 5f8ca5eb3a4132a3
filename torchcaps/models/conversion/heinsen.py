"""The state dict of Heinsen's network for smallNORB."""

import pickle
import re
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.models.conversion.base import SMALLNORB, Converted, check_names
from torchcaps.models.heinsen import HeinsenCapsNet

_PARTS = {
    "convolve": "features",
    "compute_a": "activations",
    "compute_mu": "poses",
    "routings.0": "part_caps",
    "routings.1": "class_caps",
}
_ROUTING = {"W": "weight", "B": "routing.bias", "beta_use": "routing.benefit", "beta_ign": "routing.cost"}


def read(file: Path) -> Converted:
    """The network of a file; a ``ValueError`` if it holds another one, or anything else than tensors."""
    state = _tensors(file)
    shapes = {name: tuple(state[name].shape) for name in ("routings.1.W", "compute_a.1.weight") if name in state}
    if [len(shape) for shape in shapes.values()] != [4, 4]:
        raise ValueError(
            f"{file} is not Heinsen's network for smallNORB: expected tensors routings.1.W and compute_a.1.weight of "
            f"four axes, got {', '.join(list(state)[:4]) or 'none'}, ..."
        )
    parts, classes, _, size = shapes["routings.1.W"]
    network = HeinsenCapsNet((2, 96, 96), classes, shapes["compute_a.1.weight"][1], parts=parts, pose=(4, size))
    weights = {}
    for name, tensor in state.items():
        if not name.endswith("CONST_one"):  # a buffer that holds a 1
            own = _renamed(name)
            weights[own] = tensor.flatten(2) if own.endswith("routing.bias") and tensor.ndim == 4 else tensor
    check_names(file, set(weights), set(network.state_dict()))
    extra = {**SMALLNORB, "preprocess": {}}
    return Converted(network, weights, extra)


def _tensors(file: Path) -> dict[str, Tensor]:
    """A state dict, read without executing anything in it."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{file} holds other things than tensors, or is damaged; nothing was executed: {reason}"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()
    ):
        raise ValueError(f"{file} must hold a state dict, tensors by name, got {type(state).__name__}")
    return state


def _renamed(name: str) -> str:
    """The name here of a tensor there; one that is not known stays as it is."""
    match = re.fullmatch(rf"({'|'.join(map(re.escape, _PARTS))})\.(.+)", name)
    if match is None:
        return name
    part, rest = match.groups()
    return f"{_PARTS[part]}.{_ROUTING.get(rest, rest) if part.startswith('routings') else rest}"

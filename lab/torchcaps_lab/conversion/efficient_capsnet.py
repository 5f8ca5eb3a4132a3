"""Keras weights of Efficient-CapsNet."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcaps.models.efficient_capsnet import EfficientCapsNet
from torchcaps.models.registry import create_model
from torchcaps.optional_imports import needing
from torchcaps.whole import check_file
from torchcaps_lab.conversion.base import Converted, Stored, of_smallnorb, outline

if TYPE_CHECKING:
    import h5py

Layers = dict[str, dict[str, Stored]]
"""The tensors of each layer by their names, in the order in which the layers were made.
"""

_FORMS = {
    (5, 9): "efficient_capsnet",
    (7, 8): "efficient_capsnet_smallnorb",
    (5, 5): "efficient_capsnet_multimnist",
}
"""The published forms by the kernels of the first convolution and of the primary
capsules.
"""

# Mean and deviation of each camera over the training half, where the pixels span [0,
# 1]. The authors standardise the test half with its own.
_PREPROCESS: dict[str, dict[str, Any]] = {
    "efficient_capsnet_smallnorb": {
        "rescale": 64,
        "crop": 48,
        "mean": [0.75217, 0.75717],
        "deviation": [0.17739, 0.17358],
    }
}

_NORMS = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def read(file: Path) -> Converted:
    """The network of a file; a ``ValueError`` if it holds another one."""
    capsnet, generator = _models(file)
    kernels = [layer for layer in capsnet.values() if "kernel" in layer]
    norms = [layer for layer in capsnet.values() if "gamma" in layer]
    caps = [layer for layer in capsnet.values() if "W" in layer]
    four_axes = [
        *(stored_layer["kernel"] for stored_layer in kernels),
        *(stored_layer["W"] for stored_layer in caps),
    ]
    if (len(kernels), len(norms), len(caps)) != (5, 4, 1) or any(
        len(stored_layer.shape) != 4 for stored_layer in four_axes
    ):
        raise ValueError(
            f"{file} is not Efficient-CapsNet: expected five convolutions, four "
            "normalisations and one layer of "
            f"capsules, got {len(kernels)}, {len(norms)} and {len(caps)}"
        )
    *convolutions, depthwise = kernels
    name = _form(file, convolutions[0]["kernel"], depthwise["kernel"])
    make = partial(
        _network,
        name,
        convolutions[0]["kernel"].shape[2],
        caps[0]["W"].shape[0],
        bool(generator),
    )
    weights: dict[str, Stored] = {}
    for number, (convolution, norm) in enumerate(zip(convolutions, norms, strict=True)):
        weights |= _convolution(f"features.{3 * number}", convolution)
        weights |= {
            f"features.{3 * number + 2}.{_NORMS.get(key, key)}": value
            for key, value in norm.items()
        }
    weights |= _convolution("primary_caps.conv", depthwise)
    weights |= _capsules(caps[0])
    for layer, place in zip(
        generator.values(), _decoder_layers(outline(file, make)), strict=False
    ):
        weights |= _convolution(place, layer)
    if name in _PREPROCESS:
        extra = of_smallnorb(_PREPROCESS[name])
    else:
        extra = {}
    return Converted(
        make,
        weights,
        partial(
            _numbers, file, [stored_layer.name for stored_layer in weights.values()]
        ),
        extra,
    )


def _form(file: Path, first: Stored, primary: Stored) -> str:
    kernels = first.shape[0], primary.shape[0]
    if kernels not in _FORMS:
        raise ValueError(
            f"{file} is not a published form of Efficient-CapsNet: expected kernels of "
            "the first convolution and the "
            f"primary capsules among {list(_FORMS)}, got {kernels}"
        )
    return _FORMS[kernels]


def _network(name: str, channels: int, classes: int, decoder: bool) -> EfficientCapsNet:
    """A form with that number of channels and classes."""
    height, width = create_model(name).image_shape[1:]
    parts = {} if decoder else {"decoder_hidden": None, "decoder_channels": None}
    return create_model(
        name, image_shape=(channels, height, width), classes=classes, **parts
    )


def _convolution(name: str, layer: dict[str, Stored]) -> dict[str, Stored]:
    """A convolution or a dense layer: Keras has inputs and outputs last."""
    weights = {
        f"{name}.{key}": stored for key, stored in layer.items() if key != "kernel"
    }
    if "kernel" in layer:
        weights[f"{name}.weight"] = layer["kernel"]._replace(
            layout=lambda weight: weight.movedim((0, 1), (-1, -2))
        )
    return weights


def _capsules(layer: dict[str, Stored]) -> dict[str, Stored]:
    """Transforms (J, I, d, D) and a prior (J, I, 1): here the children come first."""
    weights = {
        f"class_caps.{key}": stored
        for key, stored in layer.items()
        if key not in ("W", "b")
    }
    weights["class_caps.weight"] = layer["W"]._replace(
        layout=lambda weight: weight.transpose(0, 1)
    )
    if "b" in layer:
        weights["class_caps.routing.offset"] = layer["b"]._replace(
            layout=lambda weight: weight.T[..., None]
        )
    return weights


def _decoder_layers(state: Iterable[str]) -> list[str]:
    """The names of the decoder's layers in their order."""
    names = [
        name for name in state if name.startswith("decoder") and name.endswith("weight")
    ]
    order = sorted(names, key=lambda name: "linear" not in name)  # else as they stand
    return [name.removesuffix(".weight") for name in order]


@contextmanager
def _opened(file: Path) -> "Iterator[h5py.File]":
    with needing("Keras weights", "torchcaps-lab[convert]"):
        import h5py
    try:
        with h5py.File(check_file(file), "r") as opened:
            yield opened
    except (
        OSError,
        KeyError,
        RuntimeError,
        AttributeError,
        TypeError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(
            f"{file} is damaged, or holds no weights of Keras: {error}"
        ) from error


def _models(file: Path) -> tuple[Layers, Layers]:
    """The layers of the network and of its decoder, if there is one; the other groups
    of the file have no weights.
    """
    with _opened(file) as opened:
        filled = [
            layers
            for name in opened.attrs["layer_names"]
            if (layers := _layers(opened, _text(name)))
        ]
    capsnet = [
        group for group in filled if any("W" in layer for layer in group.values())
    ]
    decoders = [
        group for group in filled if not any("W" in layer for layer in group.values())
    ]
    if len(capsnet) != 1 or len(decoders) > 1:
        raise ValueError(
            f"{file} is not Efficient-CapsNet: expected one model with capsules and "
            "at most one decoder, got "
            f"{len(capsnet)} and {len(decoders)}"
        )
    return capsnet[0], decoders[0] if decoders else {}


def _layers(opened: "h5py.File", group: str) -> Layers:
    layers: Layers = defaultdict(dict)
    for full_name in map(_text, _at(opened, group).attrs["weight_names"]):
        layer, _, name = full_name.rpartition("/")
        layers[layer][name.partition(":")[0]] = _stored(opened, f"{group}/{full_name}")
    return dict(layers)


def _stored(opened: "h5py.File", name: str) -> Stored:
    """What the file states about a tensor that lies in the file itself, whole."""
    import h5py

    stored = _at(opened, name)
    if not isinstance(stored, h5py.Dataset) or stored.is_virtual or stored.external:
        raise TypeError(f"{name} is not an array of numbers in the file itself")
    if stored.dtype.kind != "f" or stored.shape is None:
        raise TypeError(f"{name} holds {stored.dtype} {stored.shape}, no weights")
    # Of what was not written, or compressed, there can be more than any memory holds.
    if stored.id.get_storage_size() < stored.size * stored.dtype.itemsize:
        raise TypeError(
            f"{name} states {stored.shape}, and the file does not hold so many numbers"
        )
    return Stored(name, stored.shape, stored.dtype.name)


def _at(opened: "h5py.File", name: str) -> Any:
    """What lies at a path of a file; links, which may lead to other files, are
    refused.
    """
    import h5py

    place: Any = opened
    for part in name.split("/"):
        if not isinstance(place, h5py.Group) or not isinstance(
            place.get(part, getlink=True), h5py.HardLink
        ):
            raise KeyError(f"{name} is not there, or elsewhere")
        place = place[part]
    return place


def _numbers(file: Path, names: list[str]) -> dict[str, Tensor]:
    with _opened(file) as opened:
        return {
            name: torch.from_numpy(opened[name][()].astype("float32")) for name in names
        }


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)

"""Keras weights of Efficient-CapsNet."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcaps.models.conversion.base import SMALLNORB, Converted
from torchcaps.models.efficient_capsnet import EfficientCapsNet
from torchcaps.models.registry import create_model

if TYPE_CHECKING:
    import h5py

Layers = dict[str, dict[str, Tensor]]
"""The tensors of each layer by their names, in the order in which the layers were made."""

_FORMS = {
    (5, 9): "efficient_capsnet",
    (7, 8): "efficient_capsnet_smallnorb",
    (5, 5): "efficient_capsnet_multimnist",
}
"""The published forms by the kernels of the first convolution and of the primary capsules."""

_LARGEST = 10**8
"""The most numbers in one tensor; a file that states more is refused."""

# Mean and deviation of each camera over the training half, where the pixels span [0, 1]. The authors standardise the
# test half with its own.
_PREPROCESS: dict[str, dict[str, Any]] = {
    "efficient_capsnet_smallnorb": {
        "rescale": 64,
        "crop": 48,
        "mean": [0.75217, 0.75717],
        "deviation": [0.17739, 0.17358],
    },
}

_NORMS = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def read(file: Path) -> Converted:
    """The network of a file; a ``ValueError`` if it holds another one."""
    capsnet, generator = _models(file)
    kernels = [layer for layer in capsnet.values() if "kernel" in layer]
    norms = [layer for layer in capsnet.values() if "gamma" in layer]
    caps = [layer for layer in capsnet.values() if "W" in layer]
    if len(kernels) != 5 or len(norms) != 4 or len(caps) != 1 or any(one["kernel"].ndim != 4 for one in kernels):
        raise ValueError(
            f"{file} is not Efficient-CapsNet: expected five convolutions, four normalisations and one layer of "
            f"capsules, got {len(kernels)}, {len(norms)} and {len(caps)}"
        )
    *convolutions, depthwise = kernels
    name = _form(file, convolutions[0]["kernel"], depthwise["kernel"])
    network = _network(name, convolutions[0]["kernel"].shape[2], caps[0]["W"], decoder=bool(generator))
    weights: dict[str, Tensor] = {}
    for number, (convolution, norm) in enumerate(zip(convolutions, norms, strict=True)):
        weights |= _convolution(f"features.{3 * number}", convolution)
        weights |= {f"features.{3 * number + 2}.{_NORMS.get(key, key)}": value for key, value in norm.items()}
    weights |= _convolution("primary_caps.conv", depthwise)
    weights |= _capsules(caps[0])
    for layer, place in zip(generator.values(), _decoder_layers(network), strict=False):
        weights |= _convolution(place, layer)
    weights |= {key: value for key, value in network.state_dict().items() if key.endswith("num_batches_tracked")}
    extra = {**SMALLNORB, "preprocess": _PREPROCESS[name]} if name in _PREPROCESS else {}
    return Converted(network, weights, extra)


def _form(file: Path, first: Tensor, primary: Tensor) -> str:
    kernels = first.shape[0], primary.shape[0]
    if kernels not in _FORMS:
        raise ValueError(
            f"{file} is no published form of Efficient-CapsNet: expected kernels of the first convolution and the "
            f"primary capsules among {list(_FORMS)}, got {kernels}"
        )
    return _FORMS[kernels]


def _network(name: str, channels: int, transforms: Tensor, decoder: bool) -> EfficientCapsNet:
    """A form with that number of channels and classes."""
    height, width = create_model(name).image_shape[1:]
    parts = {} if decoder else {"decoder_hidden": None, "decoder_channels": None}
    return create_model(name, image_shape=(channels, height, width), classes=len(transforms), **parts)


def _convolution(name: str, layer: dict[str, Tensor]) -> dict[str, Tensor]:
    """A convolution or a dense layer: Keras has inputs and outputs last."""
    renamed = {"kernel": "weight"}
    weights = {f"{name}.{renamed.get(key, key)}": value for key, value in layer.items()}
    if "kernel" in layer:
        weights[f"{name}.weight"] = layer["kernel"].movedim((-1, -2), (0, 1)).contiguous()
    return weights


def _capsules(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    """Transforms (J, I, d, D) and a prior (J, I, 1): here the children come first."""
    weights = {f"class_caps.{key}": value for key, value in layer.items()}
    weights["class_caps.weight"] = weights.pop("class_caps.W").transpose(0, 1).contiguous()
    if "b" in layer and layer["b"].ndim == 3:
        weights["class_caps.routing.offset"] = weights.pop("class_caps.b")[..., 0].T.contiguous()
    return weights


def _decoder_layers(network: EfficientCapsNet) -> list[str]:
    """The names of the decoder's layers in their order."""
    names = [name for name in network.state_dict() if name.startswith("decoder") and name.endswith("weight")]
    order = sorted(names, key=lambda name: "linear" not in name)  # else as they stand
    return [name.removesuffix(".weight") for name in order]


def _models(file: Path) -> tuple[Layers, Layers]:
    """The layers of the network and of its decoder, if there is one; the other groups of the file have no weights."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Keras weights need h5py, which is not installed: pip install 'torchcaps[convert]'", name="h5py"
        ) from error
    try:
        with h5py.File(file, "r") as opened:
            groups = [_layers(opened[_text(name)]) for name in opened.attrs["layer_names"]]
    except (OSError, KeyError, RuntimeError, AttributeError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is damaged, or holds no weights of Keras: {error}") from error
    filled = [group for group in groups if group]
    capsnet = [group for group in filled if any("W" in layer for layer in group.values())]
    decoders = [group for group in filled if not any("W" in layer for layer in group.values())]
    if len(capsnet) != 1 or len(decoders) > 1:
        raise ValueError(
            f"{file} is not Efficient-CapsNet: expected one model with capsules and at most one decoder, got "
            f"{len(capsnet)} and {len(decoders)}"
        )
    return capsnet[0], decoders[0] if decoders else {}


def _layers(group: "h5py.Group") -> Layers:
    layers: Layers = defaultdict(dict)
    for full_name in map(_text, group.attrs["weight_names"]):
        layer, _, name = full_name.rpartition("/")
        layers[layer][name.partition(":")[0]] = _tensor(group, full_name)
    return dict(layers)


def _tensor(group: "h5py.Group", name: str) -> Tensor:
    """One tensor that lies in the file itself."""
    import h5py

    *folders, last = name.split("/")
    for folder in folders:
        _only_hard(group, folder)
        group = group[folder]
    _only_hard(group, last)
    stored = group[last]
    if not isinstance(stored, h5py.Dataset) or stored.is_virtual or stored.external:
        raise TypeError(f"{name} is no array of numbers in the file itself")
    if stored.dtype.kind != "f" or stored.size > _LARGEST:
        raise TypeError(f"{name} holds {stored.dtype} {stored.shape}, no weights")
    return torch.from_numpy(stored[()]).float()


def _only_hard(group: "h5py.Group", name: str) -> None:
    """Refuses links, which may lead to other files."""
    import h5py

    if not isinstance(group, h5py.Group) or not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise KeyError(f"{name} is not there, or elsewhere")


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)

"""What every network of this package can do: predict, show its capsules, save and load itself."""

import inspect
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear, ClassCaps, mask_capsules
from torchcaps.routing import Routed, Routing, create_routing
from torchcaps.routing.base import ROUTINGS

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"

NETWORKS: dict[str, type["ImageClassifier"]] = {}

Network = TypeVar("Network", bound="ImageClassifier")


class Prediction(NamedTuple):
    """What a network says about a batch of images.

    Args:
        activation: of the classes, (B, E).
        capsules: of the classes; None for a network without capsules.
        reconstruction: (B, C, H, W); None for a network without a decoder.
    """

    activation: Tensor
    capsules: Capsules | None
    reconstruction: Tensor | None


class ImageClassifier(nn.Module, ABC):
    """Base of the networks. Constructor arguments are kept as attributes of the same names, for :meth:`config`.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes E.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Makes the class known to :func:`load_pretrained`."""
        super().__init_subclass__(**kwargs)
        NETWORKS[cls.__name__] = cls

    def __init__(self, image_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ValueError(f"image_shape must be (channels, height, width), got {image_shape!r}")
        if classes < 1:
            raise ValueError(f"classes must be at least 1, got {classes}")
        self.image_shape = (int(image_shape[0]), int(image_shape[1]), int(image_shape[2]))
        self.classes = classes
        self.extra: dict[str, Any] = {}

    any_size = False
    """Whether images may have another height and width than ``image_shape``."""

    @abstractmethod
    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Classifies images (B, C, H, W) with values in [0, 1].

        Args:
            images: the batch.
            target: labels (B,) or a mask (B, E): what to reconstruct; None for the most active class.

        Raises:
            ValueError: if the images do not fit the network, or are not finite.
        """

    def _check(self, images: Tensor) -> None:
        fits = images.shape[1:2] == self.image_shape[:1] if self.any_size else images.shape[1:] == self.image_shape
        if images.ndim != 4 or not fits:
            size = ("H", "W") if self.any_size else self.image_shape[1:]
            raise ValueError(
                f"images must be (B, {self.image_shape[0]}, {size[0]}, {size[1]}), got shape {tuple(images.shape)}"
            )
        if not images.is_floating_point():
            raise ValueError(f"images must be floating point with values in [0, 1], got {images.dtype}")
        # Where looking would stall the device or break a compiled graph, the loss tells later.
        if images.device.type == "cpu" and not torch.compiler.is_compiling() and not images.isfinite().all():
            raise ValueError("images hold NaN or infinite values")

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, ready for JSON."""
        arguments = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return {name: _plain(value) for name, value in arguments.items()}

    @classmethod
    def from_config(cls: type[Network], config: dict[str, Any]) -> Network:
        """The network with these constructor's arguments, freshly initialised."""
        network: Any = cls
        return network(**{name: _rich(value) for name, value in config.items()})

    def save_pretrained(self, folder: str | Path, **extra: Any) -> None:
        """Writes ``config.json`` and ``model.safetensors``.

        Args:
            folder: made if it is missing.
            extra: anything JSON can hold, kept in ``config.json`` and given back as the attribute ``extra``; the
                command line keeps the names of the classes and how images are prepared here.
        """
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"network": type(self).__name__, "arguments": self.config(), "extra": extra}
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(state, folder / WEIGHTS_FILE)
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls: type[Network], source: str | Path) -> Network:
        """A network that :meth:`save_pretrained` wrote, in evaluation mode.

        Args:
            source: the folder, or else a repository on the Hugging Face Hub.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if the files are damaged, or hold another network.
        """
        network = load_pretrained(source)
        if not isinstance(network, cls):
            raise ValueError(f"{source} holds a {type(network).__name__}, not a {cls.__name__}")
        return network


class CapsuleClassifier(ImageClassifier):
    """Base of the networks whose classes are capsules. A subclass sets ``class_caps`` and ``decoder`` (or None)."""

    class_caps: CapsLinear | ClassCaps
    decoder: nn.Module | None

    @property
    def routing(self) -> Routing:
        """The routing of the class capsules."""
        return self.class_caps.routing

    @abstractmethod
    def children_of(self, images: Tensor) -> Capsules:
        """The capsules that vote for the class capsules, with poses (B, *sites, *pose)."""

    def encode(self, images: Tensor) -> Capsules:
        """The class capsules of images (B, C, H, W)."""
        return self.class_caps(self.children_of(images))

    def route(self, images: Tensor) -> Routed:
        """The last routing with all that can be seen of it: ``route(images).assignment`` is (B, I, J)."""
        return self.class_caps.route(self.children_of(images))

    def decode(self, capsules: Capsules, target: Tensor | None = None) -> Tensor:
        """The image that the capsule of one class describes; ``target`` as in :func:`~torchcaps.layers.mask_capsules`.

        Raises:
            RuntimeError: if the network has no decoder.
        """
        if self.decoder is None:
            raise RuntimeError(f"this {type(self).__name__} was built without a decoder")
        return self.decoder(mask_capsules(capsules, target))

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Class capsules and, with a decoder, the reconstruction."""
        capsules = self.encode(images)
        reconstruction = None if self.decoder is None else self.decode(capsules, target)
        return Prediction(capsules.activation, capsules, reconstruction)


def _plain(value: Any) -> Any:
    """A routing as its name and settings, a tuple as a list; everything else is plain already."""
    if isinstance(value, Routing):
        name = next((name for name, cls in ROUTINGS.items() if cls is type(value)), None)
        if name is None:
            raise ValueError(f"{type(value).__name__} is not registered: decorate it with @register_routing(name)")
        config = {"name": name, **value.config()}
        for argument, setting in config.items():
            if callable(setting):
                raise ValueError(f"{name} routing with a function as {argument} cannot be saved: give it by name")
        return config
    return list(value) if isinstance(value, tuple) else value


def _rich(value: Any) -> Any:
    """What :func:`_plain` made plain."""
    if isinstance(value, dict):
        settings = dict(value)
        return create_routing(settings.pop("name"), **settings)
    return tuple(value) if isinstance(value, list) else value


def _locate(source: str | Path) -> Path:
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists() or len(folder.parts) != 2 or folder.is_absolute():  # a Hub repository reads owner/name
        raise FileNotFoundError(f"{source} is not a folder with a saved network")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(str(source), allow_patterns=[CONFIG_FILE, WEIGHTS_FILE]))
    except (OSError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
        raise FileNotFoundError(f"{source} is neither a folder nor a repository that can be reached") from error


def load_pretrained(source: str | Path) -> ImageClassifier:
    """A network that :meth:`ImageClassifier.save_pretrained` wrote, in evaluation mode; no code is executed.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the files are damaged or do not belong together.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _locate(source)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no {name}: it is not a saved network, or not a whole one")
    try:
        config = json.loads((folder / CONFIG_FILE).read_text())
        network = NETWORKS[config["network"]].from_config(config["arguments"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{folder / CONFIG_FILE} is damaged, or from another version: {error!r}") from error
    try:
        state = load_file(folder / WEIGHTS_FILE)
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS_FILE} is damaged: {error}") from error
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{folder / WEIGHTS_FILE} does not fit {folder / CONFIG_FILE}: {error}") from error
    network.extra = config.get("extra", {})
    return network.eval()

"""Published configurations by name."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import filter as matching
from functools import partial
from typing import Any, NamedTuple

from torch.overrides import TorchFunctionMode

from torchcaps.models.lab_networks import MODELS_OF_THE_LAB, has_lab, load_lab
from torchcaps.models.network import Network
from torchcaps.models.outline import outlined
from torchcaps.models.pretrained import list_pretrained, pretrained_folder
from torchcaps.models.saved import load_pretrained
from torchcaps.spec import meant, parameters, refused, same_class


class Configuration(NamedTuple):
    """A network with its arguments, and where it was published."""

    network: type[Network]
    arguments: dict[str, Any]
    source: str


RESERVED_FOR_MODELS = ("name", "pretrained", "num_classes")
"""What :func:`create_model` takes itself: no argument of a network that is registered.
"""

MODELS: dict[str, Configuration] = {}


def register_model(name: str, source: str, **arguments: Any) -> Callable[[type], type]:
    """Register one configuration of a network under a name, as a class decorator.

    Args:
        name: what :func:`create_model` and the command line call it.
        source: where it was published, one line.
        arguments: the arguments of the constructor, where they differ from its
            defaults. A routing goes in as a dict, ``{"name": ..., setting: value}``.

    Raises:
        ValueError: when it decorates a class: if another network has that name, or the
            constructor takes an argument of a name that :func:`create_model` takes
            itself, or that every network has as an attribute, such as ``training``.
    """

    def register(network: type) -> type:
        if taken := parameters(network).keys() & RESERVED_FOR_MODELS:
            raise ValueError(
                f"model {name!r}: {network.__name__} takes an argument {min(taken)!r}, "
                "as create_model does: give it another name"
            )
        check_argument_names(name, network)
        if name in MODELS:
            registered = MODELS[name].network
            if registered is network or not same_class(registered, network):
                raise ValueError(
                    f"a model named {name!r} exists already: a {registered.__name__}"
                )
        MODELS[name] = Configuration(network, arguments, source)
        return network

    return register


_SHAPE = "give image_shape=(channels, height, width)"
FOREIGN = {
    "in_chans": _SHAPE,
    "img_size": _SHAPE,
    "features_only": "forward_features of the network returns the capsules below the "
    "classes",
}
"""Arguments of timm that no network has, and what to do instead."""


def check_foreign_names(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise a `ValueError` that says what to do instead of an argument of timm."""
    for argument, instead in FOREIGN.items():
        if argument in arguments and argument not in parameters(MODELS[name].network):
            raise ValueError(f"{name} takes no argument {argument!r}: {instead}")


def check_argument_names(name: str, network: type) -> None:
    """Raise a `ValueError` for an argument that is called as something that every
    network has: it could not be kept under its name.
    """
    for argument in parameters(network):
        if argument in ("training", "extra") or hasattr(Network, argument):
            raise ValueError(
                f"model {name!r}: {network.__name__} takes an argument {argument!r}, "
                f"but every network has an attribute of that name: give the argument "
                "another name"
            )


def list_models(pattern: str = "*", takes: str | None = None) -> list[str]:
    """List the names that :func:`create_model` accepts, and that match a shell pattern.

    Networks over inputs that are no images come with torchcaps-lab, if it is installed.

    Args:
        pattern: the pattern of the names.
        takes: ``"images"`` or ``"words"``, for only the networks over these.
    """
    if has_lab():
        load_lab()
    names = sorted(matching(MODELS, pattern))
    return [name for name in names if takes in (None, taken_by(name))]


def taken_by(name: str) -> str:
    """Return what the network of this name takes: images, unless it says otherwise.

    Raises:
        ValueError: if there is no such model.
    """
    return getattr(_configuration(name).network, "takes", "images")


def _configuration(name: str) -> Configuration:
    """The configuration of this name; a `ValueError` if there is none."""
    if name not in MODELS and name in MODELS_OF_THE_LAB:
        load_lab()
    if name not in MODELS:
        raise ValueError(
            "model must be the name of a network, got "
            f"{name!r}{meant(str(name), list_models())}\n"
            f"  The names: {', '.join(list_models())}"
        )
    return MODELS[name]


def create_model(
    name: str, /, pretrained: str | bool | None = None, **arguments: Any
) -> Any:
    """Create a network by name.

    Args:
        name: one of :func:`list_models`.
        pretrained: the data that it was trained on, ``mnist``: the network of that name
            that comes with the package, in evaluation mode; True if it was trained on
            one only; None makes one with random weights.
        arguments: override those of the configuration: ``image_shape``, ``classes`` (or
            ``num_classes``, as timm calls it), ``routing``, ... With ``pretrained``,
            ``classes`` alone: see :meth:`ClassifierNetwork.reset_classifier`.

    Raises:
        ModuleNotFoundError: if the network comes with torchcaps-lab, which is not
            installed.
        ValueError: if there is no such model, or it does not take an argument, or does
            not fit into memory; or if none was trained on such data, or ``pretrained``
            comes with other arguments.
    """
    configuration = _configuration(name)
    if "num_classes" in arguments:
        classes = arguments.pop("num_classes")
        if arguments.setdefault("classes", classes) != classes:
            raise ValueError(
                "num_classes is timm's name of classes: they must be the same, got "
                f"classes {arguments['classes']!r} and num_classes {classes!r}"
            )
    if pretrained is not None and pretrained is not False:
        return _trained(name, pretrained, arguments)
    check_foreign_names(name, arguments)
    if why := refused(name, configuration.network, list(arguments)):
        raise ValueError(why)
    arguments = {**configuration.arguments, **arguments}
    try:
        return configuration.network.from_config(arguments)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not any(
            words in str(error) for words in _NO_MEMORY
        ):
            raise
        raise ValueError(
            f"{name} does not fit into memory{_largest(configuration, arguments)}"
        ) from error


_NO_MEMORY = ("alloc", "out of memory", "overflow")
"""Words of torch where memory is missing, on any device, or where a size is too large
to be counted.
"""


def _largest(configuration: Configuration, arguments: Mapping[str, Any]) -> str:
    """The size of a network that was not made, and of its largest tensor, for a
    message.
    """
    try:
        network = outlined(partial(configuration.network.from_config, arguments))
    except RuntimeError:
        return ": a size is too large"
    weights = dict(network.named_parameters())
    name = max(weights, key=lambda name: weights[name].numel())
    total = sum(weight.nbytes for weight in weights.values())
    shape = tuple(weights[name].shape)
    return (
        f": its weights take {total / 1e9:.1f} GB, {name} {shape} alone "
        f"{weights[name].nbytes / 1e9:.1f} GB"
    )


def _trained(name: str, data: str | bool, arguments: dict[str, Any]) -> Any:
    """The network of that name that was trained on that data."""
    classes = arguments.pop("classes", None)
    if arguments:
        raise ValueError(
            f"a trained network has its arguments already, got {', '.join(arguments)} "
            "besides pretrained"
        )
    data_names = [path.partition("/")[0] for path in list_pretrained(f"*/{name}")]
    if data is True and len(data_names) == 1:
        (data,) = data_names
    if data not in data_names:
        if data_names:
            asked = f"must be one of {data_names} for {name}"
        else:
            asked = f"must be None for {name}, which was not trained"
        raise ValueError(
            f"pretrained {asked}, got {data!r}; all are {list_pretrained()}"
        )
    network = load_pretrained(pretrained_folder(f"{data}/{name}"))
    if classes is not None:
        network.reset_classifier(classes)
    return network


def describe_models(names: Iterable[str]) -> list[dict[str, Any]]:
    """Name, network, number of parameters at its default size, and source of each
    model.
    """
    rows = []
    for name in names:
        with _Undrawn():
            model = create_model(name)
        rows.append(
            {
                "name": name,
                "network": type(model).__name__,
                "takes": taken_by(name),
                "image_shape": getattr(model, "image_shape", ()),
                "parameters": sum(p.numel() for p in model.parameters()),
                "source": MODELS[name].source,
            }
        )
    return rows


class _Undrawn(TorchFunctionMode):
    """Draws hardly any initial weights, which takes most of the time of making a
    network. For an outline, torch would import its compiler, which takes longer.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), named: Any = None
    ) -> Any:
        named = named or {}
        if (
            function.__name__ in ("normal_", "uniform_")
            or getattr(function, "__module__", "") == "torch.nn.init"
        ):
            return (args[0] if args else named["tensor"]).detach().zero_()
        return function(*args, **named)

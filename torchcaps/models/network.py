"""What every network can do, over images or words: give its configuration, save itself,
and be loaded again.
"""

import ctypes
import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchcaps.capsules import KeepsProperties
from torchcaps.models.lab_networks import CLASSES_OF_THE_LAB, load_lab
from torchcaps.models.outline import EACH, SPARE, TooLarge, outlined, read_shapes
from torchcaps.models.pretrained import list_pretrained, pretrained_folder
from torchcaps.optional_imports import needing
from torchcaps.routing import Routing, create_routing
from torchcaps.routing.base import MOST_STEPS
from torchcaps.spec import (
    NotKnown,
    SuggestsNames,
    declared,
    fit,
    kept,
    make,
    meant,
    package_of,
    plain,
    same_class,
)
from torchcaps.whole import (
    CONFIG_FILE,
    LARGEST_NOTE,
    WEIGHTS_FILE,
    check_file,
    folder_instead,
    network_folder,
    read_json,
    seen_from,
    sweep,
    write_whole,
    written_whole,
)

KEPT_FOR_ANY_CLASSES = ("reader", "task")
"""What is saved beside a network by these names holds for any classes."""

NETWORKS: dict[str, type["Network"]] = {}
"""The networks that :func:`load_pretrained` knows, by the names of their classes."""

STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""The types of 16 bits that weights may be stored in, by name."""

NetworkType = TypeVar("NetworkType", bound="Network")


class Network(SuggestsNames, KeepsProperties, ABC):
    """Base of all networks, which are defined by the arguments of their constructor and
    their weights.

    A subclass keeps the arguments of its constructor as attributes of the same names,
    for :meth:`config`. They are numbers, strings, None, routings where their type hint
    says so or their name ends with ``routing``, and sequences (which come back as
    tuples) and dicts of these. Python knows a network by its class; a saved one is
    known by the class's name, which is therefore used once.

    Attributes:
        extra: what was saved beside the network, see :meth:`save_pretrained`.

    Raises:
        ValueError: when a subclass is defined that has the name of another one.

    Example:
        >>> class Doubler(tc.models.Network):
        ...     def __init__(self, factor=2.0):
        ...         super().__init__()
        ...         self.factor = factor
        ...
        ...     def forward(self, x):
        ...         return self.factor * x
        >>> Doubler.from_config(
        ...     Doubler(3.0).config()
        ... ).factor  # arguments are kept, and saved with the weights
        3.0
    """

    outside: ClassVar[tuple[str, ...]] = ()
    """Arguments of the constructor that name files elsewhere, such as first weights:
    None in saved networks.
    """

    _passed_on: dict[str, Any]
    _unnamed: tuple[Any, ...]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the class known to :func:`load_pretrained`."""
        super().__init_subclass__(**kwargs)
        registered = NETWORKS.get(cls.__name__)
        if registered is not None and not same_class(registered, cls):
            raise ValueError(
                f"a network named {cls.__name__!r} exists already, "
                f"{registered.__module__}.{registered.__qualname__}: saved "
                "networks are known by that name, so give "
                f"{cls.__module__}.{cls.__qualname__} another one"
            )
        NETWORKS[cls.__name__] = cls

    def __new__(cls, *args: Any, **kwargs: Any) -> "Network":
        """Keep the arguments that the constructor takes as ``*args`` and ``**kwargs``:
        only the call has them.
        """
        network = super().__new__(cls)
        named = declared(cls).arguments
        passed_on = {name: value for name, value in kwargs.items() if name not in named}
        network.__dict__.update(_passed_on=passed_on, _unnamed=args[_positions(cls) :])
        return network

    def __init__(self) -> None:
        super().__init__()
        self.extra: dict[str, Any] = {}

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the network for a batch."""

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments, ready for JSON.

        Raises:
            ValueError: if an argument is not kept, or is nothing that a configuration
                can hold.
        """
        kind = type(self).__name__
        if self._unnamed:
            raise ValueError(
                f"{kind} took arguments without names, {self._unnamed}, which no "
                "configuration can hold"
            )
        arguments = {name: kept(self, name) for name in declared(type(self)).arguments}
        arguments |= {
            name: getattr(self, name, value) for name, value in self._passed_on.items()
        }
        return {
            name: _described(_hint(type(self), name), value, name)
            for name, value in arguments.items()
        }

    @classmethod
    def from_config(cls: type[NetworkType], config: Mapping[str, Any]) -> NetworkType:
        """Create the network with these constructor's arguments, freshly initialised.

        Raises:
            ValueError: if an argument does not fit, or the class does not keep one, so
                that it could not be saved.
        """
        network = cls(
            **{
                name: _made(_hint(cls, name), value, name)
                for name, value in config.items()
            }
        )
        for name in declared(cls).arguments:
            kept(network, name)
        return network

    def save_pretrained(
        self, folder: str | Path, *, stored: str | None = None, **extra: Any
    ) -> None:
        """Write ``config.json`` and ``model.safetensors``.

        Args:
            folder: made if it is missing.
            stored: ``float16`` or ``bfloat16`` rounds the weights to that type, which
                halves the file; loaded, they have torch's default type again. None
                stores the weights as they are: of one of these types, or of the default
                one.
            extra: anything JSON can hold, kept in ``config.json`` and given back as the
                attribute ``extra``; the command line keeps the names of the classes and
                how images are prepared here.

        Raises:
            ValueError: if there is no such type, or a weight is too large for it; if
                the weights have another type than these, such as float64; or if they
                are not those that the arguments make, as in a quantized network.
        """
        folder = Path(folder)
        config = {
            "network": type(self).__name__,
            "arguments": self.config(),
            "extra": extra,
        }
        imports = _imports(self)
        if imports:
            config["imports"] = imports
        stored = stored or _half(self)
        state = self.state_dict()
        # What could not be loaded is not saved.
        fresh = outlined(lambda: type(self).from_config(self.config()))
        if problem := _misfit(fresh.state_dict(), state):
            raise ValueError(
                f"this {type(self).__name__} is not what its arguments make: {problem}. "
                "Save it before its layers change, as by quantization or pruning, or "
                "keep it with torch.save"
            )
        state = {
            name: tensor.detach().cpu().contiguous() for name, tensor in state.items()
        }
        if stored is not None:
            config["stored"] = stored
        text = json.dumps(config, indent=2) + "\n"
        if stored is not None:
            state = {
                name: _rounded(name, tensor, stored) for name, tensor in state.items()
            }
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        with written_whole(folder / WEIGHTS_FILE) as part:
            _write_weights(state, part)
        write_whole(folder / CONFIG_FILE, text)

    @classmethod
    def from_pretrained(cls: type[NetworkType], source: str | Path) -> NetworkType:
        """Load a network that :meth:`save_pretrained` wrote, in evaluation mode.

        Args:
            source: as in :func:`load_pretrained`.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if the files are damaged, or hold another network.
        """
        network = load_pretrained(source)
        if not isinstance(network, cls):
            raise ValueError(
                f"{source} holds a {type(network).__name__}, not a {cls.__name__}"
            )
        return network


def _half(network: nn.Module) -> str | None:
    """The type of 16 bits that a network's weights have; None where they have float32
    or torch's default type.
    """
    default = torch.get_default_dtype()
    kinds = {
        weight.dtype for weight in network.parameters() if weight.is_floating_point()
    }
    if kinds <= {default} or kinds == {torch.float32}:
        return None
    for name, kind in STORED.items():
        if kinds == {kind}:
            return name
    dtypes = ", ".join(sorted(map(str, kinds)))
    raise ValueError(
        f"the weights must be {default} to be saved, got {dtypes}: call .to({default}) "
        "first"
    )


def _positions(cls: type) -> int:
    """How many arguments a constructor takes by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = inspect.signature(cls).parameters.values()
    return len([parameter for parameter in taken if parameter.kind in kinds])


def _hint(cls: type, name: str) -> Any:
    """What an argument of a constructor takes; without a type hint, one that is called
    a routing takes one.
    """
    arguments = declared(cls).arguments
    hint = arguments[name].hint if name in arguments else Any
    if hint is Any and (name == "routing" or name.endswith("_routing")):
        return Routing | None
    return hint


def _described(hint: Any, value: Any, argument: str) -> Any:
    """An argument in a form that JSON can hold and :func:`_made` reads.

    Raises:
        ValueError: if it has no such form; names the argument.
    """
    written = plain(value, argument)
    if hint is Any and _with_tuples(written) != _with_tuples(value):
        raise ValueError(
            f"{argument} must say by its type hint what it takes, to be saved; got "
            f"{value!r}"
        )
    return written


def _made(hint: Any, value: Any, argument: str) -> Any:
    """An argument as the constructor takes it, with what the configuration describes
    made.
    """
    if isinstance(value, str) and Routing in (hint, *get_args(hint)):
        return create_routing(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    value = _with_tuples(value)
    return value if hint is Any else make(fit(hint, value, argument))


def _with_tuples(value: Any) -> Any:
    """A value of a configuration with tuples for lists, as constructors keep them."""
    if isinstance(value, list | tuple):
        return tuple(map(_with_tuples, value))
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    return value


def _imports(network: Network) -> list[str]:
    """The modules from outside this package that define a network and its routings."""
    classes = {
        type(network),
        *(type(module) for module in network.modules() if isinstance(module, Routing)),
    }
    modules = {cls.__module__ for cls in classes}
    return sorted(
        name
        for name in modules
        if name != "__main__" and package_of(name) != package_of(__name__)
    )


def _misfit(expected: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> str:
    """The first name or shape in a state that is not the expected one, in words; empty
    if all are.
    """
    if names := sorted(expected.keys() ^ state.keys()):
        problem = f"{names[0]} belongs to no layer"
        if names[0] in expected:
            problem = f"{names[0]} is missing"
        return f"{problem}, and {len(names) - 1} more" if names[1:] else problem
    for name, want in expected.items():
        # A lazily sized layer takes any shape.
        if not is_lazy(want) and state[name].shape != want.shape:
            return f"{name} must be {tuple(want.shape)}, got {tuple(state[name].shape)}"
    return ""


def _rounded(name: str, tensor: torch.Tensor, stored: str) -> torch.Tensor:
    """A tensor of a network in the type that it is stored in."""
    if stored not in STORED:
        raise ValueError(f"stored must be one of {', '.join(STORED)}, got {stored!r}")
    if not tensor.is_floating_point():
        return tensor
    rounded = tensor.to(STORED[stored])
    if not rounded.isfinite().all():
        raise ValueError(
            f"stored: {name} holds {float(tensor.abs().max()):g}, which is too large "
            f"for {stored}"
        )
    return rounded


def _locate(source: str | Path) -> Path:
    """The folder with the files of a network; arguments and errors as in
    :func:`load_pretrained`.
    """
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"source must be the path or the name of a network, got {source!r}"
        )
    folder = Path(source)
    try:
        is_folder = folder.is_dir()
        is_file = folder.is_file()
        is_path = folder.exists()
    except OSError:  # too long for the name of a file
        is_folder = False
        is_file = False
        is_path = True
    if is_folder:
        return network_folder(folder)
    if folder.as_posix() in list_pretrained():
        return pretrained_folder(folder.as_posix())
    if is_file:
        raise FileNotFoundError(folder_instead(folder))
    near = ""
    if not is_path:
        near = meant(folder.as_posix(), list_pretrained()) or seen_from(folder)
    pretrained = f"{', '.join(list_pretrained())}{near}"
    # A Hub repository reads owner/name.
    if is_path or len(folder.parts) != 2 or folder.is_absolute():
        raise FileNotFoundError(
            f"{str(source)[:4000]} is not a folder with a saved network, nor in the "
            f"package, which has {pretrained}"
        )
    return _from_hub(str(source), pretrained)


def _from_hub(repository: str, pretrained: str) -> Path:
    """The folder with a network that is fetched from the Hugging Face Hub.

    Args:
        repository: its name, owner/name.
        pretrained: the networks of the package, for the message.

    Raises:
        ModuleNotFoundError: if the package of the Hub is not installed.
        FileNotFoundError: if there is no such repository, or it cannot be reached.
    """
    with needing("networks of the Hugging Face Hub", "torchcaps[hub]"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )

    try:
        return Path(
            snapshot_download(repository, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE])
        )
    except (
        OSError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    ) as error:
        raise FileNotFoundError(
            f"{repository} is not a folder, not a repository that can be reached, and "
            f"not in the package, which has {pretrained}"
        ) from error


LARGEST_NUMBER = 10**6
"""The largest number that a file may ask for, so that opening one does no harm; steps
of routing: ``MOST_STEPS``.
"""


class _Saved(NamedTuple):
    """What a configuration holds."""

    network: type[Network]
    arguments: dict[str, Any]
    extra: dict[str, Any]
    stored: torch.dtype | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "_Saved":
        """Find the network of a configuration.

        Raises:
            NotKnown: if there is no network of that name.
            ValueError: if an argument names a file elsewhere.
        """
        name = config["network"]
        arguments = dict(config["arguments"])
        extra = dict(config.get("extra", {}))
        if name not in NETWORKS and name in CLASSES_OF_THE_LAB:
            load_lab()
        if name not in NETWORKS:
            known = [
                key for key, kind in NETWORKS.items() if not inspect.isabstract(kind)
            ]
            raise NotKnown(
                f"network {name!r} is not known; known are {', '.join(sorted(known))}"
            )
        network = NETWORKS[name]
        for argument in network.outside:
            if arguments.get(argument) is not None:
                raise ValueError(
                    f"{argument} names {arguments[argument]!r}: a saved network brings "
                    "its own"
                )
        stored = STORED[config["stored"]] if "stored" in config else None
        return cls(network, arguments, extra, stored)

    def make(self) -> Network:
        """The network, freshly initialised."""
        network = self.network.from_config(self.arguments)
        network.extra = self.extra
        return network


def _read(path: Path, shapes: Collection[torch.Size]) -> tuple[_Saved, Network]:
    """A configuration, and the outline of its network.

    Args:
        path: the path of the configuration.
        shapes: those in the file of weights, which bound what it may ask for.

    Raises:
        ValueError: if no network can be made from it; names the path.
    """
    imports: tuple[str, ...] = ()
    try:
        config = read_json(path, LARGEST_NOTE)
        imports = tuple(map(str, config.get("imports", ())))
        _check_numbers(dict(config["arguments"]), SPARE + EACH * len(shapes))
        saved = _Saved.of(config)
        outline = outlined(saved.make, shapes)
        for name, tensor in outline.state_dict().items():
            if not is_lazy(tensor) and not tensor.numel():
                raise ValueError(f"{name} has no elements: a size is 0")
    except NotKnown as error:
        where = ""
        module = "my_module"
        if imports:
            where = f" ({', '.join(imports)})"
            module = imports[0]
        raise ValueError(
            f"{path}: {error}\n  Import the module that defines it{where} first, on "
            f"the command line with --import {module}"
        ) from None
    except TooLarge as error:
        raise ValueError(f"{path}: {error}") from error
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        if str(error).startswith(str(path)):
            raise  # it could not be read
        why = str(error) if isinstance(error, ValueError) else repr(error)
        raise ValueError(
            f"{path} is damaged, or of another version or library: {why}"
        ) from error
    return saved, outline


def _check_numbers(arguments: Mapping[str, Any], most_values: int) -> None:
    """Raise a `ValueError` if numbers in a configuration are not finite, too large for
    any network, or too many. Texts do not count.
    """
    values = (
        entry
        for entry in _values(arguments, "arguments")
        if not isinstance(entry[1], str)
    )
    for count, (place, value) in enumerate(values, 1):
        if count > most_values:
            raise TooLarge(
                f"{place}: all arguments together hold more than {most_values:,} "
                "values, too many for weights of so few tensors"
            )
        if isinstance(value, int | float):
            most = MOST_STEPS if place.endswith(".steps") else LARGEST_NUMBER
            if not abs(value) <= most:
                raise ValueError(f"{place} must be a number up to {most}, got {value}")


def _values(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """All values in a configuration, those inside lists and mappings and these, with
    their places.
    """
    yield place, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _values(item, f"{place}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _values(item, place)


def _write_weights(state: Mapping[str, torch.Tensor], part: Path) -> None:
    """Write contiguous tensors on the CPU as safetensors; the package of that name
    needs NumPy to write.
    """
    header = {}
    end = 0
    # The header ends on a multiple of 8 bytes, so that all tensors are aligned.
    largest_first = sorted(
        state.items(), key=lambda entry: (-entry[1].element_size(), entry[0])
    )
    for name, tensor in largest_first:
        start = end
        end = end + tensor.nbytes
        kind = _SAFETENSORS[tensor.dtype]
        header[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in largest_first:
            file.write(
                ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
                if tensor.nbytes
                else b""
            )


_SAFETENSORS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def _read_weights(
    path: Path, outline: Network, stored: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """The weights of a network that are in a file, checked.

    Raises:
        ValueError: if the file is damaged, or they do not fit; names the first tensor.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(check_file(path))
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    expected = outline.state_dict()
    wrong = f"{path} does not fit {path.with_name(CONFIG_FILE)}"
    if problem := _misfit(expected, state):
        raise ValueError(f"{wrong}: {problem}")
    for name, tensor in state.items():
        want = expected[name]
        dtype = want.dtype
        if stored is not None and want.is_floating_point():
            dtype = stored
        if tensor.dtype != dtype:
            raise ValueError(f"{wrong}: {name} must be {dtype}, got {tensor.dtype}")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{path}: {name} holds numbers that are not finite")
    return {name: tensor.to(expected[name].dtype) for name, tensor in state.items()}


def load_pretrained(source: str | Path) -> Any:
    """Load a network that :meth:`Network.save_pretrained` wrote, in evaluation mode; no
    code is executed.

    ``CapsNet.from_pretrained(source)`` also checks the class.

    Args:
        source: the folder, or that of a run, or else the name of a network that comes
            with the package, ``mnist/efficient_capsnet``
            (:func:`~torchcaps.models.pretrained.list_pretrained`), or else a repository
            on the Hugging Face Hub.

    Raises:
        FileNotFoundError: if a file is missing, or the run has not ended.
        ModuleNotFoundError: if the network comes with torchcaps-lab, which is not
            installed.
        TypeError: if the source is not a path.
        ValueError: if the files are damaged or do not belong together, hold numbers
            that are not finite or weights of another type; or if the module that
            defines the network, or its routing, was not imported: then it says which.
    """
    folder = _locate(source)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} holds no {name}: it is not a saved network, or not a whole "
                "one"
            )
    shapes = read_shapes(folder / WEIGHTS_FILE)
    saved, outline = _read(folder / CONFIG_FILE, shapes)
    state = _read_weights(folder / WEIGHTS_FILE, outline, saved.stored)
    network = saved.make()
    network.load_state_dict(state)
    return network.eval()

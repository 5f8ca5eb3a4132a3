"""Saved networks, written, found and read: ``config.json`` with the arguments of a
constructor, and ``model.safetensors`` with the weights. They hold no code.
"""

import ctypes
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchcaps.models.lab_networks import CLASSES_OF_THE_LAB, load_lab
from torchcaps.models.outline import (
    EACH,
    SPARE,
    Header,
    TooLarge,
    outlined,
    read_header,
)
from torchcaps.models.pretrained import list_pretrained, pretrained_folder
from torchcaps.optional_imports import needing
from torchcaps.routing import Routing
from torchcaps.routing.base import MOST_STEPS
from torchcaps.spec import NotKnown, meant, package_of
from torchcaps.whole import (
    CONFIG_FILE,
    LARGEST_NOTE,
    WEIGHTS_FILE,
    check_file,
    folder_instead,
    is_there,
    network_folder,
    read_json,
    seen_from,
    sweep,
    write_whole,
    written_whole,
)

if TYPE_CHECKING:
    from torchcaps.models.network import Network

NETWORKS: dict[str, type["Network"]] = {}
"""The networks that :func:`load_pretrained` knows, by the names of their classes."""

STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""The types of 16 bits that weights may be stored in, by name."""

LARGEST_NUMBER = 10**6
"""The largest number that a file may ask for, so that opening one does no harm; steps
of routing: ``MOST_STEPS``.
"""

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


def write_network(
    network: "Network", folder: Path, stored: str | None, extra: Mapping[str, Any]
) -> None:
    """Write the two files of a network; arguments and errors as in
    :meth:`Network.save_pretrained`.
    """
    kind = type(network)
    config = {"network": kind.__name__, "arguments": network.config(), "extra": extra}
    imports = _imports(network)
    if imports:
        config["imports"] = imports
    stored = stored or _half(network)
    state = network.state_dict()
    # What could not be loaded is not saved.
    fresh = outlined(lambda: kind.from_config(network.config()))
    problem = _misfit(fresh.state_dict(), state) or _other_routing(fresh, network)
    if problem:
        raise ValueError(
            f"this {kind.__name__} is not what its arguments make: {problem}. Save it "
            "before its layers change, as by quantization or pruning, or keep it with "
            "torch.save"
        )
    if broken := _not_finite(state):
        raise ValueError(f"{broken} holds numbers that are not finite")
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    if stored is not None:
        config["stored"] = stored
        state = {name: _rounded(name, tensor, stored) for name, tensor in state.items()}
    text = json.dumps(config, indent=2) + "\n"
    _check_numbers(json.loads(text)["arguments"], SPARE + EACH * len(state))
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    with written_whole(folder / WEIGHTS_FILE) as part:
        _write_weights(state, part)
    write_whole(folder / CONFIG_FILE, text)


def _half(network: nn.Module) -> str | None:
    """The type of 16 bits that a network's weights have; None where they have float32
    or torch's default type.
    """
    default = torch.get_default_dtype()
    kinds = {
        weight.dtype for weight in network.parameters() if weight.is_floating_point()
    }
    for name, kind in STORED.items():
        if kinds == {kind}:
            return name
    if kinds <= {default} or kinds == {torch.float32}:
        return None
    dtypes = ", ".join(sorted(map(str, kinds)))
    raise ValueError(
        f"the weights must be {default} to be saved, got {dtypes}: call .to({default}) "
        "first"
    )


def _imports(network: nn.Module) -> list[str]:
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


def _write_weights(state: Mapping[str, torch.Tensor], part: Path) -> None:
    """Write contiguous tensors on the CPU as safetensors. The package of that name
    needs NumPy to write, and its function that does not takes other arguments in newer
    versions.
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
            # A view of the memory, of any length: string_at counts with 32 bits.
            numbers = ctypes.c_char * tensor.nbytes
            file.write(numbers.from_address(tensor.data_ptr()))


def load_pretrained(source: str | Path) -> Any:
    """Load a network that :meth:`Network.save_pretrained` wrote, in evaluation mode and
    in the type of its weights, whatever torch's default type; no code is executed.
    Weights that were ``stored`` in 16 bits get torch's default type.

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
    header = read_header(folder / WEIGHTS_FILE)
    saved, outline = _read_config(folder / CONFIG_FILE, header)
    state = _read_weights(folder / WEIGHTS_FILE, outline, saved.stored)
    network = saved.make()
    network.load_state_dict(state)
    return network.eval()


def _locate(source: str | Path) -> Path:
    """The folder with the files of a network; arguments and errors as in
    :func:`load_pretrained`.
    """
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"source must be the path or the name of a network, got {source!r}"
        )
    folder = Path(source)
    name = folder.as_posix()
    if is_there(folder.is_dir):
        return network_folder(folder)
    if name in list_pretrained():
        return pretrained_folder(name)
    if is_there(folder.is_file):
        raise FileNotFoundError(folder_instead(folder))
    pretrained = ", ".join(list_pretrained())
    try:
        missing = not folder.exists()
    except OSError:  # too long for the name of a file, or without permission to look
        missing = False
    if missing:
        pretrained += meant(name, list_pretrained()) or seen_from(folder)
        # A Hub repository reads owner/name.
        if len(folder.parts) == 2 and not folder.is_absolute():
            return _from_hub(str(source), pretrained)
    raise FileNotFoundError(
        f"{str(source)[:4000]} is not a folder with a saved network, nor in the "
        f"package, which has {pretrained}"
    )


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


class _Saved(NamedTuple):
    """What a configuration holds.

    Args:
        network: the class of the network.
        arguments: of its constructor.
        extra: what was saved beside it.
        stored: the type of 16 bits of its weights in the file; None for another one.
        dtype: the default type that it is made with.
    """

    network: type["Network"]
    arguments: dict[str, Any]
    extra: dict[str, Any]
    stored: torch.dtype | None
    dtype: torch.dtype

    @classmethod
    def of(cls, config: Mapping[str, Any], dtype: torch.dtype) -> "_Saved":
        """Find the network of a configuration, beside weights of this type.

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
        if stored is not None:
            dtype = torch.get_default_dtype()
        return cls(network, arguments, extra, stored, dtype)

    def make(self) -> "Network":
        """The network, freshly initialised."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            network = self.network.from_config(self.arguments)
        finally:
            torch.set_default_dtype(default)
        network.extra = self.extra
        return network


def _read_config(path: Path, header: Header) -> tuple[_Saved, "Network"]:
    """A configuration, and the outline of its network.

    Args:
        path: the path of the configuration.
        header: of the file of weights, whose shapes bound what it may ask for.

    Raises:
        ValueError: if no network can be made from it; names the path.
    """
    imports: tuple[str, ...] = ()
    try:
        config = read_json(path, LARGEST_NOTE)
        imports = tuple(map(str, config.get("imports", ())))
        _check_numbers(dict(config["arguments"]), SPARE + EACH * len(header.shapes))
        saved = _Saved.of(config, header.dtype)
        outline = outlined(saved.make, header.shapes)
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


def _read_weights(
    path: Path, outline: nn.Module, stored: torch.dtype | None
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
    if broken := _not_finite(state):
        raise ValueError(f"{path}: {broken} holds numbers that are not finite")
    return {name: tensor.to(expected[name].dtype) for name, tensor in state.items()}


def _other_routing(expected: nn.Module, network: nn.Module) -> str:
    """The first routing of a network with other settings than the expected one, in
    words; empty if there is none.
    """
    own = dict(network.named_modules())
    for name, made in expected.named_modules():
        if isinstance(made, Routing) and (
            type(made) is not type(own[name]) or made.config() != own[name].config()
        ):
            return f"{name} must be {made!r}, got {own[name]!r}"
    return ""


def _not_finite(state: Mapping[str, torch.Tensor]) -> str:
    """The name of the first tensor with numbers that are not finite; empty if all
    are.
    """
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return name
    return ""


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

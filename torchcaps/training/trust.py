"""Checks of what a file of options names, before anything that it names is imported or called."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
import yaml
from torch.optim.lr_scheduler import LRScheduler

from torchcaps.data import ImageData
from torchcaps.losses import ActivationLoss
from torchcaps.routing import Routing
from torchcaps.routing.base import ROUTINGS
from torchcaps.tasks import Task

KINDS = (ImageData, Task, Routing, ActivationLoss, torch.optim.Optimizer, LRScheduler)
"""Classes that a file of options may name; other classes, and functions, only from imported modules."""

LARGEST_FILE = 2**20
MOST_VALUES = 10_000
DEEPEST = 40

_PLAIN = (str, int, float, complex, bool, bytes, type(None), Path)
_NO_YAML = (yaml.YAMLError, ValueError, RecursionError, OverflowError)
_UNKNOWN = object()
"""Stands for an unknown type hint: strings that could be imported are checked, too."""


class UntrustedOptions(ValueError):
    """A file of options names something that it may not.

    Example:
        >>> from torchcaps.training import UntrustedOptions
        >>> issubclass(UntrustedOptions, ValueError)
        True
    """


class _EachOnce(yaml.SafeLoader):
    """Refuses a name that stands twice in one mapping: the first value would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands twice", key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_options(
    path: Path, allowed: Mapping[str, Any], imported: Sequence[str] = (), only: str | None = None
) -> dict[str, Any]:
    """Reads and checks a file of options, or only the option ``only``: see :func:`check_options`."""
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} has {path.stat().st_size} bytes: options take less than {LARGEST_FILE}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a YAML file of options: {error}") from error
    return check_options(text, str(path), allowed, imported, only)


def check_options(
    text: str, source: str, allowed: Mapping[str, Any], imported: Sequence[str] = (), only: str | None = None
) -> dict[str, Any]:
    """Checks options written as YAML. Nothing is called, and only modules of this package are imported.

    A class path may name data sets, tasks, routings and losses of this package, optimizers and schedulers of torch, and
    anything defined in imported modules, where an option takes a class and of the kind that it takes.

    Args:
        text: the YAML.
        source: the path of the file, for messages.
        allowed: the options by name, with their type hints.
        imported: the modules that the user named for import, not the file.
        only: the option to check, without the others; None for all.

    Returns:
        The options, as in the YAML.

    Raises:
        ValueError: if this is not YAML, or does not hold options.
        UntrustedOptions: if it names something that it may not, or modules for import that are not in ``imported``.
    """
    try:
        options = yaml.load(text, Loader=_EachOnce)
    except _NO_YAML as error:
        raise ValueError(f"{source} is not a YAML file of options: {str(error) or type(error).__name__}") from error
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"{source} must hold options by name, got {type(options).__name__}")
    check_imports(source, options, imported)
    if options.get("config") is not None:
        raise UntrustedOptions(f"{source}: options cannot name another file of them, got config: {options['config']!r}")
    if only is not None:
        if only not in options:
            raise ValueError(f"{source} has no option {only}")
        options = {only: options[only]}
    look = _Look(source, {module_of(name).partition(".")[0] for name in imported})
    look.entries(options, lambda name: str if name == "import" else allowed.get(name, _UNKNOWN), "", 0)
    return options


def check_imports(source: str, options: Mapping[str, Any], imported: Sequence[str]) -> None:
    """Raises an :class:`UntrustedOptions` if options name modules for import that are not in ``imported``."""
    wanted = options.get("import") or []
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
        raise ValueError(f"{source}: import must be a list of modules, got {wanted!r}")
    have = {module_of(name) for name in imported}
    if missing := [name for name in wanted if module_of(name) not in have]:
        raise UntrustedOptions(
            f"{source} wants modules imported, which executes them: {', '.join(missing)}. It cannot do that by itself; "
            f"if you trust them, add {' '.join(f'--import {name}' for name in missing)}"
        )


def module_of(name: str) -> str:
    """The name of a module that ``--import`` has imported."""
    return Path(name).stem if name.endswith(".py") else name


@dataclass
class _Look:
    """Checks the options of a file.

    Args:
        source: the name of the file in messages.
        own: the first names of the imported modules.
        values: how many were checked.
    """

    source: str
    own: set[str]
    values: int = field(default=0)

    def at(self, value: Any, hint: Any, place: str, depth: int = 0) -> None:
        """Checks a value for a type hint, and everything inside it."""
        self.values += 1
        if self.values > MOST_VALUES or depth > DEEPEST:
            raise ValueError(f"{self.source}: {place.split('.')[0]} holds more than options do")
        groups = [part for part in _parts(hint) if is_dataclass(part)]
        if groups and not isinstance(value, str | Mapping) and len(groups) == len(_parts(hint)):
            raise ValueError(f"{self.source}: {place} must hold options by name, got {value!r}")
        if isinstance(value, str):
            self._text(value, hint, place, depth)
        elif isinstance(value, Mapping):
            self._mapping(value, hint, place, depth)
        elif isinstance(value, list | tuple | set):
            for one in value:
                self.at(one, _inside(hint), place, depth + 1)

    def _text(self, text: str, hint: Any, place: str, depth: int) -> None:
        meant = _parsed(text)  # as in jsonargparse, text may be YAML with a class path
        if isinstance(meant, Mapping | list) or (isinstance(meant, str) and meant != text):
            self.at(meant, hint, place, depth + 1)
        parts = _parts(hint)
        if any(is_dataclass(part) for part in parts):
            raise UntrustedOptions(
                f"{self.source}: {place} must hold its options, not the name of a file, got {text!r}"
            )
        if all(part in _PLAIN or part is Any or get_origin(part) is Literal for part in parts):
            return
        if re.fullmatch(r"\w+(\.\w+)+", text):
            self._found(text, parts, place)

    def _mapping(self, value: Mapping[Any, Any], hint: Any, place: str, depth: int) -> None:
        arguments: Mapping[str, Any] = {}
        rest = {key: one for key, one in value.items() if key != "class_path"}
        if "class_path" in value:
            if not isinstance(value["class_path"], str):
                raise UntrustedOptions(f"{self.source}: {place} names no class, got {value['class_path']!r}")
            arguments = _parameters(self._found(value["class_path"], _parts(hint), place))
        for name in ("init_args", "dict_kwargs"):
            inner = rest.pop(name, None)
            if isinstance(inner, Mapping):
                self.entries(inner, lambda key: arguments.get(key, _UNKNOWN), place, depth)
            elif inner is not None:
                self.at(inner, _UNKNOWN, place, depth + 1)
        group = next((part for part in _parts(hint) if is_dataclass(part)), None)
        fields = {} if group is None else get_type_hints(group)
        otherwise = _inside(hint) if group is None else _UNKNOWN
        self.entries(rest, lambda key: fields.get(key, otherwise), place, depth)

    def entries(self, value: Mapping[Any, Any], hint: Callable[[str], Any], place: str, depth: int) -> None:
        """Checks values by name, each with the type hint of its name."""
        for key, one in value.items():
            first, dot, more = str(key).partition(".")  # such as optimizer.class_path
            self.at({more: one} if dot else one, hint(first), f"{place}.{key}".lstrip("."), depth + 1)

    def _found(self, name: str, parts: list[Any], place: str) -> Any:
        """The object that a class path names, if that is allowed."""
        kinds = _kinds(parts)
        found = _loaded(name, kinds)
        if found is not None and self._fits(found, kinds, any(_is_callable(part) for part in parts)):
            return found
        takes = " or ".join(kind.__name__ for kind in kinds) or "no class"
        raise UntrustedOptions(
            f"{self.source}: {place} names {name}, but it takes {takes}, of this package, of torch.optim, or of "
            "modules that you import with --import on the command line"
        )

    def _fits(self, found: Any, kinds: tuple[type, ...], callables: bool) -> bool:
        own = str(getattr(found, "__module__", "")).partition(".")[0] in self.own
        if inspect.isclass(found):
            return issubclass(found, kinds) and (own or issubclass(found, KINDS))
        return callables and own and callable(found)


def _parts(hint: Any) -> list[Any]:
    """The alternatives of a type hint."""
    if get_origin(hint) in (Union, UnionType):
        return [part for one in get_args(hint) for part in _parts(one)]
    return [hint]


def _inside(hint: Any) -> Any:
    """The type hint of the elements of a container."""
    inner = [get_args(part)[-1] for part in _parts(hint) if get_origin(part) in (dict, Mapping)]
    inner += [
        one
        for part in _parts(hint)
        if get_origin(part) in (list, tuple, set, Sequence)
        for one in get_args(part)
        if one is not Ellipsis
    ]
    if Any in _parts(hint):
        return Any
    return Union.__getitem__(tuple(inner)) if inner else _UNKNOWN


def _is_callable(part: Any) -> bool:
    return part is Callable or get_origin(part) is Callable


def _kinds(parts: list[Any]) -> tuple[type, ...]:
    """The classes of a type hint whose subclasses can be named."""
    if parts == [_UNKNOWN]:
        return KINDS
    results = [get_args(part)[-1] for part in parts if _is_callable(part) and get_args(part)]
    classes = [part for part in [*parts, *results] if inspect.isclass(part) and get_origin(part) is None]
    return tuple(one for one in classes if one not in (*_PLAIN, object, dict, list, tuple, set))


def _loaded(name: str, kinds: tuple[type, ...]) -> Any:
    """The object of a name, importing only modules of this package; None if there is none."""
    if "." not in name:
        return ROUTINGS.get(name) or next(
            (cls for kind in kinds for cls in subclasses(kind) if cls.__name__ == name), None
        )
    names = name.split(".")
    for count in range(len(names) - 1, 0, -1):
        module = sys.modules.get(".".join(names[:count])) or _of_this_package(names[:count])
        if module is not None:
            return _attribute(module, names[count:])
    return None


def _of_this_package(names: list[str]) -> Any:
    if names[0] != __name__.partition(".")[0] or "__main__" in names:
        return None
    try:
        return importlib.import_module(".".join(names))
    except ImportError:
        return None


def _attribute(found: Any, names: list[str]) -> Any:
    for name in names:
        found = getattr(found, name, None)
    return found


def subclasses(kind: Any) -> Iterator[type]:
    """A class and all that are derived from it so far."""
    waiting, seen = [kind], set()
    while waiting:
        cls = waiting.pop()
        if cls not in seen:
            seen.add(cls)
            waiting += cls.__subclasses__()
            yield cls


def _parameters(found: Any) -> dict[str, Any]:
    """The type hints of the arguments of a class or function, those that a class passes on to its bases included."""
    makers = [found]
    if inspect.isclass(found):
        makers = [vars(cls)["__init__"] for cls in reversed(found.__mro__) if "__init__" in vars(cls)]
    known: dict[str, Any] = {}
    for maker in makers:
        try:
            hints = get_type_hints(maker)
        except (NameError, TypeError, AttributeError):
            hints = {}
        try:
            names = list(inspect.signature(maker).parameters)
        except (ValueError, TypeError):
            names = []
        known |= {name: hints.get(name, _UNKNOWN) for name in names}
    return known


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except _NO_YAML:
        return text

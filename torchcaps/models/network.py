"""What every network can do, over images or words: give its configuration, save itself,
and be loaded again.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from torchcaps.capsules import KeepsProperties
from torchcaps.models.saved import NETWORKS, load_pretrained, write_network
from torchcaps.routing import Routing, create_routing
from torchcaps.spec import (
    SuggestsNames,
    argument_value,
    declared,
    fit,
    make,
    plain,
    same_class,
)

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
        arguments = {
            name: argument_value(self, name) for name in declared(type(self)).arguments
        }
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
                name: _as_argument(_hint(cls, name), value, name)
                for name, value in config.items()
            }
        )
        for name in declared(cls).arguments:
            argument_value(network, name)
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
        write_network(self, Path(folder), stored, extra)

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
    """An argument in a form that JSON can hold and :func:`_as_argument` reads.

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


def _as_argument(hint: Any, value: Any, argument: str) -> Any:
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

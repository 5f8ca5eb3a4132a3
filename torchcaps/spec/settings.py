"""Classes whose fields are declared once: the arguments of their constructors, checked
and kept.
"""

import inspect
from dataclasses import InitVar, dataclass, field
from functools import wraps
from typing import Any

from typing_extensions import dataclass_transform

from torchcaps.spec.fitting import check
from torchcaps.spec.registry import (
    MISSING,
    Decorated,
    argument_names,
    declared,
    refused,
)


def argument(
    *,
    default: Any = MISSING,
    alias: str | None = None,
    kw_only: bool = False,
    init: bool = True,
) -> Any:
    """A declared argument of :func:`settings` that is more than a type hint and a
    default.

    Args:
        default: its default; without it the argument must be given.
        alias: its name, where the attribute that keeps it has another one.
        kw_only: whether it comes after all that are not, those of derived classes too.
            It may be given by place, too.
        init: False where a base takes the argument, and this class does not.
    """
    defaults = {} if default is MISSING else {"default": default}
    return field(
        **defaults,
        metadata={} if alias is None else {"argument": alias},
        kw_only=kw_only,
        init=init,
    )


@dataclass_transform(eq_default=False, field_specifiers=(field, argument))
def settings(cls: Decorated) -> Decorated:
    """Class decorator: annotated names are the arguments of the constructor, which
    checks and keeps them.

    A dataclass, but for these things: each argument is checked against its type hint,
    as by :func:`check`, before anything else happens, and a list is kept as a tuple;
    the constructor of the nearest base that has one of its own runs before they are
    kept, so that a module can be one, and gets and checks those that it takes itself
    (what it takes and this class does not is an attribute of the class); an
    ``InitVar``, which ``__post_init__`` gets as it comes, hides nothing that a base has
    under its name; an attribute may have another name than its argument, see
    :func:`argument`; and ``==`` and ``repr`` stay those of the base. What depends on
    several arguments is checked in ``__post_init__``.

    Example:
        >>> @settings
        ... class Blur:
        ...     sigma: Annotated[float, Within(0, open=True)] = 1.0
        ...     steps: Annotated[int, Within(1)] = 3
        >>> Blur(2.0).sigma, Blur().steps
        (2.0, 3)
        >>> Blur(steps=0)
        Traceback (most recent call last):
        ValueError: steps must be at least 1, got 0
    """
    # The nearest base with a constructor that somebody wrote, such as nn.Module's: the
    # constructors that this decorator made only keep fields, which are inherited.
    bases = cls.__mro__[1:]
    base: Any = next(
        item
        for item in bases
        if "__init__" in vars(item) and "__dataclass_fields__" not in vars(item)
    )
    decorated: Any = dataclass(eq=False, repr=False)(cls)
    keep = decorated.__init__
    names = argument_names(decorated)
    attributes = {name: attribute for attribute, name in names.items()}
    # A field that is keyword-only comes after those of derived classes, but may still
    # be given by place.
    by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    taken = inspect.signature(keep).parameters.values()
    signature = inspect.Signature(
        [
            item.replace(name=names.get(item.name, item.name), kind=by_place)
            for item in taken
        ]
    )
    # What __post_init__ gets as it comes is no attribute, so nothing is known about it.
    handed = {
        name
        for name, item in decorated.__dataclass_fields__.items()
        if isinstance(item.type, InitVar)
    }

    @wraps(keep)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        hints = declared(cls).arguments
        of_base = declared(base).arguments
        try:
            bound = signature.bind(self, *values, **named)
        except TypeError as error:
            why = refused(cls.__name__, cls, list(named))
            raise TypeError(why or f"{cls.__name__}: {error}") from None
        # Before the defaults, which need no check. The base checks what it takes itself.
        for name, value in bound.arguments.items():
            if name in hints and name not in (*handed, *of_base):
                check(hints[name].hint, value, name)
            bound.arguments[name] = tuple(value) if isinstance(value, list) else value
        bound.apply_defaults()
        # First, since a module keeps no parameters or modules before nn.Module's
        # constructor ran.
        base.__init__(
            self,
            **{
                name: bound.arguments.get(name, getattr(cls, name, None))
                for name in of_base
            },
        )
        keep(
            **{
                attributes.get(name, name): value
                for name, value in bound.arguments.items()
            }
        )

    # The dataclass left the default of an InitVar as an attribute of the class, which
    # would hide what a base has under that name.
    for name in handed & vars(decorated).keys():
        if not isinstance(vars(decorated)[name], property):
            delattr(decorated, name)
    __init__.__annotations__ = {
        names.get(name, name): hint.type if isinstance(hint, InitVar) else hint
        for name, hint in keep.__annotations__.items()
    }
    vars(__init__)["__signature__"] = signature
    decorated.__init__ = __init__
    return cls


def check_fields(thing: Any) -> None:
    """Checks the fields of a dataclass against their type hints: for its
    ``__post_init__``.

    Raises:
        ValueError: if one does not fit; names the field.
    """
    kind: Any = type(thing)
    for name, argument in declared(kind).arguments.items():
        check(argument.hint, getattr(thing, name), name)

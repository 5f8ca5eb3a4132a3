"""Classes whose fields are declared once: the arguments of their constructors, checked
and kept.
"""

import inspect
from dataclasses import InitVar, dataclass, field, fields, is_dataclass
from functools import cache, wraps
from typing import Any, dataclass_transform, get_type_hints

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
    """Declare an argument of :func:`settings` that is more than a type hint and a
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
    """Make a class a dataclass whose constructor checks its arguments.

    It differs from a dataclass in five things. An argument is checked against its type
    hint, as by :func:`check`, and a list is kept as a tuple. The constructor of the
    nearest base that is not a dataclass, such as that of ``nn.Module``, runs first,
    with the arguments that it takes and checks. An ``InitVar`` is handed on unchecked,
    and hides no attribute of a base. An attribute may have another name than its
    argument, see :func:`argument`. ``==`` and ``repr`` stay those of the base.

    Several arguments that depend on each other are checked in ``__post_init__``.

    Example:
        >>> from typing import Annotated
        >>> from torchcaps.spec import Within, settings
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
    base = _written_constructor(cls)
    decorated: Any = dataclass(eq=False, repr=False)(cls)
    keep = decorated.__init__
    names = argument_names(decorated)
    # A keyword-only field comes after the fields of derived classes, and may still be
    # given by place.
    by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            parameter.replace(name=names.get(name, name), kind=by_place)
            for name, parameter in inspect.signature(keep).parameters.items()
        ]
    )
    handed_on = {
        name
        for name, item in decorated.__dataclass_fields__.items()
        if isinstance(item.type, InitVar)
    }

    @wraps(keep)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        try:
            bound = signature.bind(self, *values, **named)
        except TypeError as error:
            why = refused(cls.__name__, cls, list(named))
            raise TypeError(why or f"{cls.__name__}: {error}") from None
        hints = declared(cls).arguments
        of_base = declared(base).arguments
        for name, value in bound.arguments.items():
            if name in hints and name not in (*handed_on, *of_base):
                check(hints[name].hint, value, name)
        bound.apply_defaults()
        arguments = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in bound.arguments.items()
        }
        # A module keeps no parameters before nn.Module's constructor ran.
        base.__init__(self, **{name: arguments[name] for name in of_base})
        # The dataclass knows its fields by the names of their attributes.
        for attribute, name in names.items():
            arguments[attribute] = arguments.pop(name)
        keep(**arguments)

    # A dataclass leaves the default of an InitVar as an attribute of the class, which
    # would hide a property of a base. A default that is itself a property stays.
    for name in handed_on & vars(decorated).keys():
        if not isinstance(vars(decorated)[name], property):
            delattr(decorated, name)
    __init__.__annotations__ = {
        names.get(name, name): hint.type if isinstance(hint, InitVar) else hint
        for name, hint in keep.__annotations__.items()
    }
    vars(__init__)["__signature__"] = signature
    decorated.__init__ = __init__
    return cls


def _written_constructor(cls: type) -> Any:
    """The nearest base whose constructor was written, not made by a dataclass."""
    for base in cls.__mro__[1:]:
        if "__init__" in vars(base) and "__dataclass_fields__" not in vars(base):
            return base
    raise AssertionError("object has a constructor")


def check_fields(thing: Any) -> None:
    """Check the fields of a dataclass against their type hints, in its
    ``__post_init__``.

    Raises:
        ValueError: if one does not fit; names the field.
    """
    kind: Any = type(thing)
    for name, argument in declared(kind).arguments.items():
        check(argument.hint, getattr(thing, name), name)


def check_field(cls: type, name: str, value: Any) -> None:
    """Check a new value of an attribute, where a dataclass declares it as a field.

    Raises:
        ValueError: if it does not fit the type hint; names the field.
    """
    hint = _field_hints(cls).get(name)
    if hint is not None:
        check(hint, value, name)


@cache
def _field_hints(cls: type) -> dict[str, Any]:
    """The type hints of a dataclass's fields; empty for other classes."""
    if not is_dataclass(cls):
        return {}
    hints = get_type_hints(cls, include_extras=True)
    return {item.name: hints[item.name] for item in fields(cls)}

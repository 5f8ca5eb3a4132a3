"""A thing is a name plus declared arguments: routings, networks, data sets, tasks,
losses, optimizers, and options.

``{"name": "em", "steps": 2}``, or ``"em"`` where no argument differs from its default,
describes a thing anywhere: in Python, in YAML, on the command line, in a saved network.
The name is looked up in a table of classes that exist already, and the arguments are
those that the class declares in the signature of its constructor. Nothing is imported
by name, nothing else is called, and text is never parsed again: a string where a class
is taken is a name.
"""

from torchcaps.spec.fitting import (
    BETWEEN_0_AND_1,
    Size,
    UnknownOption,
    Within,
    alternatives,
    check,
    complete,
    fit,
    is_finite,
)
from torchcaps.spec.registry import (
    MISSING,
    Argument,
    Declared,
    NotKnown,
    Registry,
    SuggestsNames,
    declared,
    meant,
    package_of,
    parameters,
    refused,
    registry_of,
    same_class,
)
from torchcaps.spec.settings import argument, check_field, check_fields, settings
from torchcaps.spec.wire import (
    Given,
    Spec,
    Typed,
    argument_value,
    jsonable,
    make,
    plain,
    repr_of,
)

__all__ = ["Size", "Spec", "Within", "check", "fit", "jsonable", "make", "settings"]

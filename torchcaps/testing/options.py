"""Options with each other: settings in which any two values of two options meet."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any, Literal, get_args, get_origin

from torch import nn

from torchcaps.ops import Votes
from torchcaps.routing import Routing
from torchcaps.spec import Argument, Within, alternatives, declared, is_finite
from torchcaps.spec.registry import MISSING

Row = dict[str, Any]
Make = Callable[..., Any]


def values_of(argument: Argument, least: bool = False) -> list[Any]:
    """Return a few values of a declared argument: its default, all choices, true and
    false, None, and another number within the bounds.

    Args:
        argument: the argument.
        least: whether to try the least whole number too: it often switches something
            off, as one step does, and hides what other options do to each other.

    Example:
        >>> from typing import Literal
        >>> from torchcaps.spec import Argument
        >>> from torchcaps.testing.options import values_of
        >>> values_of(Argument(Literal["all", "last"] | None, "all"))
        ['all', 'last', None]
    """
    default = argument.default
    values = [] if default is MISSING else [default]
    for part, bounds in alternatives(argument.hint):
        kind = get_origin(part) or part
        if kind is Literal:
            values += get_args(part)
        elif kind is bool:
            values += (False, True)
        elif kind in (None, type(None)):
            values.append(None)
        elif kind is float or (kind is int and bounds):
            values += _numbers(kind, bounds, default, least)
    distinct: list[Any] = []
    for value in values:
        if not any(_same(value, other) for other in distinct):
            distinct.append(value)
    return distinct


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and value == other


def _numbers(
    kind: type, bounds: Sequence[Within], default: Any, least: bool
) -> list[Any]:
    """A number beside the default, and the least one where that is asked for or there
    is no number yet.
    """
    start = default if is_finite(default) and default else 1
    beside = (start + 1,) if kind is int else (start / 2, start * 2)
    numbers = [number for number in beside if _within(bounds, number)][:1]
    if kind is int and (least or default is None):
        numbers += [bound.least for bound in bounds if bound.least is not None]
    return numbers


def _within(bounds: Sequence[Within], number: float) -> bool:
    try:
        for bound in bounds:
            bound.check("", number)
    except ValueError:
        return False
    return True


def rows_of(
    options: Mapping[str, Sequence[Any]], fits: Callable[[Row], bool], together: int = 2
) -> Iterator[Row]:
    """Return rows of values, a covering array: any values of so many options meet in
    one, unless they do not fit together.

    Args:
        options: the values of each option.
        fits: whether some of the options may have these values.
        together: how many options.

    Example:
        >>> from torchcaps.testing.options import rows_of
        >>> rows = rows_of({"a": [0, 1], "b": [0, 1], "c": [0, 1]}, lambda row: True)
        >>> len(list(rows))  # of eight
        4
    """
    together = min(together, len(options))
    # Values by their place, as they need not have a hash.
    places = {name: range(len(values)) for name, values in options.items()}

    def values(chosen: Iterable[tuple[str, int]]) -> Row:
        return {name: options[name][place] for name, place in chosen}

    left = {
        frozenset(zip(names, chosen, strict=True)): None
        for names in combinations(options, together)
        for chosen in product(*(places[name] for name in names))
        if fits(values(zip(names, chosen, strict=True)))
    }
    while left:
        row = dict(next(iter(left)))
        for name in [name for name in options if name not in row]:
            beside = [*combinations(row.items(), together - 1)]
            gains = {
                place: sum(
                    frozenset({(name, place), *those}) in left for those in beside
                )
                for place in places[name]
            }
            for place in sorted(gains, key=gains.__getitem__, reverse=True):
                if fits(values([*row.items(), (name, place)])):
                    row[name] = place
                    break
        for those in combinations(row.items(), together):
            left.pop(frozenset(those), None)
        # In the order of the options: a set of pairs has none.
        yield values((name, row[name]) for name in options if name in row)


def made_or_refused(
    make: Callable[[Row], Any], options: Collection[str], row: Row
) -> bool:
    """Whether something is made with these options: if not, one is refused by name.

    Raises:
        AssertionError: if they are refused without the name of any option.
    """
    try:
        make(row)
    except ValueError as error:
        words = re.findall(r"\w+", str(error))
        if not any(name.rpartition(".")[2] in words for name in options):
            raise AssertionError(
                f"{_in_words(row)} is refused without the name of an option: {error}"
            ) from error
        return False
    return True


def check_together(
    options: Mapping[str, Sequence[Any]],
    make: Callable[[Row], Any],
    check: Callable[[Row], None],
    together: int = 2,
) -> None:
    """Run a check on rows of options in which all values of so many meet, but for those
    that are refused by name.

    Raises:
        AssertionError: if the check fails: says with which options.
    """
    for row in rows_of(options, partial(made_or_refused, make, options), together):
        try:
            check(row)
        except Exception as error:
            raise AssertionError(f"with {_in_words(row)}: {error}") from error


def _in_words(row: Row) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


def options_of(
    make: Make, fixed: Mapping[str, Any] | None = None, least: bool = False
) -> dict[str, list[Any]]:
    """Return the values to try of each option of a class, or of a ``functools.partial``
    of one, that has several.

    Args:
        make: the class, or the partial; what it is given is not an option.
        fixed: the value of each option, to try beside others.
        least: as in :func:`values_of`.
    """
    taken = 0
    named: Mapping[str, Any] = {}
    if isinstance(make, partial):
        taken = len(make.args)
        named = make.keywords
        make = make.func
    options = {}
    for name, argument in declared(make, taken).arguments.items():
        if name in named:
            continue
        values = values_of(argument, least)
        if fixed is not None and not any(_same(fixed[name], value) for value in values):
            values.insert(0, fixed[name])
        if len(values) > 1:
            options[name] = values
    return options


class Fresh:
    """Votes that are made anew for each call, so that nothing is kept from one call to
    the next.

    Args:
        make: makes the votes.
    """

    def __init__(self, make: Callable[[], Votes]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._make(), name)
        if not inspect.ismethod(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            def call_anew() -> Any:
                return getattr(self._make(), name)(*arguments, **named)

            result = call_anew()
            return Fresh(call_anew) if isinstance(result, Votes) else result

        return call


def _anew(votes: Votes) -> Votes:
    """The same votes, of which no backend has made anything yet."""
    made = votes.under(votes.competition)
    made._plan = None
    made._kept = {}
    return made


def forgetful(module: nn.Module) -> nn.Module:
    """Return the module, after giving its routings :class:`Fresh` votes."""
    for routing in module.modules():
        if isinstance(routing, Routing):
            _forget(routing)
    return module


def _forget(routing: Any) -> None:
    prepared = routing.prepared if routing.evidence else _anew
    routing.prepared = lambda votes: Fresh(lambda: prepared(_anew(votes)))
    routing.evidence = True

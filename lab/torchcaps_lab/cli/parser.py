"""The options of a command: argparse's, with values as type hints declare them, and
arguments of things after dots.
"""

import inspect
import re
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from torchcaps.spec import MISSING, alternatives, declared, fit, registry_of
from torchcaps_lab.cli.output import shortened
from torchcaps_lab.cli.plugins import HELP, import_named, named_imports
from torchcaps_lab.cli.source import (
    Sketch,
    documented,
    resolved,
    sketches,
    without_markup,
)
from torchcaps_lab.look import value_of
from torchcaps_lab.options.reading import meant_option, put, typed

OF_TRAINING = ("size", "channels", "range", "cut")
"""Guessed arguments of a data set that are for a training: a trained network has its
own.
"""

SPELT = {"start": "from"}
"""Options that are written in another way on a command line, beside their names in
Python and YAML, where the word is taken.
"""


class OptionParser(ArgumentParser):
    """Reads options in full: ``--data MNIST --data.validation 0.1`` gives ``{"name":
    "MNIST", "validation": 0.1}``.

    It reads ``--import`` as well, which names modules of the user's; :meth:`import_from`
    imports them before the other options are read.

    Args:
        prog: the command.
        description: what the command does, for its help.

    Example:
        >>> from torchcaps_lab.cli import OptionParser
        >>> parser = OptionParser("mean", "Average.")
        >>> _ = parser.add_argument("--steps", type=int, default=3)
        >>> parser.parse_args(["--steps", "5"]).steps
        5

    Attributes:
        hints: the type hints of the options, by name; others are argparse's own.
        homes: what declares an option whose hint waits for torch, and the module that
            has the names in the hint.
        takes_empty: whether an argument that is no value of an option may be empty.
    """

    def __init__(self, prog: str, description: str) -> None:
        self.hints: dict[str, Any] = {}
        self.homes: dict[str, tuple[Callable[..., Any], str]] = {}
        self.defaults: dict[str, Any] = {}
        self._named: dict[str, Action] = {}
        self.takes_empty = False
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=RawDescriptionHelpFormatter,
        )

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse's hides that nobody reads a long one."""
        print(self.format_help(), end="", file=file)

    def take_imports(self) -> None:
        """Add the option ``--import`` to the help; :meth:`import_from` has read it."""
        self.add_argument(
            "--import", action="append", default=[], metavar="MODULE", help=HELP
        )

    @staticmethod
    def import_from(arguments: Sequence[str]) -> None:
        """Import the modules and .py files that ``--import`` names, in order.

        Args:
            arguments: the words of the command line.

        Raises:
            ValueError: no module follows, there is none of that name, or it fails.
        """
        for module in named_imports(arguments):
            import_named(module)

    def take(self, owner: Callable[..., Any], home: str, partly: bool = False) -> None:
        """Adds the arguments of a function, or the fields of a dataclass.

        What can only be given by its name is an option; a list takes several words,
        which may be empty.

        Args:
            owner: the function or the dataclass.
            home: the module that has the names of hints in quotes.
            partly: whether arguments may come from elsewhere, too: none is needed, and
                a flag can be true or false.
        """
        for sketch in sketches(owner):
            if not sketch.exact:
                self.homes[sketch.name] = owner, home
            self.takes_empty |= not sketch.by_name and get_origin(sketch.hint) is list
            if partly:
                how = {
                    "type": sketch.hint,
                    "default": sketch.default,
                    "help": sketch.description,
                }
            else:
                how = _for_argparse(sketch)
            if isinstance(sketch.hint, str):
                how["metavar"] = sketch.metavar
            names = [f"--{sketch.name}" if sketch.by_name else sketch.name]
            if sketch.name in SPELT:
                names = [f"--{SPELT[sketch.name]}", *names]
                how |= {"dest": sketch.name, "metavar": "RUN"}
            self.add_argument(*names, **how)

    def add_argument(self, *names: str, **how: Any) -> Any:
        """argparse's, but that a type is a type hint: of numbers, names, choices,
        things, or groups of options.
        """
        hint = how.pop("type", None)
        default = how.pop("default", None)
        remark = ""
        if (
            isinstance(default, str | int | float)
            and default not in ("", SUPPRESS)
            and default is not False
        ):
            remark = f" (default: {default})"
        how = {
            **how,
            "default": SUPPRESS,
            "help": (how.get("help", "") + remark).replace("%", "%%"),
        }
        if hint is not None and how.get("nargs") is None:
            how["metavar"] = how.get("metavar") or (
                _metavar(hint) if names[0].startswith("--") else None
            )
        action = super().add_argument(*names, **how)
        self._named[action.dest] = action
        self.defaults[action.dest] = (
            False if how.get("action") == "store_true" else default
        )
        if hint is not None:
            self.hints[action.dest] = hint
        return action

    def tree(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The options that were given, by name, as typed, with those after dots inside;
        arguments of things are added to the help.
        """
        words = self._words(arguments)
        self._take_dots(words)
        typed_options = vars(super().parse_args(words))
        tree: dict[str, Any] = {}
        for name, value in sorted(
            typed_options.items(), key=lambda option: option[0].count(".")
        ):
            parts = name.split(".")
            put(tree, parts, _typed(value) if parts[0] in self.hints else value)
        return tree

    def parse_args(self, arguments: Sequence[str]) -> Any:  # type: ignore[override]
        """The options by name, each as its type hint asks for it; things are
        :class:`~torchcaps.spec.Spec`.
        """
        tree = self.tree(arguments)
        return Namespace(
            **self.defaults
            | {name: self.fitted(name, value) for name, value in tree.items()}
        )

    def check_simple(self, tree: Mapping[str, Any]) -> None:
        """Checks the options whose type hints are known without importing anything."""
        for name in tree.keys() - self.homes.keys():
            self.fitted(name, tree[name])

    def fitted(self, name: str, value: Any) -> Any:
        """A value as typed, as the type hint of its option asks for it."""
        if name not in self.hints:
            return value
        action = self._named[name]
        hint = self._hint(name)
        try:
            if name == "data" and _class_in(hint) is not None:
                return value  # runs.other_data looks at what lies there
            if action.nargs in ("+", "*"):
                return [fit(hint, element, name) for element in value]
            return fit(hint, value, name)
        except ValueError as error:
            self.error(
                f"--{error}"
                if action.option_strings and str(error).startswith(name)
                else str(error)
            )

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and what looks like an unknown option, and ends the
        process.
        """
        if unknown := re.match(r"unrecognized arguments: --([\w.-]+)", message):
            names = [
                name.removeprefix("--")
                for name in self._option_string_actions
                if name.startswith("--")
            ]
            meant = meant_option(unknown[1], names).removeprefix("; did you mean ")
            name = meant.removesuffix("?")
            message += f"; did you mean --{SPELT.get(name, name)}?" if name else ""
        if message.startswith("the following arguments are required"):
            places = [
                f"[{action.dest}]" if action.nargs == "?" else action.dest
                for action in self._actions
                if not action.option_strings
            ]
            message += f"; it takes {' '.join(map(str.upper, places))}, in this order"
        self.exit(
            2,
            f"{self.prog}: error: {shortened(message)}\n'{self.prog} --help' lists "
            "the options.\n",
        )

    def _words(self, arguments: Sequence[str]) -> list[str]:
        """The arguments, a flag with its value as one; empty ones are refused: a folder
        would be the working one.
        """
        words: list[str] = []
        waiting = list(arguments)
        while waiting:
            word = waiting.pop(0)
            name, equals, value = word.partition("=")
            if word == "--":
                return [*words, word, *waiting]
            is_option = word.startswith("--")
            if (is_option and equals and not value) or (
                not word and not self.takes_empty
            ):
                self.error(f"{name if is_option else 'an argument'} must not be empty")
            if is_option and not equals and self._is_flag(name):
                says = waiting and isinstance(typed(waiting[0]).value, bool)
                word += f"={waiting.pop(0)}" if says else "=true"
            elif is_option and not equals and self._takes_value(name) and waiting:
                if not waiting[0]:
                    self.error(f"{name} must not be empty")
                if not waiting[0].startswith("--"):
                    word += f"={waiting.pop(0)}"
            words.append(word)
        return words

    def _is_flag(self, name: str) -> bool:
        action = self._option_string_actions.get(name)
        return action is not None and self.hints.get(action.dest) is bool

    def _takes_value(self, name: str) -> bool:
        action = self._option_string_actions.get(name)
        return "." in name or (action is not None and action.nargs is None)

    def _hint(self, name: str) -> Any:
        """The type hint of an option; the module that declares it is imported if it has
        to be.
        """
        if name not in self.homes:
            return self.hints[name]
        owner, home = self.homes[name]
        return resolved(owner, name, home)

    def _take_dots(self, words: Sequence[str]) -> None:
        """Adds options after dots as they come, and for the help those of groups, and
        all arguments of the things that are named.
        """
        asks = bool({"-h", "--help"} & {*words})
        for option, hint in [*self.hints.items()] if asks else []:
            if is_dataclass(hint):
                self._describe_group(option, hint)
        for word in words:
            name, _, value = word.partition("=")
            first, *_ = name[2:].split(".")
            if not word.startswith("--") or first not in self.hints:
                continue
            if name == f"--{first}" and value and asks:
                hint = self._hint(first)
                if is_dataclass(hint):
                    self._describe_group(first, hint)
                else:
                    self._describe(first, registry_of(_class_in(hint)), value)
            elif "." in name and name not in self._option_string_actions:
                super().add_argument(
                    name, dest=name[2:], default=SUPPRESS, help=SUPPRESS
                )

    def _describe_group(self, option: str, cls: Any) -> None:
        """Adds the options of a group to the help."""
        group = self.add_argument_group(
            f"--{option}", without_markup((inspect.getdoc(cls) or "").split("\n\n")[0])
        )
        for sketch in sketches(cls):
            group.add_argument(
                f"--{option}.{sketch.name}",
                metavar=_metavar(sketch.hint),
                default=SUPPRESS,
                help=sketch.description.replace("%", "%%"),
            )

    def _describe(self, option: str, registry: Any, name: str) -> None:
        """Adds the arguments of a thing to the help."""
        try:
            cls = registry.find(name)
        # There is none of that name, or the option takes no thing.
        except (ValueError, AttributeError):
            return
        group = self.add_argument_group(
            f"--{option} {name}",
            without_markup((inspect.getdoc(cls) or "").splitlines()[0]),
        )
        help_of = documented(
            *(vars(field).get("__doc__") for field in reversed(cls.__mro__))
        )
        for field, argument in declared(cls, int(registry.factory)).arguments.items():
            place = f"--{option}.{field}"
            if place not in self._option_string_actions:
                group.add_argument(
                    place,
                    dest=place[2:],
                    metavar=_metavar(argument.hint),
                    default=SUPPRESS,
                    help=help_of.get(field, "").replace("%", "%%"),
                )


class WrongUsage(ValueError):
    """Options that do not fit each other; the command ends with the status 2.

    Example:
        >>> from torchcaps_lab.cli import WrongUsage
        >>> str(WrongUsage("--top needs a network that classifies"))
        '--top needs a network that classifies'
    """


def data_at(
    value: Any, shared: Mapping[str, Any], task: str, classes: Sequence[str]
) -> Any:
    """The data set that a reader recognises at a path, where a path is named in place
    of a data set, or the one that is named, with what it shares with that of the run.

    Args:
        value: the option ``data``, as typed: a name, or a name and arguments; or a
            `Path`, which is never the name of a data set.
        shared: arguments of the data that the network was trained on, such as columns,
            where ``value`` has no other.
        task: the name of the task of the network.
        classes: the classes of the network, of which data may hold one alone.
    """
    from torchcaps_lab.data.base import DATASETS
    from torchcaps_lab.options.guess import guess
    from torchcaps_lab.options.reading import merged

    arguments = dict(value) if isinstance(value, Mapping) else {"name": value}
    named = arguments.pop("name", None)
    text = getattr(named, "text", named)
    if text in {*DATASETS, *(cls.__name__ for cls in DATASETS.classes())}:
        return merged(
            {"name": named, **_arguments_of(DATASETS.find(text), shared)}, arguments
        )
    if not isinstance(text, str | Path) or not Path(text).exists():
        return value
    # A trained network knows its classes, so an empty class folder is in nobody's way.
    known = {"skip_broken": True, "classes": classes}
    given = {**known, **shared, **arguments}
    seen = guess(text, {"data": given, "task": task}).options["data"]
    # A trained network says what shape it takes, where a data set leaves that open.
    kind = DATASETS.find(seen["name"])
    parameters = inspect.signature(kind).parameters
    free = [key for key in OF_TRAINING if key in parameters]
    free = [key for key in free if parameters[key].default is None]
    place = {key: argument for key, argument in seen.items() if key not in free}
    return merged(merged(place, _arguments_of(kind, shared)), arguments)


def _arguments_of(kind: type, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a data set takes."""
    parameters = inspect.signature(kind).parameters
    return {key: shared[key] for key in parameters.keys() & shared.keys()}


def lacks_name(data: Any) -> bool:
    """Whether the option ``data`` has arguments of a data set alone."""
    data = value_of(data)
    return isinstance(data, Mapping) and "name" not in data


def parser_of(command: str) -> OptionParser:
    """The options of a command, which are the arguments of the function ``command`` in
    the file of its name.
    """
    function = import_module(f"torchcaps_lab.cli.{command}").command
    description = inspect.getdoc(function) or ""
    parser = OptionParser(f"torchcaps {command}", description.partition("\n\n")[0])
    parser.take(function, "torchcaps_lab.data")
    parser.take_imports()
    return parser


def _for_argparse(sketch: Sketch) -> dict[str, Any]:
    """How argparse takes an argument of a command."""
    how: dict[str, Any] = {
        "type": sketch.hint,
        "default": sketch.default,
        "help": sketch.description,
    }
    needed = sketch.default is MISSING
    if sketch.hint is bool and sketch.default is False:
        return {"action": "store_true", "help": sketch.description}
    if sketch.by_name:
        return how | {"required": needed}
    if get_origin(sketch.hint) is list:
        return how | {"type": get_args(sketch.hint)[0], "nargs": "+" if needed else "*"}
    return how if needed else how | {"nargs": "?"}


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return [_typed(element) for element in value]
    return typed(value)


def _class_in(hint: Any) -> Any:
    """The class of things in a type hint; None if there is none."""
    return next(
        (part for part, _ in alternatives(hint) if registry_of(part) is not None), None
    )


def _metavar(hint: Any) -> str:
    """What an option takes, in one word."""
    parts = [part for part, _ in alternatives(hint)]
    choices: list[str] = []
    for part in parts:
        if get_origin(part) is Literal:
            choices += map(str, get_args(part))
    words = {int: "N", float: "X", bool: "true|false", str: "", type(None): ""}
    kinds = [get_origin(part) or part for part in parts]
    named = [words.get(kind, kind.__name__) for kind in kinds if inspect.isclass(kind)]
    return "|".join([*[*filter(None, named)][:1], *choices]) or "VALUE"

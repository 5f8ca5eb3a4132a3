"""The options of a command: argparse's, with values as type hints declare them, and arguments of things after dots."""

import inspect
import re
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, NoReturn, get_args, get_origin

from torchcaps.spec import MISSING, Argument, alternatives, declared, fit, meant, registry_of
from torchcaps_lab.cli.plugins import add_import, named_imports
from torchcaps_lab.training.reading import put, typed


class OptionParser(ArgumentParser):
    """Reads options in full: ``--data MNIST --data.validation 0.1`` gives ``{"name": "MNIST", "validation": 0.1}``.

    Attributes:
        hints: the type hints of the options, by name; others are argparse's own.
        takes_empty: whether an argument that is no value of an option may be empty.
    """

    def __init__(self, prog: str, description: str) -> None:
        self.hints: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.takes_empty = False
        super().__init__(
            prog=prog, description=description, allow_abbrev=False, formatter_class=RawDescriptionHelpFormatter
        )

    def option(self, name: str, argument: Argument, help: str = "") -> None:
        """Adds an option as it is declared."""
        self.add_argument(f"--{name}", type=argument.hint, default=_shown(argument.default), help=help)

    def argument(self, function: Any, name: str, argument: Argument, help: str, also: str | None = None) -> None:
        """Adds an argument of a function: see :func:`options`."""
        hint, default = argument
        how: dict[str, Any] = {"type": hint, "help": help}
        if inspect.signature(function).parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
            names = [f"--{one}" for one in (name, also) if one is not None]
            if default is MISSING:
                how["required"] = True
            else:
                how["default"] = default
            if hint is bool and default is False:
                how = {"action": "store_true", "help": help}
        else:
            names = [name]
            if get_origin(hint) is list:
                how |= {"type": get_args(hint)[0], "nargs": "+" if default is MISSING else "*"}
            elif default is not MISSING:
                how |= {"nargs": "?"}
            if default is not MISSING:
                how["default"] = default
        self.add_argument(*names, **how)

    def add_argument(self, *names: str, **how: Any) -> Any:
        """argparse's, but that a type is a type hint: of numbers, names, choices, things, or groups of options."""
        hint, default = how.pop("type", None), how.pop("default", None)
        told = (
            f" (default: {default})"
            if isinstance(default, str | int | float) and default not in (False, "", SUPPRESS)
            else ""
        )
        how = {**how, "default": SUPPRESS, "help": (how.get("help", "") + told).replace("%", "%%")}
        if hint is not None and how.get("nargs") is None:
            how["metavar"] = how.get("metavar") or (_metavar(hint) if names[0].startswith("--") else None)
        action = super().add_argument(*names, **how)
        self.defaults[action.dest] = False if how.get("action") == "store_true" else default
        if hint is not None:
            self.hints[action.dest] = hint
        return action

    def tree(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The options that were given, by name, as typed, with those after dots inside; arguments of things are added
        to the help."""
        words = self._words(arguments)
        self._take_dots(words)
        given = vars(super().parse_args(words))
        tree: dict[str, Any] = {}
        for name, value in sorted(given.items(), key=lambda one: one[0].count(".")):
            parts = name.split(".")
            put(tree, parts, _typed(value) if parts[0] in self.hints else value)
        return tree

    def parse_args(self, arguments: Sequence[str]) -> Any:  # type: ignore[override]
        """The options by name, each as its type hint asks for it; things are :class:`~torchcaps.spec.Spec`."""
        tree = self.tree(arguments)
        found = Namespace()
        for action in self._actions:
            name = action.dest
            value = tree.get(name, self.defaults.get(name))
            if name in tree and name in self.hints:
                each = action.nargs in ("+", "*")
                hint = self.hints[name]
                try:
                    value = [fit(hint, one, name) for one in tree[name]] if each else fit(hint, tree[name], name)
                except ValueError as error:
                    self.error(f"--{error}" if action.option_strings else str(error))
            setattr(found, name, value)
        return found

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and what looks like an unknown option, and ends the process."""
        if unknown := re.match(r"unrecognized arguments: --([\w.-]+)", message):
            names = [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]
            message += meant(unknown[1].replace("-", "_"), names).replace("mean ", "mean --")
        self.exit(2, f"{self.prog}: error: {message}\n'{self.prog} --help' lists the options.\n")

    def _words(self, arguments: Sequence[str]) -> list[str]:
        """The arguments, a flag with its value as one; empty ones are refused: a folder would be the working one."""
        words: list[str] = []
        waiting = list(arguments)
        while waiting:
            word = waiting.pop(0)
            name, equals, value = word.partition("=")
            if word == "--":
                return [*words, word, *waiting]
            is_option = word.startswith("--")
            if (is_option and equals and not value) or (not word and not self.takes_empty):
                self.error(f"{name if is_option else 'an argument'} must not be empty")
            if is_option and not equals and self._is_flag(name):
                word += f"={waiting.pop(0)}" if waiting and waiting[0] in ("true", "false") else "=true"
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

    def _take_dots(self, words: Sequence[str]) -> None:
        """Adds the options after dots: all arguments of the things that were named, and others as they come."""
        for word in words:
            name, _, value = word.partition("=")
            first, *_ = name[2:].split(".")
            if not word.startswith("--") or first not in self.hints:
                continue
            registry = registry_of(_class_in(self.hints[first]))
            if name == f"--{first}" and registry is not None and value:
                self._describe(first, registry, value)
            elif "." in name and name not in self._option_string_actions:
                super().add_argument(name, dest=name[2:], default=SUPPRESS, help=SUPPRESS)

    def _describe(self, option: str, registry: Any, name: str) -> None:
        """Adds the arguments of a thing to the help."""
        try:
            cls = registry.find(name)
        except ValueError:
            return
        group = self.add_argument_group(f"--{option} {name}", (inspect.getdoc(cls) or "").splitlines()[0])
        told = documented(cls)
        for one, argument in declared(cls, int(registry.factory)).arguments.items():
            place = f"--{option}.{one}"
            if place not in self._option_string_actions:
                group.add_argument(place, dest=place[2:], metavar=_metavar(argument.hint),
                                   default=SUPPRESS, help=told.get(one, "").replace("%", "%%"))  # fmt: skip


class WrongUsage(ValueError):
    """Options that do not fit each other."""


def options(takes_empty: bool = False, **also: str) -> Callable[[Callable[..., None]], Callable[[list[str]], None]]:
    """Makes a plain function a command, which takes the words of a command line.

    Its arguments are those of the command: what can only be named is an option, a list takes several words. The help is
    what its docstring says of them. An argument ``imported`` gets the modules of ``--import``.

    Args:
        takes_empty: as in :class:`OptionParser`.
        also: other names of options, by their names.
    """

    def decorated(function: Callable[..., None]) -> Callable[[list[str]], None]:
        taken = declared(function).arguments

        @wraps(function)
        def command(arguments: list[str]) -> None:
            name = function.__module__.rpartition(".")[2]
            parser = OptionParser(f"torchcaps {name}", (inspect.getdoc(function) or "").partition("\n\n")[0])
            parser.takes_empty = takes_empty
            told, own = documented(function), {one: taken[one] for one in taken if one != "imported"}
            for one, argument in own.items():
                parser.argument(function, one, argument, told.get(one, ""), also.get(one))
            add_import(parser)
            given = vars(parser.parse_args(arguments))
            imported = {"imported": named_imports(arguments)} if "imported" in taken else {}
            try:
                function(**{one: given[one] for one in own}, **imported)
            except WrongUsage as error:
                parser.error(str(error))

        return command

    return decorated


def _typed(value: Any) -> Any:
    return [_typed(one) for one in value] if isinstance(value, list) else typed(value)


def _shown(default: Any) -> Any:
    """A default as people write it."""
    if default is MISSING or default is None:
        return None
    return type(default).__name__ if not isinstance(default, str | int | float) else default


def _class_in(hint: Any) -> Any:
    """The class of things in a type hint; None if there is none."""
    return next((part for part, _ in alternatives(hint) if registry_of(part) is not None), None)


def _metavar(hint: Any) -> str:
    """What an option takes, in one word."""
    registry = registry_of(_class_in(hint))
    if registry is not None:
        return registry.kind.upper().replace(" ", "_")
    words = {int: "N", float: "X", bool: "true|false"}
    choices = [str(one) for part, _ in alternatives(hint) if get_origin(part) is Literal for one in get_args(part)]
    return words.get(hint, "|".join(choices) or "VALUE")


def documented(cls: Any) -> Mapping[str, str]:
    """What the docstring of a class, or a function, says of its arguments, by name, those of its bases included."""
    from docstring_parser import parse

    bases = [vars(one).get("__doc__") for one in reversed(cls.__mro__)] if inspect.isclass(cls) else [cls.__doc__]
    docs = (parse(inspect.cleandoc(one or "")) for one in bases)
    return {each.arg_name: (each.description or "").replace("\n", " ") for doc in docs for each in doc.params}

"""A parser of options that trusts no file of them, and says what there is where it does not know a name."""

import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchcaps.data import ImageData
from torchcaps.losses import ActivationLoss
from torchcaps.routing import Routing
from torchcaps.routing.base import ROUTINGS
from torchcaps.tasks import Task
from torchcaps.training.options import OURS
from torchcaps.training.trust import check_options, read_options, subclasses

KINDS: dict[str, type] = {
    "data": ImageData,
    "routing": Routing,
    "loss": ActivationLoss,
    "task": Task,
    "optimizer": Optimizer,
    "scheduler": LRScheduler,
}
"""What an option of this name takes a class of."""

_UNION = "Does not validate against any of the Union subtypes"
_FACTORY = re.compile(
    r"Type collections\.abc\.Callable\[.*?expects a function or a callable class: |\.? Got value: Namespace\(.*\)$",
    re.MULTILINE,
)
_NO_OPTION = re.compile(
    r"unrecognized arguments: --([\w.-]+)|Group '(\w+)' does not accept option '([\w.-]+)'|"
    r"Option '([\w.-]+)' is not accepted"
)
_AROUND = (_UNION, "Subtypes:", "Errors:", "Given value type:", "Given value:")


class OptionParser(ArgumentParser):
    """jsonargparse's parser, whose errors list the classes that an option could have named.

    Options are written in full: a shortened ``--conf`` would go past what looks for ``--config``.

    Attributes:
        allowed: the options by name with their type hints, for files of them.
        imported: the modules that were named on the command line.
        takes_empty: whether an argument that is no value of an option may be empty.
    """

    allowed: Mapping[str, Any]
    imported: Sequence[str] = ()
    takes_empty: bool = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **named})

    def parse_args(self, args: Sequence[str], *rest: Any, **named: Any) -> Any:  # type: ignore[override]
        """The options on a command line, where a routing may go by either of its names.

        Files of options come first, so that an option counts wherever it stands. Empty arguments are refused: as the
        name of a folder, one would be the working directory.
        """
        files, others = [], []
        for before, one in zip(["", *args], args, strict=False):
            name, equals, value = one.partition("=")
            if name.startswith("--") and equals and not value:
                self.error(f"{name} must not be empty")
            of_option = self._takes_next(before)
            if not one and (of_option or not self.takes_empty):
                self.error(f"{before if of_option else 'an argument'} must not be empty")
            if "--config" in (before, one) or one.startswith("--config="):
                files.append(one)
            else:
                others.append(_with_routing(before, one))
        return super().parse_args([*files, *others], *rest, **named)

    def _takes_next(self, argument: str) -> bool:
        """Whether it is an option whose value is the argument after it: not a flag, and not ``--option=value``."""
        flag = argument in self._option_string_actions and self._option_string_actions[argument].nargs == 0
        return argument.startswith("--") and argument != "--" and "=" not in argument and not flag

    def instantiate(self, *arguments: Any, **named: Any) -> Any:
        """The objects that options describe; a `ValueError` says what is wrong and no more."""
        try:
            return super().instantiate(*arguments, **named)
        except ValueError as error:
            if (text := told(str(error))) == str(error):
                raise
            raise ValueError(text) from error

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what is wrong, where the options are listed, and ends the process."""
        message = told(message) + self._near(message)
        option = re.search(r'Parser key "(\w+)"', message)
        kind = KINDS.get(option[1]) if option else None
        if option and "is abstract" in message:
            message = f"--{option[1]} must name a class before its arguments"
        if kind is not None and ("import path" in message or "before its arguments" in message):
            own = f"those of your own, derived from {kind.__name__}, once --import names their module"
            message += f"\n  There are {', '.join(_names(kind))}; {own}"
        if not self.exit_on_error:
            raise ArgumentError(None, message) from ex
        self.exit(2, f"{self.prog}: error: {message}\n'{self.prog} --help' lists the options.\n")

    def _near(self, message: str) -> str:
        """A question after the known option that looks like the unknown one that jsonargparse names, if there is one.

        The arguments of a class have a parser of their own, whose message is part of the one for the whole option.
        """
        found = _NO_OPTION.match(message)
        if found is None:
            return ""
        flag, group, of_group, plain = found.groups()
        wanted = (flag or plain or f"{group}.{of_group}").replace("-", "_")
        place, _, last = wanted.rpartition(".")
        names = [name[2:] for name in self._option_string_actions if name[:2] == "--" and name[-1] != "+"]
        within = [name.removeprefix(f"{place}.") for name in names if name.startswith(f"{place}.")]
        before = ("--" if flag else "") + (f"{place}." if within else "")
        looked, among = (last, within) if within else (wanted, names)
        if near := [name for name in among if name.startswith(looked)] or get_close_matches(looked, among, 1):
            return f"; did you mean {before}{near[0]}?"
        return _of_the_trainer(before, last) if place == "trainer" else ""


def _of_the_trainer(before: str, name: str) -> str:
    """Where an argument of Lightning's Trainer goes that is no option of its own."""
    if name in OURS:
        return f"; torchcaps sets it itself{OURS[name] and f', from {OURS[name]}'}"
    return f"; other arguments of Lightning's Trainer go into {before}extra: {before}extra.{name}"


class TrustedConfigFile(ActionConfigFile):
    """``--config``: a file of options, which is looked through before it is acted on."""

    @staticmethod
    def apply_config(parser: OptionParser, cfg: Any, dest: str, value: Any) -> None:
        """Takes over the options in a file, or in YAML itself; raises what :func:`read_options` raises."""
        path = Path(value)
        if len(value) < 4096 and path.is_file():
            read_options(path, parser.allowed, parser.imported)
            text = path.read_text(encoding="utf-8")
        elif not set(value) & set("{:\n"):  # no options in YAML
            raise ValueError(f"--{dest}: there is no file {value}")
        else:
            check_options(value, f"--{dest}", parser.allowed, parser.imported)
            text = value
        ActionConfigFile.apply_config(parser, cfg, dest, with_routing_path(text))


def routing_path(name: str) -> str:
    """Where the routing is imported from that :func:`~torchcaps.create_routing` makes; another name as it is."""
    kind = ROUTINGS.get(name)
    return name if kind is None else f"{kind.__module__}.{kind.__qualname__}"


def _with_routing(before: str, argument: str) -> str:
    """An argument after another, where a routing goes by :func:`routing_path`."""
    if before in ("--routing", "--routing.class_path"):
        return routing_path(argument)
    option, equals, name = argument.partition("=")
    return option + equals + routing_path(name) if option in ("--routing", "--routing.class_path") else argument


def with_routing_path(text: str) -> str:
    """Options in YAML, where a routing may go by either of its names, as :func:`routing_path` has it."""
    for option, value in yaml.compose(text, Loader=yaml.SafeLoader).value:
        if option.value == "routing":
            inside = value.value if isinstance(value, yaml.MappingNode) else [(None, value)]
            named = [one for key, one in inside if key is None or key.value == "class_path"]
            if len(named) == 1 and isinstance(named[0], yaml.ScalarNode) and named[0].value in ROUTINGS:
                name, first, last = named[0].value, named[0].start_mark.index, named[0].end_mark.index
                return text[:first] + text[first:last].replace(name, routing_path(name)) + text[last:]
    return text


def told(message: str) -> str:
    """What jsonargparse says is wrong, without what it says of other types that the option could have had."""
    message = _FACTORY.sub("", message)
    if _UNION not in message:
        return message
    given = re.search(r"Given value: ((?!NestedArg).*)", message)
    lines = [line for line in message.splitlines() if not line.lstrip().startswith(_AROUND)]
    apart = [line for line in lines if not line.lstrip().startswith("- Expected a <class")]
    if "Subtypes: [<class 'float'>" in message:  # a tensor, by its import path, is not what people mean
        lines = [line for line in lines if "import path" not in line]
        apart = []
    chosen = apart if any(line.lstrip().startswith("- ") for line in apart) else lines
    text = "\n".join(re.sub(r"^(\s*)- ", r"\1", line) for line in chosen).strip()
    if given is None or given[1].startswith("Namespace(") or text.endswith(given[1]):
        return text
    return f"{text}{'' if text.endswith('?') else '.'} Got value: {given[1]}"


def _names(kind: type) -> list[str]:
    """The classes of a kind that can be made, by name."""
    made = (cls for cls in subclasses(kind) if cls is not kind and not getattr(cls, "__abstractmethods__", None))
    return sorted({cls.__name__ for cls in made if not cls.__name__.startswith("_")})

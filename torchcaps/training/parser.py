"""A parser of options that says what there is where it does not know a name."""

import re
from argparse import ArgumentError
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from torchcaps.data import ImageData
from torchcaps.losses import ActivationLoss
from torchcaps.routing import Routing
from torchcaps.tasks import Task

KINDS: dict[str, type] = {"data": ImageData, "routing": Routing, "loss": ActivationLoss, "task": Task}
"""What an option of this name takes a class of."""


class OptionParser(ArgumentParser):
    """jsonargparse's parser, whose errors list the classes that an option could have named."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what is wrong, where the options are listed, and ends the process."""
        option = re.search(r'Parser key "(\w+)"', message)
        kind = KINDS.get(option[1]) if option else None
        if kind is not None and "import path" in message:
            message += f"\n  There are {', '.join(_names(kind))}; those of your own once --import names their module"
        if not self.exit_on_error:
            raise ArgumentError(None, message) from ex
        self.exit(2, f"{self.prog}: error: {message}\n'{self.prog} --help' lists the options.\n")


def _names(kind: type) -> list[str]:
    """The classes of a kind that can be made, by name."""
    found: set[str] = set()
    waiting: list[Any] = [kind]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if not getattr(cls, "__abstractmethods__", None) and not cls.__name__.startswith("_"):
            found.add(cls.__name__)
    return sorted(found)

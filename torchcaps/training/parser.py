"""A parser of options that trusts no file of them, and says what there is where it does not know a name."""

import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, ArgumentParser

from torchcaps.data import ImageData
from torchcaps.losses import ActivationLoss
from torchcaps.routing import Routing
from torchcaps.tasks import Task
from torchcaps.training.trust import check_options, read_options, subclasses

KINDS: dict[str, type] = {"data": ImageData, "routing": Routing, "loss": ActivationLoss, "task": Task}
"""What an option of this name takes a class of."""


class OptionParser(ArgumentParser):
    """jsonargparse's parser, whose errors list the classes that an option could have named.

    Attributes:
        allowed: the options by name with their type hints, for files of them.
        imported: the modules that were named on the command line.
    """

    allowed: Mapping[str, Any]
    imported: Sequence[str] = ()

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what is wrong, where the options are listed, and ends the process."""
        option = re.search(r'Parser key "(\w+)"', message)
        kind = KINDS.get(option[1]) if option else None
        if kind is not None and "import path" in message:
            message += f"\n  There are {', '.join(_names(kind))}; those of your own once --import names their module"
        if not self.exit_on_error:
            raise ArgumentError(None, message) from ex
        self.exit(2, f"{self.prog}: error: {message}\n'{self.prog} --help' lists the options.\n")


class TrustedConfigFile(ActionConfigFile):
    """``--config``: a file of options, which is looked through before it is acted on."""

    @staticmethod
    def apply_config(parser: OptionParser, cfg: Any, dest: str, value: Any) -> None:
        """Takes over the options in a file, or in YAML itself; raises what :func:`read_options` raises."""
        path = Path(value)
        if len(value) < 4096 and path.is_file():
            read_options(path, parser.allowed, parser.imported)
        else:
            check_options(value, f"--{dest}", parser.allowed, parser.imported)
        ActionConfigFile.apply_config(parser, cfg, dest, value)


def _names(kind: type) -> list[str]:
    """The classes of a kind that can be made, by name."""
    made = (cls for cls in subclasses(kind) if not getattr(cls, "__abstractmethods__", None))
    return sorted({cls.__name__ for cls in made if not cls.__name__.startswith("_")})

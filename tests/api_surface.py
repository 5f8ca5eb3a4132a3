"""The public names, and the file of what ``torchcaps models`` lists.

A public name is one in ``__all__`` of one of the packages or their modules. ``python -m
tests.api_surface`` writes the file, so that the command need not import torch.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType

import torchcaps
import torchcaps_lab
from torchcaps_lab.cli.models import described
from torchcaps_lab.options.guess import LISTED


def public_modules() -> Iterator[ModuleType]:
    """The packages and all below them that say what is public in them."""
    yield torchcaps
    for top in (torchcaps, torchcaps_lab):
        for _, name, package in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
            if package or (name.count(".") == 1 and not name.endswith("__main__")):
                module = importlib.import_module(name)
                if hasattr(module, "__all__"):
                    yield module


def offered(module: ModuleType) -> list[str]:
    """The public names of a package, and the others that it imports from its modules.

    The others are documented and tested like the public ones: things that one gets by
    their name, such as concrete routings, networks and data sets, and parts of them.
    """
    names = list(module.__all__)
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and is_package(module):
            names += [alias.name for alias in node.names if is_ours(node.module)]
    return list(dict.fromkeys(names))


def is_package(module: ModuleType) -> bool:
    """Whether a module is a package of things that one gets by their name, and parts."""
    below = hasattr(module, "__path__") and "." in module.__name__
    return below and module.__name__ != "torchcaps.spec"


def is_ours(module: str | None) -> bool:
    """Whether a module is one of the two packages, or below."""
    return (module or "").split(".")[0] in ("torchcaps", "torchcaps_lab")


if __name__ == "__main__":
    LISTED.write_text(json.dumps(described(), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{LISTED}\n")

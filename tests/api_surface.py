"""All public names: ``python -m tests.api_surface`` writes them to
``tests/api_surface.json``, from the root.

It also writes what ``torchcaps models`` lists, so that the command need not import
torch.

A public name is one in ``__all__`` of one of the packages or their modules. With each
go the names of its parameters, for a class those of its constructor, and the public
methods and properties that the class itself defines.
"""

import ast
import functools
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import torchcaps
import torchcaps_lab
from torchcaps_lab.cli.models import KNOWN, described

SURFACE = Path(__file__).with_suffix(".json")


def surface() -> list[str]:
    """A line for each public name, sorted; what several packages export is described in
    the innermost of them.
    """
    lines: set[str] = set()
    described: set[int] = set()
    for module in sorted(
        public_modules(), key=lambda module: -module.__name__.count(".")
    ):
        for name in module.__all__:
            thing = getattr(module, name)
            path = f"{module.__name__}.{name}"
            lines.update([path] if id(thing) in described else lines_of(path, thing))
            described.add(id(thing))
    return sorted(lines)


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


def lines_of(name: str, thing: Any) -> Iterator[str]:
    """The line of a public name and, for a class of ours, those of its members."""
    yield name + parameters(thing)
    if inspect.isclass(thing) and thing.__module__.startswith("torchcaps"):
        for member, value in vars(thing).items():
            if not member.startswith("_"):
                if isinstance(value, (property, functools.cached_property)):
                    yield f"{name}.{member}"
                elif isinstance(
                    value, (classmethod, staticmethod)
                ) or inspect.isfunction(value):
                    yield f"{name}.{member}{parameters(getattr(thing, member))}"


def parameters(thing: Any) -> str:
    """The names of the parameters in parentheses; nothing for what has none to tell, in
    every version of Python.
    """
    if get_origin(thing) or getattr(thing, "_is_protocol", False):
        return ""
    made = inspect.isclass(thing) and inspect.isfunction(thing.__init__)
    try:
        signature = inspect.signature(thing.__init__ if made else thing)
    except (TypeError, ValueError):  # not to be called, or written in C
        return ""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = [
        stars.get(p.kind, "") + p.name
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    keywords = [
        p.kind is inspect.Parameter.KEYWORD_ONLY
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    if True in keywords and not any(
        name.startswith("*") and not name.startswith("**") for name in names
    ):
        names.insert(keywords.index(True), "*")
    return f"({', '.join(names)})"


if __name__ == "__main__":
    SURFACE.write_text(json.dumps(surface(), indent=1) + "\n", encoding="utf-8")
    KNOWN.write_text(json.dumps(described(), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{SURFACE}\n{KNOWN}\n")

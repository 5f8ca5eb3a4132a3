"""The user's modules, imported before a command reads its options."""

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from torchcaps.whole import resolved

GROUP = "torchcaps.plugins"
"""Entry-point group of installed packages; every command loads it."""

HELP = (
    "import and execute this module or .py file first, so that you can name its "
    "routings, networks, data sets, tasks and similarities; may be repeated"
)


@contextmanager
def importing() -> Iterator[None]:
    """Collects garbage seldom: torch and what stands on it make hardly any while they
    are imported, and looking for it takes a fifth of the processor time.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def named_imports(arguments: Sequence[str]) -> list[str]:
    """The modules that ``--import`` names, in order; .py files by their absolute paths.

    Raises:
        ValueError: if no module follows.
    """
    named = []
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--import":
            value = value if equals else "".join(arguments[place + 1 : place + 2])
            if not value:
                raise ValueError("--import needs the name of a module, or a .py file")
            named.append(
                str(Path(value).absolute()) if value.endswith(".py") else value
            )
    return named


def import_plugins() -> None:
    """Imports the plug-ins of installed packages, in the entry-point group
    ``torchcaps.plugins``.

    Raises:
        ValueError: if one of them cannot be imported.
    """
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # plug-ins may raise anything
            raise ValueError(
                f"the plug-in {point.name} ({point.value}) cannot be imported: "
                f"{error!r}"
            ) from error


def import_named(name: str) -> ModuleType:
    """Imports a module by name, also from the working directory, or a .py file under
    the name of the file.

    Raises:
        ValueError: if there is no such module or file, it fails, or another module has
            the name of the file.
    """
    try:
        if name.endswith(".py"):
            return _import_file(Path(name))
        return _import_module(name)
    # The user's code may raise anything.
    except Exception as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name == name.partition(".")[0]
        ):
            raise ValueError(
                f"--import {name}: no such module in the working directory or among "
                "the installed packages; name a .py file elsewhere by its path"
            ) from error
        raise ValueError(
            f"--import {name}: "
            f"{error if isinstance(error, OSError | ValueError) else repr(error)}"
        ) from error


def _import_module(name: str) -> ModuleType:
    _look_in(Path.cwd())
    return importlib.import_module(name)


def _look_in(folder: Path) -> None:
    """Lets Python find modules in a folder, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if getattr(loaded, "__file__", None) and resolved(
            Path(str(loaded.__file__))
        ) == resolved(path):
            return loaded
        raise ValueError(f"another module has the name {path.stem!r}: rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where options and saved classes look it up
    _look_in(
        path.absolute().parent
    )  # for what it imports from beside it, as in 'python FILE'
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module

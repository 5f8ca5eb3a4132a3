"""Identifies the code that a result came from, by digests of its definitions."""

import ast
import inspect
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torchcaps
from torchcaps.training.definitions import definitions, digest_of

_PACKAGE = Path(torchcaps.__file__).parent
_DRAWING = ("report/boxes", "report/canvas", "report/exhibit", "report/page", "report/pictures")
_BESIDE = ("__main__", "bench", "cli", "mixture", "recipes", "testing", *_DRAWING)
"""Folders that no result depends on; of the recipes, only the present one and those it imports count, not the kit."""

Definitions = Mapping[str, str]
"""Names of definitions by their digest; equal definitions count once."""


def code_version(recipe: object) -> dict[str, Any]:
    """The version of the package, digests of the definitions that a recipe's results may depend on, and the commit.

    A definition is a function, a class, a constant or another statement on the first level of a file. Its digest covers
    code that has an effect, without docstrings, comments, annotations, imports and decorators that register, and
    without the name of its file. So definitions may be moved between files, and files renamed.

    It does not see: an import that now gives another definition of the same name, while both exist; annotations with an
    effect, such as those read for the command line; other versions of Python, torch and other packages.

    Args:
        recipe: the recipe object.

    Returns:
        ``version``; ``definitions``, see :data:`Definitions`; ``digest``, of all of them; and, in a git checkout,
        ``commit`` (followed by ``+`` if files were changed since).
    """
    found = {**package_definitions(), **recipe_definitions(recipe)}
    version = {"version": torchcaps.__version__, "digest": digest_of("".join(sorted(found)), 12), "definitions": found}
    commit = _commit()
    return {**version, "commit": commit} if commit else version


def changed(was: Definitions, now: Definitions) -> list[str]:
    """The names of the definitions that were removed or changed.

    New definitions alone change no result: they are only used by older ones that have changed.
    """
    return sorted({name for digest, name in was.items() if digest not in now})


def older(noted: Sequence[Definitions], now: Definitions) -> list[str]:
    """The names of the definitions that changed since a network was trained.

    Args:
        noted: the definitions of each code that trained it.
        now: those of the present code.

    Returns:
        The names; ``["unknown"]`` if nothing was noted.
    """
    return sorted({name for code in noted for name in changed(code, now)}) if noted else ["unknown"]


@cache
def package_definitions() -> Definitions:
    """The definitions that a training may depend on, besides its options: those of the package without the recipes."""
    return _all_of(
        path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".cpp", ".hpp") and not is_beside(path)
    )


def recipe_definitions(recipe: object) -> Definitions:
    """The definitions in the file of a recipe and in those of recipes that it imports, directly or not.

    The kit is left out: it turns settings, which are kept in the result, into options, which are kept with each run.
    """
    files, waiting = set(), [Path(inspect.getfile(type(recipe)))]
    while waiting:
        files.add(one := waiting.pop())
        waiting += [other for other in _imported(one) if other not in files]
    return _all_of(files)


def _all_of(paths: Iterable[Path]) -> Definitions:
    return {
        digest: name
        for path in sorted(paths)
        for digest, name in definitions(path.read_text(encoding="utf-8"), path.name).items()
    }


def is_beside(path: Path) -> bool:
    """Whether a file of the package is one that no result depends on."""
    return f"{path.relative_to(_PACKAGE).with_suffix('').as_posix()}/".startswith(tuple(f"{one}/" for one in _BESIDE))


def _imported(path: Path) -> Iterator[Path]:
    """The files of recipes that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("torchcaps.recipes."):
            names = [f"{node.module}".rpartition(".")[2], *(alias.name for alias in node.names)]
            yield from (file for name in names if (file := _PACKAGE / "recipes" / f"{name}.py").is_file())


def _commit() -> str | None:
    try:
        run = [["git", "-C", str(_PACKAGE), *command] for command in (["rev-parse", "HEAD"], ["status", "--porcelain"])]
        commit, changed = (subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in run)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip()[:12] + ("+" if changed.strip() else "")

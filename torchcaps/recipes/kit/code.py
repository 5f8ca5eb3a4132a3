"""Which code a result came from: by what its definitions say, wherever they stand."""

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
_DRAWING = ("explain/draw", "explain/exhibits", "explain/page")
_BESIDE = ("__main__", "bench", "cli", "mixture", "recipes", "testing", *_DRAWING)
"""What no result depends on; of the recipes, only the one at hand and those that it imports matter, not their kit."""

Definitions = Mapping[str, str]
"""Names of definitions by their digest; two definitions that say the same are one."""


def code_version(recipe: object) -> dict[str, Any]:
    """The version of the package, digests of the definitions that a recipe's results may depend on, and the commit.

    A definition is a function, a class, a constant or another statement on the first level of a file. Its digest is of
    what acts in it: docstrings, comments, annotations, imports and decorators that register do not count, nor does
    the file that it stands in. So files may be renamed, definitions moved, rooms rebuilt around them.

    What this cannot see: an import that now brings another definition of the same name, as long as both exist;
    annotations that act, such as those a command line reads; other versions of Python, torch and other packages.

    Args:
        recipe: the object.

    Returns:
        ``version``; ``definitions``, see :data:`Definitions`; ``digest``, of all of them; and, in a git checkout,
        ``commit`` (with ``+`` behind it if files were changed since).
    """
    found = {**package_definitions(), **recipe_definitions(recipe)}
    version = {"version": torchcaps.__version__, "digest": digest_of("".join(sorted(found)), 12), "definitions": found}
    commit = _commit()
    return {**version, "commit": commit} if commit else version


def changed(was: Definitions, now: Definitions) -> list[str]:
    """The names of those definitions that are no more, or say something else now.

    New ones alone change no result: nothing uses them unless something older says so, and has changed.
    """
    return sorted({name for digest, name in was.items() if digest not in now})


def older(noted: Sequence[Definitions], now: Definitions) -> list[str]:
    """The names of the definitions that changed since a network was trained.

    Args:
        noted: of each code that trained it.
        now: of the code at hand.

    Returns:
        The names; ``["unknown"]`` if nothing was noted.
    """
    return sorted({name for code in noted for name in changed(code, now)}) if noted else ["unknown"]


@cache
def package_definitions() -> Definitions:
    """What a training may depend on besides its options: the package without the recipes."""
    return _all_of(
        path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".cpp", ".hpp") and not is_beside(path)
    )


def recipe_definitions(recipe: object) -> Definitions:
    """Of the file of a recipe and of those of recipes that it imports, directly or not.

    The kit is not among them: it carries settings, which are kept in the result, to trainings, whose options are kept
    with each run.
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
    """Whether no result depends on a file of the package."""
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

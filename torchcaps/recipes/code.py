"""Which code a result came from."""

import ast
import hashlib
import inspect
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torchcaps

_PACKAGE = Path(torchcaps.__file__).parent
_BESIDE = ("bench/", "mixture/", "recipes/", "cli.py", "explain/figures.py", "explain/report.py")
"""What no result depends on; of the recipes, only the one at hand and what it imports matter."""


def code_version(recipe: object) -> dict[str, Any]:
    """The version of the package, digests of all code that a recipe's results depend on, and the commit if any.

    The digests are of the parsed code without docstrings: they do not change with comments and formatting.

    Args:
        recipe: the object.

    Returns:
        ``version``; ``files``, a digest of eight hexadecimal digits for each source file; ``digest``, twelve for all of
        them; and, in a git checkout, ``commit`` (with ``+`` behind it if files were changed since).
    """
    common = {path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".cpp") and not _is_beside(path)}
    own = _recipe_files(Path(inspect.getfile(type(recipe))))
    files = {_name(path): hashlib.sha256(_essence(path)).hexdigest()[:8] for path in sorted(common | own)}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    version = {"version": torchcaps.__version__, "digest": digest, "files": files}
    commit = _commit()
    return {**version, "commit": commit} if commit else version


def changed_files(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The source files in which two versions of the code differ."""
    names = sorted({*was["files"], *now["files"]})
    return [name for name in names if was["files"].get(name) != now["files"].get(name)]


def older_files(noted: Sequence[Mapping[str, str]], now: Mapping[str, Any]) -> list[str]:
    """The source files of which a network was trained by another version.

    Args:
        noted: digests by file of each code that trained it; files that ``now`` does not know do not count.
        now: the version of the code, see :func:`code_version`.

    Returns:
        Their names; ``["unknown"]`` if nothing was noted.
    """
    files = now["files"]
    different = {name for code in noted for name in code.keys() & files.keys() if code[name] != files[name]}
    return sorted(different) if noted else ["unknown"]


def _name(path: Path) -> str:
    return path.relative_to(_PACKAGE).as_posix() if path.is_relative_to(_PACKAGE) else path.name


def _is_beside(path: Path) -> bool:
    return path.relative_to(_PACKAGE).as_posix().startswith(_BESIDE)


def _recipe_files(path: Path) -> set[Path]:
    """The file of a recipe and those beside it that it imports, directly or not; what only draws does not count."""
    files, waiting = set(), [path]
    while waiting:
        files.add(one := waiting.pop())
        names = {name for node in ast.walk(ast.parse(one.read_text(encoding="utf-8"))) for name in _beside(node)}
        found = {_PACKAGE / "recipes" / f"{name}.py" for name in names - {"pictures"}}
        waiting += [beside for beside in found - files if beside.is_file()]
    return files


def _beside(node: ast.AST) -> list[str]:
    """The modules of recipes that a statement may import."""
    module = node.module if isinstance(node, ast.ImportFrom) else None
    if module == "torchcaps.recipes":
        return [alias.name for alias in node.names]  # type: ignore[attr-defined]
    return [module.rpartition(".")[2]] if module and module.startswith("torchcaps.recipes.") else []


def _essence(path: Path) -> bytes:
    """The content of a source file without what does not act."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return ast.unparse(tree).encode()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _commit() -> str | None:
    try:
        run = [["git", "-C", str(_PACKAGE), *command] for command in (["rev-parse", "HEAD"], ["status", "--porcelain"])]
        commit, changed = (subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in run)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip()[:12] + ("+" if changed.strip() else "")

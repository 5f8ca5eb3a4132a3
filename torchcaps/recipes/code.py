"""Which code a result came from."""

import ast
import hashlib
import inspect
import subprocess
from pathlib import Path

import torchcaps

_PACKAGE = Path(torchcaps.__file__).parent
_BESIDE = ("bench/", "mixture/", "recipes/", "cli.py", "explain/figures.py", "explain/report.py")
"""What no result depends on; of the recipes, only the one at hand and what it imports matter."""


def code_version(recipe: object) -> dict[str, str]:
    """The version of the package, a digest of all code that a recipe's results depend on, and the commit if any.

    The digest is of the parsed code without docstrings: it does not change with comments and formatting.

    Args:
        recipe: the object.

    Returns:
        ``version``, ``digest`` (12 hexadecimal digits) and, in a git checkout, ``commit`` (with ``+`` behind it if
        files were changed since).
    """
    digest = hashlib.sha256()
    common = {path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".cpp") and not _is_beside(path)}
    for path in sorted(common | _recipe_files(Path(inspect.getfile(type(recipe))))):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() if path in common else path.name.encode())
        digest.update(_essence(path))
    version = {"version": torchcaps.__version__, "digest": digest.hexdigest()[:12]}
    commit = _commit()
    return {**version, "commit": commit} if commit else version


def _is_beside(path: Path) -> bool:
    return path.relative_to(_PACKAGE).as_posix().startswith(_BESIDE)


def _recipe_files(path: Path) -> set[Path]:
    """The file of a recipe and those beside it that it imports, directly or not."""
    files, waiting = set(), [path]
    while waiting:
        files.add(one := waiting.pop())
        for node in ast.walk(ast.parse(one.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchcaps.recipes."):
                beside = _PACKAGE / "recipes" / f"{str(node.module).rpartition('.')[2]}.py"
                if beside not in files:
                    waiting.append(beside)
    return files


def _essence(path: Path) -> bytes:
    """The content of a source file without what does not act."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return ast.dump(tree).encode()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _commit() -> str | None:
    try:
        run = [["git", "-C", str(_PACKAGE), *command] for command in (["rev-parse", "HEAD"], ["status", "--porcelain"])]
        commit, changed = (subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in run)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip()[:12] + ("+" if changed.strip() else "")

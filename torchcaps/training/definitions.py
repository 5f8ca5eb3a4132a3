"""Digests of the definitions in source code, independent of their place and formatting."""

import ast
import hashlib
import re
from typing import Any


def definitions(source: str, file: str) -> dict[str, str]:
    """The names of the definitions in a source file, by digests of the code that has an effect."""
    if not file.endswith(".py"):
        return {digest_of(_without_comments(source)): file}
    tree = _Essence().visit(ast.parse(source))
    return {digest_of(ast.unparse(node)): name for node in tree.body if (name := _name_of(node, file))}


def digest_of(text: str, length: int = 10) -> str:
    """The first hexadecimal digits of a digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _without_comments(source: str) -> str:
    """The text of C++ without comments and with single spaces."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\])*")', re.DOTALL)
    return " ".join(token.sub(lambda found: found[1] or " ", source).split())


def _name_of(node: ast.stmt, file: str) -> str | None:
    """The name of a top-level statement in messages; None for one that is left out."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign):
        names = ", ".join(ast.unparse(target) for target in node.targets)
        return None if names.startswith("__") else names
    return None if isinstance(node, ast.Pass) else f"a statement of {file}"


class _Essence(ast.NodeTransformer):
    """Removes code without effect."""

    def visit(self, node: Any) -> Any:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return None
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if hasattr(node, "decorator_list"):
            node.decorator_list = [one for one in node.decorator_list if not ast.unparse(one).startswith("register")]
        self.generic_visit(node)
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]
        return self._plain(node) if isinstance(node, ast.AnnAssign) else node

    @staticmethod
    def _plain(node: ast.AnnAssign) -> ast.AST:
        """The assignment without its annotation; a field of a dataclass is kept, because its order matters."""
        plain = ast.Expr(node.target) if node.value is None else ast.Assign([node.target], node.value)
        return ast.fix_missing_locations(ast.copy_location(plain, node))

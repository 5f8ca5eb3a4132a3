"""Sphinx extension: the API reference of a package from its ``__all__``, and docstrings
as this package writes them.

``.. public:: torchcaps.layers`` writes a table of the public names of that package and
an entry for each. What a package hands on from a package below it has its entry there,
and a line with a link here.
"""

import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from tests.api_surface import offered, public_modules

PACKAGES = ("torchcaps", "torchcaps_lab")
GUARDED = {"Image", "PILImage", "Figure", "ArgumentParser", "Starlette"}
"""Types of others that modules import for the type checker alone."""

logger = logging.getLogger(__name__)


def home_of(name: str, thing: Any) -> str:
    """The innermost package that makes a thing public: where its entry is."""
    places = [
        module.__name__
        for module in public_modules()
        if name in offered(module)
        and getattr(module, name) is thing  # of the same name: an int is many things
    ]
    return max(places, key=lambda place: (place.count("."), place))


def kind_of(thing: Any) -> str:
    """What autodoc calls it."""
    if inspect.isclass(thing):
        return "class"
    if inspect.ismodule(thing):
        return "module"
    return "function" if inspect.isroutine(thing) else "data"


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring, as one line; nothing for data, whose type has
    one of its own.
    """
    text = (
        (inspect.getdoc(thing) or "")
        if callable(thing) or inspect.ismodule(thing)
        else ""
    )
    return re.split(r"(?<=[.:])\s", text.split("\n\n")[0].replace("\n", " "))[0].rstrip(
        ":"
    )


class Public(SphinxDirective):
    """The table and the entries of a package."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The nodes."""
        module = importlib.import_module(self.arguments[0])
        lines = [*self.head(module), *self.table(module), *self.entries(module)]
        return self.parse_text_to_nodes(
            StringList(lines, source=f"<{module.__name__}>"),
            allow_section_headings=True,
        )

    def head(self, module: Any) -> Iterator[str]:
        """The module itself, so that it can be referred to, and its docstring."""
        yield from [
            f".. py:module:: {module.__name__}",
            "",
            *(inspect.getdoc(module) or "").splitlines(),
            "",
        ]

    def table(self, module: Any) -> Iterator[str]:
        """All names with their first sentences, the public ones first."""
        if module.__all__:
            yield from self.rows(module, module.__all__)
        parts = set(offered(module)) - set(module.__all__)
        if parts:
            yield "Things that you get by their name, and parts, which may change:"
            yield ""
            yield from self.rows(module, parts)

    def rows(self, module: Any, names: Iterable[str]) -> Iterator[str]:
        """A table of names with their first sentences."""
        yield from [".. list-table::", "   :widths: 30 70", "   :class: names", ""]
        for name in sorted(names, key=str.lower):
            thing = getattr(module, name)
            role = {
                "class": "class",
                "function": "func",
                "module": "mod",
                "data": "data",
            }[kind_of(thing)]
            path = (
                thing.__name__
                if inspect.ismodule(thing)
                else f"{home_of(name, thing)}.{name}"
            )
            yield f"   * - :{role}:`{name} <{path}>`"
            yield f"     - {escaped(first_sentence(thing))}"
        yield ""

    def entries(self, module: Any) -> Iterator[str]:
        """What autodoc makes of each, and a silent entry for what is described in a
        package below.
        """
        names = sorted(
            offered(module),
            key=lambda name: (kind_of(getattr(module, name)) != "class", name.lower()),
        )
        for name in names:
            thing = getattr(module, name)
            path = f"{module.__name__}.{name}"
            if inspect.ismodule(thing):
                # No page of its own.
                if not hasattr(thing, "__all__"):
                    yield from [
                        f".. py:module:: {path}",
                        f".. py:currentmodule:: {module.__name__}",
                        "",
                    ]
            elif home_of(name, thing) != module.__name__:
                yield from [
                    f".. py:{kind_of(thing)}:: {name}",
                    "   :no-typesetting:",
                    "",
                ]
            elif kind_of(thing) == "data":
                yield from [
                    f".. py:data:: {name}",
                    "",
                    *(f"   {line}" for line in comment_on(name, module)),
                    "",
                ]
            else:
                yield from [f".. auto{kind_of(thing)}:: {path}", ""]


def comment_on(name: str, module: Any) -> list[str]:
    """The docstring below a constant, in the package or in the module that it comes
    from.
    """
    parts = pkgutil.iter_modules(module.__path__, f"{module.__name__}.")
    for place in (module.__name__, *(part.name for part in parts)):
        try:
            comments = ModuleAnalyzer.for_module(place).find_attr_docs()
        except PycodeError:
            continue
        if ("", name) in comments:
            return comments["", name]
    return []


def plain(
    app: Sphinx, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are plain text with roles and tables: a star is a star, and a name may
    end with a line.
    """
    lines[:] = [escaped(line) for line in lines]
    if kind in ("property", "attribute", "data"):
        lines[:0] = [
            "..",
            "",
        ]  # or napoleon takes what stands before a colon for a type


def escaped(line: str) -> str:
    """A line of a docstring as reStructuredText; code, directives and formulas stay as
    they are.
    """
    if line.lstrip().startswith((">>>", "...", ".. ")) or "\\" in line:
        return line
    parts = re.split(r"(:\w+:`[^`]+`|``[^`]+``)", line)  # text, role, text, ...
    parts[::2] = [escaped_text(part) for part in parts[::2]]
    return re.sub(r"(:\w+:`[^`]+`)(?=\w)", r"\1\\ ", "".join(parts))


def escaped_text(text: str) -> str:
    """Text between roles and literals."""
    text = re.sub(r"(?<![\w*`])\*(?=[A-Za-z])", r"\\*", text)
    text = re.sub(r"(?<![\w`])([A-Za-z]\w*)_(?![\w`{])", r"\1\\_", text)
    return re.sub(r"(?<![\w`:])`([\w .]+)`(?![`_])", r"``\1``\\ ", text)


def foreign(
    app: Sphinx, kind: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Leaves out what others put into our classes, and the fields of tuples, which the
    class explains.
    """
    # of properties
    function = getattr(thing, "fget", None) or getattr(thing, "func", None) or thing
    if callable(function):
        function = inspect.unwrap(function)
    written_in = getattr(function, "__module__", None) or "torchcaps"
    if type(thing).__name__ == "_tuplegetter" or not written_in.startswith(PACKAGES):
        return True
    return None


def find(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """Docstrings name things as their module does: a name that one public thing alone
    has is that thing.

    What is not public or of another package has no page: its name is written as it is,
    if there is such a thing.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip(".")
    domain = env.get_domain("py")
    within = ".".join(
        filter(None, (node.get("py:module"), node.get("py:class"), target))
    )
    described = by_last_part(
        tuple(name for name, entry in domain.objects.items() if not entry.aliased)
    )
    candidates = {
        name
        for name in described.get(target.split(".")[-1], ())
        if f".{name}".endswith(f".{target}")
    }
    names = {name for name in candidates if not has_alias(name, candidates)}
    if within in domain.objects:
        names = {within}
    if len(names) == 1:
        (name,) = names
        return domain.resolve_xref(
            env, node["refdoc"], app.builder, node["reftype"], name, node, text
        )
    # a piece of a type, which Sphinx cuts at its commas
    if target.count("[") != target.count("]"):
        return text
    return text if target in GUARDED or exists(target) or exists(within) else None


def has_alias(name: str, candidates: set[str]) -> bool:
    """Whether the same thing is described under a longer one of the names."""
    return any(is_alias(name, longer) for longer in candidates - {name})


@functools.lru_cache(maxsize=1)
def by_last_part(names: tuple[str, ...]) -> dict[str, list[str]]:
    """Dotted names by what stands behind the last dot."""
    dotted: dict[str, list[str]] = {}
    for name in names:
        dotted.setdefault(name.split(".")[-1], []).append(name)
    return dotted


def is_alias(name: str, longer: str) -> bool:
    """Whether the same thing is described under another, longer name."""
    return (
        len(longer) > len(name)
        and thing_at(name) is not None
        and thing_at(name) is thing_at(longer)
    )


@functools.cache
def exists(target: str) -> bool:
    """Whether a module of this package, or any that it uses, has something of that
    name.
    """
    ours = [name for name in sys.modules if name.split(".")[0] in PACKAGES]
    return thing_at(target) is not None or any(
        attribute(sys.modules[name], target) is not None for name in ours
    )


def attribute(thing: Any, path: str) -> Any:
    """What a dotted path leads to from a thing; None where that is nothing."""
    for part in path.split("."):
        thing = getattr(
            thing, part, getattr(thing, "__annotations__", {}).get(part)
        )  # a field has no value
    return thing


@functools.cache
def thing_at(path: str) -> Any:
    """What a dotted path leads to; None where that is nothing."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:count]))
        except (ImportError, ValueError):
            continue
        return attribute(thing, ".".join(parts[count:])) if parts[count:] else thing
    return None


def missing_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warns of public names that have no entry."""
    for module in public_modules():
        for path in (
            module.__name__,
            *(f"{module.__name__}.{name}" for name in module.__all__),
        ):
            if path not in env.get_domain("py").objects:
                logger.warning(
                    "%s is public and has no entry: docs/site/api needs a page of its "
                    "package",
                    path,
                )


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the above."""
    app.add_directive("public", Public)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", foreign)
    app.connect("missing-reference", find)
    app.connect("env-check-consistency", missing_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

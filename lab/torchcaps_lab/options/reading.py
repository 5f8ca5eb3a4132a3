"""Files of options, and values typed on a command line: YAML, read once, into plain
values and nothing else.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from torchcaps.spec import Typed, meant
from torchcaps.whole import read_text

OF_OTHERS = {
    "device": "trainer.accelerator",
    "gpus": "trainer.devices",
    "learning_rate": "lr",
    "img_size": "data.size",
    "image_size": "data.size",
    "num_epochs": "epochs",
    "output": "run",
    **dict.fromkeys(
        ("pretrained", "init", "weights", "finetune", "checkpoint"), "start"
    ),
}
"""Options of other packages, and their names here."""

LARGEST_FILE = 2**20
MOST_VALUES = 10_000
DEEPEST = 40
LONGEST_NUMBER = 400
"""Signs of a number: the longest that computers compute with, 1.8e308, has 309."""

_NULLS = ("null", "Null", "NULL", "~")

_TAGS = tuple(
    f"tag:yaml.org,2002:{kind}"
    for kind in ("null", "bool", "int", "float", "str", "seq", "map")
)


def meant_option(name: str, names: Sequence[str]) -> str:
    """A question after the option that an unknown one looks like, or that other
    packages call so.

    Args:
        name: the name of the unknown one.
        names: the names of the options that there are.
    """
    name = name.replace("-", "_")
    ours = OF_OTHERS.get(name, "")
    if ours.partition(".")[0] in names:
        return f"; did you mean {ours}?"
    return meant(name, names)


class _Reader(yaml.SafeLoader):
    """YAML of plain values alone: numbers may read 1e-3; dates, times and 010, which
    YAML 1.1 reads as 8, are text; and no name stands twice in one mapping. What is too
    large is refused as soon as it is met, since reading the rest takes half a minute
    for a MiB.
    """

    yaml_constructors = {  # noqa: RUF012
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag in _TAGS
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.nodes = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes = self.nodes + 1
        self.depth = self.depth + 1
        # Each value may have a name.
        if self.nodes > 2 * MOST_VALUES or self.depth > DEEPEST + 2:
            raise _TooMuch
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges double what they merge, again and again; options have no use for
        them.
        """
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, "merges (<<) are not read", key.start_mark
                )
        super().flatten_mapping(node)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """A number that is not in base 60, as YAML 1.1 reads 1:30."""
        if ":" in node.value or len(node.value) > LONGEST_NUMBER:
            why = f"no number of at most {LONGEST_NUMBER} digits"
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value[:40]!r} is {why}", node.start_mark
            )
        is_integer = node.tag.endswith(":int")
        if is_integer:
            return self.construct_yaml_int(node)
        return self.construct_yaml_float(node)

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            # The first value would be lost without a word.
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} occurs twice", key.start_mark
                )
            names.add(str(key.value))
            if key.tag in _TAGS[:4]:
                # A class may be called 1, yes or null.
                key.tag = _TAGS[4]
        return super().construct_mapping(node, deep)


_OWN = (":timestamp", ":float", ":int")
"""Tags that are resolved in another way here, or not at all."""

_Reader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(_OWN)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Reader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_Reader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*([eE][-+]?\d+)?|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


for _kind in ("int", "float"):
    _Reader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Reader.construct_number)


class _TextReader(_Reader):
    """The same, but that every value is the text that stands there, or null."""


_TextReader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Writer(yaml.SafeDumper):
    """Puts text between quotes that other readers of YAML, or ours, would take for
    something else, as 1e3.
    """


_Writer.yaml_implicit_resolvers = {
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()),
        *_Reader.yaml_implicit_resolvers.get(first, ()),
    ]
    for first in yaml.SafeDumper.yaml_implicit_resolvers.keys()
    | _Reader.yaml_implicit_resolvers.keys()
}


class _TooMuch(Exception):
    """There are more values than options have."""


def parsed(text: str, source: str, as_text: bool = False) -> Any:
    """Plain values from YAML: text, numbers, true and false, null, and lists and
    mappings of these.

    Args:
        text: the YAML.
        source: what the error names.
        as_text: whether numbers, true and false are read as the texts that stand
            there.

    Raises:
        ValueError: if it is not YAML, or holds other values, or more than options do;
            names the source.
    """
    too_much = (
        f"{source} holds more than options do: {MOST_VALUES:,} values, {DEEPEST} "
        "inside one another"
    )
    if len(text) > LARGEST_FILE:
        raise ValueError(
            f"{source} has {len(text):,} letters, options take at most {LARGEST_FILE:,}"
        )
    try:
        value = yaml.load(text, Loader=_TextReader if as_text else _Reader)
    except _TooMuch:
        raise ValueError(too_much) from None
    # Tags that do not suit their values end in many types.
    except Exception as error:
        raise ValueError(
            f"{source} is not YAML: {str(error) or type(error).__name__}"
        ) from error
    if _count(value, source, 0, 0) > MOST_VALUES:
        raise ValueError(too_much)
    return value


def _count(value: Any, source: str, values: int, depth: int) -> int:
    """How many values there are, with those before; aliases let a small text hold a
    great many, or itself.
    """
    values += 1
    if values > MOST_VALUES or depth > DEEPEST:
        return MOST_VALUES + 1
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{source} must hold options by name, got {wrong[0]!r}")
        value = list(value.values())
    for element in value if isinstance(value, list) else ():
        values = _count(element, source, values, depth + 1)
    return values


def typed(text: str) -> Typed:
    """A value from a command line."""
    try:
        value = parsed(text, "the value")
    except ValueError:
        return Typed(text, text)
    # YAML would cut a text without quotes at " #", and blanks at its ends, and would
    # take a sign alone, as between labels, for nothing.
    unquoted = isinstance(value, str) and not text.lstrip().startswith(("'", '"'))
    nothing = value is None and text and text.strip() not in _NULLS
    if unquoted or nothing or text.strip() == "-":
        return Typed(text, text)
    if isinstance(value, list):
        # Names in a list may look like numbers, or be called yes.
        value = [
            element if isinstance(element, list | dict) else Typed(as_text, element)
            for element, as_text in zip(
                value, parsed(text, "the value", as_text=True), strict=True
            )
        ]
    return Typed(text, value)


def read_options(path: Path) -> dict[str, Any]:
    """Read the options in a file, by name, as plain values;
    :func:`~torchcaps_lab.training.training_options` checks them.

    Args:
        path: the path of the file.

    Raises:
        ValueError: if this is no file of options, or it wants modules imported, which
            would execute them, or another file of options.
    """
    options = parsed(read_text(path, LARGEST_FILE), str(path))
    if not isinstance(options, dict):
        raise ValueError(
            f"{path} must hold options by name, got {type(options).__name__}"
        )
    if options.pop("config", None) is not None:
        raise ValueError(f"{path}: options cannot name another file of them")
    imports = options.pop("import", None) or []
    _check_imports(path, imports)
    tree: dict[str, Any] = {"import": imports} if imports else {}
    for name, value in options.items():
        put(tree, name.split("."), value)
    return tree


def _check_imports(path: Path, wanted: Any) -> None:
    """Raises a ValueError if a file wants modules that the user did not import."""
    if not isinstance(wanted, list) or not all(
        isinstance(name, str) for name in wanted
    ):
        raise ValueError(f"{path}: import must be a list of modules, got {wanted!r}")
    if missing := [name for name in wanted if _module_of(name) not in sys.modules]:
        raise ValueError(
            f"{path} wants modules imported, which executes them: "
            f"{', '.join(missing)}. It cannot do that by itself; "
            f"if you trust them, add {' '.join(f'--import {name}' for name in missing)}"
        )


def _module_of(name: str) -> str:
    """The name of a module that ``--import`` imports."""
    return Path(name).stem if name.endswith(".py") else name


def put(tree: dict[str, Any], place: Sequence[str], value: Any) -> None:
    """Enters a value at its place, ``["data", "root"]``, below the name that stands
    there already.
    """
    first, *inner_place = place
    if inner_place:
        tree[first] = dict(_by_name(tree.get(first)))
        put(tree[first], inner_place, value)
    else:
        tree[first] = merged(tree[first], value) if first in tree else value


def merged(base: Any, override: Any) -> Any:
    """Combine two values of an option; the override wins.

    Example:
        >>> from torchcaps_lab.options.reading import merged
        >>> adam = {"name": "Adam", "lr": 0.1}
        >>> merged(adam, {"lr": 0.2})
        {'name': 'Adam', 'lr': 0.2}
        >>> merged(adam, "SGD")  # another optimizer: the rate of the old one is dropped
        {'name': 'SGD'}
    """
    old = _by_name(base)
    if not _holds_names(override):
        is_name = isinstance(override, str | Typed)
        if not (is_name and _holds_names(base) and "name" in old):
            return override
        override = {"name": override}
    new = _by_name(override)
    if _typed_name(new) not in (None, _typed_name(old)):
        return new
    both = {name: merged(old[name], new[name]) for name in new if name in old}
    return {**old, **new, **both}


def _holds_names(value: Any) -> bool:
    return isinstance(value.value if isinstance(value, Typed) else value, Mapping)


def _by_name(value: Any) -> Mapping[str, Any]:
    """A thing, or options, as values by name; nothing of what is neither."""
    if _holds_names(value):
        return value.value if isinstance(value, Typed) else value
    return {"name": value} if isinstance(value, str | Typed) else {}


def _typed_name(thing: Mapping[str, Any]) -> Any:
    """The name of a thing as it was typed, so that ``null`` is another one."""
    name = thing.get("name")
    return name.text if isinstance(name, Typed) else name


_BREAKS = frozenset("\x85\u2028\u2029")
"""Line breaks of Unicode, which YAML folds where they are not written as escapes."""


def as_yaml(options: Mapping[str, Any]) -> str:
    """Options as text that :func:`read_options` reads."""
    if not options:
        return ""
    text = yaml.dump(dict(options), Dumper=_Writer, sort_keys=False, allow_unicode=True)
    if _BREAKS.isdisjoint(text):
        return text
    return yaml.dump(dict(options), Dumper=_Writer, sort_keys=False)

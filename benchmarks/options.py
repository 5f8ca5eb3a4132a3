"""The declared options that nothing sets: ``python -m benchmarks options``.

An option has a user where a network, a recipe, a preset, an example or a benchmark sets
it: as a keyword of a call, as a key of a file of options, as an attribute, or as the
default of a class that is derived. Tests and documents are no users.
"""

import argparse
import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from torch import nn

import torchcaps as tc
from torchcaps.losses import LOSSES
from torchcaps.models.pretrained import list_pretrained
from torchcaps.models.registry import MODELS
from torchcaps.routing.base import ROUTINGS
from torchcaps.spec import MISSING, alternatives, declared, plain
from torchcaps_lab import kinds
from torchcaps_lab.data import Preprocess
from torchcaps_lab.data.base import DATASETS
from torchcaps_lab.options import declarations
from torchcaps_lab.tasks.base import TASKS
from torchcaps_lab.training import options as training
from torchcaps_lab.training.speed import Speed

ROOT = Path(__file__).parents[1]
USERS = ("torchcaps", "lab", "recipes", "benchmarks", "examples")
TRAINING: tuple[type, ...] = (
    training.Subject,
    training.Optimisation,
    declarations.Schedule,
    training.Running,
    declarations.TrainerOptions,
    Preprocess,
    Speed,
)
"""The options of a training."""

OF_THE_USER = {
    "data set": (
        *("data_dir", "root", "test", "test_root", "test_annotations", "listed"),
        *("validation_root", "validation_annotations"),
        *(
            "image",
            "text",
            "label",
            "series",
            "group",
            "group_before",
            "split",
            "delimiter",
            "classes",
            "class_folders",
        ),
        *("configuration", "revision", "fold", "ignore", "skip_broken", "memory"),
        *("nearest", "fit", "bands", "highest", "background"),
    ),
    "layer": ("backend",),
    "training": (
        *("num_nodes", "strategy", "sync_batchnorm", "shard_optimizer"),
        *("resident", "deterministic", "class_weights", "sampler"),
    ),
}
"""Options that describe a user's own files, classes or machine: no recipe can set them.
"""

PUBLISHED = {
    "EMRouting.variance_floor": "1e-9 in the code of Gritzman 2019",
    "SlotMixtureRouting.variance_floor": "1e-10 in ports of Kirilenko et al. 2024",
    "ByerlyCapsNet.momentum": "0.0003 in the code of Byerly et al. 2021",
    "SegCaps.recompute": "gradient checkpointing, Chen et al. 2016",
    "Detection.weight": "5 in DETR, Carion et al. 2020",
}
"""Options that nothing here sets, with the publication that sets them."""

Use = tuple[type, str]
"""A class, and an option that is set of it."""


def rooms() -> dict[str, list[type]]:
    """The classes that declare options, by what they are."""
    layers = [
        value
        for name in tc.layers.__all__
        if inspect.isclass(value := getattr(tc.layers, name))
        if issubclass(value, nn.Module)
    ]
    networks = {configuration.network for configuration in MODELS.values()}
    return {
        "routing": [*ROUTINGS.values()],
        "layer": layers,
        "network": sorted(networks, key=lambda cls: cls.__name__),
        "loss": [*LOSSES.values()],
        "data set": [*DATASETS.values()],
        "task": [*TASKS.values()],
        "training": [*TRAINING],
    }


class Names:
    """Finds classes by their names in code and in files of options."""

    def __init__(self, classes: list[type]) -> None:
        self.classes = classes
        self.by_name: dict[str, set[type]] = {}
        for cls in classes:
            for base in inspect.getmro(cls):
                self.by_name.setdefault(base.__name__, set()).add(base)
        for registry in (ROUTINGS, LOSSES, DATASETS, TASKS):
            for name, cls in registry.items():
                self.by_name.setdefault(name, set()).add(cls)
        for name, configuration in MODELS.items():
            self.by_name.setdefault(name, set()).add(configuration.network)

    def find(self, name: Any) -> set[type]:
        """The classes of a name, or of the last part of a path."""
        return self.by_name.get(str(name).rpartition(".")[2], set())


def uses_in_options(value: Any, names: Names) -> Iterator[Use]:
    """The options that plain values set, at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from uses_in_options(item, names)
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        yield from uses_in_options(inner, names)
        # A row changes some options of a thing that is named elsewhere.
        owners = names.find(value["name"]) if "name" in value else names.classes
        yield from ((cls, key) for cls in owners if key in declared(cls).arguments)


class UsesInCode(ast.NodeVisitor):
    """Collects the options that Python code sets."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.uses: set[Use] = set()
        self.bases: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Note the options whose defaults a derived class replaces."""
        outer, self.bases = self.bases, [ast.unparse(base) for base in node.bases]
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._note(self.bases, [ast.unparse(statement.target)])
        self.generic_visit(node)
        self.bases = outer

    def visit_Call(self, node: ast.Call) -> None:
        """Note the keywords of a call, ``f(Class, option=...)`` included."""
        callee = ast.unparse(node.func)
        owners = self.bases if callee == "super().__init__" else [callee]
        if node.args:
            first = node.args[0]
            name = (
                first.value if isinstance(first, ast.Constant) else ast.unparse(first)
            )
            owners = [*owners, str(name)]
        options = [keyword.arg for keyword in node.keywords if keyword.arg]
        for keyword in node.keywords:
            if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                owners = [*owners, str(keyword.value.value)]
            if keyword.arg is None and isinstance(keyword.value, ast.Dict):
                options += _keys(keyword.value)
        self._note(owners, options)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """Note keys: they become keywords somewhere, of a class that is not known."""
        keys = _keys(node)
        self.uses |= {
            (cls, key)
            for cls in self.names.classes
            for key in keys
            if key in declared(cls).arguments
        }
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note an attribute that is set of an object whose class is not known."""
        is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        if isinstance(node.ctx, ast.Store) and not is_self:
            self.uses |= {
                (cls, node.attr)
                for cls in self.names.classes
                if node.attr in declared(cls).arguments
            }
        self.generic_visit(node)

    def _note(self, owners: list[str], options: list[str]) -> None:
        classes = set().union(*map(self.names.find, owners))
        self.uses |= {
            (cls, option)
            for cls in classes
            for option in options
            if option in declared(cls).arguments
        }


def _keys(node: ast.Dict) -> list[str]:
    keys = (key for key in node.keys if isinstance(key, ast.Constant))
    return [str(key.value) for key in keys]


def all_uses(names: Names) -> set[Use]:
    """The options that some file sets."""
    uses: set[Use] = set()
    for folder in USERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            code = UsesInCode(names)
            code.visit(ast.parse(path.read_text(encoding="utf-8")))
            uses |= code.uses
        for path in sorted((ROOT / folder).rglob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            uses |= {*uses_in_options(yaml.safe_load(text), names)}
    for name in list_pretrained():
        network = tc.load_pretrained(name)
        kind: Any = type(network)
        arguments = declared(kind).arguments
        uses |= {
            (kind, option)
            for option, value in network.config().items()
            if value != plain(arguments[option].default)
        }
    return uses


def is_size(hint: Any) -> bool:
    """Whether an option is one or more whole numbers."""
    return any(part is int or int in get_args(part) for part, _ in alternatives(hint))


def without_users() -> dict[str, list[str]]:
    """The options that nothing sets, by what declares them: ``KMeansRouting.squash``.

    Options of one name in one room count together, as ``steps`` of all routings.
    """
    by_room = rooms()
    names = Names([cls for classes in by_room.values() for cls in classes])
    uses = all_uses(names)
    unused: dict[str, list[str]] = {}
    for room, classes in by_room.items():
        relatives = {base for cls in classes for base in inspect.getmro(cls)}
        used = {option for cls, option in uses if cls in relatives}
        used |= {*OF_THE_USER.get(room, ())}
        for cls in classes:
            for option, argument in declared(cls).arguments.items():
                # The sizes of a network are those of its publication.
                published = room == "network" and is_size(argument.hint)
                name = f"{cls.__name__}.{option}"
                if not (
                    argument.default is MISSING
                    or option in used
                    or published
                    or name in PUBLISHED
                ):
                    unused.setdefault(room, []).append(name)
    return unused


def run(options: argparse.Namespace, show: Callable[[str], None]) -> None:
    """Show the options without a user."""
    kinds.load()
    for room, names in without_users().items():
        show(f"{room}: {', '.join(names)}")

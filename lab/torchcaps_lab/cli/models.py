"""List the networks, the trained ones in the package, the routing algorithms and the
tasks.
"""

import json as jsons
import math
import sys
from fnmatch import fnmatch
from typing import Any

from torchcaps.whole import LARGEST_NOTE, read_json
from torchcaps_lab.options.guess import LISTED


def command(
    pattern: str = "*", *, pretrained: bool = False, json: bool = False
) -> None:
    """List networks, routings and tasks.

    Args:
        pattern: shell pattern of network names
        pretrained: the trained networks in the package, with their cards
        json: print JSON
    """
    if pretrained:
        _show_pretrained(pattern, json)
        return
    if "torchcaps.models" in sys.modules:
        description = described()
    else:
        # The same of the two packages alone: the list need not wait for torch.
        description = read_json(LISTED, LARGEST_NOTE)
    rows = [row for row in description["networks"] if fnmatch(row["name"], pattern)]
    if not rows:
        names = ", ".join(row["name"] for row in description["networks"])
        raise ValueError(f"no network matches {pattern!r}; there are {names}")
    if json:
        print(jsons.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        shape = row["takes"]
        if math.prod(row["image_shape"]) > 1:
            shape = "x".join(map(str, row["image_shape"]))
        print(
            f"{row['name']:{width}} {row['parameters']:>10,} parameters at {shape:9} "
            f"{row['source']}"
        )
    print(
        "\nroutings: "
        + ", ".join(
            f"{name} ({kind})" for name, kind in description["routings"].items()
        )
    )
    print(
        "tasks: "
        + ", ".join(f"{name} ({kind})" for name, kind in description["tasks"].items())
    )


def described() -> dict[str, Any]:
    """All networks, and the classes of routings, tasks and data sets by name: those of
    your own, too, once they are imported.
    """
    from torchcaps.models import describe_models, list_models
    from torchcaps.routing.base import ROUTINGS
    from torchcaps.spec import declared
    from torchcaps_lab.data.base import DATASETS
    from torchcaps_lab.tasks.base import TASKS

    sets = {name: DATASETS[name].__name__ for name in sorted(DATASETS)}
    arguments: dict[str, str] = {}
    for cls in sorted(DATASETS.classes(), key=lambda cls: cls.__name__):
        for name in declared(cls).arguments:
            arguments.setdefault(name, cls.__name__)
    by_class = {cls.__name__ for cls in DATASETS.classes()} - {*sets.values()}
    return {
        "networks": describe_models(list_models()),
        "routings": {name: ROUTINGS[name].__name__ for name in sorted(ROUTINGS)},
        "tasks": {name: TASKS[name].__name__ for name in sorted(TASKS)},
        "datasets": {**sets, **{name: name for name in sorted(by_class)}},
        "data_arguments": arguments,
    }


def _show_pretrained(pattern: str, as_json: bool) -> None:
    """Prints the cards of the trained networks DATA/NETWORK whose whole name, or else
    NETWORK, matches.
    """
    from torchcaps.models.pretrained import describe_pretrained, list_pretrained

    names = list_pretrained(pattern) or list_pretrained(f"*/{pattern}")
    rows = [describe_pretrained(name) for name in names]
    if not rows:
        raise ValueError(
            f"no trained network matches {pattern!r}; there are "
            f"{', '.join(list_pretrained())}"
        )
    if as_json:
        print(jsons.dumps(rows))
        return
    for row in rows:
        print(f"{row['name']}: {row['bytes'] / 2**20:.1f} MiB")
        for title, text in row["card"].items():
            print(f"  {title}: {text}")

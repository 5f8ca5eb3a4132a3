"""List the networks, the trained ones in the package, the routing algorithms and the tasks."""

from json import dumps

from torchcaps.models import describe_models, list_models
from torchcaps.models.pretrained import describe_pretrained, list_pretrained
from torchcaps.routing import list_routings
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab.tasks.base import TASKS


def command(pattern: str = "*", *, pretrained: bool = False, json: bool = False) -> None:
    """List networks, routings and tasks.

    Args:
        pattern: shell pattern of network names
        pretrained: the trained networks in the package, with their cards
        json: print JSON
    """
    if pretrained:
        _show_pretrained(pattern, json)
        return
    rows = describe_models(list_models(pattern))
    if not rows:
        raise ValueError(f"no network fits {pattern!r}; there are {', '.join(list_models())}")
    if json:
        print(dumps(rows))
        return
    for row in rows:
        shape = "x".join(map(str, row["image_shape"])) if row["takes"] == "images" else row["takes"]
        print(f"{row['name']:20} {row['parameters']:>10,} parameters at {shape:9} {row['source']}")
    print("\nroutings: " + ", ".join(f"{name} ({ROUTINGS[name].__name__})" for name in list_routings()))
    print("tasks: " + ", ".join(f"{name} ({TASKS[name].__name__})" for name in sorted(TASKS)))


def _show_pretrained(pattern: str, as_json: bool) -> None:
    """Prints the cards of the trained networks DATA/NETWORK whose whole name, or else NETWORK, matches."""
    names = list_pretrained(pattern) or list_pretrained(f"*/{pattern}")
    rows = [describe_pretrained(name) for name in names]
    if not rows:
        raise ValueError(f"no trained network fits {pattern!r}; there are {', '.join(list_pretrained())}")
    if as_json:
        print(dumps(rows))
        return
    for row in rows:
        print(f"{row['name']}: {row['bytes'] / 2**20:.1f} MiB")
        for title, text in row["card"].items():
            print(f"  {title}: {text}")

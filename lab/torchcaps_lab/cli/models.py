"""``torchcaps models``."""

import json

from torchcaps.models import describe_models, list_models
from torchcaps.models.pretrained import describe_pretrained, list_pretrained
from torchcaps.routing import list_routings
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab.cli.plugins import add_import


def command(arguments: list[str]) -> None:
    """List the networks, the trained ones in the package, the routing algorithms and the tasks."""
    from torchcaps_lab.cli.parser import OptionParser
    from torchcaps_lab.tasks.base import TASKS

    parser = OptionParser(prog="torchcaps models", description="List networks, routings and tasks.")
    parser.add_argument("pattern", type=str, nargs="?", default="*", help="shell pattern of network names")
    parser.add_argument(
        "--pretrained", action="store_true", help="the trained networks in the package, with their cards"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_import(parser)
    options = parser.parse_args(arguments)
    if options.pretrained:
        _show_pretrained(options.pattern, options.json)
        return
    rows = describe_models(list_models(options.pattern))
    if not rows:
        raise ValueError(f"no network fits {options.pattern!r}; there are {', '.join(list_models())}")
    if options.json:
        print(json.dumps(rows))
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
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['name']}: {row['bytes'] / 2**20:.1f} MiB")
        for title, text in row["card"].items():
            print(f"  {title:12}{text}")

"""``torchcaps recipes``."""

import json
import sys
from functools import partial
from pathlib import Path

from torchcaps.cli.plugins import add_import
from torchcaps.numerics import jsonable


def command(arguments: list[str]) -> None:
    """List the published experiments with the published figures beside ours."""
    from torchcaps import recipes
    from torchcaps.training.parser import OptionParser

    parser = OptionParser(prog="torchcaps recipes", description="List the recipes, published figures beside ours.")
    parser.add_argument("names", type=str, nargs="*", help="recipes; default: all")
    parser.add_argument("--results", type=str, default=str(recipes.results_folder()), help="folder of the result files")
    parser.add_argument("--check", action="store_true", help="run the smoke presets")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_import(parser)
    options = parser.parse_args(arguments)
    chosen = [recipes.get_recipe(name) for name in options.names or recipes.RECIPES]
    if options.check:
        from torchcaps.training import quiet_lightning

        quiet_lightning()
        failed = recipes.check([one.name for one in chosen], partial(print, flush=True))
        if failed:
            raise ValueError(f"the smoke presets of {', '.join(failed)} fail")
        return
    results = recipes.read_results(Path(options.results))
    if not results:
        print(
            f"note: there are no results in {options.results}, so nothing is told of ours: those of the package are in "
            "docs/results/recipes of its source, for --results; torchcaps run makes new ones",
            file=sys.stderr,
        )
    found = {one.name: {preset: r for (name, preset), r in results.items() if name == one.name} for one in chosen}
    if options.json:
        print(json.dumps(jsonable([recipes.as_json(one, found[one.name]) for one in chosen]), ensure_ascii=False))
        return
    short = not options.names
    print("\n\n".join(recipes.describe(one, found[one.name], short) for one in chosen))

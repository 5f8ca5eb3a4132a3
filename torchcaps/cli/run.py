"""``torchcaps run``."""

import shlex
from pathlib import Path
from typing import Any

from torchcaps.cli.output import say
from torchcaps.cli.plugins import add_import


def command(arguments: list[str]) -> None:
    """Run a published experiment by name; write its result, its pictures and the table of all experiments."""
    from torchcaps import recipes
    from torchcaps.cli.parser import OptionParser
    from torchcaps.training import quiet_lightning

    parser = OptionParser(prog="torchcaps run", description="Run a recipe; 'torchcaps recipes' lists them.")
    add = parser.add_argument
    add("recipe", choices=list(recipes.RECIPES), help="name of the experiment")
    add("--preset", choices=recipes.PRESETS, default="quick", help="paper: as published, for a GPU; quick: "
        "two cores of a CPU, an hour at most; smoke: seconds")  # fmt: skip
    add("--seeds", type=int, nargs="+", default=[0], help="one run for each seed")
    add("--runs", type=str, default=str(recipes.RUNS), help="folder for the trained networks; run again to continue")
    add("--results", type=str, default=str(recipes.results_folder()), help="folder for the result file and the table")
    add("--trainer", type=dict[str, Any], default={}, help="as in 'torchcaps train': --trainer.accelerator cpu")
    add_import(parser)
    options = parser.parse_args(arguments)
    quiet_lightning()
    result = recipes.run_recipe(
        options.recipe,
        options.preset,
        options.seeds,
        runs=Path(options.runs),
        results=Path(options.results),
        trainer=options.trainer,
        command=shlex.join(["torchcaps", "run", *arguments]),
        show=say,
    )
    recipe = recipes.get_recipe(options.recipe)
    say(recipes.describe(recipe, {options.preset: result}, without_missing=True))
    say(f"result {recipes.result_path(Path(options.results), options.recipe, options.preset)}")

"""``python -m recipes`` lists the recipes, ``python -m recipes run NAME ...`` runs one,
``python -m recipes queue`` those that are missing: from the root of a checkout.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from recipes import (
    PRESETS,
    RECIPES,
    RUNS,
    Recipe,
    describe,
    get_recipe,
    read_results,
    result_path,
    results_folder,
    run_recipe,
)
from recipes.kit.estimates import read_estimates
from recipes.kit.lab import PresetName
from recipes.kit.queue import run_queue
from torchcaps_lab.cli import OptionParser
from torchcaps_lab.cli.output import until_unread
from torchcaps_lab.training.fitting import quiet_lightning

LISTED = (
    "List the recipes, published figures beside ours; 'python -m recipes run' runs one, "
    "'python -m recipes queue' those that are missing."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a recipe, or lists them; returns the exit status, 1 after an error."""
    return until_unread(
        partial(_main, list(sys.argv[1:] if arguments is None else arguments))
    )


def _main(words: list[str]) -> int:
    try:
        OptionParser.import_from(words)
        if words[:1] == ["run"]:
            run(words[1:])
        elif words[:1] == ["queue"]:
            queue(words[1:])
        else:
            listed(words)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        print(f"python -m recipes: error: {error}", file=sys.stderr)
        return 1
    return 0


_FOLDERS = ("--runs", "--results")


def repeatable(arguments: Sequence[str]) -> str:
    """The command line as the result keeps it, without the folders of this machine."""
    words = ["python", "-m", "recipes", "run"]
    is_folder = False
    for word in arguments:
        option, has_value, _ = word.partition("=")
        if option in _FOLDERS:
            is_folder = not has_value
        elif is_folder:
            is_folder = False
        else:
            words.append(word)
    return shlex.join(words)


def add_results_option(parser: OptionParser) -> None:
    """Where results are read and written."""
    parser.add_argument(
        "--results",
        type=str,
        default=str(results_folder()),
        help="folder of the results, their table and the estimates",
    )


def add_training_options(parser: OptionParser) -> None:
    """What every command that trains takes."""
    parser.add_argument(
        "--runs",
        type=str,
        default=str(RUNS),
        help="folder for the trained networks; run again to continue",
    )
    add_results_option(parser)
    parser.add_argument(
        "--trainer",
        type=dict[str, Any],
        default={},
        help="as in 'torchcaps train': --trainer.accelerator cpu",
    )


def run(arguments: list[str]) -> None:
    """Runs a published experiment by name; writes its result, its pictures and the
    table of all experiments.
    """
    parser = OptionParser(
        prog="python -m recipes run",
        description="Run a recipe; 'python -m recipes' lists them.",
    )
    add = parser.add_argument
    add("recipe", choices=list(RECIPES), help="name of the experiment")
    add(
        "--preset",
        choices=PRESETS,
        default="quick",
        help="paper: as published, for a GPU, if anything was; quick: a core of a CPU, "
        "an hour a row at most; smoke: seconds",
    )
    add("--seeds", type=int, nargs="+", default=[0], help="one run for each seed")
    add(
        "--rows",
        type=str,
        nargs="+",
        default=[],
        help="of a recipe that grows, those to measure now; default: all",
    )
    add_training_options(parser)
    parser.take_imports()
    options = parser.parse_args(arguments)
    quiet_lightning()
    folder = Path(options.results)
    run_recipe(
        options.recipe,
        options.preset,
        options.seeds,
        rows=options.rows,
        runs=Path(options.runs),
        results=folder,
        trainer=options.trainer,
        command=repeatable(arguments),
        show=partial(print, flush=True),
    )
    recipe = get_recipe(options.recipe)
    print(
        describe(
            recipe,
            _by_preset(recipe, read_results(folder)),
            without_missing=True,
            estimates=read_estimates(folder),
        )
    )
    print(f"result {result_path(folder, options.recipe, options.preset)}")


def queue(arguments: list[str]) -> None:
    """Trains the rows that no result has yet, the cheapest first."""
    parser = OptionParser(
        prog="python -m recipes queue",
        description="Train the rows of a preset that no result has yet, the cheapest "
        "first. Run it again to go on.",
    )
    add = parser.add_argument
    add("names", type=str, nargs="*", default=[], help="recipes; default: all")
    add("--preset", choices=PRESETS, default="paper", help="the preset")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="what each row needs")
    add("--minutes", type=float, help="end before the epoch that would take longer")
    add("--hours", type=float, help="leave out longer trainings; 0 to estimate only")
    add_training_options(parser)
    parser.take_imports()
    options = parser.parse_args(arguments)
    for name in options.names:
        get_recipe(name).preset(options.preset)
    quiet_lightning()
    outcomes = run_queue(
        options.preset,
        options.seeds,
        options.names,
        minutes=options.minutes,
        hours=options.hours,
        runs=Path(options.runs),
        results=Path(options.results),
        trainer=options.trainer,
        show=partial(print, flush=True),
    )
    for entry, outcome in outcomes.items():
        print(f"{entry}: {outcome}")


def listed(arguments: list[str]) -> None:
    """Prints the published figures beside ours."""
    parser = OptionParser(prog="python -m recipes", description=LISTED)
    add = parser.add_argument
    add("names", type=str, nargs="*", default=[], help="recipes; default: all")
    add_results_option(parser)
    parser.take_imports()
    options = parser.parse_args(arguments)
    recipes = [get_recipe(name) for name in options.names or RECIPES]
    results = read_results(Path(options.results))
    estimates = read_estimates(Path(options.results))
    texts = [
        describe(
            recipe,
            _by_preset(recipe, results),
            published_only=not options.names,
            estimates=estimates,
        )
        for recipe in recipes
    ]
    print("\n\n".join(texts))


def _by_preset(
    recipe: Recipe[Any], results: Mapping[tuple[str, PresetName], Any]
) -> dict[PresetName, Any]:
    """The results of a recipe, among those of all."""
    return {
        preset: result
        for (name, preset), result in results.items()
        if name == recipe.name
    }


if __name__ == "__main__":
    sys.exit(main())

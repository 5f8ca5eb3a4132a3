"""Runs recipes and writes their results."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torchcaps
from recipes.kit.base import Picture, Recipe, Study, get_recipe
from recipes.kit.lab import Lab, PresetName, Trained
from recipes.kit.results import read_results, result_path, write_table
from torchcaps.models.whole import write_whole
from torchcaps.numerics import jsonable
from torchcaps_lab.training import TrainerOptions

ROOT = Path(__file__).parents[2]
RUNS = Path("runs/recipes")


def results_folder() -> Path:
    """The default folder of the results: ``docs/results/recipes`` of the checkout if the current folder is in it.

    Returns:
        That, or ``runs/recipes/results`` below the current folder.
    """
    at_home = Path.cwd().is_relative_to(ROOT)
    return Path(os.path.relpath(ROOT / "docs" / "results" / "recipes")) if at_home else RUNS / "results"


def run_recipe(
    name: str,
    preset: PresetName = "quick",
    seeds: Sequence[int] = (0,),
    *,
    runs: Path = RUNS,
    results: Path | None = None,
    trainer: Mapping[str, Any] | None = None,
    command: str = "",
    show: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Runs a recipe to the end and, given a folder, writes its result, its pictures and the table of all recipes.

    Trained networks are reused, and interrupted trainings resumed: just run it again. The result is written after each
    seed, with all seeds so far.

    Args:
        name: of the recipe.
        preset: ``paper``, ``quick`` or ``smoke``.
        seeds: one run for each; the pictures are of the first, unless the recipe draws one of all.
        runs: folder for the trained networks.
        results: folder for the result; None writes nothing.
        trainer: options of the trainer, over those of the preset, such as ``{"accelerator": "cpu"}``.
        command: the command line, for the result.
        show: takes lines of text.

    Returns:
        The content of the result file.

    Raises:
        ValueError: if there is no such recipe, preset or option of the trainer, or no seed; or another result file is
            damaged.
        FileExistsError: if ``runs`` holds a run of the same name with other options.
    """
    recipe = get_recipe(name)
    if preset not in recipe.presets:
        raise ValueError(f"preset must be one of {', '.join(recipe.presets)}, got {preset!r}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different numbers, at least one, got {list(seeds)}")
    known = [one.name for one in fields(TrainerOptions)]
    if unknown := sorted(set(trainer or {}) - set(known)):
        raise ValueError(f"trainer takes {', '.join(known)}, got {', '.join(unknown)}")
    if results is not None:
        read_results(results)  # they are needed for the table at the end
    labs: list[Lab] = []
    studies: list[Study] = []
    for seed in seeds:
        labs.append(Lab(preset, seed, runs, trainer or {}, command, show))
        studies.append(recipe.run(labs[-1], recipe.presets[preset]))
        files = {f"{name}-{preset}-{short}.png": picture for short, picture in recipe.pictures(studies).items()}
        result = _result(recipe, labs, studies, files)
        if results is not None:
            _write(results, result, files)
    return result


def _result(
    recipe: Recipe[Any], labs: Sequence[Lab], studies: Sequence[Study], files: Mapping[str, Picture]
) -> dict[str, Any]:
    """The content of the result file, with the seeds so far."""
    preset, trainer, command = labs[0].preset, labs[0].trainer, labs[0].command
    return {
        "recipe": recipe.name,
        "preset": preset,
        "title": recipe.title,
        "source": recipe.source,
        "seeds": [lab.seed for lab in labs],
        "settings": asdict(recipe.presets[preset]),
        "trainer": dict(trainer),
        **_found(recipe, studies),
        "pictures": [{"file": file, "caption": picture.caption} for file, picture in files.items()],
        "notes": list(recipe.notes),
        **_circumstances({one.folder: one for lab in labs for one in lab.trained}.values()),
        "command": command,
    }


def _found(recipe: Recipe[Any], studies: Sequence[Study]) -> dict[str, Any]:
    lines = {(line.row, line.measure): line for line in recipe.lines}
    figures = [study.figures for study in studies]
    if unknown := sorted({key for one in figures for key in one} - set(lines)):
        raise ValueError(f"{recipe.name} measured what is not among its lines: {unknown}")
    return {
        "rows": [{**asdict(line), "ours": [one[key] for one in figures if key in one]} for key, line in lines.items()],
        "facts": [study.facts for study in studies],
        "curves": [study.curves for study in studies],
    }


def _circumstances(networks: Collection[Trained]) -> dict[str, Any]:
    return {
        "training_seconds": round(sum(one.summary["training_seconds"] for one in networks), 1),
        "hardware": sorted({one.summary["hardware"] for one in networks}),
        "finished": time.strftime("%Y-%m-%d"),
        "versions": next((one.summary["versions"] for one in networks), {}),
        "made by": made_by(),
    }


def made_by() -> str:
    """The version of the package and, in a git checkout, its commit, with a ``+`` if files were changed since."""
    checkout = ["git", "-C", str(ROOT)]
    try:
        commit, changed = (
            subprocess.run([*checkout, *command], capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        return torchcaps.__version__
    return f"{torchcaps.__version__}, commit {commit}{'+' if changed else ''}"


def _write(folder: Path, result: Mapping[str, Any], files: Mapping[str, Picture]) -> None:
    """Writes the pictures, the result file in one step, and the table of all recipes."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, picture in files.items():
        picture.figure.savefig(folder / file, dpi=150)
    text = json.dumps(jsonable(result), indent=1, ensure_ascii=False) + "\n"
    write_whole(result_path(folder, result["recipe"], result["preset"]), text)
    write_table(folder)

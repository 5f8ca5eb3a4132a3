"""Runs recipes and writes their results."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torchcaps
from recipes.kit.base import Picture, Recipe, Study, get_recipe
from recipes.kit.lab import Lab, PresetName
from recipes.kit.results import read_results, result_path, write_table
from torchcaps.numerics import jsonable
from torchcaps.whole import write_whole

ROOT = Path(__file__).parents[2]
RUNS = Path("runs/recipes")


def results_folder() -> Path:
    """The default folder of the results: ``docs/results/recipes`` of the checkout if
    the current folder is in it.

    Returns:
        That, or ``runs/recipes/results`` below the current folder.
    """
    at_home = Path.cwd().is_relative_to(ROOT)
    return (
        Path(os.path.relpath(ROOT / "docs" / "results" / "recipes"))
        if at_home
        else RUNS / "results"
    )


def run_recipe(
    name: str,
    preset: PresetName = "quick",
    seeds: Sequence[int] = (0,),
    *,
    rows: Sequence[str] = (),
    runs: Path = RUNS,
    results: Path | None = None,
    trainer: Mapping[str, Any] | None = None,
    command: str = "",
    show: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Runs a recipe to the end and, given a folder, writes its result, its pictures and
    the table of all recipes.

    Trained networks are reused, and interrupted trainings resumed: just run it again.
    The result is written after each seed, with all seeds so far; that of a recipe that
    grows, after each row, with all that its file has already.

    Args:
        name: of the recipe.
        preset: ``paper``, ``quick`` or ``smoke``.
        seeds: one run for each; the pictures are of the first, unless the recipe draws
            one of all.
        rows: of a recipe that grows, those to measure now; all if empty.
        runs: folder for the trained networks.
        results: folder for the result; None writes nothing.
        trainer: options of the trainer, over those of the preset, such as
            ``{"accelerator": "cpu"}``.
        command: the command line, for the result.
        show: takes lines of text.

    Returns:
        The content of the result file.

    Raises:
        ValueError: if there is no such recipe, preset, row or option of the trainer, or
            no seed; another result file is damaged; or a result that is to grow has
            other settings.
        FileExistsError: if ``runs`` holds a run of the same name with other options.
    """
    recipe = get_recipe(name)
    if preset not in recipe.presets:
        raise ValueError(
            f"preset must be one of {', '.join(recipe.presets)}, got {preset!r}"
        )
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"seeds must be different numbers, at least one, got {list(seeds)}"
        )
    if results is not None:
        read_results(results)  # they are needed for the table at the end
    settings = recipe.presets[preset]
    growing = recipe.present(settings) if recipe.grows else ()
    if strange := sorted({*rows} - {*growing}):
        raise ValueError(f"rows must be among {list(growing)}, got {strange}")
    parts = [replace(settings, rows=(row,)) for row in rows or growing] or [settings]
    labs = [Lab(preset, seed, runs, trainer or {}, command, show) for seed in seeds]
    studies, result = _grown(recipe, labs[0], results), dict[str, Any]()
    for lab, part in product(labs, parts):
        if (
            not growing
            or lab.seed not in studies
            or part.rows[0] not in studies[lab.seed].facts
        ):
            new = {lab.seed: recipe.run(lab, part)}
            for row in part.rows if growing else ():
                new[lab.seed].facts[row]["made by"] = made_by()
            _join(
                studies, _grown(recipe, lab, results)
            )  # another process may have added to it
            _join(studies, new)
            result = _finished(recipe, studies, lab, results)
    return result or _finished(recipe, studies, labs[0], results)


def _grown(recipe: Recipe[Any], lab: Lab, results: Path | None) -> dict[int, Study]:
    """What the result file of a recipe that grows has already, by seed."""
    path = result_path(results or Path(), recipe.name, lab.preset)
    if results is None or not recipe.grows or not path.is_file():
        return {}
    result, settings = (
        json.loads(path.read_text(encoding="utf-8")),
        recipe.presets[lab.preset],
    )
    measured = {row for facts in result["facts"] for row in facts}
    if _settings_of(result["settings"], measured) != _settings_of(
        json.loads(json.dumps(asdict(settings))), measured
    ):
        raise ValueError(
            f"{path} was measured with other settings of the preset {lab.preset}: "
            "move it"
        )
    found = {}
    for seed, facts, curves in zip(
        result["seeds"], result["facts"], result["curves"], strict=True
    ):
        found[seed] = Study(
            replace(lab, seed=seed), settings, facts=facts, curves=curves
        )
        for row, one in facts.items():
            found[seed].figures |= {
                (row, measure): value for measure, value in one["figures"].items()
            }
    return found


def _settings_of(settings: Mapping[str, Any], rows: Collection[str]) -> dict[str, Any]:
    """The settings that rows were measured with: a preset may get other rows, with
    changes of their own.
    """
    networks = {
        row: changes for row, changes in settings["networks"].items() if row in rows
    }
    return {**settings, "rows": [], "networks": networks}


def _join(studies: dict[int, Study], more: Mapping[int, Study]) -> None:
    """Adds studies by seed, those of a seed that is there to that."""
    for seed, one in more.items():
        there = studies.setdefault(seed, one)
        there.figures |= one.figures
        there.facts |= one.facts
        there.curves |= one.curves


def _finished(
    recipe: Recipe[Any], studies: Mapping[int, Study], lab: Lab, results: Path | None
) -> dict[str, Any]:
    """The content of the result file with the studies so far; written, with the
    pictures, if there is a folder.
    """
    pictures = recipe.pictures(list(studies.values()))
    files = {
        f"{recipe.name}-{lab.preset}-{short}.png": picture
        for short, picture in pictures.items()
    }
    result = _result(recipe, studies, lab, files)
    if results is not None:
        _write(results, result, files)
    return result


def _result(
    recipe: Recipe[Any],
    studies: Mapping[int, Study],
    lab: Lab,
    files: Mapping[str, Picture],
) -> dict[str, Any]:
    """The content of the result file, with the seeds so far."""
    return {
        "recipe": recipe.name,
        "preset": lab.preset,
        "title": recipe.title,
        "source": recipe.source,
        "seeds": list(studies),
        "settings": asdict(recipe.presets[lab.preset]),
        "trainer": dict(lab.trainer),
        **_found(recipe, list(studies.values())),
        "pictures": [
            {"file": file, "caption": picture.caption}
            for file, picture in files.items()
        ],
        "notes": list(recipe.notes),
        **_circumstances(studies),
        "command": f"python -m recipes run {recipe.name} --preset {lab.preset}"
        if recipe.grows
        else lab.command,
    }


def _found(recipe: Recipe[Any], studies: Sequence[Study]) -> dict[str, Any]:
    lines = {(line.row, line.measure): line for line in recipe.lines}
    figures = [study.figures for study in studies]
    if unknown := sorted({key for one in figures for key in one} - set(lines)):
        raise ValueError(
            f"{recipe.name} measured what is not among its lines: {unknown}"
        )
    return {
        "rows": [
            {**asdict(line), "ours": [one[key] for one in figures if key in one]}
            for key, line in lines.items()
        ],
        "facts": [study.facts for study in studies],
        "curves": [study.curves for study in studies],
    }


def _circumstances(studies: Mapping[int, Study]) -> dict[str, Any]:
    networks: dict[tuple[int, str], Any] = {}
    for seed, study in studies.items():
        facts = (*study.facts.values(), *(one.facts for one in study.lab.trained))
        networks |= {(seed, one["run"]): one for one in facts}
    return {
        "training_seconds": round(
            sum(one["training_seconds"] for one in networks.values()), 1
        ),
        "hardware": sorted({one["hardware"] for one in networks.values()}),
        "finished": time.strftime("%Y-%m-%d"),
        "versions": next((one["versions"] for one in networks.values()), {}),
        "made by": "; ".join(
            sorted({one["made by"] for one in networks.values() if "made by" in one})
        )
        or made_by(),
    }


def made_by() -> str:
    """The version of the package and, in a git checkout, its commit, with a ``+`` if
    files were changed since.
    """
    checkout = ["git", "-C", str(ROOT)]
    try:
        commit, changed = (
            subprocess.run(
                [*checkout, *command], capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in (
                ["rev-parse", "--short=12", "HEAD"],
                ["status", "--porcelain"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return torchcaps.__version__
    return f"{torchcaps.__version__}, commit {commit}{'+' if changed else ''}"


def _write(
    folder: Path, result: Mapping[str, Any], files: Mapping[str, Picture]
) -> None:
    """Writes the pictures, the result file in one step, and the table of all
    recipes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file, picture in files.items():
        picture.figure.savefig(folder / file, dpi=150)
    text = json.dumps(jsonable(result), indent=1, ensure_ascii=False) + "\n"
    text = re.sub(
        r"\[[^][{}\"]+\]", lambda numbers: " ".join(numbers.group().split()), text
    )
    write_whole(result_path(folder, result["recipe"], result["preset"]), text)
    write_table(folder)

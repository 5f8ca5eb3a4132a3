"""Runs recipes and writes their results."""

import json
import math
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import yaml

import torchcaps
from recipes.kit.base import Picture, Recipe, Study, get_recipe
from recipes.kit.lab import Lab, PresetName
from recipes.kit.options import different
from recipes.kit.results import read_results, result_path, write_table
from torchcaps.spec import jsonable, plain
from torchcaps.whole import LARGEST_NOTE, read_json, write_whole, written_whole

ROOT = Path(__file__).parents[2]
RUNS = Path("runs/recipes")


def results_folder() -> Path:
    """The default folder of the results: ``docs/results/recipes`` of the checkout if
    the current folder is in it.

    Returns:
        That, or ``runs/recipes/results`` below the current folder.
    """
    if Path.cwd().is_relative_to(ROOT):
        return Path(os.path.relpath(ROOT / "docs" / "results" / "recipes"))
    return RUNS / "results"


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
    callbacks: Sequence[Any] = (),
    show: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Runs a recipe to the end and, given a folder, writes its result, its pictures and
    the table of all recipes.

    Trained networks are reused, and interrupted trainings resumed: just run it again.
    The result is written after each seed, with all seeds so far; that of a recipe that
    grows, after each row, with all that its file has already.

    Args:
        name: the name of the recipe.
        preset: the preset, ``paper``, ``quick`` or ``smoke``.
        seeds: the seeds, one run for each; the pictures are of the first, unless the
            recipe draws one of all.
        rows: the rows to measure now, of a recipe that grows; all if empty.
        runs: the folder for the trained networks.
        results: the folder for the result; None writes nothing.
        trainer: options of the trainer, over those of the preset, such as
            ``{"accelerator": "cpu"}``.
        command: the command line, for the result.
        callbacks: Lightning callbacks of all trainings.
        show: the function that shows a line of text.

    Returns:
        The content of the result file.

    Raises:
        ValueError: if there is no such recipe, preset, row or option of the trainer, or
            no seed; another result file is damaged; or a result that is to grow has
            other settings.
        FileExistsError: if ``runs`` holds a run of the same name with other options.
    """
    recipe = get_recipe(name)
    settings = recipe.preset(preset)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"seeds must be different numbers, at least one, got {list(seeds)}"
        )
    if results is not None:
        read_results(results)  # they are needed for the table at the end
    if rows and not recipe.grows:
        raise ValueError(
            f"rows must be left out: {recipe.name} measures all its rows together"
        )
    growing = recipe.present(settings) if recipe.grows else ()
    unknown_rows = sorted({*rows} - {*growing})
    if unknown_rows:
        raise ValueError(f"rows must be among {list(growing)}, got {unknown_rows}")
    # a recipe that grows is run row by row
    parts = [replace(settings, rows=(row,)) for row in rows or growing] or [settings]
    labs = [
        Lab(preset, seed, runs, trainer or {}, command, show, callbacks=callbacks)
        for seed in seeds
    ]
    studies = _saved_studies(recipe, labs[0], results)
    result: dict[str, Any] = {}
    for lab, part in product(labs, parts):
        saved = studies.get(lab.seed)
        if growing and saved is not None and part.rows[0] in saved.facts:
            continue
        facts = {} if saved is None else saved.facts
        study = recipe.run(replace(lab, facts=facts), part)
        for row in part.rows if growing else ():
            options = _options_of(recipe, preset, row)
            study.facts[row] |= {"options": options, "made by": made_by()}
        # another process may have added to the file meanwhile
        _join(studies, _saved_studies(recipe, lab, results))
        _join(studies, {lab.seed: study})
        result = _finished(recipe, studies, lab, results)
    return result or _finished(recipe, studies, labs[0], results)


def _saved_studies(
    recipe: Recipe[Any], lab: Lab, results: Path | None
) -> dict[int, Study]:
    """What the result file of a recipe that grows has already, by seed."""
    result = _saved(recipe, lab, results)
    if not result:
        return {}
    settings = recipe.presets[lab.preset]
    settings_now = json.loads(json.dumps(asdict(settings)))
    # What these two say of a row is among its options.
    others = different(result["settings"], settings_now) - {"rows", "networks"}
    rows = set()
    for row, facts in chain.from_iterable(map(dict.items, result["facts"])):
        rows.add(row)
        options = _options_of(recipe, lab.preset, row)
        trained_with = facts.get("options", "{}")
        if trained_with != options:
            others.add(f"{trained_with} in the row {row!r}, not {options}")
    if others:
        path = result_path(results or Path(), recipe.name, lab.preset)
        raise ValueError(
            f"{path} was measured with other options than the preset has: "
            f"{'; '.join(sorted(others))}. Give a row that changed another name, or "
            "move the file"
        )
    shared = {line["row"] for line in result["rows"]} - rows  # figures of no network
    studies = {}
    for place, seed in enumerate(result["seeds"]):
        facts, curves = result["facts"][place], result["curves"][place]
        study = Study(replace(lab, seed=seed), settings, facts=facts, curves=curves)
        for row, facts_of_row in facts.items():
            for measure, value in facts_of_row["figures"].items():
                study.figures[row, measure] = value
        for row in shared:
            for measure, value in _figures_of(result, row, place).items():
                study.figures[row, measure] = value
        studies[seed] = study
    return studies


def _saved(recipe: Recipe[Any], lab: Lab, results: Path | None) -> dict[str, Any]:
    """The content of the result file that a recipe grows; empty for none."""
    path = result_path(results or Path(), recipe.name, lab.preset)
    if results is None or not recipe.grows or not path.is_file():
        return {}
    result: dict[str, Any] = read_json(path, LARGEST_NOTE)
    return result


def _figures_of(result: Mapping[str, Any], row: str, place: int) -> dict[str, float]:
    """The figures of a row, by measure, with the seed at that place of a result; only
    those that all its seeds have.
    """
    return {
        line["measure"]: line["ours"][place]
        for line in result["rows"]
        if line["row"] == row and len(line["ours"]) == len(result["seeds"])
    }


def _options_of(recipe: Recipe[Any], preset: PresetName, row: str) -> str:
    """The options of a row that are not those of the preset, as YAML in one line."""
    owner, of_owner = recipe, row
    while of_owner in owner.borrowed:
        name, of_owner = owner.borrowed[of_owner]
        owner = get_recipe(name)
    _, options = owner.job(owner.presets[preset], of_owner)
    common = recipe.presets[preset].options()
    own = {name: plain(options.get(name)) for name in different(common, options)}
    text = yaml.safe_dump(own, default_flow_style=True, width=math.inf)
    return text.strip()


def _join(studies: dict[int, Study], new: Mapping[int, Study]) -> None:
    """Adds studies by seed; one of a seed that is there already is added to that."""
    for seed, study in new.items():
        joined = studies.setdefault(seed, study)
        joined.figures |= study.figures
        joined.facts |= study.facts
        for name, curves in study.curves.items():
            if isinstance(curves, Mapping):  # of several rows
                curves = {**joined.curves.get(name, {}), **curves}
            joined.curves[name] = curves
        joined.pictures |= study.pictures


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
    # What networks drew that are gone stays.
    saved = _saved(recipe, lab, results).get("pictures", ())
    captions = {picture["file"]: picture["caption"] for picture in saved}
    captions |= {file: picture.caption for file, picture in files.items()}
    result = _result(recipe, studies, lab, captions)
    if results is not None:
        _write(results, result, files)
    return result


def _result(
    recipe: Recipe[Any],
    studies: Mapping[int, Study],
    lab: Lab,
    captions: Mapping[str, str],
) -> dict[str, Any]:
    """The content of the result file, with the seeds so far."""
    command = lab.command
    if recipe.grows:
        command = f"python -m recipes run {recipe.name} --preset {lab.preset}"
    return {
        "recipe": recipe.name,
        "preset": lab.preset,
        "title": recipe.title,
        "source": recipe.source,
        "seeds": list(studies),
        "settings": asdict(recipe.presets[lab.preset]),
        "trainer": dict(lab.trainer),
        **_measured(recipe, list(studies.values())),
        "pictures": [
            {"file": file, "caption": caption} for file, caption in captions.items()
        ],
        "notes": list(recipe.notes),
        **_circumstances(studies),
        "command": command,
    }


def _measured(recipe: Recipe[Any], studies: Sequence[Study]) -> dict[str, Any]:
    """The figures of all lines, and the facts and curves, one entry for each seed."""
    lines = {(line.row, line.measure): line for line in recipe.lines}
    measured = chain.from_iterable(study.figures for study in studies)
    unknown = set(measured) - set(lines)
    if unknown:
        raise ValueError(
            f"{recipe.name} measured what is not among its lines: {sorted(unknown)}"
        )
    rows = []
    for key, line in lines.items():
        ours = [study.figures[key] for study in studies if key in study.figures]
        rows.append({**asdict(line), "ours": ours})
    return {
        "rows": rows,
        "facts": [study.facts for study in studies],
        "curves": [study.curves for study in studies],
    }


def _circumstances(studies: Mapping[int, Study]) -> dict[str, Any]:
    """When, on which hardware and with which code the networks were trained."""
    facts_of_networks: dict[tuple[int, str], Any] = {}
    for seed, study in studies.items():
        trained = [network.facts for network in study.lab.trained]
        for facts in (*trained, *study.facts.values()):  # whose maker is known
            facts_of_networks[seed, facts["run"]] = facts
    networks = list(facts_of_networks.values())
    seconds = sum(facts["training_seconds"] for facts in networks)
    makers = sorted({facts["made by"] for facts in networks if "made by" in facts})
    return {
        "training_seconds": round(seconds, 1),
        "hardware": sorted({facts["hardware"] for facts in networks}),
        "finished": time.strftime("%Y-%m-%d"),
        "versions": networks[0]["versions"] if networks else {},
        "made by": "; ".join(makers) or made_by(),
    }


def made_by() -> str:
    """The version of the package and, in a git checkout, its commit, with a ``+`` if
    files were changed since.
    """
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return torchcaps.__version__
    return f"{torchcaps.__version__}, commit {commit}{'+' if changed else ''}"


def _git(*arguments: str) -> str:
    """What a git command prints of the checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _write(
    folder: Path, result: Mapping[str, Any], files: Mapping[str, Picture]
) -> None:
    """Writes the pictures, the result file in one step, and the table of all
    recipes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file, picture in files.items():
        with written_whole(folder / file) as part:
            picture.figure.savefig(part, dpi=150, format=Path(file).suffix[1:])
    text = json.dumps(jsonable(result), indent=1, ensure_ascii=False) + "\n"
    # lists of numbers take one line each
    text = re.sub(
        r"\[[^][{}\"]+\]", lambda numbers: " ".join(numbers.group().split()), text
    )
    write_whole(result_path(folder, result["recipe"], result["preset"]), text)
    write_table(folder)

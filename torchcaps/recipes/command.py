"""``torchcaps run`` and ``torchcaps recipes``: running recipes, listing and checking their results."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torchcaps.recipes.base import PresetName, Recipe, get_recipe
from torchcaps.recipes.code import changed_files, code_version, older_files
from torchcaps.recipes.lab import Lab
from torchcaps.recipes.results import read_results, result_path, write_table

RUNS = Path("runs/recipes")
RESULTS = Path("docs/results/recipes")


def run_recipe(
    name: str,
    preset: PresetName = "quick",
    seeds: Sequence[int] = (0,),
    *,
    runs: Path = RUNS,
    results: Path | None = RESULTS,
    trainer: Mapping[str, Any] | None = None,
    command: str = "",
    show: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Runs a recipe to the end and writes its result file, its pictures and the table of all recipes.

    Networks that are trained already are not trained again, an interrupted training goes on: run it again after a kill.

    Args:
        name: of the recipe.
        preset: ``paper``, ``quick`` or ``smoke``.
        seeds: one run for each; the pictures are of the first.
        runs: folder for the trained networks.
        results: folder for the result; None writes nothing.
        trainer: options of the trainer, over those of the preset, such as ``{"accelerator": "cpu"}``.
        command: how this was started.
        show: takes lines of text.

    Returns:
        The content of the result file.

    Raises:
        ValueError: if there is no such recipe or preset, or no seed.
        FileExistsError: if ``runs`` holds a run of the same name with other options.
    """
    recipe = get_recipe(name)
    if preset not in recipe.presets:
        raise ValueError(f"preset must be one of {', '.join(recipe.presets)}, got {preset!r}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different numbers, at least one, got {list(seeds)}")
    settings = recipe.presets[preset]
    code = code_version(recipe)
    labs = [Lab(preset, seed, runs, trainer or {}, command, show, code["files"]) for seed in seeds]
    outcomes = [recipe.run(lab, settings) for lab in labs]
    networks = {one.folder: one for lab in labs for one in lab.trained}.values()
    result = {
        "recipe": name,
        "preset": preset,
        "title": recipe.title,
        "source": recipe.source,
        "seeds": list(seeds),
        "settings": asdict(settings),
        "trainer": dict(trainer or {}),
        "rows": _rows(recipe, [outcome.figures for outcome in outcomes]),
        "facts": [{row: dict(facts) for row, facts in outcome.facts.items()} for outcome in outcomes],
        "curves": [dict(outcome.curves) for outcome in outcomes],
        "pictures": [],
        "notes": list(recipe.notes),
        "training_seconds": round(sum(one.summary["training_seconds"] for one in networks), 1),
        "hardware": sorted({one.summary["hardware"] for one in networks}),
        "finished": time.strftime("%Y-%m-%d"),
        "versions": next((one.summary["versions"] for one in networks), {}),
        "code": code,
        "older_networks": {one.folder.name: older for one in networks if (older := older_files(one.code, code))},
        "command": command,
    }
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        for short, picture in outcomes[0].pictures.items():
            file = f"{name}-{preset}-{short}.png"
            picture.figure.savefig(results / file, dpi=150)
            result["pictures"].append({"file": file, "caption": picture.caption})
        path = result_path(results, name, preset)
        whole = path.with_suffix(".tmp")
        whole.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        whole.replace(path)
        write_table(results)
    return result


def _rows(recipe: Recipe[Any], figures: list[Mapping[tuple[str, str], float]]) -> list[dict[str, Any]]:
    known = {(line.row, line.measure) for line in recipe.lines}
    unknown = sorted({key for one in figures for key in one} - known)
    if unknown:
        raise ValueError(f"{recipe.name} measured what is not among its lines: {unknown}")
    return [
        {**asdict(line), "ours": [one[line.row, line.measure] for one in figures if (line.row, line.measure) in one]}
        for line in recipe.lines
    ]


def check(names: Sequence[str], results: Path, show: Callable[[str], None]) -> list[str]:
    """Runs the smoke preset of recipes and names the results that came from other code than the present one.

    Args:
        names: of the recipes.
        results: folder of the results.
        show: takes lines of text.

    Returns:
        The recipes whose smoke preset failed.
    """
    failed = []
    for name in names:
        start = time.perf_counter()
        try:
            with TemporaryDirectory() as folder:
                run_recipe(name, "smoke", runs=Path(folder) / "runs", results=Path(folder) / "results",
                           trainer={"accelerator": "cpu"})  # fmt: skip
            show(f"{name}: the smoke preset runs, {time.perf_counter() - start:.0f} s")
        except Exception as error:  # whatever is wrong with one recipe, the others are looked at
            failed.append(name)
            show(f"{name}: the smoke preset fails: {type(error).__name__}: {error}")
    for (name, preset), result in read_results(results).items():
        if name in names:
            changed = changed_files(result["code"], code_version(get_recipe(name)))
            if changed:
                show(
                    f"{name}, {preset} preset: from older code, {result['code']['version']} of {result['finished']}; "
                    f"changed since: {_first(changed)}"
                )
            if older := result.get("older_networks"):
                files = sorted(set().union(*older.values()))
                show(
                    f"{name}, {preset} preset: {len(older)} of its networks trained by older code; "
                    f"changed until the result: {_first(files)}"
                )
    return failed


def _first(names: Sequence[str], count: int = 5) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} others" if len(names) > count else "")

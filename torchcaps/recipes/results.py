"""Result files: what a recipe measured, from which code, and one table of them all."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torchcaps.recipes.base import PRESETS, RECIPES, Line, PresetName, Recipe

TABLE = "README.md"


def result_path(folder: Path, recipe: str, preset: str) -> Path:
    """The result file of a recipe and a preset."""
    return folder / f"{recipe}-{preset}.json"


def read_results(folder: Path) -> dict[tuple[str, PresetName], dict[str, Any]]:
    """The results in a folder, by recipe and preset.

    Raises:
        ValueError: if a file is damaged.
    """
    results: dict[tuple[str, PresetName], dict[str, Any]] = {}
    for name in RECIPES:
        for preset in PRESETS:
            path = result_path(folder, name, preset)
            if path.is_file():
                try:
                    results[name, preset] = json.loads(path.read_text(encoding="utf-8"))
                except ValueError as error:
                    raise ValueError(f"result file {path} is damaged: {error}") from error
    return results


def values_of(result: Mapping[str, Any] | None, line: Line) -> list[float]:
    """What a result says of a line, one value for each seed that has one."""
    rows = result["rows"] if result else []
    return [value for row in rows if (row["row"], row["measure"]) == (line.row, line.measure) for value in row["ours"]]


def in_words(values: list[float], line: Line) -> str:
    """Mean and, of several seeds, standard deviation, with the unit."""
    if not values:
        return "not run"
    unit = f" {line.unit}" if line.unit else ""
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread}{unit}"


def published_in_words(line: Line) -> str:
    """The published figure with its unit."""
    if line.published is None:
        return "none"
    return f"{line.published:g}{f' {line.unit}' if line.unit else ''}"


def gap_in_words(values: list[float], line: Line) -> str:
    """How far ours is from the published figure, with its sign and whether that is better or worse."""
    if not values or line.published is None:
        return ""
    gap = mean(values) - line.published
    if line.higher_is_better is None or round(gap, 2) == 0:
        return f"{gap:+.2f}"
    return f"{gap:+.2f} ({'better' if (gap > 0) == line.higher_is_better else 'worse'})"


def describe(recipe: Recipe[Any], results: Mapping[PresetName, Mapping[str, Any]]) -> str:
    """The lines of a recipe for a terminal, published figures beside ours."""
    presets = [preset for preset in PRESETS if preset != "smoke" or preset in results]
    header = ("", "", "published", *presets)
    rows = [
        (
            line.row,
            line.measure,
            published_in_words(line),
            *(in_words(values_of(results.get(p), line), line) for p in presets),
        )
        for line in recipe.lines
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    return "\n".join([f"{recipe.name}: {recipe.title}", *(f"  {row}".rstrip() for row in table)])


def as_json(recipe: Recipe[Any], results: Mapping[PresetName, Mapping[str, Any]]) -> dict[str, Any]:
    """The lines of a recipe with the values of each preset, ready for JSON."""
    lines = [
        {**asdict(line), "ours": {preset: values_of(results.get(preset), line) for preset in PRESETS}}
        for line in recipe.lines
    ]
    return {"recipe": recipe.name, "title": recipe.title, "source": recipe.source, "lines": lines}


def write_table(folder: Path) -> Path:
    """Writes the page with all recipes: published, ours, gap, seeds, settings, command, pictures."""
    results = read_results(folder)
    parts = [_INTRODUCTION, *(_section(recipe, results) for recipe in RECIPES.values())]
    path = folder / TABLE
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


_INTRODUCTION = """# The published experiments

Written by `torchcaps run`; do not edit. Each recipe is run by name, `torchcaps run RECIPE --preset quick`. Every figure
is of the last epoch (or, where it says so, of the first epoch that reached a validation accuracy); nothing was chosen
on test images. The gap is ours (quick preset, unless the paper preset was run) less the published figure. The quick
presets train for minutes on a CPU what the papers trained for days: a gap says how far minutes go, and what counts
there is the comparison between rows."""


def _section(recipe: Recipe[Any], results: Mapping[tuple[str, PresetName], dict[str, Any]]) -> str:
    paper, quick = (results.get((recipe.name, preset)) for preset in ("paper", "quick"))
    lines = [f"## {recipe.name}: {recipe.title}", "", f"Source: {recipe.source}", ""]
    lines += ["| row | measure | published | paper preset | quick preset | gap |", "|---|---|---|---|---|---|"]
    for line in recipe.lines:
        ours = [values_of(result, line) for result in (paper, quick)]
        source = f" ({line.source})" if line.source else ""
        cells = [line.row, line.measure, published_in_words(line) + source, *(in_words(one, line) for one in ours)]
        lines.append(f"| {' | '.join([*cells, gap_in_words(ours[0] or ours[1], line)])} |")
    lines += ["", *(f"- {note}" for note in recipe.notes)]
    for preset, result in (("paper", paper), ("quick", quick)):
        lines += [f"- {preset} preset: {_how(result)}" if result else f"- {preset} preset: not run"]
    for result in (paper, quick):
        for picture in result["pictures"] if result else ():
            lines += ["", f"![{picture['caption']}]({picture['file']})", "", picture["caption"]]
    return "\n".join(lines)


def _how(result: Mapping[str, Any]) -> str:
    seeds = "seed" if len(result["seeds"]) == 1 else "seeds"
    return (
        f"`{result['command']}`, {seeds} {', '.join(map(str, result['seeds']))}, "
        f"{result['training_seconds'] / 60:.0f} min of training on {_joined(result['hardware'])}, "
        f"{result['finished']}, code {_code_in_words(result['code'])}; "
        f"[settings and all numbers]({result['recipe']}-{result['preset']}.json)"
    )


def _code_in_words(code: Mapping[str, str]) -> str:
    return f"{code['version']} {code['digest']}" + (f" (commit {code['commit']})" if "commit" in code else "")


def _joined(words: Iterable[str]) -> str:
    return " and ".join(words)

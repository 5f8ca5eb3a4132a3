"""Result files of recipes, and the page with all of them."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from recipes.kit.base import RECIPES, Line, Recipe
from recipes.kit.estimates import Estimate, Key, read_estimates
from recipes.kit.lab import PRESETS, PresetName
from recipes.kit.measures import half_interval
from torchcaps.whole import LARGEST_NOTE, read_json, write_whole

TABLE = "README.md"
_Results = Mapping[PresetName, Mapping[str, Any]]
"""The results of one recipe, by preset."""

_SHOWN: tuple[PresetName, ...] = ("paper", "quick")


def result_path(folder: Path, recipe: str, preset: str) -> Path:
    """The result file of a recipe and a preset."""
    return folder / f"{recipe}-{preset}.json"


def read_results(folder: Path) -> dict[tuple[str, PresetName], dict[str, Any]]:
    """The results in a folder, by recipe and preset.

    Raises:
        ValueError: if a file is damaged.
    """
    results: dict[tuple[str, PresetName], dict[str, Any]] = {}
    for name, preset in product(RECIPES, PRESETS):
        path = result_path(folder, name, preset)
        if not path.is_file():
            continue
        try:
            results[name, preset] = read_json(path, LARGEST_NOTE)
        except ValueError as error:
            raise ValueError(
                f"result file {path} is damaged: {error}; remove it, and python "
                f"-m recipes run {name} --preset {preset} writes it again, from the "
                "networks that it trained"
            ) from error
    return results


def values_of(result: Mapping[str, Any] | None, line: Line) -> list[float]:
    """The values of a line in a result, one for each seed that has one; those that JSON
    cannot hold are NaN.
    """
    values: list[float] = []
    for row in result["rows"] if result else []:
        if (row["row"], row["measure"]) == (line.row, line.measure):
            values += [math.nan if value is None else value for value in row["ours"]]
    return values


def in_words(values: list[float], line: Line) -> str:
    """Mean and, for several seeds, standard deviation, with the unit; empty without
    values.
    """
    if not values:
        return ""
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread} {line.unit}".rstrip()


def not_run(estimates: Sequence[Estimate]) -> str:
    """Say that a row was not run, and what it costs on the devices that it was
    rehearsed on.

    Example:
        >>> from recipes.kit.estimates import Estimate
        >>> not_run([]), not_run([Estimate(72_000, 2.5, "CPU")])
        ('not run', 'not run: 50 h on CPU')
    """
    costs = ", ".join(map(str, estimates))
    return f"not run: {costs}" if costs else "not run"


def ours_in_words(
    recipe: Recipe[Any],
    preset: PresetName,
    line: Line,
    result: Mapping[str, Any] | None,
    estimates: Mapping[Key, Estimate],
) -> str:
    """Our figure of a line; or that it was not run, unless it is one of another
    implementation or of no row of the preset, or that there is no such preset.
    """
    values = values_of(result, line)
    if values or line.elsewhere:
        return in_words(values, line)
    if preset not in recipe.presets:
        return "none"
    rows = recipe.present(recipe.presets[preset])
    if rows and line.row not in rows:
        return ""
    return not_run(
        [
            estimate
            for key, estimate in estimates.items()
            if key[:3] == (recipe.name, preset, line.row)
        ]
    )


def published_in_words(line: Line) -> str:
    """The published figure with its unit."""
    if line.published is None:
        return "none"
    return f"{line.published:g} {line.unit}".rstrip()


def gap_in_words(values: list[float], line: Line) -> str:
    """The difference from the published figure, with its sign; better or worse, if the
    95 % interval of several seeds excludes that figure.
    """
    if not values or line.published is None:
        return ""
    gap = mean(values) - line.published
    unclear = len(values) == 1 or abs(gap) <= half_interval(values)
    if line.higher_is_better is None or unclear:
        return f"{gap:+.2f}"
    better = (gap > 0) == line.higher_is_better
    return f"{gap:+.2f} ({'better' if better else 'worse'})"


def describe(
    recipe: Recipe[Any],
    results: _Results,
    published_only: bool = False,
    without_missing: bool = False,
    estimates: Mapping[Key, Estimate] | None = None,
) -> str:
    """The lines of a recipe as text, published figures beside ours.

    Args:
        recipe: the recipe whose lines are shown.
        results: the available results, by preset.
        published_only: leave out lines without a published figure, unless none has one.
        without_missing: leave out our lines that are in none of the results.
        estimates: the cost of rows, for those that were not run.
    """
    presets = [
        preset for preset in recipe.presets if preset != "smoke" or preset in results
    ]
    published = [line for line in recipe.lines if line.published is not None]
    lines = published if published_only and published else recipe.lines
    if without_missing:
        lines = [
            line
            for line in lines
            if line.elsewhere or any(values_of(row, line) for row in results.values())
        ]
    cells = [("", "", "published", *presets)]
    for line in lines:
        ours = [
            ours_in_words(recipe, preset, line, results.get(preset), estimates or {})
            for preset in presets
        ]
        cells.append((line.row, line.measure, published_in_words(line), *ours))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = [_heading(recipe)]
    for row in cells:
        padded = map(str.ljust, row, widths)
        text.append("  " + "  ".join(padded).rstrip())
    more = len(recipe.lines) - len(lines)
    if more:
        text.append(f"  and {more} more: python -m recipes {recipe.name}")
    return "\n".join(text)


def write_table(folder: Path) -> Path:
    """Writes the page with all recipes: published, ours, gap, seeds, settings, command,
    pictures.
    """
    results = read_results(folder)
    shown: dict[str, dict[PresetName, dict[str, Any]]] = {name: {} for name in RECIPES}
    for name, preset in product(RECIPES, _SHOWN):
        if (name, preset) in results:
            shown[name][preset] = results[name, preset]
    sections = [_section(RECIPES[name], shown[name]) for name in RECIPES]
    page = "\n\n".join(
        [_INTRODUCTION, _overview(shown, read_estimates(folder)), *sections]
    )
    path = folder / TABLE
    write_whole(path, page + "\n")
    return path


_INTRODUCTION = """# The published experiments

This page is written by `python -m recipes run`. Do not edit it. `python -m recipes run NAME` runs one recipe.

Every figure is from the last epoch (or, where noted, from the first epoch that reached a validation accuracy). Nothing
was chosen on test images, except where a note says so.
A figure with ± is the mean and the standard deviation over the seeds. The gap is our figure
(quick preset, unless the paper preset was run) minus the published one. It is called "better" or "worse" only
if the 95 % interval of our mean (Student's t, several seeds) excludes the published figure. The papers trained for
days, and the quick presets train for minutes on a CPU. Compare the rows with each other. Where no settings were
published, there is no paper preset, or it is a larger network or a longer training of this project, as in
`digit-heads`."""


def _overview(
    results: Mapping[str, _Results], estimates: Mapping[Key, Estimate]
) -> str:
    """One table of all lines with a published figure that were run, or are of other
    implementations.
    """
    table = [
        "| recipe | row | measure | published | paper preset | quick preset | gap | "
        "seeds |",
        "|" + "---|" * 8,
    ]
    for recipe in RECIPES.values():
        paper, quick = (results[recipe.name].get(preset) for preset in _SHOWN)
        for line in recipe.lines:
            of_paper = values_of(paper, line)
            of_quick = values_of(quick, line)
            shown = line.elsewhere or of_paper or of_quick
            if line.published is None or not shown:
                continue
            cells = [
                f"[{recipe.name}](#{_anchor(recipe)})",
                line.row,
                line.measure,
                f"{published_in_words(line)} ({line.source})",
                ours_in_words(recipe, "paper", line, paper, estimates),
                ours_in_words(recipe, "quick", line, quick, estimates),
                gap_in_words(of_paper or of_quick, line),
                _seeds_in_words(paper if of_paper else quick, line),
            ]
            table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def _seeds_in_words(result: Mapping[str, Any] | None, line: Line) -> str:
    """The seeds that a line was measured with; figures of no network have all."""
    if line.elsewhere or result is None:
        return ""
    measured = [
        seed
        for seed, facts in zip(result["seeds"], result["facts"], strict=True)
        if line.row in facts
    ]
    return ", ".join(map(str, measured or result["seeds"]))


def _heading(recipe: Recipe[Any]) -> str:
    return f"{recipe.name}: {recipe.title}"


def _anchor(recipe: Recipe[Any]) -> str:
    """The anchor that GitHub makes from the heading."""
    heading = _heading(recipe).lower()
    letters = [letter for letter in heading if letter.isalnum() or letter in " -_"]
    return "".join(letters).replace(" ", "-")


def _section(recipe: Recipe[Any], results: _Results) -> str:
    lines = [
        f"## {_heading(recipe)}",
        "",
        f"Source: {recipe.source}.",
        "",
        *(f"- {note}" for note in recipe.notes),
    ]
    for preset in (preset for preset in _SHOWN if preset in recipe.presets):
        how = _how(results[preset]) if preset in results else "not run"
        lines.append(f"- {preset} preset: {how}")
    for result in results.values():
        lines += ["", *_all_figures(recipe, result)]
        for picture in result["pictures"]:
            lines += [
                "",
                f"![{picture['caption']}]({picture['file']})",
                "",
                f"*{picture['caption']}*",
            ]
    return "\n".join(lines)


def _all_figures(recipe: Recipe[Any], result: Mapping[str, Any]) -> list[str]:
    """A table with the rows of the recipe that were run down and its measures
    across.
    """
    cells: dict[tuple[str, str], str] = {}
    for line in recipe.lines:
        values = values_of(result, line)
        if values:
            cells[line.row, line.measure] = in_words(values, line)
    rows = dict.fromkeys(row for row, _ in cells)
    measures = dict.fromkeys(measure for _, measure in cells)
    table = [
        f"| {result['preset']} preset | {' | '.join(measures)} |",
        "|---" * (len(measures) + 1) + "|",
    ]
    for row in rows:
        figures = [cells.get((row, measure), "") for measure in measures]
        table.append(f"| {row} | {' | '.join(figures)} |")
    return table


def _how(result: Mapping[str, Any]) -> str:
    """How a result was made: command, seeds, time, hardware, code."""
    seeds = ", ".join(map(str, result["seeds"]))
    plural = "s" if len(result["seeds"]) > 1 else ""
    minutes = result["training_seconds"] / 60
    hardware = " and ".join(result["hardware"])
    file = f"{result['recipe']}-{result['preset']}.json"
    return (
        f"`{result['command']}`, seed{plural} {seeds}, "
        f"{minutes:.0f} min of training on {hardware}, "
        f"{result['finished']}, code {result['made by']}; "
        f"[settings and all numbers]({file})"
    )

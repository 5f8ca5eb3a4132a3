"""The published experiments, by name, with the published figures beside ours: ``torchcaps recipes``."""

from torchcaps.recipes.affine import AffineRobustness
from torchcaps.recipes.base import PRESETS, RECIPES, Line, Outcome, Picture, Recipe, get_recipe, register_recipe
from torchcaps.recipes.code import code_version
from torchcaps.recipes.command import RESULTS, RUNS, check, run_recipe
from torchcaps.recipes.lab import Lab, Trained
from torchcaps.recipes.multimnist import MultiMNIST
from torchcaps.recipes.results import as_json, describe, read_results, result_path, write_table
from torchcaps.recipes.two_digits import TwoDigits

__all__ = [
    "PRESETS",
    "RECIPES",
    "RESULTS",
    "RUNS",
    "AffineRobustness",
    "Lab",
    "Line",
    "MultiMNIST",
    "Outcome",
    "Picture",
    "Recipe",
    "Trained",
    "TwoDigits",
    "as_json",
    "check",
    "code_version",
    "describe",
    "get_recipe",
    "read_results",
    "register_recipe",
    "result_path",
    "run_recipe",
    "write_table",
]

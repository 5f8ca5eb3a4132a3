"""The published experiments, by name, with the published figures beside ours: ``torchcaps recipes``."""

from importlib import import_module

from torchcaps.recipes.kit.base import RECIPES, Line, Outcome, Picture, Recipe, get_recipe, register_recipe
from torchcaps.recipes.kit.command import RUNS, check, results_folder, run_recipe
from torchcaps.recipes.kit.comparison import Comparison, Study
from torchcaps.recipes.kit.lab import PRESETS, Lab, Trained
from torchcaps.recipes.kit.results import as_json, describe, read_results, result_path, write_table

EXPERIMENTS = ("mnist_dynamic", "two_digits", "multimnist", "affine", "smallnorb", "smallnorb_viewpoints", "other_data",
               "adversarial", "routing_health", "perturb", "routings", "words", "scenes", "transfer")  # fmt: skip
"""The files of this folder that register recipes, in the order of the tables."""

for _name in EXPERIMENTS:
    import_module(f"{__name__}.{_name}")

__all__ = ["EXPERIMENTS", "PRESETS", "RECIPES", "RUNS", "Comparison", "Lab", "Line", "Outcome", "Picture", "Recipe",
           "Study", "Trained", "as_json", "check", "describe", "get_recipe", "read_results",
           "register_recipe", "result_path", "results_folder", "run_recipe", "write_table"]  # fmt: skip

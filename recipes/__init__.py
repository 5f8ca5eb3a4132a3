"""The published experiments, by name, with the published figures beside ours: ``python -m recipes``."""

from importlib import import_module

from recipes.kit.base import RECIPES, Line, Outcome, Picture, Recipe, get_recipe, register_recipe
from recipes.kit.command import RUNS, results_folder, run_recipe
from recipes.kit.comparison import Comparison, Study
from recipes.kit.lab import PRESETS, Lab, Trained
from recipes.kit.results import describe, read_results, result_path, write_table

EXPERIMENTS = ("mnist_dynamic", "two_digits", "multimnist", "affine", "smallnorb", "smallnorb_viewpoints", "other_data",
               "adversarial", "routing_health", "perturb", "routings", "words", "scenes", "transfer")  # fmt: skip
"""The files of this folder that register recipes, in the order of the tables."""

for _name in EXPERIMENTS:
    import_module(f"{__name__}.{_name}")

__all__ = ["EXPERIMENTS", "PRESETS", "RECIPES", "RUNS", "Comparison", "Lab", "Line", "Outcome", "Picture", "Recipe",
           "Study", "Trained", "describe", "get_recipe", "read_results",
           "register_recipe", "result_path", "results_folder", "run_recipe", "write_table"]  # fmt: skip

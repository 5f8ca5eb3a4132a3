"""The published experiments, by name, with the published figures beside ours: ``python
-m recipes``.
"""

from importlib import import_module
from pathlib import Path

from recipes.kit.base import (
    RECIPES,
    Line,
    Picture,
    Recipe,
    Study,
    get_recipe,
    register_recipe,
)
from recipes.kit.command import RUNS, results_folder, run_recipe
from recipes.kit.lab import PRESETS, Lab, Trained
from recipes.kit.results import describe, read_results, result_path, write_table

EXPERIMENTS = (
    "mnist-dynamic",
    "two_digits",
    "multimnist",
    "affine",
    "smallnorb",
    "em_floor",
    "smallnorb_viewpoints",
    "digit_heads",
    "photo_heads",
    "top_two",
    "few_labels",
    "mnist-em",
    "fashion",
    "cifar10",
    "adversarial",
    "strangers",
    "routing_health",
    "depth",
    "perturb",
    "routings",
    "words",
    "sentences",
    "series",
    "segmentation",
    "object_discovery",
    "published_objects",
    "nuclei",
    "read_outs",
    "scenes",
    "several",
    "transfer",
    "interests",
    "slots",
    "sets",
    "compute",
)
"""The recipes, in the order of the tables: files of this folder, or of ``presets`` for
those that need no code.
"""

for _name in EXPERIMENTS:
    if Path(__file__).with_name(f"{_name}.py").is_file():
        import_module(f"{__name__}.{_name}")
    else:
        register_recipe(type(_name, (Recipe,), {"name": _name, "grows": True}))

__all__ = [
    "EXPERIMENTS",
    "PRESETS",
    "RECIPES",
    "RUNS",
    "Lab",
    "Line",
    "Picture",
    "Recipe",
    "Study",
    "Trained",
    "describe",
    "get_recipe",
    "read_results",
    "register_recipe",
    "result_path",
    "results_folder",
    "run_recipe",
    "write_table",
]

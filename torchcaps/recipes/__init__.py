"""The published experiments, by name, with the published figures beside ours: ``torchcaps recipes``."""

from torchcaps.recipes.kit.base import RECIPES, Line, Outcome, Picture, Recipe, get_recipe, register_recipe
from torchcaps.recipes.mnist_dynamic import MnistDynamic
from torchcaps.recipes.two_digits import TwoDigits
from torchcaps.recipes.multimnist import MultiMNIST
from torchcaps.recipes.affine import AffineRobustness
from torchcaps.recipes.smallnorb import SmallNORBEM
from torchcaps.recipes.smallnorb_viewpoints import SmallNORBViewpoints
from torchcaps.recipes.other_data import Cifar10, Fashion, MnistEM
from torchcaps.recipes.adversarial import Adversarial
from torchcaps.recipes.routing_health import RoutingHealth
from torchcaps.recipes.perturb import Perturb
from torchcaps.recipes.kit.code import code_version
from torchcaps.recipes.kit.command import RUNS, check, results_folder, run_recipe
from torchcaps.recipes.kit.comparison import Comparison, Study
from torchcaps.recipes.kit.lab import PRESETS, Lab, Trained
from torchcaps.recipes.kit.results import as_json, describe, read_results, result_path, write_table

__all__ = [
    "PRESETS",
    "RECIPES",
    "RUNS",
    "Adversarial",
    "AffineRobustness",
    "Cifar10",
    "Comparison",
    "Fashion",
    "Lab",
    "Line",
    "MnistDynamic",
    "MnistEM",
    "MultiMNIST",
    "Outcome",
    "Perturb",
    "Picture",
    "Recipe",
    "RoutingHealth",
    "SmallNORBEM",
    "SmallNORBViewpoints",
    "Study",
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
    "results_folder",
    "run_recipe",
    "write_table",
]

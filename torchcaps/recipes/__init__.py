"""The published experiments, by name, with the published figures beside ours: ``torchcaps recipes``."""

from torchcaps.recipes.base import PRESETS, RECIPES, Line, Outcome, Picture, Recipe, get_recipe, register_recipe
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
from torchcaps.recipes.code import code_version
from torchcaps.recipes.command import RESULTS, RUNS, check, run_recipe
from torchcaps.recipes.lab import Lab, Trained
from torchcaps.recipes.results import as_json, describe, read_results, result_path, write_table

__all__ = [
    "PRESETS",
    "RECIPES",
    "RESULTS",
    "RUNS",
    "Adversarial",
    "AffineRobustness",
    "Cifar10",
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

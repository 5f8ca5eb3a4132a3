"""What a network learned, in tensors and in pictures. Matplotlib is imported by the functions that draw."""

from torchcaps.explain.assignments import assignment_entropy, assignment_maps, dead_capsules
from torchcaps.explain.figures import (
    activation_figure,
    assignment_figure,
    confusion_matrix,
    flow_figure,
    learning_curves,
    mistake_title,
    perturbation_atlas,
    perturbation_grid,
    pose_figure,
    reconstructions,
    types_figure,
    worst_mistakes,
)
from torchcaps.explain.findings import Findings, evaluating, examine
from torchcaps.explain.flow import class_shares, share_maps
from torchcaps.explain.layers import Layer, dead_types, layer_entropy, observe_layers, peak_activation
from torchcaps.explain.places import Extent, layer_extents, map_extent
from torchcaps.explain.poses import default_sweep, perturb
from torchcaps.explain.report import write_report

__all__ = [
    "Extent",
    "Findings",
    "Layer",
    "activation_figure",
    "assignment_entropy",
    "assignment_figure",
    "assignment_maps",
    "class_shares",
    "confusion_matrix",
    "dead_capsules",
    "dead_types",
    "default_sweep",
    "evaluating",
    "examine",
    "flow_figure",
    "layer_entropy",
    "layer_extents",
    "learning_curves",
    "map_extent",
    "mistake_title",
    "observe_layers",
    "peak_activation",
    "perturb",
    "perturbation_atlas",
    "perturbation_grid",
    "pose_figure",
    "reconstructions",
    "share_maps",
    "types_figure",
    "worst_mistakes",
    "write_report",
]

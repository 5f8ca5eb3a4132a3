"""What a network learned: observed as tensors, told as exhibits of plain data, drawn as pictures.

Matplotlib is imported by the functions that draw.
"""

from torchcaps.report.assignments import assignment_entropy, assignment_maps, dead_capsules
from torchcaps.report.attributes import ATTRIBUTES, attributes
from torchcaps.report.calibration import Calibration, fit_platt, fit_temperature
from torchcaps.report.draw import (
    Picture,
    activation_figure,
    assignment_figure,
    confusion_matrix,
    flow_figure,
    learning_curves,
    mistake_title,
    new_figure,
    perturbation_atlas,
    perturbation_grid,
    pictures_of,
    pose_figure,
    reconstructions,
    shorten,
    types_figure,
    worst_mistakes,
)
from torchcaps.report.exhibits import Exhibit, exhibits_of, exhibits_of_classifier, list_exhibits, register_exhibit
from torchcaps.report.findings import Answers, ClassFigures, Findings, ask, evaluating, examine
from torchcaps.report.flow import class_maps, class_shares, share_maps
from torchcaps.report.layers import Layer, dead_types, layer_entropy, observe_layers, peak_activation
from torchcaps.report.observe import Observation
from torchcaps.report.page import write_page, write_report
from torchcaps.report.places import Extent, layer_extents, map_extent
from torchcaps.report.poses import default_sweep, perturb
from torchcaps.report.readout import Readout, fit_readout
from torchcaps.report.selection import Selection, select_examples, select_samples
from torchcaps.report.shapes import pose_tells, shape_moments
from torchcaps.report.steps import Step, exchangeable_routings, observe_steps, other_routing
from torchcaps.report.transfer import carried, draw_poses, poses_of, transfer

__all__ = [
    "ATTRIBUTES",
    "Answers",
    "Calibration",
    "ClassFigures",
    "Exhibit",
    "Extent",
    "Findings",
    "Layer",
    "Observation",
    "Picture",
    "Readout",
    "Selection",
    "Step",
    "activation_figure",
    "ask",
    "assignment_entropy",
    "assignment_figure",
    "assignment_maps",
    "attributes",
    "carried",
    "class_maps",
    "class_shares",
    "confusion_matrix",
    "dead_capsules",
    "dead_types",
    "default_sweep",
    "draw_poses",
    "evaluating",
    "examine",
    "exchangeable_routings",
    "exhibits_of",
    "exhibits_of_classifier",
    "fit_platt",
    "fit_readout",
    "fit_temperature",
    "flow_figure",
    "layer_entropy",
    "layer_extents",
    "learning_curves",
    "list_exhibits",
    "map_extent",
    "mistake_title",
    "new_figure",
    "observe_layers",
    "observe_steps",
    "other_routing",
    "peak_activation",
    "perturb",
    "perturbation_atlas",
    "perturbation_grid",
    "pictures_of",
    "pose_figure",
    "pose_tells",
    "poses_of",
    "reconstructions",
    "register_exhibit",
    "select_examples",
    "select_samples",
    "shape_moments",
    "share_maps",
    "shorten",
    "transfer",
    "types_figure",
    "worst_mistakes",
    "write_page",
    "write_report",
]

"""What a network learned, in tensors and in pictures. Matplotlib is imported by the functions that draw."""

from torchcaps.explain.assignments import Extent, assignment_entropy, assignment_maps, dead_capsules, map_extent
from torchcaps.explain.figures import (
    assignment_figure,
    confusion_matrix,
    learning_curves,
    mistake_title,
    perturbation_atlas,
    perturbation_grid,
    reconstructions,
    worst_mistakes,
)
from torchcaps.explain.findings import Findings, examine
from torchcaps.explain.poses import default_sweep, perturb
from torchcaps.explain.report import write_report

__all__ = [
    "Extent",
    "Findings",
    "assignment_entropy",
    "assignment_figure",
    "assignment_maps",
    "confusion_matrix",
    "dead_capsules",
    "default_sweep",
    "examine",
    "learning_curves",
    "map_extent",
    "mistake_title",
    "perturb",
    "perturbation_atlas",
    "perturbation_grid",
    "reconstructions",
    "worst_mistakes",
    "write_report",
]

"""Figures. Each function returns a matplotlib figure of its own; nothing global is touched, no window opens.

Matplotlib is imported by the functions that draw.
"""

from torchcaps.report.draw.answers import confusion_matrix, mistake_title, worst_mistakes
from torchcaps.report.draw.canvas import new_figure, shorten
from torchcaps.report.draw.curves import learning_curves
from torchcaps.report.draw.decoded import perturbation_atlas, perturbation_grid, reconstructions
from torchcaps.report.draw.flow import assignment_figure, flow_figure
from torchcaps.report.draw.layers import activation_figure, pose_figure, types_figure
from torchcaps.report.draw.pictures import Picture, pictures_of

__all__ = [
    "Picture",
    "activation_figure",
    "assignment_figure",
    "confusion_matrix",
    "flow_figure",
    "learning_curves",
    "mistake_title",
    "new_figure",
    "perturbation_atlas",
    "perturbation_grid",
    "pictures_of",
    "pose_figure",
    "reconstructions",
    "shorten",
    "types_figure",
    "worst_mistakes",
]

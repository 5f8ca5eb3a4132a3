"""What a network learned: observed as tensors, told as exhibits of plain data, drawn as
pictures, a file each.

Matplotlib is imported by the functions that draw.
"""

from typing import Any

from torchcaps_lab.kinds import public
from torchcaps_lab.report.attributes import (
    ATTRIBUTES,
    Readout,
    attributes,
    fit_readout,
    pose_tells,
    shape_moments,
)
from torchcaps_lab.report.boxes import Boxed
from torchcaps_lab.report.calibration import Calibration, fit_platt, fit_temperature
from torchcaps_lab.report.canvas import new_figure, shorten
from torchcaps_lab.report.exhibit import (
    Exhibit,
    Picture,
    Table,
    list_exhibits,
    register_exhibit,
)
from torchcaps_lab.report.findings import (
    Answers,
    ClassFigures,
    Findings,
    TwoClassFigures,
    ask,
    evaluating,
    examine,
)
from torchcaps_lab.report.flow import class_maps, class_shares
from torchcaps_lab.report.health import routing_health
from torchcaps_lab.report.layers import (
    Layer,
    assignment_entropy,
    dead_capsules,
    layer_entropy,
    observe_layers,
    peak_activation,
)
from torchcaps_lab.report.observe import (
    Observation,
    Selection,
    Tested,
    select_examples,
    select_samples,
)
from torchcaps_lab.report.page import (
    exhibits_of,
    exhibits_of_classifier,
    write_page,
    write_report,
)
from torchcaps_lab.report.places import Extent, layer_extents
from torchcaps_lab.report.poses import (
    carried,
    default_sweep,
    draw_poses,
    perturb,
    poses_of,
    transfer,
)
from torchcaps_lab.report.steps import (
    Step,
    even_assignments,
    exchangeable_routings,
    observe_steps,
    other_routing,
    routing_steps,
)
from torchcaps_lab.report.verdict import Verdict, judge

from torchcaps_lab.report import pictures  # isort: skip  # which registers them

__all__ = [
    "ATTRIBUTES",
    "Boxed",
    "Exhibit",
    "Observation",
    "Picture",
    "Selection",
    "Table",
    "Tested",
    "ask",
    "attributes",
    "default_sweep",
    "draw_poses",
    "evaluating",
    "even_assignments",
    "examine",
    "exhibits_of_classifier",
    "fit_readout",
    "fit_temperature",
    "layer_entropy",
    "list_exhibits",
    "new_figure",
    "observe_layers",
    "perturb",
    "poses_of",
    "register_exhibit",
    "routing_health",
    "routing_steps",
    "shorten",
    "transfer",
    "write_page",
]


def __getattr__(name: str) -> Any:
    """What the kinds of input show."""
    return public(name, __name__)

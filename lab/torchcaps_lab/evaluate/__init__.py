"""What a network learned, as numbers: its layers, its answers, its calibration, and what
to do next.
"""

from torchcaps_lab.evaluate.attributes import (
    ATTRIBUTES,
    Readout,
    attributes,
    fit_readout,
    pose_tells,
    shape_moments,
)
from torchcaps_lab.evaluate.calibration import Calibration, fit_platt, fit_temperature
from torchcaps_lab.evaluate.findings import (
    Answers,
    ClassFigures,
    Findings,
    TwoClassFigures,
    ask,
    evaluating,
    examine,
)
from torchcaps_lab.evaluate.health import routing_health
from torchcaps_lab.evaluate.layers import (
    Layer,
    assignment_entropy,
    dead_capsules,
    layer_entropy,
    observe_layers,
    peak_activation,
)
from torchcaps_lab.evaluate.poses import (
    carried,
    default_sweep,
    draw_poses,
    perturb,
    poses_of,
    transfer,
)
from torchcaps_lab.evaluate.steps import (
    Step,
    even_assignments,
    exchangeable_routings,
    observe_steps,
    other_routing,
    routing_steps,
)
from torchcaps_lab.evaluate.verdict import Verdict, judge

__all__ = [
    "ATTRIBUTES",
    "ask",
    "attributes",
    "default_sweep",
    "draw_poses",
    "evaluating",
    "even_assignments",
    "examine",
    "fit_readout",
    "fit_temperature",
    "layer_entropy",
    "observe_layers",
    "perturb",
    "poses_of",
    "routing_health",
    "routing_steps",
    "transfer",
]

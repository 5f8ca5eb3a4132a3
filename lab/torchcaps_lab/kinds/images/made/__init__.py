"""Data sets and images made from others: on larger canvases, transformed, overlaid,
side by side, turned.

Runs record the data sets by their names here.
"""

from torchcaps_lab.kinds.images.made.affine import (
    Affine,
    AffineRanges,
    apply_affine,
    shift_limits,
)
from torchcaps_lab.kinds.images.made.arranged import Scenes, arrange
from torchcaps_lab.kinds.images.made.few import Few
from torchcaps_lab.kinds.images.made.overlay import (
    Overlaid,
    Overlay,
    Pairs,
    bounding_box_overlap,
    fixed_pairs,
)
from torchcaps_lab.kinds.images.made.padded import Padded
from torchcaps_lab.kinds.images.made.turned import (
    TestViewpoints,
    TurnedDigits,
    Viewpoints,
    lower,
    turn,
)

"""Data sets and images made from others: on larger canvases, transformed, overlaid, side by side, turned.

Runs record the data sets by their names here.
"""

# ruff: noqa: F401

from torchcaps.data.made.affine import AFFNIST, FACTORS, Affine, AffineRanges, apply_affine, one_factor, shift_limits
from torchcaps.data.made.arranged import LAYOUTS, Scenes, arrange
from torchcaps.data.made.few import Few
from torchcaps.data.made.overlay import Overlaid, Overlay, Pairs, bounding_box_overlap, fixed_pairs
from torchcaps.data.made.padded import Padded
from torchcaps.data.made.turned import TestViewpoints, TurnedDigits, Viewpoints, lower, turn

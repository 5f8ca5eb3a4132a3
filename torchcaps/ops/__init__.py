"""The one primitive under every routing algorithm: similarity, assignment and moments
of votes that are not stored.
"""

from torchcaps.ops.backend import (
    AssignmentMap,
    Gaussians,
    Moments,
    Rule,
    VoteSource,
)
from torchcaps.ops.competition import GridWide, Normaliser, OverChildren, PositionWide
from torchcaps.ops.evidence import EvidentVotes
from torchcaps.ops.fields import Fields, axes
from torchcaps.ops.plan import BACKENDS, use_backend
from torchcaps.ops.similarity import (
    Adjusted,
    Distance,
    Gaussian,
    Given,
    InnerProduct,
    Similarity,
)
from torchcaps.ops.votes import Votes, choose_backend
from torchcaps.ops.windows import Windows

__all__ = [
    "BACKENDS",
    "AssignmentMap",
    "Gaussian",
    "Similarity",
    "Votes",
    "axes",
    "choose_backend",
    "use_backend",
]

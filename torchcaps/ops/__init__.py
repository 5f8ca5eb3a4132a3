"""The one primitive under every routing algorithm: similarity, assignment and moments
of votes that are not stored.
"""

from torchcaps.ops.backend import Moments, VoteSource
from torchcaps.ops.competition import PARENTS, Competition, GridWide, OverChildren
from torchcaps.ops.evidence import EvidentVotes
from torchcaps.ops.fields import Fields, axes
from torchcaps.ops.plan import BACKENDS, use_backend
from torchcaps.ops.similarity import Distance, Gaussian, Given, InnerProduct, Similarity
from torchcaps.ops.votes import Votes
from torchcaps.ops.windows import Windows

__all__ = [
    "BACKENDS",
    "Competition",
    "Gaussian",
    "Similarity",
    "Votes",
    "axes",
    "use_backend",
]

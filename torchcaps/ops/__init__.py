"""The one primitive under every routing algorithm: similarity, assignment and moments of votes that are not stored."""

from torchcaps.ops.backend import Moments, Rule, VoteSource
from torchcaps.ops.competition import GridWide, Normaliser
from torchcaps.ops.dispatch import BACKENDS, choose_backend, use_backend
from torchcaps.ops.similarity import Gaussian, InnerProduct, Similarity
from torchcaps.ops.votes import Votes
from torchcaps.ops.windows import Windows

__all__ = [
    "BACKENDS",
    "Gaussian",
    "GridWide",
    "InnerProduct",
    "Moments",
    "Normaliser",
    "Rule",
    "Similarity",
    "VoteSource",
    "Votes",
    "Windows",
    "choose_backend",
    "use_backend",
]

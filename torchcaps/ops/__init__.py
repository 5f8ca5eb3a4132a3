"""The one primitive under every routing algorithm: similarity, assignment and moments of votes that are not stored."""

from torchcaps.ops.contract import Gaussian, InnerProduct, Moments, Rule, Similarity, VoteSource
from torchcaps.ops.votes import BACKENDS, Normaliser, Votes, choose_backend, use_backend

__all__ = [
    "BACKENDS",
    "Gaussian",
    "InnerProduct",
    "Moments",
    "Normaliser",
    "Rule",
    "Similarity",
    "VoteSource",
    "Votes",
    "choose_backend",
    "use_backend",
]

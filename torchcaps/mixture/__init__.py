"""Clustering as estimators, on the same primitive as routing: ``pip install
'torchcaps[mixture]'``.

They are there to show what routing does, and to check it. scikit-learn's are far
faster, because points as votes pay for a transform that is the identity: cluster large
data with those.
"""

from torchcaps.optional_imports import needing

with needing("mixtures as estimators", "torchcaps[mixture]"):
    from torchcaps.mixture.base import point_votes
    from torchcaps.mixture.binomial import BinomialMixture
    from torchcaps.mixture.gaussian import GaussianMixture
    from torchcaps.mixture.kmeans import KMeans, SoftKMeans

__all__ = ["BinomialMixture", "GaussianMixture", "KMeans", "SoftKMeans"]

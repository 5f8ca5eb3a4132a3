"""The data that the estimators are compared on."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_iris

Array = NDArray[np.float64]

COINS = np.array([(5, 5), (9, 1), (8, 2), (4, 6), (7, 3)], dtype=float)


def two_components(n: int = 1000, seed: int = 0) -> Array:
    """The guide's mixture: 600 points about (0, 4) with variances (3, 0.5), 400 about
    (-2, 0) with (1, 2).
    """
    random = np.random.default_rng(seed)
    first = random.normal((0, 4), np.sqrt((3, 0.5)), (int(0.6 * n), 2))
    second = random.normal((-2, 0), np.sqrt((1, 2)), (n - len(first), 2))
    return np.concatenate([first, second])


def data(name: str) -> tuple[Array, Array]:
    """Points, and a start for the centres of their clusters: some of the points."""
    points = load_iris().data if name == "iris" else two_components()
    starts = {"iris": [0, 60, 120], "two-components": [10, 20]}
    return points, points[starts[name]]

"""Routings whose steps a backend makes all at once.

Each module here registers its functions with :func:`torchcaps.routing.base.fast`.
"""

from torchcaps.routing.fast import agreement as agreement
from torchcaps.routing.fast import em as em
from torchcaps.routing.fast import euclidean as euclidean
from torchcaps.routing.fast import folded as folded

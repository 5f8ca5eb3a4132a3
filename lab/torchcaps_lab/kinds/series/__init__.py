"""Series: measurements over time, and sounds."""

from torchcaps_lab.kinds.series.arrays import SeriesArrays
from torchcaps_lab.kinds.series.networks import (
    SeriesCapsNet,
    SeriesClassifier,
    SeriesCNN,
)
from torchcaps_lab.kinds.series.pictures import (
    SeriesOverTime,
)
from torchcaps_lab.kinds.series.series import MadeSeries, Series
from torchcaps_lab.kinds.series.series_set import Scale, SeriesSet

__all__ = ["Series", "SeriesArrays", "SeriesSet"]

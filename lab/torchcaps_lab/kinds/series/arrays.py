"""Series that a program has in arrays."""

from typing import Any, Literal

import torch

from torchcaps_lab.data.listed import Listed, labelled
from torchcaps_lab.kinds.series.series import Series
from torchcaps_lab.kinds.series.table import checked


class SeriesArrays(Series):
    """Series and their labels that a program has.

    Args:
        inputs: an array or a tensor (N, C, L) of N series of C channels and L moments,
            or (N, L) of one channel; or a list of arrays (C, L) or (L,) of any lengths.
        labels: N whole numbers or names.
        test: the share to test on, as of :class:`Series`.
        validation: the share for validation, likewise.
        seed: chooses the validation series.
        standardise: as of :class:`Series`.

    Raises:
        ValueError: there are no series, not one label for each, or one is no array of
            finite numbers (C, L).

    Example:
        >>> from torchcaps_lab.data import SeriesArrays
        >>> data = SeriesArrays(torch.randn(20, 3, 50), ["up", "down"] * 10)
        >>> data.classes, data.train.inputs.shape
        (('down', 'up'), torch.Size([14, 4, 50]))
    """

    def __init__(
        self,
        inputs: Any = None,
        labels: Any = None,
        test: float = 0.2,
        validation: float = 0.1,
        seed: int = 0,
        standardise: Literal["data", "each"] = "data",
    ) -> None:
        self.inputs = inputs
        self.labels = labels
        how: Any = {"test": test, "validation": validation, "seed": seed}
        super().__init__("", standardise=standardise, **how)

    def list_series(self) -> Listed:
        """The series, each with its number as name."""
        rows = []
        for name, label, values in labelled(self.inputs, self.labels, "SeriesArrays"):
            series = torch.as_tensor(values, dtype=torch.float32)
            series = series[None] if series.ndim == 1 else series
            rows.append((name, label, checked(series, f"series {name}"), ""))
        return self.listed_of(rows)

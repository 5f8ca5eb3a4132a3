"""Series that a program has in arrays."""

from typing import Any, Literal

from torchcaps_lab.data.listed import Listed, list_labelled
from torchcaps_lab.kinds.series.series import Series
from torchcaps_lab.kinds.series.table import SeriesItem, checked, floats_of
from torchcaps_lab.look import counted


class SeriesArrays(Series):
    """Series and their labels that a program has.

    Args:
        inputs: an array or a tensor (N, C, L) of N series of C channels and L moments,
            or (N, L) of one channel; or a list of arrays (C, L) or (L,) of any lengths.
        labels: N whole numbers or names, or N rows of 0 with one 1.
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
        listed = list_labelled(self.inputs, self.labels, "SeriesArrays", _item)
        shapes = {item.values.shape for item in listed.parts["all"]}
        listed.notes += tuple(_axes_line(shape) for shape in sorted(shapes)[:1])
        return listed


def _item(name: str, label: str, values: Any) -> SeriesItem:
    title = f"series {name}"
    try:
        series = floats_of(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{title} must be an array (C, L) of numbers, got a "
            f"{type(values).__name__}: {error}"
        ) from None
    series = series[None] if series.ndim == 1 else series
    return SeriesItem(name, label, checked(series, title), name)


def _axes_line(shape: tuple[int, int]) -> str:
    """Tell people the order of axes that was taken of the shortest series."""
    channels, moments = shape
    line = (
        f"the axes of series are (C, L): {counted(channels, 'channels')}, "
        f"{moments} or more moments"
    )
    if channels > moments:
        line += ". If these are moments of channels, give each series transposed"
    return line

"""Labelled series of any length, and how they are brought to one scale."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.numerics import resolution
from torchcaps_lab.data.examples import Batch, PlainExamples
from torchcaps_lab.kinds.series.sound import Sound
from torchcaps_lab.kinds.series.table import SeriesForm

_USUAL = SeriesForm()

_ROUNDINGS = 4
"""Channels that vary by no more than so many units of rounding of their mean are taken
to be constant: they become 0 instead of noise.
"""


@dataclass(frozen=True)
class Scale:
    r"""How series are read, and their numbers brought to a scale, :math:`(x_{cl} - m_c)
    / d_c`.

    Args:
        mean: the mean of each channel in the training series; None takes that of each
            series itself.
        deviation: likewise.
        sound: how sounds become series; None for series that are no sounds.
        form: what the columns of tables are read as.

    Example:
        >>> from torchcaps_lab.data import Scale
        >>> Scale(mean=(1.0,), deviation=(2.0,))(torch.tensor([[1.0, 3.0, 5.0]]))
        tensor([[0., 1., 2.]])
    """

    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    sound: Sound | None = None
    form: SeriesForm = _USUAL

    @classmethod
    def of(cls, rows: Sequence[Tensor], **more: Any) -> "Scale":
        """Mean and deviation of all moments of series (C, L); ``more``: how they are
        read.
        """
        every = torch.cat(list(rows), 1).double()
        deviation = every.std(1, correction=0)
        return cls(tuple(every.mean(1).tolist()), tuple(deviation.tolist()), **more)

    def __call__(self, series: Tensor) -> Tensor:
        """A series (C, L), or several of one length (B, C, L), in this scale."""
        if self.mean is None or self.deviation is None:
            mean = series.mean(-1, keepdim=True)
            deviation = series.std(-1, correction=0, keepdim=True)
        else:
            mean, deviation = (
                series.new_tensor(moment)[:, None]
                for moment in (self.mean, self.deviation)
            )
        varies = deviation > resolution(mean, _ROUNDINGS)
        return torch.where(varies, (series - mean) / deviation.where(varies, 1.0), 0.0)

    def config(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "mean": self.mean,
            "deviation": self.deviation,
            "sound": None if self.sound is None else asdict(self.sound),
            "columns": self.form.config(),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Scale":
        """What :meth:`config` was made of."""
        rows = (config[name] for name in ("mean", "deviation"))
        mean, deviation = (
            None if row is None else tuple(map(float, row)) for row in rows
        )
        form = SeriesForm.from_config(config["columns"])
        sound = None if config["sound"] is None else Sound(**config["sound"])
        return cls(mean, deviation, sound, form)


@dataclass(frozen=True, eq=False)
class SeriesSet(PlainExamples):
    """Labelled series: :class:`Examples` whose inputs are float32 (C + 1, L).

    The last channel says which moments are there, 1, and which pad a series behind its
    end, 0. Batches are as long as the longest series in them; their ``inputs`` are in
    the scale, their ``pictures`` as they were read.

    Attributes:
        inputs: float32 (N, C + 1, longest of all), as they were read.
        scale: the scale of the batches.

    Raises:
        ValueError: a tensor has another type or shape, a label is out of range, or
            ``preprocess`` or ``composition`` is given, which are for images.

    Example:
        >>> from torchcaps_lab.data import SeriesSet
        >>> rows = [torch.randn(2, 5), torch.randn(2, 3)]
        >>> SeriesSet.of(rows, torch.tensor([0, 1]), ("walk", "run")).inputs[1, -1]
        tensor([1., 1., 1., 0., 0.])
    """

    what = "series"
    larger = "--model_args.channels [128,128,128]"
    forgetting = "--model_args.dropout 0.5"

    scale: Scale = Scale()

    def _check_inputs(self) -> None:
        if (
            self.inputs.dtype != torch.float32
            or self.inputs.ndim != 3
            or self.inputs.shape[1] < 2
        ):
            raise ValueError(
                f"inputs must be float32 (N, C + 1, L), got {self.inputs.dtype} "
                f"{(*self.inputs.shape,)}"
            )

    @classmethod
    def of(
        cls,
        rows: Sequence[Tensor],
        labels: Tensor,
        classes: tuple[str, ...],
        **more: Any,
    ) -> "SeriesSet":
        """Make a set of series (C, L) of any lengths, at least one, with labels and
        other attributes.
        """
        return cls(padded(rows, len(rows[0])), labels, classes, **more)

    @property
    def raw_image_shape(self) -> tuple[int, int, int]:
        """The channels, without a size: series have any."""
        return self.inputs.shape[1] - 1, 1, 1

    def wrong_in(self, batch: Batch) -> str:
        """Whether series are not finite, or do not say where they are: from their
        beginning on, and 0 behind their end.
        """
        series = batch.inputs
        channels = self.raw_image_shape[0] + 1
        if series.dtype != torch.float32 or series.shape[1:-1] != (channels,):
            return (
                f"a batch is {series.dtype} {tuple(series.shape)}, not float32 (B, "
                f"{channels}, L)"
            )
        if not bool(series.isfinite().all()):
            return "series hold NaN or infinite numbers"
        present = series[:, -1]
        if not bool(((present == 0) | (present == 1)).all()):
            return "the last channel is neither 0 nor 1"
        if not bool((present.diff(dim=1) <= 0).all() and present[:, 0].all()):
            return "series do not begin at once"
        if bool((series * (present == 0)[:, None]).any()):
            return "something is behind the end of a series"
        return ""

    def row(self, index: int) -> Tensor:
        """One series as it was read, (C, L), without padding."""
        series = self.inputs[index]
        return series[:-1, series[-1] > 0]

    def _fetch(self, indices: list[int]) -> Batch:
        rows_of_series = [self.row(index) for index in indices]
        channels = self.image_shape[0]
        rows = self._on_device(indices)
        scaled = padded([self.scale(row) for row in rows_of_series], channels)
        return Batch(scaled, self.labels[rows], rows, padded(rows_of_series, channels))


def padded(rows: Sequence[Tensor], channels: int) -> Tensor:
    """Series (C, L) of any lengths as one tensor (B, C + 1, longest), whose last
    channel says where they are.
    """
    if not rows:
        return torch.zeros(0, channels + 1, 1)
    longest = max(row.shape[1] for row in rows)
    marked = [F.pad(row, (0, 0, 0, 1), value=1.0) for row in rows]
    return torch.stack([F.pad(row, (0, longest - row.shape[1])) for row in marked])

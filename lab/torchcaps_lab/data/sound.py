"""Sound as a series: how loud each band of frequencies is, a hundred times a second."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from torchcaps.numerics import Positive, Size
from torchcaps.spec import check_fields

_WINDOW, _HOP = 0.025, 0.010
"""Seconds that a frame looks at, and from one frame to the next."""

_QUIET = 1e-6
"""Added to the power before the logarithm: a thousandth of the amplitude of a loud sound."""


@dataclass(frozen=True)
class Sound:
    r"""Log-mel frames: the logarithm of the power in bands that lie evenly on the scale of mel,

    .. math:: x_{bl} = \log \Big( \sum_f \Lambda_b(f) \, |\operatorname{STFT}(s)_{lf}|^2 + 10^{-6} \Big), \quad
        \operatorname{mel}(f) = 2595 \log_{10} (1 + f / 700)

    with a Hann window of 25 ms every 10 ms (:func:`torch.stft`), and triangles Λ each of which begins and ends at the
    middles of its neighbours. Frames of sounds that were sampled at other rates mean the same.

    Args:
        bands: how many.
        highest: frequency in Hz at which the last band ends.

    Raises:
        ValueError: if one of them is not above 0.

    Source: Davis & Mermelstein 1980; the scale: O'Shaughnessy 1987.

    Example:
        >>> from torchcaps_lab.data.sound import Sound
        >>> tone = torch.sin(2 * torch.pi * 440 * torch.arange(4000) / 8000)
        >>> Sound(bands=20).frames(tone, rate=8000).shape
        torch.Size([20, 51])
    """

    bands: Size = 40
    highest: Positive = 4000.0

    def __post_init__(self) -> None:
        check_fields(self)

    def frames(self, samples: Tensor, rate: int) -> Tensor:
        """The frames (bands, L) of samples (N,).

        Raises:
            ValueError: if it is silent, or was sampled too rarely for the highest frequency.
        """
        if not len(samples) or float(samples.min()) == float(samples.max()):
            raise ValueError("it is silent: all samples are equal" if len(samples) else "it holds no samples")
        if rate < 2 * self.highest:
            raise ValueError(
                f"it has {rate} samples a second, of which frequencies up to {rate / 2:g} Hz are known: "
                f"highest must be at most that, got {self.highest:g}"
            )
        window = round(_WINDOW * rate)
        size = 1 << (2 * window - 1).bit_length()  # twice as fine as the window needs, so that narrow bands hold some
        spectrum = torch.stft(
            samples.float(), size, round(_HOP * rate), window, torch.hann_window(window),
            pad_mode="constant", return_complex=True,
        )  # fmt: skip
        return torch.log(_triangles(self, rate, size) @ spectrum.abs().square() + _QUIET)


@lru_cache
def _triangles(sound: Sound, rate: int, size: int) -> Tensor:
    """How much of each frequency is in each band, (bands, size / 2 + 1)."""
    mels = torch.linspace(0, 2595 * math.log10(1 + sound.highest / 700), sound.bands + 2, dtype=torch.float64)
    start, middle, end = ((700 * (10 ** (mels / 2595) - 1))[place : place + sound.bands, None] for place in range(3))
    frequency = torch.linspace(0, rate / 2, size // 2 + 1, dtype=torch.float64)
    rising, falling = (frequency - start) / (middle - start), (end - frequency) / (end - middle)
    return torch.minimum(rising, falling).clamp_min(0).float()

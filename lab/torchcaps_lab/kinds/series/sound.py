"""Sound as a series: how loud each band of frequencies is, a hundred times a second."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Annotated

import torch
from torch import Tensor

from torchcaps.numerics import Positive, resolution
from torchcaps.spec import Within, check_fields

_WINDOW = 0.025
_HOP = 0.010
"""Seconds that a frame looks at, and from one frame to the next."""

MOST_RATE = 1_000_000
"""Samples a second: recorders of bats and of materials take up to half of them."""

Bands = Annotated[int, Within(1, 1024)]
"""How many bands: more are narrower than what a window of 25 ms can tell apart."""

_SPECTRUM = 2**24
"""Numbers of a spectrogram that are held at once: 40 seconds or more at 48 kHz."""

_QUIET = 5e-11
"""Added to the power before the logarithm; the rounding to 16 bits makes a noise of 8e-11
in all bands together.
"""


@dataclass(frozen=True)
class Sound:
    r"""Log-mel frames: the logarithm of the power in bands that lie evenly on the scale
    of mel,

    .. math:: x_{bl} = \log \Big( \frac{2}{F \sum_n w_n^2} \sum_f \Lambda_b(f) \,
        |\operatorname{STFT}(s)_{lf}|^2 + 5 \cdot 10^{-11} \Big), \quad
        \operatorname{mel}(f) = 2595 \log_{10} (1 + f / 700)

    with a Hann window w of 25 ms every 10 ms and a transform of F samples
    (:func:`torch.stft`), and triangles Λ each of which begins and ends at the middles of
    its neighbours. A tone of amplitude 1 has the power 1/2 in all bands together, at any
    rate of sampling, so frames of sounds that were sampled at other rates mean the same.

    Args:
        bands: how many.
        highest: frequency in Hz at which the last band ends.

    Raises:
        ValueError: if one of them is not above 0.

    Source: Davis & Mermelstein 1980; the scale: O'Shaughnessy 1987.

    Example:
        >>> from torchcaps_lab.kinds.series.sound import Sound
        >>> tone = torch.sin(2 * torch.pi * 440 * torch.arange(4000) / 8000)
        >>> Sound(bands=20).frames(tone, rate=8000).shape
        torch.Size([20, 51])
    """

    bands: Bands = 40
    highest: Positive = 4000.0

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        return f"{self.bands} bands up to {self.highest:g} Hz"

    def frames(self, samples: Tensor, rate: int) -> Tensor:
        """The frames (bands, L) of samples (N,).

        Raises:
            ValueError: if it is silent, or was sampled too rarely for the highest
                frequency, or more often than any sound in air is.
        """
        return self.frames_of([samples], rate)

    def frames_of(self, pieces: Iterable[Tensor], rate: int) -> Tensor:
        """The same of samples that come in pieces; no more than a few seconds of them
        are held at once.
        """
        if rate < max(2 * self.highest, 2 / _HOP):
            raise ValueError(
                f"it has {rate} samples a second, which hold frequencies up to "
                f"{rate / 2:g} Hz. highest (--data.highest) must be at most that, and "
                f"at least {1 / _HOP:g}, got {self.highest:g}"
            )
        if rate > MOST_RATE:
            raise ValueError(
                f"it states {rate:,} samples a second, at most {MOST_RATE:,} are read"
            )
        window = round(_WINDOW * rate)
        hop = round(_HOP * rate)
        # Twice as fine as the window needs, so that narrow bands hold some.
        size = 1 << (2 * window - 1).bit_length()
        hann = torch.hann_window(window)
        triangles = _triangles(self, rate, size) * 2 / (size * hann.square().sum())
        heard = _Heard()
        blocks = _overlapping(heard.noting(pieces), size, hop)
        stft = partial(torch.stft, center=False, return_complex=True)
        frames = []
        for block in blocks:
            power = stft(block, size, hop, window, hann).abs().square()
            frames.append(torch.log(triangles @ power + _QUIET))
        heard.check()
        moments = torch.cat(frames, 1)
        if moments.shape[1] < 2:
            raise ValueError(
                f"it is too short: it has {heard.count:,} samples, at least {hop:,} "
                "are needed"
            )
        return moments


class _Heard:
    """The number and the range of the samples of a sound."""

    def __init__(self) -> None:
        self.count = 0
        self.lowest = math.inf
        self.highest = -math.inf

    def noting(self, pieces: Iterable[Tensor]) -> Iterator[Tensor]:
        """The same pieces, noted while they pass."""
        for piece in pieces:
            if len(piece):
                self.count += len(piece)
                self.lowest = min(self.lowest, float(piece.min()))
                self.highest = max(self.highest, float(piece.max()))
            yield piece.float()

    def check(self) -> None:
        """Raise a `ValueError` if there was nothing to hear."""
        if not self.count:
            raise ValueError("it holds no samples")
        ends = torch.tensor([self.lowest, self.highest])
        if ends.diff() <= resolution(ends.abs().max(), roundings=4):
            raise ValueError("it is silent: all samples are equal")


def _overlapping(pieces: Iterable[Tensor], size: int, hop: int) -> Iterator[Tensor]:
    """Blocks of samples of which frames of ``size`` every ``hop`` are those of all
    samples with zeros around them.
    """
    frames = max(1, _SPECTRUM // size)
    held = torch.zeros(size // 2)
    for piece in chain(pieces, [held]):
        held = torch.cat([held, piece])
        while len(held) >= size + frames * hop:
            yield held[: size + (frames - 1) * hop]
            held = held[frames * hop :]
    if len(held) >= size:
        yield held


@lru_cache
def _triangles(sound: Sound, rate: int, size: int) -> Tensor:
    """How much of each frequency is in each band, (bands, size / 2 + 1)."""
    most = 2595 * math.log10(1 + sound.highest / 700)
    mels = torch.linspace(0, most, sound.bands + 2, dtype=torch.float64)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    start, middle, end = (hertz[k : k + sound.bands, None] for k in range(3))
    frequency = torch.linspace(0, rate / 2, size // 2 + 1, dtype=torch.float64)
    rising = (frequency - start) / (middle - start)
    falling = (end - frequency) / (end - middle)
    return torch.minimum(rising, falling).clamp_min(0).float()

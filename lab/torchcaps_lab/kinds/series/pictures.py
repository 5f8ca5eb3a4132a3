"""Series, and over time which class each moment spoke for; sounds are played."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from torchcaps.whole import read_bytes
from torchcaps_lab.evaluate.findings import Findings, evaluating, kept
from torchcaps_lab.evaluate.layers import observe_layers
from torchcaps_lab.kinds.series.files import SOUNDS
from torchcaps_lab.kinds.series.networks import SeriesCapsNet
from torchcaps_lab.kinds.series.series_set import SeriesSet
from torchcaps_lab.report.canvas import (
    class_legend,
    colour_of,
    named_legend,
    new_figure,
    set_title,
)
from torchcaps_lab.report.exhibit import Exhibit, Picture, register_exhibit
from torchcaps_lab.report.observe import Tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 6
"""Series of an exhibit."""

_LINES = 12
"""Channels that are drawn as lines; more are drawn as rows of an image."""

_GREYS = ("black", "#707070", "#b0b0b0")
_STYLES = ("-", "--", ":", "-.")
"""Of the lines, which together tell the channels apart."""

_PLAYED = 400_000
"""Bytes of a sound that a page holds."""

MEANING = (
    "The strip below each series has, for each moment, the colour of the class whose "
    "pose its votes made longer. The colour is stronger if they added more."
)
NO_CAPSULES = "This network has no capsules, so it cannot show which moment spoke for which class."


class ShownSeries(NamedTuple):
    """One series.

    Args:
        title: what was said about it.
        values: (C, L), in the scale of the network.
        shares: how much each moment spoke for each class, (L, E); empty without
            capsules.
        file: where it is, for a sound.
    """

    title: str
    values: Tensor
    shares: Tensor
    file: str


@register_exhibit("series", place=52, drawings="series*.png")
class SeriesOverTime(Exhibit):
    """Series and, where the network has capsules, which class each moment spoke for.

    Attributes:
        series: with what was said about them.
        classes: their names.
        channels: their names.
        file: the file of the picture.

    Example:
        >>> from torchcaps_lab.report.pictures import SeriesOverTime
        >>> SeriesOverTime(
        ...     title="Vowels",
        ...     text="",
        ...     series=(),
        ...     classes=("a", "e"),
        ...     channels=("left", "right"),
        ...     file="series.png",
        ... ).classes
        ('a', 'e')
    """

    examples = SeriesSet

    series: tuple[ShownSeries, ...]
    classes: tuple[str, ...]
    channels: tuple[str, ...]
    file: str

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[SeriesOverTime]":
        """The worst mistakes, and the clearest series of each class."""
        series = SeriesSet.require(tested.images)
        findings = tested.findings
        chosen = {
            "The worst mistakes over time": findings.mistakes(_MOST),
            "The clearest series of each class": findings.examples(_MOST),
        }
        files = ("series-mistakes.png", "series.png")
        for (title, indices), file in zip(chosen.items(), files, strict=True):
            places = indices.tolist()[:_MOST]
            if places:
                titles = [_title(findings, series, place) for place in places]
                shown = cls.of(tested.model, series, places, titles)
                yield replace(shown, title=title, file=file)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        series: SeriesSet,
        places: Sequence[int],
        titles: Sequence[str],
    ) -> "SeriesOverTime":
        """Show some series of a set.

        Args:
            model: the network.
            series: the set, in the scale of the network.
            places: the places of the series in the set, at least one.
            titles: the title of each.
        """
        return cls(
            title="What each moment spoke for",
            text=MEANING if isinstance(model, SeriesCapsNet) else NO_CAPSULES,
            series=tuple(
                _shown_series(model, series, place, title)
                for place, title in zip(places, titles, strict=True)
            ),
            classes=tuple(series.classes),
            channels=_channels(series),
            file="series.png",
        )

    def draw(self) -> Iterator[Picture]:
        """The series, one below the other."""
        yield Picture(
            self.file,
            f"{self.title}: {len(self.series)} series",
            series_figure(self.series, self.classes, self.channels),
        )

    def html(self) -> str | None:
        """Each sound, to be played."""
        sounds = [
            (series.title, address)
            for series in self.series
            if (address := _playable(Path(series.file)))
        ]
        played = [
            f'<p>{escape(title)}<br><audio controls src="{address}"></audio></p>'
            for title, address in sounds
        ]
        return "\n".join(played) or None


def moment_shares(model: nn.Module, series: Tensor) -> Tensor | None:
    r"""How much each moment spoke for each class: what its votes add along the pose of
    the class,

    .. math:: g_{lj} = \sum_t a_{lt} R_{ltj} \max(0, \langle V_{ltj}, v_j / |v_j| \rangle), \quad
        s_{lj} = a_j \, g_{lj} \Big/ \sum_l g_{lj},

    over the most of any. An assignment alone does not tell: capsules that agree on
    nothing may be many.

    Args:
        model: a network that takes series.
        series: (B, C, L) or with the channel that says which moments are there.

    Returns:
        (B, L, E) in [0, 1]; a moment has what the nearest capsules before it gave. None
        for a network without capsules, or with a routing that has transforms of its
        own.
    """
    if not isinstance(model, SeriesCapsNet) or not isinstance(
        model.class_caps.weight, nn.Parameter
    ):
        return None
    with evaluating(model) as device:
        layer = list(observe_layers(model, series.to(device)).values())[-1]
        assert layer.children is not None
        votes = torch.einsum(
            "bltp,tjpd->bltjd", layer.children.pose, model.class_caps.weight
        )
        direction = normalize(layer.capsules.pose, dim=-1)[:, None, None]
        along = (votes * direction).sum(-1).clamp_min(0)
        R = layer.assignment().unflatten(2, along.shape[1:3])[:, 0]  # [B, L', types, E]
        handed = (layer.children.activation[..., None] * R * along).sum(2)
        least = torch.finfo(handed.dtype).tiny
        shares = handed / handed.sum(1, keepdim=True).clamp_min(least)
        handed = shares * layer.capsules.activation[:, None]
    most = handed.amax((1, 2), keepdim=True).clamp_min(least)
    of_moments = (handed / most).repeat_interleave(model.stride, 1)
    return kept(of_moments[:, : series.shape[-1]])


def _shown_series(
    model: nn.Module,
    series: SeriesSet,
    place: int,
    title: str,
) -> ShownSeries:
    values = series.scale(series.row(place))
    shares = moment_shares(model, values[None])
    strip = torch.zeros(0) if shares is None else shares[0]
    file = series.files[place] if series.files else ""
    return ShownSeries(title, values, strip, file)


def _title(findings: Findings, series: SeriesSet, index: int) -> str:
    """The answer for a series, and its class if that is another one."""
    true = int(findings.labels[index])
    predicted = int(findings.prediction[index])
    file = series.files[index] if series.files else ""
    wrong = "" if true == predicted else f", but it is {series.classes[true]}"
    sure = float(findings.activation[index, predicted])
    # Files in the folders of two classes may have one name.
    name = "/".join(Path(file).parts[-2:]) or index
    return f"{name}: answer {series.classes[predicted]} ({sure:.2f}){wrong}"


def _channels(series: SeriesSet) -> tuple[str, ...]:
    """The names of the channels; their numbers where a file names none."""
    count, *_ = series.raw_image_shape
    names = series.scale.form.channels
    if len(names) == count:
        return names
    return tuple(f"channel {number}" for number in range(1, count + 1))


def _playable(path: Path) -> str:
    """A sound as a ``data:`` address; empty if it is none, gone or too large."""
    if (
        path.suffix.lower() not in SOUNDS
        or not path.is_file()
        or path.stat().st_size > _PLAYED
    ):
        return ""
    content = base64.b64encode(read_bytes(path, _PLAYED)).decode()
    return f"data:{SOUNDS[path.suffix.lower()]};base64,{content}"


def series_figure(
    series: tuple[ShownSeries, ...],
    classes: tuple[str, ...],
    channels: tuple[str, ...],
) -> "Figure":
    """Series one below the other, lines or an image, each above a strip of what its
    moments spoke for. Channels are grey, because colours are classes.
    """
    from cycler import cycler
    from matplotlib.colors import to_rgba

    looks = [(grey, style) for style in _STYLES for grey in _GREYS]
    greys, styles = zip(*looks, strict=True)
    figure = new_figure(8, 1.7 * len(series) + 0.5)
    rows = figure.subplots(
        2 * len(series), 1, squeeze=False, height_ratios=[6, 1] * len(series)
    )[:, 0]
    used: set[int] = set()
    for above, strip, shown in zip(
        rows[::2],
        rows[1::2],
        series,
        strict=True,
    ):
        set_title(above, shown.title)
        if len(shown.values) > _LINES:
            above.imshow(
                shown.values.numpy(), aspect="auto", origin="lower", cmap="magma"
            )
        else:
            above.set_prop_cycle(cycler(color=greys, linestyle=styles))
            above.plot(shown.values.T.numpy(), linewidth=0.9)
            above.set_xlim(-0.5, shown.values.shape[1] - 0.5)
        above.set(
            xticks=[], ylabel="channels" if len(shown.values) > _LINES else "value"
        )
        strip.set(yticks=[])
        if shown.shares.numel():
            strength, labels = shown.shares.max(1)
            used |= set(labels.unique().tolist())
            pairs = zip(labels.tolist(), strength.tolist(), strict=True)
            strip.imshow(
                [[to_rgba(colour_of(label), share) for label, share in pairs]],
                aspect="auto",
            )
    rows[-1].set_xlabel("moment")
    class_legend(
        figure,
        "outside upper right",
        {classes[label]: colour_of(label) for label in sorted(used)},
    )
    if 1 < len(channels) <= _LINES:
        handles = dict(zip(channels, rows[0].lines, strict=True))
        named_legend(figure, "outside lower center", handles)
    return figure

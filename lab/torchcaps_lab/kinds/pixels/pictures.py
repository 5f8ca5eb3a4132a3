"""Images with the class of each pixel laid over them: what is true, what was
predicted, where that is wrong.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchcaps_lab.report.canvas import (
    class_legend,
    colour_of,
    new_figure,
    set_title,
    show,
)
from torchcaps_lab.report.exhibit import (
    Exhibit,
    Picture,
    Table,
    pixels,
    png,
    register_exhibit,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image


class ShownSegments(NamedTuple):
    """One image.

    Args:
        title: over it.
        image: (C, H, W) in [0, 1].
        true: the class of each pixel, int64 (H, W); those behind the last class have
            none.
        predicted: likewise.
    """

    title: str
    image: Tensor
    true: Tensor
    predicted: Tensor


@register_exhibit("segments", drawings="segments*.png")
class Segments(Exhibit):
    """How well each class was found, and the worst images.

    Attributes:
        figures: ``pixels``, ``iou`` and ``dice`` of each class, by name.
        shown: images.
        classes: their names.

    Example:
        >>> from torchcaps_lab.report.pictures import Segments
        >>> cell = {"pixels": 90, "iou": 0.5, "dice": 2 / 3}
        >>> Segments(
        ...     title="Cells",
        ...     text="",
        ...     figures={"cell": cell},
        ...     shown=(),
        ...     classes=("cell",),
        ... ).table().rows
        [['cell', '90', '50.00 %', '66.67 %']]
    """

    figures: Mapping[str, Mapping[str, Any]]
    shown: tuple[ShownSegments, ...]
    classes: tuple[str, ...]

    def table(self) -> Table:
        """A row for each class."""
        rows = []
        for name, row in self.figures.items():
            shares = [_percent(row["iou"]), _percent(row["dice"])]
            rows.append([name, f"{row['pixels']:,}", *shares])
        return Table(rows, ["class", "pixels", "IoU", "Dice"])

    def draw(self) -> Iterator[Picture]:
        """Image, truth, answer and errors, in a row each."""
        if self.shown:
            figure = segments_figure(self.shown, self.classes)
            yield Picture(
                "segments.png",
                f"The {len(self.shown)} worst images: truth, answer, errors",
                figure,
            )

    def to_json(self) -> dict[str, Any]:
        """Titles stand for the images, which the picture has."""
        return {
            **super().to_json(),
            "shown": [segments.title for segments in self.shown],
        }


def _percent(share: float) -> str:
    """The share in words; a dash for NaN, of a class that is nowhere."""
    return "-" if math.isnan(share) else f"{share:.2%}".replace("%", " %")


def colours(count: int) -> Tensor:
    """Return the colours of classes, (count, 3) in [0, 1]: black for the first."""
    from matplotlib.colors import to_rgb

    codes = ["#000000", *map(colour_of, range(count - 1))]
    return torch.tensor(list(map(to_rgb, codes)))


def mask_values(classes: Sequence[str]) -> list[int]:
    """The value of each class in a mask: its name where all names are values, as those
    of masks without names are; else its number.

    Example:
        >>> from torchcaps_lab.kinds.pixels.pictures import mask_values
        >>> mask_values(["0", "255"]), mask_values(["cell", "membrane"])
        ([0, 255], [0, 1])
    """
    values = {str(value): value for value in range(256)}
    if {*classes} <= values.keys():
        return [values[name] for name in classes]
    return [*range(len(classes))]


def indexed(mask: Tensor, values: Sequence[int]) -> "Image":
    """The class of each pixel, (H, W), as an image with the values of the classes and
    a palette of their colours.
    """
    from PIL import Image

    table = torch.tensor(values, dtype=torch.uint8)
    palette = torch.zeros(256, 3)
    palette[table.long()] = colours(len(values))
    image = Image.fromarray(table[mask].numpy())
    image.putpalette((palette * 255).round().to(torch.uint8).flatten().tolist())
    return image


def drawings_of(
    mask: Tensor | None, picture: Tensor, values: Sequence[int]
) -> dict[str, bytes]:
    """Return the files that ``predict`` writes for a mask, by the ends of their names.

    Args:
        mask: the class of each pixel, (H, W); None for no mask.
        picture: the picture, (C, H, W) in [0, 1].
        values: the value of each class in the file.

    Returns:
        The mask as an image with indexed colours, and laid over the picture.
    """
    if mask is None:
        return {}
    file = BytesIO()
    indexed(mask, values).save(file, "PNG")
    laid_over = overlay(picture, mask, len(values))
    return {".png": file.getvalue(), ".overlay.png": png(laid_over)}


def overlay(image: Tensor, mask: Tensor, count: int) -> Tensor:
    """An image (C, H, W) with the colours of its classes but the first over it: (3, H,
    W) in [0, 1].
    """
    shown = pixels(image).movedim(-1, 0)
    table = torch.cat([colours(count), torch.zeros(1, 3)])
    painted = table[mask.clamp_max(count)].movedim(-1, 0)
    covered = (mask > 0) & (mask < count)
    return torch.where(covered, (shown + painted) / 2, shown)


def segments_figure(shown: Sequence[ShownSegments], classes: Sequence[str]) -> "Figure":
    """A row for each image: it, the truth over it, the answer over it, and the wrong
    pixels in white.
    """
    count = len(classes)
    figure = new_figure(9, 2.45 * len(shown) + 0.5)
    for row, segments in zip(
        figure.subplots(len(shown), 4, squeeze=False), shown, strict=True
    ):
        wrong = (segments.predicted != segments.true) & (segments.true < count)
        panels = (
            segments.image,
            overlay(segments.image, segments.true, count),
            overlay(segments.image, segments.predicted, count),
            wrong[None],
        )
        for axes, panel, title in zip(
            row, panels, (segments.title, "true", "predicted", "wrong"), strict=True
        ):
            show(axes, panel.float())
            set_title(axes, title, fontsize=8)
    used: set[int] = set()
    for segments in shown:
        used |= {
            *segments.true.unique().tolist(),
            *segments.predicted.unique().tolist(),
        }
    labels = [label for label in range(1, count) if label in used]
    painted = {classes[label]: colour_of(label - 1) for label in labels}
    class_legend(
        figure,
        "outside lower center",
        {f"not painted: {classes[0]}": "none", **painted},
    )
    return figure

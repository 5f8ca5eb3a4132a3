"""Doubts about the values of masks that are taken for classes: files that change
values, edges, inverted masks.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps_lab.data.manifest import some

LOSSY = ("JPEG", "MPO", "AVIF", "HEIF", "WEBP", "JPEG2000")
"""Formats that change the values of pixels, or may."""

_LOOKED_AT = 16
_RAGGED = 0.3
"""Share of places at edges with three or more values, above which edges are smooth.

Discs of 2 to 21 classes: 0.00 to 0.02 as drawn, 0.15 with a contour of one pixel; 0.65
and more as JPEG, 0.58 and more made larger or smaller smoothly.
"""

_BETWEEN = 0.7
"""Share of the pixels of a value that lie between others, above which smoothing made
it; 0.8 at corners of boxes.
"""

_MOST_DRAWN = 4  # values: as few classes meet at many places where things are small
_RARE = 0.001
_NEAR = 24
"""A value that is nearer to one that is more frequent is one that was changed."""

_LISTED = 12


class Mask(NamedTuple):
    """The values in a mask.

    Args:
        path: its file.
        values: uint8 (H, W).
        format: the format of the file.
        mode: the mode of its pixels in Pillow.
        colours: the colours of its values, where these are numbers of colours.
    """

    path: Path
    values: Tensor
    format: str = "PNG"
    mode: str = "L"
    colours: Mapping[int, tuple[int, ...]] = {}


def count_values(masks: Sequence[Mask]) -> Tensor:
    """How often each value occurs, int64 (256,)."""
    counts = torch.zeros(256, dtype=torch.int64)
    for mask in masks:
        counts += torch.bincount(mask.values.flatten().int(), minlength=256)
    return counts


def main_values(counts: Tensor) -> list[int]:
    """The values that were drawn, among those that edges and compression made:
    frequent, and not beside one that is more so.
    """
    values_apart: list[int] = []
    for value in counts.argsort(descending=True).tolist():
        frequent = counts[value] >= counts.sum() / 100
        if frequent and all(abs(value - earlier) >= _NEAR for earlier in values_apart):
            values_apart.append(value)
    return sorted(values_apart)


def smooth_share(values: Tensor) -> float:
    """The share of places at edges, 2 x 2 pixels of more than one value, that have
    three or more.
    """
    squares = values.unfold(0, 2, 1).unfold(1, 2, 1).flatten(2)
    further = (squares.sort().values.diff() != 0).sum(2)
    edges = int((further > 0).sum())
    return int((further > 1).sum()) / edges if edges else 0.0


def between_share(masks: Sequence[Mask]) -> Tensor:
    """The share of the pixels of each value that lie between a lower and a higher one,
    in a row or a column, (256,).
    """
    inside = torch.zeros(256)
    between = torch.zeros(256)
    for mask in masks:
        inner = mask.values[1:-1, 1:-1].int()
        rows, columns = (
            values.int() for values in (mask.values[:, 1:-1], mask.values[1:-1])
        )
        sides = ((rows[:-2], rows[2:]), (columns[:, :-2], columns[:, 2:]))
        lies = [
            (inner > torch.minimum(*pair)) & (inner < torch.maximum(*pair))
            for pair in sides
        ]
        inside += torch.bincount(inner.flatten(), minlength=256)
        between += torch.bincount(inner[lies[0] | lies[1]], minlength=256)
    return between / inside.clamp_min(1)


def _smooth(masks: Sequence[Mask], counts: Tensor) -> list[Mask]:
    """Masks whose edges are smooth, if most are: edges in all directions, or the
    straight ones of boxes.
    """
    if int((counts > 0).sum()) <= _MOST_DRAWN:
        return []
    looked_at = masks[:: -(-len(masks) // _LOOKED_AT) or 1]
    ragged = [mask for mask in looked_at if smooth_share(mask.values) > _RAGGED]
    if 2 * len(ragged) > len(looked_at):
        return ragged
    added = count_values(looked_at).nonzero().flatten().tolist()
    added = [
        value
        for value in added
        if counts[value] and value not in _with_interior(looked_at)
    ]
    share = between_share(looked_at)
    if len(added) > 1 and all(share[value] > _BETWEEN for value in added):
        return list(looked_at)
    return []


def _with_interior(masks: Sequence[Mask]) -> set[int]:
    """The values that fill 3 x 3 pixels somewhere."""
    filled = set[int]()
    for mask in masks:
        blocks = mask.values.unfold(0, 3, 1).unfold(1, 3, 1).flatten(2)
        filled |= set(blocks[(blocks == blocks[..., :1]).all(2)][:, 0].tolist())
    return filled


def check_drawn(masks: Sequence[Mask], counts: Tensor) -> None:
    """Raise a `ValueError` if the values of masks, taken for classes, look like fewer
    ones that were changed.
    """
    count = int((counts > 0).sum())
    drawn = main_values(counts)
    lossy = [mask for mask in masks if mask.format in LOSSY]
    if lossy and count > 1 and len(drawn) < 2:
        raise ValueError(
            f"the values of the masks are too near for {lossy[0].format} files, which "
            f"change values: {lossy[0].path}; "
            "save what was drawn as PNG, or take the values as they are: "
            "--data.values "
            f"'{counts.nonzero().flatten().tolist()}'"
        )
    changed = lossy or _smooth(masks, counts)
    if count < 3 or not changed:
        return
    if not lossy:
        filled = _with_interior(changed)
        drawn = [value for value in drawn if value in filled] or drawn
    if len(drawn) < 2:  # one value is no choice: the nearest of it is all there is
        there = counts.nonzero().flatten().tolist()
        drawn = [there[0], there[-1]]
    why = f"{lossy[0].format} files do not keep values" if lossy else "edges are smooth"
    raise ValueError(
        f"the masks have {count} values, but look as if {len(drawn)} were drawn, "
        f"{drawn}, and {why}: "
        f"{changed[0].path}; save masks as PNG without smoothing, or take each pixel "
        "for the nearest of the values "
        f"that you name: --data.values '{drawn}' --data.nearest true"
    )


def check_colours(masks: Sequence[Mask]) -> None:
    """Raise a `ValueError` if a value, the number of a colour, stands for two colours
    in two masks.
    """
    first: dict[int, Mask] = {}
    for mask in masks:
        for value, colour in mask.colours.items():
            first_mask = first.setdefault(value, mask)
            if first_mask.colours[value] != colour:
                raise ValueError(
                    f"the value {value} of masks is the colour {first_mask.colours[value]} "
                    f"in {first_mask.path} and {colour} in "
                    f"{mask.path}: each has numbers of its own for colours; save all "
                    "with one palette, or name the "
                    "values to take them as they are: --data.values '[0, 1]'"
                )


def mask_lines(
    masks: Sequence[Mask],
    counts: Tensor,
    values: Sequence[int],
    ignore: int | None,
) -> Iterator[str]:
    """Tell people which values were taken for classes, and what speaks against it."""
    shares = [
        (value, int(counts[value]) / max(int(counts.sum()), 1)) for value in values
    ]
    if len(values) <= _LISTED:
        yield (
            "classes are the values of the masks: "
            f"{', '.join(f'{value} ({share:.1%})' for value, share in shares)}"
        )
    else:
        yield (
            f"classes are the {len(values)} values of the masks, {values[0]} to "
            f"{values[-1]}"
        )
    if rare := [
        f"{value} ({int(counts[value])} pixels)"
        for value, share in shares
        if share < _RARE
    ]:
        yield (
            f"values of masks that are rare, and a class each: {some(rare)}; "
            "--data.values names the classes"
        )
    if (
        ignore is None
        and len(values) > 2
        and values[-1] == 255
        and values[-2] == len(values) - 2
    ):
        yield (
            "the value 255 of masks is a class here, but often means no class: "
            "--data.ignore 255"
        )
    if len({mask.mode for mask in masks}) > 1:
        modes = ", ".join(sorted({mask.mode for mask in masks}))
        yield (
            f"masks have several kinds of pixels, {modes}: in P the number of a "
            "colour counts, and 1 holds 0 and 1"
        )
    yield from _inverted_lines(masks, values)


def _inverted_lines(masks: Sequence[Mask], values: Sequence[int]) -> Iterator[str]:
    """Tell people which masks of two values have, along their borders, the value that
    others have inside.
    """
    if len(values) != 2:
        return
    outside = {mask.path: _most_at_border(mask.values) for mask in masks}
    odd = min(values, key=[*outside.values()].count)
    names = [path.name for path, value in outside.items() if value == odd]
    if 0 < 4 * len(names) <= len(masks):
        yield (
            f"masks whose border has mostly the value {odd}, unlike the others, "
            f"may be inverted: {some(names)}"
        )


def _most_at_border(values: Tensor) -> int:
    border = torch.cat([values[0], values[-1], values[:, 0], values[:, -1]])
    return int(border.mode().values)


def nearest_of(values: Sequence[int]) -> Tensor:
    """The nearest of some values to each of 0 to 255, int64 (256,); the first of two
    that are as near.
    """
    levels = torch.tensor(sorted(values))
    return levels[(torch.arange(256)[:, None] - levels).abs().argmin(1)]

"""Finds what makes guesses about images doubtful: a range that is hardly used, blank
pictures, classes alike.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from torchcaps_lab.data.manifest import some
from torchcaps_lab.kinds.images.decoding.bands import Bands, Levels
from torchcaps_lab.look import counted

DARK = 64
"""A set of which no pixel is brighter, of 255, uses a quarter of the grey levels or
less.
"""

_AT_ONCE = 256

_FEW = 5  # images that show that a class goes by its files


class Extent(NamedTuple):
    """The least and the most of the numbers in a picture of more than 8 bit.

    Args:
        kind: ``integer`` or ``float``.
        least: the least value of all channels.
        most: likewise.
    """

    kind: str
    least: float
    most: float


def extent_of(image: Any) -> Extent | None:
    """The extent of a picture, decoded for it; None for one of 8 bit, or with numbers
    that are not finite.
    """
    if isinstance(image, Bands):
        pixels = image.pixels
    elif image.mode.startswith(("I", "F")):
        pixels = np.asarray(image)
    else:
        return None
    if (
        pixels.dtype == np.uint8
        or pixels.dtype.kind not in "iuf"
        or not np.isfinite(pixels).all()
    ):
        return None
    return Extent(
        "float" if pixels.dtype.kind == "f" else "integer",
        float(pixels.min()),
        float(pixels.max()),
    )


def range_for(extents: Iterable[Extent]) -> Levels | None:
    """The range that pictures use, if it is another than the usual one of their kind;
    None also for none of them.

    Whole numbers from 0 span a number of bits, so 3,900 asks for 0 to 4,095.

    Example:
        >>> from torchcaps_lab.kinds.images.doubts import Extent, range_for
        >>> (
        ...     range_for([Extent("integer", 3, 3900)]),
        ...     range_for([Extent("integer", 0, 60000)]),
        ... )
        ((0, 4095), None)
        >>> (
        ...     range_for([Extent("float", -1000, 412.5)]),
        ...     range_for([Extent("float", 0, 1)]),
        ...     range_for([Extent("float", 0, 2.5)]),
        ... )
        ((-1000, 412.5), None, (0, 2.5))
    """
    rows = list(extents)
    if not rows:
        return None
    least = min(row.least for row in rows)
    most = max(row.most for row in rows)
    if all(row.kind == "integer" for row in rows) and least >= 0:
        top = (1 << max(int(most).bit_length(), 8)) - 1
        return None if top == 65535 else (0, top)
    if 0 <= least <= most <= 1:
        return None
    return (0, 255) if least >= 0 and DARK < most <= 255 else (least, most)


def range_text(levels: Levels) -> str:
    """A range for people: ``0 to 4,095``."""
    return " to ".join(f"{value:,.6g}" for value in levels)


def range_option(levels: Levels) -> str:
    """A range as it is typed on a command line."""
    return f"[{', '.join(f'{value:.10g}' for value in levels)}]"


def image_doubts(images: Tensor, names: Sequence[str]) -> Iterator[str]:
    """Tell people what speaks against images as they were read, uint8 (N, C, H, W):
    blank ones, an unused range.
    """
    blank = []
    brightest = 0
    for start in range(0, len(images), _AT_ONCE):
        rows = images[start : start + _AT_ONCE].flatten(1)
        least = rows.amin(1)
        most = rows.amax(1)
        empty = (least == most) & ((least == 0) | (least == 255))
        blank += [names[start + row] for row in empty.nonzero().flatten().tolist()]
        brightest = max(brightest, int(most.max()))
    if blank and images[0].numel() > 1:
        yield (
            f"{counted(len(blank), 'images')} all black or all white as read, where transparent "
            "parts show black and pixels beyond "
            f"the range are cut off: {some(blank)}"
        )
    if 0 < brightest <= DARK and len(blank) < len(images):
        yield (
            f"no pixel of the training images is brighter than {brightest} of 255: of "
            f"the grey levels, {brightest + 1} "
            "are used; --data.range names the values of pixels that become black and "
            "white, such as 0 and 4095 of "
            "12 bit"
        )


def frames_lines(names: Sequence[str]) -> list[str]:
    """Tell people of images of several frames, by their names."""
    frames = (
        f"{counted(len(names), 'images')} of several frames, the first of which counts"
    )
    return [f"{frames}: {some(names)}"] if names else []


def files_doubts(facts: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[str]:
    """Tell people of classes that can be told by a fact of their files alone, such as
    their format.

    Args:
        facts: for each kind of fact, the class and the fact of each image.
    """
    for kind, rows in facts.items():
        of_class: dict[str, Counter[str]] = {}
        for category, fact in rows:
            of_class.setdefault(category, Counter())[fact] += 1
        for category, counts in of_class.items():
            other_classes = [name for name in of_class if name != category]
            elsewhere = set[str]().union(*(of_class[name] for name in other_classes))
            (fact, count), *more = counts.most_common()
            if not more and elsewhere and fact not in elsewhere and count >= _FEW:
                yield (
                    f"all {count:,} images of {category} have the {kind} "
                    f"{fact}, and no others have: a "
                    "network may learn that instead of what they show"
                )

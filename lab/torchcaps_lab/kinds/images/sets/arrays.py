"""Images and their labels in two arrays, as NumPy, torch and scikit-learn hold them, as
pairs.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchcaps_lab.data.labels import Label, each_of
from torchcaps_lab.data.pairs import is_two_arrays
from torchcaps_lab.look import counted

Axes = Literal["NHW", "NHWC", "NCHW"]
"""The order of the axes of several images: N images, C channels, H height, W width."""

USUAL_CHANNELS = (1, 3, 4)
"""Grey, colour, and colour with a transparent part."""


LONGEST_SIDE = 4
"""Times that one side of grey images in an array may be the other. Series (N, C, L) are
rarely within it.
"""

_LEAST_SIDE = 4
"""Pixels of a side of grey images in an array; fewer are the coordinates of points."""

_GIVE_AXES = 'axes="NHWC" or axes="NCHW" says which'


class Arrays(Sequence[tuple[Tensor, tuple[Label, ...]]]):
    """Pair the images of an array with their labels.

    Args:
        images: a NumPy array or a tensor (N, H, W), (N, H, W, C) or (N, C, H, W).
        labels: N whole numbers or names; N lists of them; or (N, E), a column of 0 and 1
            for each class.
        axes: the order of the axes; default: see :func:`order_of`.
        name: the name of the images, for messages.

    Attributes:
        axes: the order that was taken.
        classes: the names of the columns of a table of labels; else none.

    Raises:
        ValueError: the arrays have other shapes, or the order of the axes is not clear.

    Example:
        >>> from torchcaps_lab.kinds.images.sets.arrays import Arrays
        >>> pairs = Arrays(torch.zeros(2, 28, 28, 3), ["cat", "dog"])
        >>> pairs.axes, pairs[1][0].shape, pairs[1][1]
        ('NHWC', torch.Size([3, 28, 28]), ('dog',))
    """

    def __init__(
        self,
        images: Any,
        labels: Any,
        axes: Axes | None = None,
        name: str = "data",
    ) -> None:
        if isinstance(images, Tensor):
            self.images = images.detach().cpu()
        else:
            self.images = torch.from_numpy(_array(images, name))
        if self.images.ndim not in (3, 4) or 0 in self.images.shape:
            raise ValueError(
                f"the images of {name} must be (N, H, W), (N, H, W, C) or (N, C, H, "
                "W), all above 0, got the shape "
                f"{tuple(self.images.shape)}; for features (N, D) there is "
                "torchcaps.sklearn.CapsNetClassifier"
            )
        self.labels = labels_of_images(self.images, labels, name)
        self.classes = _columns_of(labels)
        self.axes = order_of(tuple(self.images.shape), name, axes)

    @property
    def shown_as_image(self) -> bool:
        """Whether the channels are those of a grey or coloured image, not other bands."""
        return self[0][0].shape[0] in USUAL_CHANNELS

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        image = self.images[index]
        if self.axes == "NHW":
            image = image[None]
        return (image.permute(2, 0, 1) if self.axes == "NHWC" else image), self.labels[
            index
        ]


def paired(arrays: Any, name: str, axes: Axes | None = None) -> Any:
    """Return ``(images, labels)`` as pairs, and anything else as it is; a `ValueError`
    for images without labels.
    """
    if hasattr(arrays, "ndim"):
        raise ValueError(
            f"{name} is one array: give the images with their labels, ({name}, labels)"
        )
    if not is_two_arrays(arrays):
        return arrays
    images, labels = arrays
    if hasattr(images, "ndim"):
        return Arrays(images, labels, axes, name)
    return list(zip(images, labels_of_images(images, labels, name), strict=True))


def labels_of_images(images: Any, labels: Any, name: str) -> list[tuple[Label, ...]]:
    """Return the labels of each image; a `ValueError` if there are more or fewer."""
    of_images = each_of(labels, name)
    if len(of_images) != len(images):
        raise ValueError(
            f"{name} must have a label for each image, got "
            f"{counted(len(images), 'images')} and {counted(len(of_images), 'labels')}"
        )
    return of_images


def order_of(
    shape: tuple[int, ...],
    name: str,
    axes: Axes | None = None,
    advice: str = _GIVE_AXES,
) -> Axes:
    """Return the order of the axes of images of a shape, (N, H, W) or with channels.

    The channels are 1, 3 or 4 at one end; or else fewer than rows and columns; or else
    those beside two equal sides. Three axes are those of grey images, unless one side
    is over 4 times as long as the other, or has fewer than 4 pixels.

    Raises:
        ValueError: two orders are as likely, or ``axes`` has another number of them;
            names both.
    """
    if axes is not None:
        if len(axes) != len(shape):
            raise ValueError(
                f"axes must be the order of {len(shape)} axes, those of {name}, "
                f"{shape}, got {axes!r}"
            )
        return axes
    if len(shape) == 3:
        _, *sides = shape
        thin = min(sides) < _LEAST_SIDE
        if thin or max(sides) > LONGEST_SIDE * min(sides):
            points = f", or sets of {sides[0]} points" * thin
            takes = "; torchcaps.models.SetCapsNet takes sets" * thin
            raise ValueError(
                f"{name} {shape} may be grey images of {sides[0]} x {sides[1]} pixels, "
                f'or series of {sides[0]} channels{points}: axes="NHW" says that they '
                'are images; torchcaps.train(inputs, labels, kind="series") trains on '
                f"series{takes}"
            )
        return "NHW"
    last = shape[3] in USUAL_CHANNELS
    first = shape[1] in USUAL_CHANNELS
    _, *sides = shape
    if not last and not first:
        last = sides[2] < min(sides[:2])
        first = sides[0] < min(sides[1:])
    if not last and not first:
        last = sides[0] == sides[1]
        first = sides[1] == sides[2]
    if last == first:
        raise ValueError(
            f"the order of the axes of {name} is not clear: the channels may be last, "
            f"{sides[2]} of {sides[0]} x {sides[1]} pixels, or first, {sides[0]} of "
            f"{sides[1]} x {sides[2]}: {advice}"
        )
    return "NHWC" if last else "NCHW"


def _array(images: Any, name: str) -> np.ndarray:
    array = np.asarray(images)
    if array.dtype.kind not in "buif":
        raise ValueError(f"the images of {name} must be numbers, got {array.dtype}")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.flags.writeable and min(array.strides, default=0) >= 0:
        return array
    return array.copy()


def _columns_of(labels: Any) -> tuple[str, ...]:
    """The names of the columns of a table of pandas, a class each; else none."""
    columns = getattr(labels, "columns", ())
    return tuple(map(str, columns)) if len(columns) > 1 else ()

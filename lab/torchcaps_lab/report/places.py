"""Which part of an image the positions of a layer stand for."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.models.base import in_precision_of
from torchcaps.ops.windows import Windows
from torchcaps_lab.evaluate.layers import Layer, below, observe_layers


class Extent(NamedTuple):
    """A rectangle of an image in pixels; pixel (y, x) covers [y, y + 1] by [x, x + 1].

    Example:
        >>> from torchcaps_lab.report import layer_extents
        >>> extents = layer_extents(
        ...     tc.create_model("capsnet_digits"), torch.rand(1, 1, 8, 8)
        ... )
        >>> [type(extent).__name__ for extent in extents.values()]
        ['Extent']
    """

    left: float
    right: float
    bottom: float
    top: float


def placed_capsules(layers: dict[str, Layer]) -> dict[str, Capsules]:
    """All capsules, from the lowest layer up.

    By the names of :func:`layer_extents`: a layer's, or ``name.children`` of children
    that no observed layer made.
    """
    placed = {}
    for name, layer in layers.items():
        if layer.children is not None and below(layers, layer) is None:
            placed[f"{name}.children"] = layer.children
        placed[name] = layer.capsules
    return placed


def on_a_grid(activation: Tensor) -> bool:
    """Whether capsules with these activations lie at positions of an image, more than
    one of them.
    """
    shape = activation.shape
    return len(shape) in (3, 4) and shape[1] * shape[2] > 1


def origin(layers: dict[str, Layer], layer: Layer) -> str:
    """The name of a layer's children, as :func:`placed_capsules` and
    :func:`layer_extents` have it.
    """
    lower = below(layers, layer)
    return f"{layer.name}.children" if lower is None else lower.name


def layer_extents(model: nn.Module, images: Tensor) -> dict[str, Extent]:
    """The part of an image that the positions of each layer stand for.

    A capsule's place is the centre of its receptive field: of all pixels that its pose
    depends on. On the lowest layer with a grid the first and the last place are found
    by differentiation, on noise; the others lie between them. Around each place lies
    one cell of the map, so the rectangle reaches half a cell beyond the outermost
    places; it is that of the whole image if the capsules see so much of it that their
    places cannot be told. A convolutional layer above is placed by its windows: a
    parent stands at the centre of its window. (What a parent depends on is no measure:
    where parents compete over the whole image, that is the whole image.)

    Args:
        model: any network of torchcaps layers.
        images: (B, C, H, W), for their shape.

    Returns:
        By the name of the layer whose capsules lie there, and for a layer whose
        children were made by no other layer ``name.children``. Layers without a grid
        are left out.
    """
    C, H, W = images.shape[1:]
    noise = torch.rand(4, C, H, W, generator=torch.Generator().manual_seed(0)).to(
        images.device
    )
    noise = in_precision_of(model, noise).requires_grad_()
    extents: dict[str, Extent] = {}
    with torch.enable_grad():
        layers = observe_layers(model, noise)
        for name, layer in layers.items():
            children = origin(layers, layer)
            if (
                layer.children is not None
                and children not in layers
                and layer.children.activation.ndim in (3, 4)
            ):
                extents[children] = _extent(noise, layer.children)
            if layer.windows is not None:
                if children in extents:
                    extents[name] = _above(layer.windows, extents[children])
            elif layer.capsules.activation.ndim in (3, 4):
                extents[name] = _extent(noise, layer.capsules)
    return extents


def _extent(images: Tensor, capsules: Capsules) -> Extent:
    """The rectangle of a grid of capsules that were made of these images."""
    sides = (_sides(images, capsules.pose, axis) for axis in (1, 2))
    (top, bottom), (left, right) = sides
    return Extent(left, right, bottom, top)


def _sides(images: Tensor, pose: Tensor, axis: int) -> tuple[float, float]:
    """The outer edges of the cells along an axis of poses (B, H', W', ...); those of
    the image if they cannot be found.

    Two cells in the middle say where all are, if what they see ends inside of the
    image: with padding, others see less than that, and the centre of it lies further
    inside. Else the ends say it up to which the outer cells look into the image:
    padding does not move them.
    """
    count = pose.shape[axis]
    size = images.shape[axis + 1]

    def extent_of(place: int) -> tuple[int, int] | None:
        return _extent_along(images, pose.select(axis, place), axis)

    centre, step = 0.0, 0.0  # of the first cell, and from each to the next
    if count > 1:
        middle = (count - 1) // 2
        nearer = extent_of(middle)
        farther = extent_of(middle + 1)
        if nearer and farther and (count == 2 or (nearer[0] > 0 and farther[1] < size)):
            step = (sum(farther) - sum(nearer)) / 2
            centre = sum(nearer) / 2 - middle * step
        elif nearer and farther:
            first = extent_of(0)
            second = extent_of(1)
            last = extent_of(count - 1)
            if first and second and last and second[1] < size and last[0] > 0:
                step = second[1] - first[1]
                centre = (first[1] + last[0] - (count - 1) * step) / 2
    if step > 0:
        return (centre - step / 2, centre + (count - 0.5) * step)
    return (0.0, float(size))


def _above(windows: Windows, children: Extent) -> Extent:
    """The rectangle of the parents' grid, from that of the children; of a single
    parent: what its window covers.
    """
    edges = []
    for axis, (low, high) in enumerate(
        ((children.top, children.bottom), (children.left, children.right))
    ):
        cell = (high - low) / windows.size[axis]
        # In cells.
        centre = windows.kernel[axis] / 2 - windows.padding[axis]
        step = windows.stride[axis]
        count = windows.out[axis]
        if count == 1:
            step = windows.kernel[axis]
        start = low + (centre - step / 2) * cell
        edges.append((start, start + count * step * cell))
    (top, bottom), (left, right) = edges
    return Extent(left, right, bottom, top)


def _extent_along(images: Tensor, output: Tensor, axis: int) -> tuple[int, int] | None:
    """From where to where the pixels lie, along an axis, that the output depends on;
    None if it depends on none.
    """
    (gradient,) = torch.autograd.grad(output.sum(), images, retain_graph=True)
    places = (gradient.abs().sum((0, 1)) > 0).any(2 - axis).nonzero()
    return (int(places[0]), int(places[-1]) + 1) if len(places) else None

"""Operations and bytes of layers and networks, by formula: the minimum that a measured time is compared with.

Counted, with two operations for each multiply-add:

* the votes, formed once: ``2 P`` for each number of the votes;
* each similarity, in every step but the first: 2 for each number in an inner product, 4 in a Gaussian (difference,
  square, product with the precision and sum);
* the moments of each step: 2 for each number in the sum, 4 more with the scatter (difference, square, product, sum);
* the products of convolutions and linear layers;
* for a training step three times as much, because each product has two gradients; the images need none.

Inner products with transforms shared by all children are counted without votes, which they do not need. Not counted:
squash, softmax, the M-step, ReLU, losses, the optimizer. ``again`` counts the additional operations of a fused kernel,
which forms the votes anew in every pass over them: each step, and each image-wide normaliser.

Bytes are those of float32 inputs, weights and results, each moved once: in the backward pass inputs, weights and the
results' gradients are read, and the gradients of inputs and weights are written.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

FLOAT = 4
"""Bytes of a float32 number."""


@dataclass(frozen=True)
class Work:
    """The minimum work of one call.

    Args:
        operations: two for each multiply-add.
        again: operations of forming the votes anew in every pass but the first.
        bytes: read and written.
    """

    operations: float
    again: float
    bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(self.operations + other.operations, self.again + other.again, self.bytes + other.bytes)

    def seconds(self, rate: float, bandwidth: float) -> float:
        """The physical limit: the longer of arithmetic and memory traffic, at operations and bytes a second."""
        return max(self.operations / rate, self.bytes / bandwidth)


NOTHING = Work(0.0, 0.0, 0.0)


class RoutedShape(NamedTuple):
    """The sizes of one routed layer, with the symbols of :mod:`torchcaps.ops.backend`.

    Args:
        images: N.
        grid: G, children of an image.
        windows: W; 1 for a layer without windows.
        children: I, of a window.
        parents: J.
        rows: M, of a pose.
        child_dim: P.
        parent_dim: D.
        steps: of routing.
        gaussian: Gaussian similarity and scatter (EM), or inner products.
        image_wide: every step but the first passes once more over the votes, for the normaliser.
        transforms: how many different transforms there are, I x J if none are shared.
    """

    images: int
    grid: int
    windows: int
    children: int
    parents: int
    rows: int
    child_dim: int
    parent_dim: int
    steps: int
    gaussian: bool
    image_wide: bool
    transforms: int

    @property
    def votes(self) -> int:
        """How many numbers the votes have, B x I x J x H."""
        return self.images * self.windows * self.children * self.parents * self.rows * self.parent_dim

    @property
    def inputs(self) -> int:
        """How many numbers the children's poses and activations have."""
        return self.images * self.grid * (self.rows * self.child_dim + 1)

    @property
    def weights(self) -> int:
        """How many numbers the transforms have."""
        return self.transforms * self.child_dim * self.parent_dim

    @property
    def results(self) -> int:
        """How many numbers the parents' poses and activations have."""
        return self.images * self.windows * self.parents * (self.rows * self.parent_dim + 1)


def routed(shape: RoutedShape, training: bool) -> Work:
    """The work of a routed layer."""
    if shape.transforms == shape.parents < shape.children * shape.parents and not shape.gaussian:
        operations, again = _without_votes(shape), 0.0
    else:
        compare, reduce = (4, 6) if shape.gaussian else (2, 2)
        form = 2 * shape.child_dim * shape.votes
        operations = form + shape.votes * ((shape.steps - 1) * compare + shape.steps * reduce)
        again = form * ((shape.steps - 1) * (2 if shape.image_wide else 1))
    times = 3 if training else 1
    return Work(times * operations, times * again, _bytes(shape.inputs, shape.weights, shape.results, training))


def _without_votes(shape: RoutedShape) -> float:
    """Inner products with shared transforms: ``<u_i, W_j alpha_j>`` and ``(sum_i r_ij u_i) W_j``."""
    poses = shape.images * shape.windows * shape.rows * shape.child_dim
    through = 2 * poses * shape.parents * shape.parent_dim  # W_j alpha_j, or a sum times W_j
    over = 2 * poses * shape.parents * shape.children  # all children with all parents
    first = poses * shape.children + through  # uniform: the children are summed once
    return first + (shape.steps - 1) * 2 * (through + over)


def _bytes(inputs: float, weights: float, results: float, training: bool, first: bool = False) -> float:
    forward = inputs + weights + results
    backward = (1 if first else 2) * inputs + 2 * weights + results
    return FLOAT * (forward + (backward if training else 0))


class Map(NamedTuple):
    """A feature map: channels, height, width."""

    channels: int
    height: int
    width: int

    def convolved(self, channels: int, kernel: int, stride: int = 1) -> "Map":
        """The map after a convolution without padding."""
        return Map(channels, (self.height - kernel) // stride + 1, (self.width - kernel) // stride + 1)

    def pooled(self, size: int) -> "Map":
        """The map after pooling."""
        return Map(self.channels, self.height // size, self.width // size)


def convolution(batch: int, before: Map, after: Map, kernel: int, training: bool, first: bool = False) -> Work:
    """The work of a convolution; the ``first`` one has no gradient for its inputs."""
    weights = before.channels * kernel**2 * after.channels
    products = 2 * batch * after.height * after.width * weights
    times = (2 if first else 3) if training else 1
    moved = _bytes(batch * math.prod(before), weights, batch * math.prod(after), training, first)
    return Work(times * products, 0.0, moved)


def linear(batch: int, inputs: int, outputs: int, training: bool) -> Work:
    """The work of a linear layer."""
    return convolution(batch, Map(inputs, 1, 1), Map(outputs, 1, 1), 1, training)

"""The poses of capsules, layer by layer."""

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.capsules import Capsules
from torchcaps_lab.evaluate.layers import peak_activation
from torchcaps_lab.report.canvas import lay, new_figure, show
from torchcaps_lab.report.exhibit import PNG, OfImages, Picture, register_exhibit
from torchcaps_lab.report.observe import Observation

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

_POSE_NUMBERS = 32  # of a pose, up to which each number gets a map


class PoseMaps(NamedTuple):
    """The poses of the most active type of capsule of a layer, for one image.

    Args:
        layer: its name.
        type: which type of the layer's; None if it has but one.
        pose: (H', W', D) of vector or (H', W', M, D) of matrix capsules.

    Example:
        >>> from torchcaps_lab.report.pictures.layer_poses import PoseMaps
        >>> PoseMaps("primary", 0, torch.rand(6, 6, 8)).pose.shape
        torch.Size([6, 6, 8])
    """

    layer: str
    type: int | None
    pose: Tensor

    def label(self) -> str:
        """The layer, which of several types, and how large the grid is."""
        name = self.layer if self.type is None else f"{self.layer}, type {self.type}"
        return f"{name}\n{self.pose.shape[0]} x {self.pose.shape[1]} positions"

    def block(self) -> Tensor:
        """The maps of the numbers in rows and columns, (rows, columns, H', W'); those
        of vectors in rows of four.
        """
        if self.pose.ndim == 4:
            return self.pose.permute(2, 3, 0, 1)
        columns = min(4, self.pose.shape[-1])
        missing = -self.pose.shape[-1] % columns
        return (
            F.pad(self.pose, (0, missing), value=torch.nan)
            .permute(2, 0, 1)
            .unflatten(0, (-1, columns))
        )


@register_exhibit("layer_poses", place=110, drawings="layer_poses.png")
class LayerPoses(OfImages):
    """One image and, layer by layer, the numbers of the pose of one type of capsule at
    every position.

    Attributes:
        picture: (C, H, W).
        image_title: the title of the image.
        layers: from the lowest up, those whose poses have at most 32 numbers.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.layer_poses import LayerPoses
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = LayerPoses.of(
        ...     Observation(
        ...         tc.create_model("capsnet_digits"), Selection(images, images)
        ...     )
        ... )
        >>> exhibit.picture.shape
        torch.Size([1, 8, 8])
    """

    picture: Tensor = field(metadata=PNG)
    image_title: str
    layers: tuple[PoseMaps, ...]

    @classmethod
    def of(cls, observation: Observation) -> "LayerPoses | None":
        """Make the exhibit; None if no capsules lie on a grid, or their poses are too
        large to be read.
        """
        place = observation.selection.example
        layers_with_maps = [
            _pose_maps(name, capsules, place)
            for name, capsules in observation.grids.items()
        ]
        layers = tuple(
            maps
            for maps in layers_with_maps
            if maps.pose[0, 0].numel() <= _POSE_NUMBERS
        )
        if not layers:
            return None
        return cls(
            title="Poses",
            text=(
                "For one image, the pose of the most active type of each layer at "
                "each position. Its numbers are in the rows and columns of the "
                "matrix, and those of a vector in rows of four. Numbers that change "
                "steadily along a stroke describe it."
            ),
            picture=observation.selection.pictures[place],
            image_title=observation.selection.title(place),
            layers=layers,
        )

    def draw(self) -> Iterator[Picture]:
        """The image, and beside it the maps of each layer's poses."""
        blocks = [layer.block() for layer in self.layers]
        rows = max(block.shape[0] for block in blocks)
        widths = [1.6, *(0.62 * block.shape[1] + 0.9 for block in blocks)]
        height = (
            max(0.7 * rows * self.picture.shape[-2] / self.picture.shape[-1], 1.6) + 0.5
        )
        figure = new_figure(sum(widths), height, "constrained")
        first, *parts = figure.subfigures(
            1, len(widths), width_ratios=widths, squeeze=False
        )[0]
        show(first.add_subplot(), self.picture)
        for part, layer, block in zip(parts, self.layers, blocks, strict=True):
            part.suptitle(layer.label(), fontsize=9, parse_math=False)
            _draw_block(part, block, self.picture)
        description = (
            "The poses of the most active type of capsule of one image, layer by layer"
        )
        yield Picture("layer_poses.png", description, figure)


def _pose_maps(name: str, capsules: Capsules, place: int) -> PoseMaps:
    if capsules.activation.ndim == 3:
        return PoseMaps(name, None, capsules.pose[place])
    kind = int(peak_activation(capsules)[place].argmax())
    several = capsules.activation.shape[-1] > 1
    return PoseMaps(name, kind if several else None, capsules.pose[place, :, :, kind])


def _draw_block(part: "SubFigure", block: Tensor, image: Tensor) -> None:
    """The maps of one layer's poses on one colour scale."""
    rows, columns = block.shape[:2]
    largest = max(block.nan_to_num().abs().max().item(), 1e-6)
    scale = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    for place, cells in enumerate(block.flatten(0, 1), 1):
        axes = part.add_subplot(rows, columns, place)
        if cells.isnan().all():
            axes.set_axis_off()
            continue
        lay(axes, cells.numpy(), image, None, **scale)
    bar = part.colorbar(
        part.axes[0].images[0], ax=part.axes, fraction=0.05, aspect=25, pad=0.02
    )
    bar.set_label("pose", fontsize=8)
    bar.ax.tick_params(labelsize=7)

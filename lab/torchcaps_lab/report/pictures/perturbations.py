"""What each number of a pose does to what is drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps_lab.evaluate.poses import default_sweep, pose_changes
from torchcaps_lab.report.canvas import new_figure, set_title, shorten
from torchcaps_lab.report.exhibit import (
    Exhibit,
    Picture,
    pixels,
    pngs,
    register_exhibit,
)
from torchcaps_lab.report.observe import Observation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _sheets(grids: Tensor) -> Any:
    """Images (N, D, V, C, H, W) as N sheets of D rows and V columns."""
    return pngs(grids.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3))


@register_exhibit("perturbations", place=80, drawings="perturbation_???.png")
class Perturbations(Exhibit):
    """Images of one capsule each, as its pose moves, one number at a time.

    Attributes:
        grids: (N, D, V, C, H, W), a row of V images for each of D numbers; in JSON one
            image of D rows and V columns of images for each n, without gaps.
        values: (V,), what was added to the pose.
        changes: (N, D), the mean absolute difference of the first and the last image of
            a row.
        targets: (N,), the classes.
        classes: their names, one an image.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.perturbations import Perturbations
        >>> images = torch.rand(2, 1, 8, 8)
        >>> selection = Selection(images, images, target=torch.tensor([3, 1]))
        >>> exhibit = Perturbations.of(
        ...     Observation(tc.create_model("capsnet_digits"), selection)
        ... )
        >>> exhibit.grids.shape  # images, numbers of the pose, values, image
        torch.Size([2, 16, 11, 1, 8, 8])
    """

    grids: Tensor = field(metadata={"plain": _sheets})
    values: Tensor
    changes: Tensor
    targets: Tensor
    classes: tuple[str, ...]

    @classmethod
    def of(
        cls, observation: Observation, values: Tensor | None = None
    ) -> "Perturbations | None":
        """Make the exhibit; None without a decoder.

        Args:
            observation: the observation of one image of each class, titled with the
                name of the class; else its label is its name.
            values: what to add; default: :func:`~torchcaps_lab.evaluate.default_sweep`.
        """
        if not observation.decodes:
            return None
        values = default_sweep() if values is None else values
        selection = observation.selection
        titles = observation.selection.titles_at()
        grids = torch.stack(list(observation.sweeps(values)))
        return cls(
            title="What the dimensions of a pose mean",
            text=(
                f"Images, each reconstructed from the capsule of {selection.about} "
                "while one number of its pose moves. Each row is one dimension, and "
                "the middle column is the unchanged pose. A row in which the shape "
                "changes steadily has learned a property, such as thickness, slant "
                "or the size of a loop. The number behind a row is the mean "
                "difference of its outermost images (1 is black against white). If "
                "it is small, the decoder makes little use of this dimension. "
                f"{selection.note}"
            ).strip(),
            grids=grids,
            values=values.cpu(),
            changes=pose_changes(grids),
            targets=observation.target,
            classes=tuple(
                title or str(label)
                for title, label in zip(
                    titles, observation.target.tolist(), strict=True
                )
            ),
        )

    @classmethod
    def of_images(
        cls, shown: Observation, examples: Observation
    ) -> "Perturbations | None":
        """Make the exhibit of one image of each class."""
        return cls.of(examples)

    def draw(self) -> Iterator[Picture]:
        """A grid for each image: a row for each number of the pose, a column for each
        value.
        """
        labels = self.targets.tolist()
        if len(set(labels)) == len(labels):
            numbers = labels
        else:
            numbers = list(range(len(labels)))
        for grid, changes, number, name in zip(
            self.grids, self.changes, numbers, self.classes, strict=True
        ):
            figure = _grid(
                grid, self.values, changes.tolist(), f"class {shorten(name, 30)}"
            )
            description = (
                f"Reconstructions of class {name} as each pose dimension moves"
            )
            yield Picture(f"perturbation_{number:03d}.png", description, figure)


def _grid(
    grid: Tensor, values: Tensor, changes: Sequence[float], title: str
) -> "Figure":
    """The images (D, V, C, H, W) of one capsule as its pose moves, and behind each row
    how much they change.
    """
    D, V = grid.shape[:2]
    mosaic, height, width = _mosaic(grid)
    figure = new_figure(0.44 * V + 1.3, 0.44 * D * height / width + 1.0)
    axes = figure.add_subplot()
    axes.imshow(
        mosaic.numpy(),
        extent=(0, V, D, 0),
        aspect=height / width,
        interpolation="nearest",
    )
    _label(axes, values, changes)
    set_title(axes, title, fontsize=11)
    return figure


def _label(axes: "Axes", values: Tensor, changes: Sequence[float]) -> None:
    """Names the columns by the values, and the rows by the dimension in front and the
    change behind.
    """
    V = len(values)
    D = len(changes)
    signed = [f"{value:+.3g}" if value else "0" for value in values.tolist()]
    axes.set_xticks([place + 0.5 for place in range(V)], signed)
    axes.set_yticks(
        [place + 0.5 for place in range(D)], [str(place) for place in range(D)]
    )
    axes.tick_params(length=0, labelsize=8)
    for place, text in enumerate(["change", *(f"{value:.3f}" for value in changes)]):
        axes.text(
            V + 0.15,
            place - 0.5 if place else -0.15,
            text,
            fontsize=8,
            va="center",
            color="0.3",
        )
    axes.set_xlabel("added to the pose", fontsize=9)
    axes.set_ylabel("pose dimension", fontsize=9)
    axes.spines[:].set_visible(False)


def _mosaic(tiles: Tensor) -> tuple[Tensor, float, float]:
    """Images (R, V, C, H, W) as one opaque picture (h, w, 4) on grey, and the height
    and width of a cell in it.

    Small images are enlarged, pixel by pixel, to about 44 pixels.
    """
    R, V, C, H, W = tiles.shape
    enlarge = max(1, round(44 / max(H, W)))
    flat = F.interpolate(
        tiles.detach().cpu().float().reshape(R * V, C, H, W),
        scale_factor=float(enlarge),
    )
    pictures = torch.stack([pixels(image) for image in flat]).permute(0, 3, 1, 2)
    gap = max(2, round(0.05 * enlarge * max(H, W)))
    pictures = F.pad(pictures, (gap, gap, gap, gap), value=0.6).unflatten(0, (R, V))
    mosaic = pictures.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    mosaic = F.pad(
        mosaic, (0, 1), value=1.0
    )  # without the alpha, matplotlib goes on with float64 for all of it
    return mosaic, mosaic.shape[0] / R, mosaic.shape[1] / V

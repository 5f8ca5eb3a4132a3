"""What the decoder draws from the pose of a class capsule."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchcaps.explain.exhibits.base import PNG, Exhibit, pngs, register_exhibit
from torchcaps.explain.observe import Observation
from torchcaps.explain.poses import default_sweep, pose_changes


@register_exhibit("reconstructions")
@dataclass(frozen=True, eq=False, kw_only=True)
class Reconstructions(Exhibit):
    """Images, and what the capsule of the class that each is asked about describes.

    Attributes:
        pictures: (B, C, H, W).
        reconstructions: (B, C, H, W).
        titles: one an image.
    """

    pictures: Tensor = field(metadata=PNG)
    reconstructions: Tensor = field(metadata=PNG)
    titles: tuple[str, ...]

    @classmethod
    def of(cls, observation: Observation) -> "Reconstructions | None":
        """None without a decoder."""
        classes = observation.classes
        if classes is None or not observation.decodes:
            return None
        numbers = " x ".join(map(str, classes.pose_shape))
        return cls(
            title="Reconstructions",
            text="The first images of each class, and below each what the decoder draws from the "
            f"{numbers} numbers of the most active capsule alone. What is missing below is what the capsule did not "
            "keep; an arrow marks an image that was taken for another class, and is drawn as one of that.",
            pictures=observation.selection.pictures,
            reconstructions=observation.reconstructions,
            titles=observation.selection.titles_at(),
        )


def _sheets(grids: Tensor) -> Any:
    """Images (N, D, V, C, H, W) as N sheets of D rows and V columns."""
    return pngs(grids.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3))


@register_exhibit("perturbations")
@dataclass(frozen=True, eq=False, kw_only=True)
class Perturbations(Exhibit):
    """Images of one capsule each, as its pose moves, one number at a time.

    Attributes:
        grids: (N, D, V, C, H, W), a row of V images for each of D numbers; in JSON one image of D rows and V columns of
            images for each n, without gaps.
        values: (V,), what was added to the pose.
        changes: (N, D), the mean absolute difference of the first and the last image of a row.
        targets: (N,), the classes.
        classes: their names, one an image.
    """

    grids: Tensor = field(metadata={"plain": _sheets})
    values: Tensor
    changes: Tensor
    targets: Tensor
    classes: tuple[str, ...]

    @classmethod
    def of(cls, observation: Observation, values: Tensor | None = None) -> "Perturbations | None":
        """None without a decoder.

        Args:
            observation: of one image of each class, with the name of the class as its title.
            values: what to add; default: :func:`~torchcaps.explain.default_sweep`.
        """
        if not observation.decodes:
            return None
        values = default_sweep() if values is None else values
        grids = torch.stack(list(observation.sweeps(values)))
        return cls(
            title="What the dimensions of a pose mean",
            text="The clearest image of each class, reconstructed from the capsule of that class while one number of "
            "its pose is moved: each row is one dimension, the middle column the untouched pose. A row in which the "
            "shape changes steadily has learned something about it, such as its thickness, its slant or the size of a "
            "loop. The number behind a row is the mean difference of its outermost images (1 is black against white): "
            "where it is small, the decoder makes little use of this dimension.",
            grids=grids,
            values=values.cpu(),
            changes=pose_changes(grids),
            targets=observation.target,
            classes=observation.selection.titles_at(),
        )

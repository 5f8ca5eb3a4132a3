"""What the decoder draws from the pose of a class capsule."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchcaps.report.exhibits.base import PNG, Exhibit, pngs, register_exhibit
from torchcaps.report.observe import Observation
from torchcaps.report.poses import default_sweep, pose_changes


@register_exhibit("reconstructions")
@dataclass(frozen=True, eq=False, kw_only=True)
class Reconstructions(Exhibit):
    """Images, and what the capsule of the class that each is asked about describes.

    Attributes:
        pictures: (B, C, H, W).
        reconstructions: (B, C, H, W).
        titles: one an image.

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import Reconstructions
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = Reconstructions.of(Observation(tc.create_model("capsnet_digits"), Selection(images, images)))
        >>> exhibit.reconstructions.shape
        torch.Size([2, 1, 8, 8])
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
        selection, numbers = observation.selection, " x ".join(map(str, classes.pose_shape))
        return cls(
            title="Reconstructions",
            text=f"Images, and below each what the decoder draws from the {numbers} numbers of the capsule of "
            f"{selection.about} alone. What is missing below is what the capsule did not keep. "
            f"{selection.note}".strip(),
            pictures=selection.pictures,
            reconstructions=observation.reconstructions,
            titles=selection.titles_at(),
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

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import Perturbations
        >>> images = torch.rand(2, 1, 8, 8)
        >>> selection = Selection(images, images, target=torch.tensor([3, 1]))
        >>> exhibit = Perturbations.of(Observation(tc.create_model("capsnet_digits"), selection))
        >>> exhibit.grids.shape  # images, numbers of the pose, values, image
        torch.Size([2, 16, 11, 1, 8, 8])
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
            observation: of one image of each class, titled with the name of the class; else its label is its name.
            values: what to add; default: :func:`~torchcaps.report.default_sweep`.
        """
        if not observation.decodes:
            return None
        values = default_sweep() if values is None else values
        selection, titles = observation.selection, observation.selection.titles_at()
        grids = torch.stack(list(observation.sweeps(values)))
        return cls(
            title="What the dimensions of a pose mean",
            text=f"Images, each reconstructed from the capsule of {selection.about} while one number of its pose is "
            "moved: each row is one dimension, the middle column the untouched pose. A row in which the shape changes "
            "steadily has learned something about it, such as its thickness, its slant or the size of a loop. The "
            "number behind a row is the mean difference of its outermost images (1 is black against white): where it "
            f"is small, the decoder makes little use of this dimension. {selection.note}".strip(),
            grids=grids,
            values=values.cpu(),
            changes=pose_changes(grids),
            targets=observation.target,
            classes=tuple(
                title or str(label) for title, label in zip(titles, observation.target.tolist(), strict=True)
            ),
        )

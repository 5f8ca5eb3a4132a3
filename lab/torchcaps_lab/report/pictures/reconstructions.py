"""What the decoder draws from the pose of a class capsule."""

from collections.abc import Iterator
from dataclasses import field

from torch import Tensor

from torchcaps_lab.report.canvas import Fill, shorten_lines, show, stacked
from torchcaps_lab.report.exhibit import PNG, OfImages, Picture, register_exhibit
from torchcaps_lab.report.observe import Observation


@register_exhibit("reconstructions", place=70, drawings="reconstructions.png")
class Reconstructions(OfImages):
    """Images, and what the capsule of the class that each is asked about describes.

    Attributes:
        pictures: (B, C, H, W).
        reconstructions: (B, C, H, W).
        titles: one an image.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.reconstructions import Reconstructions
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = Reconstructions.of(
        ...     Observation(
        ...         tc.create_model("capsnet_digits"), Selection(images, images)
        ...     )
        ... )
        >>> exhibit.reconstructions.shape
        torch.Size([2, 1, 8, 8])
    """

    pictures: Tensor = field(metadata=PNG)
    reconstructions: Tensor = field(metadata=PNG)
    titles: tuple[str, ...]

    @classmethod
    def of(cls, observation: Observation) -> "Reconstructions | None":
        """Make the exhibit; None without a decoder."""
        classes = observation.classes
        if classes is None or not observation.decodes:
            return None
        selection = observation.selection
        numbers = " x ".join(map(str, classes.pose_shape))
        return cls(
            title="Reconstructions",
            text=(
                "Images, and below each the drawing of the decoder from the "
                f"{numbers} numbers of the capsule of {selection.about}. Details that "
                f"are missing in the drawing are not in the capsule. {selection.note}"
            ).strip(),
            pictures=selection.pictures,
            reconstructions=observation.reconstructions,
            titles=selection.titles_at(),
        )

    def draw(self) -> Iterator[Picture]:
        """The images, and below each what its capsule made of it."""
        rows: dict[str, Fill] = {
            "image": lambda axes, place: show(axes, self.pictures[place]),
            "reconstruction": lambda axes, place: show(
                axes, self.reconstructions[place]
            ),
        }
        figure = stacked(self.pictures, list(map(shorten_lines, self.titles)), rows)
        yield Picture("reconstructions.png", "Images and their reconstructions", figure)

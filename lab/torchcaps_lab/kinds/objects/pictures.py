"""Pictures taken apart: the pixels of each slot, what each slot draws, and moves of the
pose of one slot.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.models import (
    ClassifierNetwork,
    Prediction,
    SlotAutoencoder,
    SlotNetwork,
)
from torchcaps_lab.data import Examples
from torchcaps_lab.evaluate.findings import evaluating, predicted
from torchcaps_lab.report.canvas import (
    colour_of,
    label_row,
    new_figure,
    set_title,
    show,
)
from torchcaps_lab.report.exhibit import Exhibit, Picture, pixels, register_exhibit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_SLOTS = (
    "task 'objects' takes networks that draw each slot with a mask, such as "
    "'slot_autoencoder' and 'slots_on_backbone'"
)
"""What is wrong with other networks."""

_MOVES = 7
_AXES = 3
_FARTHEST = 2.0
_LEAST_PIXELS = 0.01


class TakenApart(NamedTuple):
    """One picture.

    Args:
        image: (C, H, W) in [0, 1].
        drawn: the reconstruction, likewise.
        slot: the slot of each pixel, int64 (H, W).
        parts: what each slot draws, on grey where it draws nothing, (J, C, H, W).
    """

    image: Tensor
    drawn: Tensor
    slot: Tensor
    parts: Tensor


@register_exhibit("slot_pictures", drawings="slots*.png")
class SlotPictures(Exhibit):
    """Pictures with the colours of their slots, and what each slot draws.

    Attributes:
        shown: the pictures.
        part: the part of the pictures, in the name of the file.

    Example:
        >>> from torchcaps_lab.data import Shapes
        >>> from torchcaps_lab.kinds.objects import SlotPictures
        >>> network = tc.create_model("slot_autoencoder")
        >>> some = Shapes(count=20, tests=2).test
        >>> len(SlotPictures.of(network, some, "Shapes", "").shown)
        2
    """

    shown: tuple[TakenApart, ...]
    part: str = ""

    @classmethod
    def of(
        cls,
        network: ClassifierNetwork,
        images: Examples,
        title: str,
        text: str,
        part: str = "",
    ) -> "SlotPictures":
        """What a network makes of pictures."""
        shown: list[TakenApart] = []
        for batch, prediction in predicted(network, images):
            assert isinstance(network, SlotNetwork)
            pictures = batch.pictures.to(prediction.activation)
            with evaluating(network):
                columns = (
                    batch.pictures,
                    network.drawing(prediction),
                    slot_of_pixels(prediction),
                    network.parts(pictures, prediction),
                )
            rows = zip(*(column.cpu() for column in columns), strict=True)
            shown += [TakenApart(*row) for row in rows]
        return cls(title=title, text=text, shown=tuple(shown), part=part)

    def draw(self) -> Iterator[Picture]:
        """A row for each picture: it, its slots, the reconstruction, and each slot."""
        file = f"slots-{self.part}.png" if self.part else "slots.png"
        description = (
            "Pictures, the slots of their pixels, reconstructions and single slots"
        )
        yield Picture(file, description, slots_figure(self.shown))

    def to_json(self) -> dict[str, Any]:
        """Without the pictures, which the figure has."""
        return {**super().to_json(), "shown": len(self.shown)}


@register_exhibit("slot_moves", drawings="slot-moves.png")
class SlotMoves(Exhibit):
    """One slot whose pose moves along the directions in which the poses of objects
    differ most.

    Attributes:
        drawn: what the slot draws, (directions, moves, C, H, W) in [0, 1].
        moves: how far, in standard deviations.

    Example:
        >>> from torchcaps_lab.data import Shapes
        >>> from torchcaps_lab.kinds.objects import SlotMoves
        >>> network = tc.create_model("slot_autoencoder")
        >>> moves = SlotMoves.of(network, Shapes(count=20, tests=8).test)
        >>> moves.drawn.shape
        torch.Size([3, 7, 3, 32, 32])
    """

    drawn: Tensor
    moves: tuple[float, ...]

    @classmethod
    def of(cls, network: SlotAutoencoder, images: Examples) -> "SlotMoves":
        """Moves of a slot of the first picture, along the principal directions of all
        slots that draw a part of a picture.
        """
        few = images.subset(torch.arange(min(128, len(images))))
        poses, areas = [], []
        for _, prediction in predicted(network, few):
            assert prediction.capsules is not None
            assert prediction.masks is not None
            slot_masks = torch.nn.functional.one_hot(
                prediction.masks.argmax(1), prediction.masks.shape[1]
            )
            areas.append(slot_masks.float().mean((1, 2)).cpu())
            poses.append(prediction.capsules.pose.float().cpu())
        pose = torch.cat(poses)
        area = torch.cat(areas)
        largest = area == area.amax(1, keepdim=True)
        drawn_slots = (area > _LEAST_PIXELS) & ~largest
        if drawn_slots.sum() < 2:
            drawn_slots = torch.ones_like(drawn_slots)
        objects = pose[drawn_slots]
        # The ground of the picture of the first object.
        of_object = few.subset(drawn_slots.any(1).nonzero()[0])
        ground = network.ground_colour(next(of_object.batches(1)).inputs)[0]
        centred = objects - objects.mean(0)
        _, size, directions = torch.linalg.svd(centred, full_matrices=False)
        deviation = size / max(len(objects) - 1, 1) ** 0.5
        moves = torch.linspace(-_FARTHEST, _FARTHEST, _MOVES)
        steps = deviation[:_AXES, None] * directions[:_AXES]
        moved = objects[0] + moves[:, None, None] * steps
        with evaluating(network) as device:
            drawn = _alone(network, moved.movedim(1, 0).to(device), ground).cpu()
        return cls(
            title="What the pose of a slot says",
            text="One object, drawn alone. Along each row its pose moves in a direction "
            "in which the poses of objects differ: where it is, its colour or its "
            "shape.",
            drawn=drawn,
            moves=tuple(moves.tolist()),
        )

    def draw(self) -> Iterator[Picture]:
        """A row for each direction."""
        rows, columns = self.drawn.shape[:2]
        figure = new_figure(1.1 * columns + 0.6, 1.15 * rows + 0.4)
        grid = figure.subplots(rows, columns, squeeze=False)
        for number, (axes, drawn) in enumerate(zip(grid, self.drawn, strict=True)):
            for place, image, move in zip(axes, drawn, self.moves, strict=True):
                show(place, image)
                if number == 0:
                    set_title(place, f"{round(move, 1) or 0.0:+.1f}", fontsize=8)
            label_row(axes[0], f"direction {number + 1}", 1.0)
        yield Picture("slot-moves.png", "One slot with its pose moved", figure)


def _alone(network: SlotAutoencoder, poses: Tensor, ground: Tensor) -> Tensor:
    """What single slots (..., D) draw on a ground of one colour (C, 1, 1), (..., C, H,
    W).
    """
    _, height, width = network.image_shape
    rows = poses.flatten(0, -2)[:, None]
    decoder: Any = network.decoder
    differences, claims = decoder(rows, height, width)
    drawn = ground.to(differences) + (differences * claims.sigmoid()[:, :, None])[:, 0]
    return drawn.clamp(0, 1).unflatten(0, poses.shape[:-1])


def slot_of_pixels(prediction: Prediction) -> Tensor:
    """The slot of each pixel, (B, H, W): that of the assigned pixels, if there are any,
    and else that with the largest mask.

    Raises:
        ValueError: if the network draws no slots.
    """
    shares = prediction.masks if prediction.assigned is None else prediction.assigned
    if shares is None:
        raise ValueError(NO_SLOTS)
    return shares.argmax(1)


def painted(picture: Tensor, slots: Tensor, colours: Tensor) -> Tensor:
    """A picture (C, H, W) under the colour (J, 3) of the slot (H, W) of each pixel, (3,
    H, W).
    """
    return 0.3 * pixels(picture).movedim(-1, 0) + 0.7 * colours[slots].movedim(-1, 0)


def slot_colours(slots: int) -> Tensor:
    """A colour for each slot, (J, 3) in [0, 1]."""
    from matplotlib.colors import to_rgb

    return torch.tensor([to_rgb(colour_of(slot)) for slot in range(slots)])


def slots_figure(shown: tuple[TakenApart, ...]) -> "Figure":
    """A row for each picture."""
    slots = len(shown[0].parts)
    table = slot_colours(slots)
    figure = new_figure(1.1 * (3 + slots), 1.15 * len(shown) + 0.3)
    titles = ["image", "slots", "drawn", *(f"slot {slot + 1}" for slot in range(slots))]
    grid = figure.subplots(len(shown), len(titles), squeeze=False)
    for number, (axes, picture) in enumerate(zip(grid, shown, strict=True)):
        over = painted(picture.image, picture.slot, table)
        panels = (picture.image, over, picture.drawn, *picture.parts)
        for place, panel, title in zip(axes, panels, titles, strict=True):
            show(place, panel)
            if number == 0:
                set_title(place, title, fontsize=8)
    return figure

"""One picture taken apart, step by step."""

from contextlib import nullcontext
from dataclasses import field

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from torchcaps.models import ClassifierNetwork, Prediction, SlotNetwork
from torchcaps.models.base import in_precision_of
from torchcaps_lab.evaluate.findings import evaluating
from torchcaps_lab.evaluate.steps import routing_steps
from torchcaps_lab.kinds.objects.pictures import painted, slot_colours, slot_of_pixels
from torchcaps_lab.report.canvas import colour_of
from torchcaps_lab.report.exhibit import PNG, Exhibit, register_exhibit

_MORE_STEPS = 4
"""Steps that are shown after those of the training."""


@register_exhibit("slot_steps")
class SlotSteps(Exhibit):
    """The slots of one picture after each step of their routing.

    Attributes:
        picture: (C, H, W).
        painted: the picture in the colours of its slots after each step, (T, C, H, W).
        drawn: what all slots draw together, likewise.
        parts: what each slot draws, on grey, (T, J, C, H, W).
        shares: of the pixels, (T, J).
        colours: the colours of the slots, as in the painted pictures.
        steps: how many steps the network takes by itself.

    Example:
        >>> from torchcaps_lab.kinds.objects.steps import SlotSteps
        >>> image = torch.rand(1, 3, 32, 32)
        >>> shown = SlotSteps.of(tc.create_model("slot_autoencoder"), image, image[0])
        >>> shown.steps, shown.parts.shape
        (5, torch.Size([9, 6, 3, 32, 32]))
    """

    picture: Tensor = field(metadata=PNG)
    painted: Tensor = field(metadata=PNG)
    drawn: Tensor = field(metadata=PNG)
    parts: Tensor = field(metadata=PNG)
    shares: Tensor
    colours: list[str]
    steps: int

    @classmethod
    def of(
        cls,
        network: ClassifierNetwork,
        image: Tensor,
        picture: Tensor,
    ) -> "SlotSteps":
        """Route an image, (1, C, H, W), anew with each number of steps.

        Raises:
            ValueError: if the network draws no slots.
        """
        if not isinstance(network, SlotNetwork):
            raise ValueError(
                "task 'objects' shows networks that draw slots, got "
                f"{type(network).__name__}"
            )
        # None for a routing without steps.
        steps: int | None = getattr(network.slots.routing, "steps", None)
        last = 1 if steps is None else steps + _MORE_STEPS
        predictions = []
        with evaluating(network) as device:
            taken = in_precision_of(network, image.to(device))
            # With fewer steps, the slots of another start might be the best.
            network = network.with_start_of(taken)
            for count in range(1, last + 1):
                with nullcontext() if steps is None else routing_steps(network, count):
                    predictions.append(_slot_pictures(network, taken, picture))
        columns = zip(*predictions, strict=True)
        slot, drawn, parts = (torch.cat(column) for column in columns)
        colours = slot_colours(network.classes)
        shares = one_hot(slot, network.classes).float().mean((1, 2))
        return cls(
            title="The picture, taken apart",
            text="Slots start at random. In each step they compete for the places of "
            "the picture, and each collects what it won. A colour is a slot, and the "
            "pictures below show what each slot draws.",
            picture=picture,
            painted=torch.stack([painted(picture, slots, colours) for slots in slot]),
            drawn=drawn,
            parts=parts,
            shares=shares,
            colours=[colour_of(number) for number in range(network.classes)],
            steps=steps or 1,
        )


def _slot_pictures(
    network: SlotNetwork, image: Tensor, picture: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The slot of each pixel (1, H, W), what all slots draw (1, C, H, W) and what each
    draws (1, J, C, H, W), on the CPU.
    """
    prediction: Prediction = network(image)
    parts = network.parts(picture[None].to(image), prediction)
    drawn = network.drawing(prediction)
    return slot_of_pixels(prediction).cpu(), drawn.float().cpu(), parts.float().cpu()

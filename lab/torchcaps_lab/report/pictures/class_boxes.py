"""Which classes are in one image, and where."""

from dataclasses import field

from torch import Tensor

from torchcaps.models.base import in_precision_of
from torchcaps.models.scene_capsnet import SceneCapsNet, Thing
from torchcaps_lab.report.exhibit import PNG, Exhibit, register_exhibit
from torchcaps_lab.report.findings import evaluating
from torchcaps_lab.report.observe import Observation


@register_exhibit("class_boxes")
class ClassBoxes(Exhibit):
    """One image, what is in it, and where.

    Attributes:
        picture: (C, H, W).
        things: of the classes that are there, the most active first; boxes are in pixels.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.class_boxes import ClassBoxes
        >>> image = torch.rand(1, 1, 32, 32)
        >>> network = tc.create_model("scene_capsnet", image_shape=(1, 32, 32), classes=3, channels=(3, 4))
        >>> ClassBoxes.of(Observation(network, Selection(image, image)), least=0.9).things
        ()
    """

    picture: Tensor = field(metadata=PNG)
    things: tuple[Thing, ...]

    @classmethod
    def of(cls, observation: Observation, least: float = 0.5) -> "ClassBoxes | None":
        """Of the example; None if the network says of no class where it is.

        Args:
            observation: of the image.
            least: classes with a larger activation are there.
        """
        model, place = observation.model, observation.selection.example
        if not isinstance(model, SceneCapsNet):
            return None
        with evaluating(model) as device:
            image = observation.selection.images[place : place + 1].to(device)
            (things,) = model.things_of(in_precision_of(model, image), least)
        return cls(
            title="What is where",
            text="Each connected part of a class's map is a thing with a capsule of its own, routed from its children "
            "alone. The pose says what it looks like and, with its last four numbers, where it is: a box around it.",
            picture=observation.selection.pictures[place],
            things=tuple(things),
        )

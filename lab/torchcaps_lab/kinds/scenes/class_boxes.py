"""What is in images, and where."""

from collections.abc import Iterator
from dataclasses import field

from torch import Tensor

from torchcaps.models import Thing
from torchcaps.models.base import in_precision_of
from torchcaps_lab.evaluate.findings import evaluating
from torchcaps_lab.report.boxes import Boxed
from torchcaps_lab.report.exhibit import PNG, OfImages, Picture, register_exhibit
from torchcaps_lab.report.observe import NamedBox, Observation
from torchcaps_lab.tasks.things import counts_things


@register_exhibit("class_boxes", place=45, drawings="boxes.png")
class ClassBoxes(OfImages):
    """Images, what is in them, and where.

    Attributes:
        pictures: (B, C, H, W).
        things: of each image, those of the classes that are there, the most active
            first; boxes are in pixels.
        names: the names of the classes, (E,).
        true: of each image, what is really there; () where that is not known.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.kinds.scenes.class_boxes import ClassBoxes
        >>> image = torch.rand(1, 1, 32, 32)
        >>> network = tc.create_model(
        ...     "scene_capsnet", image_shape=(1, 32, 32), classes=3, channels=(3, 4)
        ... )
        >>> ClassBoxes.of(
        ...     Observation(network, Selection(image, image)), least=0.9
        ... ).things
        ((),)
    """

    pictures: Tensor = field(metadata=PNG)
    things: tuple[tuple[Thing, ...], ...]
    names: tuple[str, ...]
    true: tuple[tuple[NamedBox, ...], ...] = ()

    @classmethod
    def of(cls, observation: Observation, least: float = 0.5) -> "ClassBoxes | None":
        """Draw all images, each once; None if the network says of no class where it is.

        Args:
            observation: the observation of the images.
            least: classes with a larger activation are there.
        """
        model = observation.model
        selection = observation.selection
        if not counts_things(model):
            return None
        images = selection.images  # those of several classes follow each other
        places = [
            place
            for place in range(len(images))
            if not place or not images[place].equal(images[place - 1])
        ]
        with evaluating(observation.model) as device:
            things = model.things_of(
                in_precision_of(observation.model, images[places].to(device)), least
            )
        return cls(
            title="What is where",
            text=(
                "A thing is a group of places that vote for one box or, without "
                "votes, a connected part of a class's map. Each thing has its own "
                "capsule, routed only from its children. The pose describes how the "
                "thing looks, and its last four numbers are a box around it."
                + (" White dotted boxes are the true ones." if selection.things else "")
            ),
            pictures=selection.pictures[places],
            things=tuple(map(tuple, things)),
            names=tuple(map(selection.name, range(model.classes))),
            true=tuple(selection.things[place] for place in places)
            if selection.things
            else (),
        )

    def draw(self) -> Iterator[Picture]:
        """The images with a box around each thing."""
        true = self.true or ((),) * len(self.things)
        boxed = []
        for picture, things, true_boxes in zip(
            self.pictures, self.things, true, strict=True
        ):
            boxes = [(self.names[thing.label], thing.box.tolist()) for thing in things]
            boxed.append(Boxed(picture, boxes, true_boxes))
        yield Picture(
            "boxes.png",
            "Images with a box around each thing that was found; dotted: the true ones",
            Boxed.figure(boxed, self.names),
        )

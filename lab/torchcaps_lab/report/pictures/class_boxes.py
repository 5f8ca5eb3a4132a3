"""Which classes are in one image, and where."""

from dataclasses import field

from torch import Tensor

from torchcaps.models.scene_capsnet import SceneCapsNet
from torchcaps_lab.report.exhibit import PNG, Exhibit, register_exhibit
from torchcaps_lab.report.observe import Observation


@register_exhibit("class_boxes")
class ClassBoxes(Exhibit):
    """One image, which classes are in it, and where each of them is.

    Attributes:
        picture: (C, H, W).
        classes: those that the network says are there, the most active first.
        boxes: of all classes, (E, 4): left, top, right, bottom in pixels; zeros for nowhere.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.class_boxes import ClassBoxes
        >>> image = torch.rand(1, 1, 32, 32)
        >>> network = tc.create_model("scene_capsnet", image_shape=(1, 32, 32), classes=3, channels=(3, 4))
        >>> shown = ClassBoxes.of(Observation(network, Selection(image, image)), torch.tensor([False, True, False]))
        >>> shown.classes, shown.boxes.shape
        ([1], torch.Size([3, 4]))
    """

    picture: Tensor = field(metadata=PNG)
    classes: list[int]
    boxes: Tensor

    @classmethod
    def of(cls, observation: Observation, said: Tensor) -> "ClassBoxes | None":
        """Of the example; None if the network says of no class where it is.

        Args:
            observation: of the image.
            said: which classes are there, bool (E,).
        """
        classes = observation.classes
        if classes is None or not isinstance(observation.model, SceneCapsNet):
            return None
        place = observation.selection.example
        order = classes.activation[place].argsort(descending=True).tolist()
        return cls(
            title="What is where",
            text="A class capsule's pose says what its class looks like and, with its last four numbers, where it is: "
            "a box around it.",
            picture=observation.selection.pictures[place],
            classes=[label for label in order if said[label]],
            boxes=classes.pose[place, :, -4:],
        )

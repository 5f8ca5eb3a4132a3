"""How active each class is in one image."""

from dataclasses import field

from torch import Tensor

from torchcaps_lab.report.exhibit import PNG, Exhibit, register_exhibit
from torchcaps_lab.report.observe import Observation


@register_exhibit("class_activations")
class ClassActivations(Exhibit):
    """One image and how active each class is.

    Attributes:
        picture: (C, H, W).
        activation: (E,).
        predicted: the most active class.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.class_activations import ClassActivations
        >>> image = torch.rand(1, 1, 8, 8)
        >>> look = Observation(
        ...     tc.create_model("capsnet_digits"), Selection(image, image)
        ... )
        >>> ClassActivations.of(look).activation.shape
        torch.Size([10])
    """

    picture: Tensor = field(metadata=PNG)
    activation: Tensor
    predicted: int

    @classmethod
    def of(cls, observation: Observation) -> "ClassActivations":
        """Make the exhibit of the example."""
        place = observation.selection.example
        activation = observation.activation[place]
        return cls(
            title="What the network sees",
            text=(
                "Each bar is the activation of a class's capsule, near 0 if the class "
                "is absent and near 1 if it is present. The capsules are independent, "
                "so the bars need not add up to 1."
            ),
            picture=observation.selection.pictures[place],
            activation=activation,
            predicted=int(activation.argmax()),
        )

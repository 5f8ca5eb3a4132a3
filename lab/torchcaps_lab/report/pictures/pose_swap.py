"""Two poses that change places."""

from dataclasses import field

import torch
from torch import Tensor

from torchcaps_lab.report.exhibit import PNG, Exhibit, register_exhibit
from torchcaps_lab.report.observe import Observation


@register_exhibit("pose_swap")
class PoseSwap(Exhibit):
    """Two images, and each pose drawn by the capsule of the other's class.

    Attributes:
        pictures: the images, (2, C, H, W).
        targets: their classes, (2,).
        reconstructions: what each pose draws in its own class, (2, C, H, W).
        swapped: what each pose draws in the class of the other, (2, C, H, W).

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.pose_swap import PoseSwap
        >>> network = tc.create_model("capsnet_digits")
        >>> one, other = (
        ...     Observation(network, Selection(image, image))
        ...     for image in torch.rand(2, 1, 1, 8, 8)
        ... )
        >>> PoseSwap.of(one, other).swapped.shape
        torch.Size([2, 1, 8, 8])
    """

    pictures: Tensor = field(metadata=PNG)
    targets: Tensor
    reconstructions: Tensor = field(metadata=PNG)
    swapped: Tensor = field(metadata=PNG)

    @classmethod
    def of(cls, first: Observation, second: Observation) -> "PoseSwap | None":
        """Make the exhibit of the examples of two looks with the same network; None
        without a decoder.
        """
        if first.classes is None or second.classes is None or not first.decodes:
            return None
        looks = [
            (look, classes, look.selection.example)
            for look, classes in ((first, first.classes), (second, second.classes))
        ]
        targets = torch.stack([look.target[place] for look, _, place in looks])
        poses = torch.stack(
            [
                classes.pose[place, look.target[place]].flatten()
                for look, classes, place in looks
            ]
        )
        drawn = first.draw(poses.repeat(2, 1), torch.cat([targets, targets.flip(0)]))
        return cls(
            title="Swap poses",
            text=(
                "The pose of one image, drawn by the capsule of the other's class. "
                "It keeps the properties for which the numbers mean the same in both "
                "classes. If each class has learned its own numbers, it keeps little."
            ),
            pictures=torch.stack(
                [look.selection.pictures[place] for look, _, place in looks]
            ),
            targets=targets,
            reconstructions=drawn[:2],
            swapped=drawn[2:],
        )

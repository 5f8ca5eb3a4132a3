"""The pose of a class for one image, and what its numbers do."""

from dataclasses import field

import torch
from torch import Tensor

from torchcaps_lab.evaluate.attributes import pose_tells
from torchcaps_lab.evaluate.poses import pose_changes
from torchcaps_lab.report.exhibit import PNG, Exhibit, register_exhibit
from torchcaps_lab.report.observe import Observation


@register_exhibit("class_pose")
class ClassPose(Exhibit):
    """The pose of the capsule of one class for one image, what it draws, and what each
    of its numbers does to that.

    Attributes:
        target: the class.
        pose: (D,), matrices row by row.
        reach: how far to move a number each way; about the paper's 0.25 for a pose of
            length 1.
        reconstruction: what the pose draws, (C, H, W).
        changes: (D,), the mean absolute difference of what is drawn with a number moved
            so far down and up.
        tells: of each number, what it changes of the shape:
            :func:`~torchcaps_lab.evaluate.pose_tells`.
        in_classes: what the same pose draws as the capsule of each class, (E, C, H, W).

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.class_pose import ClassPose
        >>> image = torch.rand(1, 1, 8, 8)
        >>> look = Observation(
        ...     tc.create_model("capsnet_digits"), Selection(image, image)
        ... )
        >>> shown = ClassPose.of(look)
        >>> shown.pose.shape, shown.reconstruction.shape, shown.in_classes.shape
        (torch.Size([16]), torch.Size([1, 8, 8]), torch.Size([10, 1, 8, 8]))
    """

    target: int
    pose: Tensor
    reach: float
    reconstruction: Tensor = field(metadata=PNG)
    changes: Tensor
    tells: tuple[str, ...]
    in_classes: Tensor = field(metadata=PNG)

    @classmethod
    def of(cls, observation: Observation) -> "ClassPose | None":
        """Make the exhibit of the example and the class that it is asked about; None
        without a decoder.
        """
        classes = observation.classes
        if classes is None or not observation.decodes:
            return None
        place = observation.selection.example
        target = int(observation.target[place])
        pose = classes.pose[place, target].flatten()
        reach = 0.6 * float(pose.abs().max()) or 1.0
        D = len(pose)
        E = classes.activation.shape[1]
        moves = (
            torch.eye(D)[:, None] * torch.tensor([-reach, 0.0, reach])[:, None]
        )  # [D, 3, D]
        poses = torch.cat([(pose + moves).flatten(0, 1), pose.expand(E, D)])
        drawn = observation.draw(
            poses, torch.tensor([target] * (3 * D) + list(range(E)))
        )
        sweep = drawn[: 3 * D].unflatten(0, (D, 3))
        in_classes = drawn[3 * D :]
        return cls(
            title="The pose of a class",
            text=(
                "The numbers of the pose describe how the class looks in this image, "
                "and the decoder draws an image from them."
            ),
            target=target,
            pose=pose,
            reach=reach,
            reconstruction=in_classes[target],
            changes=pose_changes(sweep[None])[0],
            tells=pose_tells(sweep),
            in_classes=in_classes,
        )

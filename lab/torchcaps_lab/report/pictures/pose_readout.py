"""Which attribute can be read from which number of a pose."""

from collections.abc import Iterator

import torch
from torch import Tensor

from torchcaps.models.base import CapsuleClassifier, ClassifierNetwork
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.evaluate.attributes import ATTRIBUTES, attributes, fit_readout
from torchcaps_lab.evaluate.poses import encoded, poses_of
from torchcaps_lab.report.exhibit import Exhibit, Table, register_exhibit
from torchcaps_lab.report.observe import Tested

_IMAGES = 400
_DARK = 0.1


@register_exhibit("pose_readout", place=130)
class PoseReadout(Exhibit):
    """How much of each attribute can be read, linearly, from each number of a pose and
    from all together.

    Attributes:
        attributes: their names, A of them.
        explained: R² of the read-out from all numbers, (A,).
        alone: R² of the read-out from one number, (D, A).
        images: how many were measured.

    Example:
        >>> from torchcaps_lab.report.pictures.pose_readout import PoseReadout
        >>> told = {
        ...     "explained": torch.tensor([0.9]),
        ...     "alone": torch.tensor([[0.8], [0.1]]),
        ... }
        >>> readout = PoseReadout(
        ...     title="", text="", attributes=("slant",), images=200, **told
        ... )
        >>> readout.table().rows
        [['all', '0.90'], ['0', '0.80'], ['1', '0.10']]
    """

    attributes: tuple[str, ...]
    explained: Tensor
    alone: Tensor
    images: int

    def table(self) -> Table:
        """A row a dimension, and one for all together."""
        shares = {"all": self.explained.tolist()}
        for place, row in enumerate(self.alone.tolist()):
            shares[str(place)] = row
        rows = []
        for name, row in shares.items():
            rows.append([name, *(f"{share:.2f}" for share in row)])
        return Table(rows, ["dimension", *self.attributes])

    @classmethod
    def of(cls, model: ClassifierNetwork, image_set: Examples) -> "PoseReadout | None":
        """Make the exhibit; None unless classes share their pose dimensions, images are
        bright figures on black, and can be measured.

        It takes scikit-image, and two measured images for each number of a pose.

        Args:
            model: any network.
            image_set: images, prepared for it; up to 400 of them are measured, chosen
                at random.
        """
        if not isinstance(model, CapsuleClassifier):
            return None
        if model.pose_input is None or model.pose_input.kind == "masked":
            return None
        order = torch.randperm(
            len(image_set), generator=torch.Generator().manual_seed(0)
        )
        batch = image_set.seen(order[:_IMAGES].tolist())
        if batch is None:
            return None
        corners = batch.pictures[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
        if batch.pictures.shape[1] != 1 or not corners.mean() <= _DARK:
            return None
        try:
            values = attributes(batch.pictures)
        except ModuleNotFoundError:  # scikit-image
            return None
        poses, values, predicted = _within_classes(model, batch.inputs, values)
        if len(poses) < 2 * poses.shape[1]:
            return None
        readout = fit_readout(poses, values, predicted)
        return cls(
            title="What the dimensions of a pose tell",
            text=(
                "How well slant, thickness, aspect and size can be read, linearly, "
                "from all numbers of a pose and from each alone. R² of 1 is all and "
                "0 is nothing. It is measured on a quarter of the images, which the "
                "read-out did not see. Poses are those of the predicted classes, and "
                "differences between classes are removed on both sides."
            ),
            attributes=ATTRIBUTES,
            explained=readout.explained,
            alone=readout.alone,
            images=len(poses),
        )

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[PoseReadout | None]":
        """Make the exhibit of what a classifier was tested on."""
        yield cls.of(tested.model, tested.images)


def _within_classes(
    model: CapsuleClassifier, images: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Poses (N, D) and attributes (N, A) less the means of their classes (N,), of what
    was measured.

    Args:
        model: the network.
        images: prepared for it, (B, C, H, W).
        values: their attributes, (B, A); NaN where nothing could be measured.
    """
    measured = values.isfinite().all(1)
    capsules = encoded(model, images[measured])
    predicted = capsules.activation.argmax(1)
    poses = poses_of(capsules, predicted).flatten(1)
    part = model.pose_input
    if part is not None:
        device = next(model.parameters()).device
        poses = part.shared(poses.to(device), predicted.to(device)).cpu()
    poses = poses.double()
    values = values[measured]
    for label in predicted.unique():
        poses[predicted == label] -= poses[predicted == label].mean(0)
        values[predicted == label] -= values[predicted == label].mean(0)
    return poses, values, predicted

"""Segmentation: a class for each pixel."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from torchcaps.models import ClassifierNetwork, Prediction
from torchcaps.numerics import NotNegative
from torchcaps.spec import check
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.evaluate.findings import Metrics, check_asked, predicted
from torchcaps_lab.evaluate.hints import titled
from torchcaps_lab.kinds.pixels.mask_set import NO_CLASS
from torchcaps_lab.kinds.pixels.pictures import (
    Segments,
    ShownSegments,
    drawings_of,
    mask_values,
)
from torchcaps_lab.report.exhibit import Exhibit
from torchcaps_lab.report.pictures.advice import Advice
from torchcaps_lab.report.pictures.headline import page_title, sentence
from torchcaps_lab.report.pictures.learning_curves import LearningCurves
from torchcaps_lab.report.pictures.summary import Summary
from torchcaps_lab.tasks.base import (
    Answer,
    Criteria,
    Examination,
    Forward,
    Losses,
    Measure,
    Task,
    register_task,
)
from torchcaps_lab.tasks.labels import finite_warning

_WORST = 6
"""Images of a report."""

_PIXELS = 2**18
"""Numbers of the images that are tested together."""


def dice_loss(probabilities: Tensor, labels: Tensor) -> Tensor:
    r"""One minus the mean over the classes of the Dice coefficient of probabilities p
    and labels.

    .. math:: 1 - \frac{1}{E} \sum_j \frac{2 \sum p_j t_j}{\sum p_j + \sum t_j}

    with sums over the pixels of all images that have a class; a class that is nowhere
    true is left out of the mean.

    Args:
        probabilities: (B, E, *grid), as
            :meth:`torchcaps.losses.ActivationLoss.probabilities` has them.
        labels: the class of each pixel, int64 (B, *grid); 255 for none.

    Source: Milletari, Navab & Ahmadi 2016, "V-Net", with p in place of its square.
    """
    labelled = labels != NO_CLASS
    true = one_hot(labels.where(labelled, 0), probabilities.shape[1])
    true = true.movedim(-1, 1) * labelled[:, None]
    shares = probabilities * labelled[:, None]
    axes = (0, *range(2, shares.ndim))
    count = true.sum(axes)
    dice = 2 * (shares * true).sum(axes) / (shares.sum(axes) + count).clamp_min(1e-12)
    return 1 - dice[count > 0].mean() if count.any() else dice.sum() * 0


def overlaps(confusion: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union and Dice coefficient of each class, (..., E); NaN for one
    that is nowhere.

    Args:
        confusion: counts of pixels, (..., E, E), true classes in rows.
    """
    both = confusion.diagonal(dim1=-2, dim2=-1)
    sizes = confusion.sum(-1) + confusion.sum(-2)
    return both / (sizes - both), 2 * both / sizes


def _confusion(best_classes: Tensor, labels: Tensor, classes: int) -> Tensor:
    labelled = labels != NO_CLASS
    cells = labels[labelled] * classes + best_classes[labelled]
    return torch.bincount(cells, minlength=classes**2).view(classes, classes)


class _PixelAnswers(NamedTuple):
    """What is known of an image: the confusion matrix (E, E), the answer of each pixel,
    and the highest activation of each class (E,).
    """

    confusion: Tensor
    mask: Tensor
    highest: Tensor


@register_task("segmentation")
class Segmentation(Task):
    """Predicts the class of each pixel, the most active one; learns from masks.

    Pixels of no class (255) count for nothing. Losses on activations take every pixel
    for an image.

    Args:
        dice: weight of :func:`dice_loss` beside that loss.

    Raises:
        ValueError: if the weight is negative.

    Example:
        >>> from torchcaps_lab.tasks import Segmentation
        >>> [measure.name for measure in Segmentation().measures]
        ['iou', 'dice']
    """

    measures = (Measure("iou"), Measure("dice"))

    probability = "share of the pixels"

    length = "activation of the class at the pixel where it is highest"

    def __init__(self, dice: float = 1.0) -> None:
        check(NotNegative, dice, "dice")
        self.dice = dice

    def check(self, images: Examples) -> None:
        """Raises a `ValueError` unless every pixel has a label."""
        if len(images) and images[0].labels.ndim < 3:
            raise ValueError(
                "task 'segmentation' takes images with a class for each pixel, as "
                "Masks and ScenePixels have; these "
                "have labels for whole images"
            )

    def loss(
        self,
        network: ClassifierNetwork,
        forward: Forward,
        batch: Batch,
        criteria: Criteria,
    ) -> Losses:
        """Loss of the activations at each pixel, of their overlap, and of a masked
        reconstruction if there is one.
        """
        labels = batch.labels
        prediction = forward(batch.inputs, labels)
        activation = _pixelwise(prediction, labels)
        labelled = labels.flatten() != NO_CLASS
        rows = activation.movedim(1, -1).flatten(0, -2)
        # A batch may have no pixel with a class, whose mean would be NaN.
        parts = {
            "class_loss": criteria.loss(rows[labelled], labels.flatten()[labelled])
            if labelled.any()
            else rows.sum() * 0
        }
        if self.dice:
            parts["dice_loss"] = self.dice * dice_loss(
                criteria.loss.probabilities(activation), labels
            )
        if prediction.reconstruction is not None:
            foreground = ((labels > 0) & (labels != NO_CLASS))[:, None]
            parts["reconstruction_loss"] = criteria.reconstruction(
                prediction.reconstruction * foreground, batch.pictures * foreground
            )
        return prediction, parts

    def measure(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        """``iou`` and ``dice`` of each image: means over the classes that are in it or
        were said to be.
        """
        best_classes = prediction.activation.argmax(1)
        classes = prediction.activation.shape[1]
        pairs = zip(best_classes, batch.labels, strict=True)
        iou, dice = overlaps(
            torch.stack([_confusion(mask, true, classes) for mask, true in pairs])
        )
        return {
            "iou": iou.nanmean(1).nan_to_num(1),
            "dice": dice.nanmean(1).nan_to_num(1),
        }

    def examine(
        self,
        network: ClassifierNetwork,
        images: Examples,
        batch_size: int = 128,
    ) -> Examination:
        """IoU and Dice coefficient of each class over the pixels of all images
        together, and their means.

        As many images are taken at a time as have together the pixels of one of 512 x
        512.
        """
        self.check(images)
        looked = [*self._answers_by_batch(network, images)]
        confusion = torch.stack([image.confusion for image in looked])
        iou, dice = overlaps(confusion.sum(0))
        accuracy = confusion.sum(0).trace() / confusion.sum().clamp_min(1)
        rows = {
            name: {"pixels": int(count), "iou": iou_of_class, "dice": dice_of_class}
            for name, count, iou_of_class, dice_of_class in zip(
                images.classes,
                confusion.sum((0, 2)),
                iou.tolist(),
                dice.tolist(),
                strict=True,
            )
        }
        figures = {
            "iou": iou.nanmean().item(),
            "dice": dice.nanmean().item(),
            "pixel_accuracy": accuracy.item(),
        }
        each = [
            f"  {name}: IoU {row['iou']:.2%}, Dice {row['dice']:.2%}"
            if not math.isnan(row["iou"])
            else f"  {name}: in no mask and in no answer"
            for name, row in rows.items()
        ]
        line = (
            f"mean IoU {figures['iou']:.2%}, mean Dice {figures['dice']:.2%}, "
            f"{accuracy:.2%} of the pixels right"
        )
        per_image = overlaps(confusion)[0].nanmean(1).tolist()
        return Examination(
            figures,
            {"per_class": rows, "iou_of_images": per_image},
            (line, *each),
            finite_warning(torch.stack([image.highest for image in looked])),
        )

    def _answers_by_batch(
        self, network: ClassifierNetwork, images: Examples
    ) -> Iterator[_PixelAnswers]:
        check_asked(network, images, 1)
        at_once = max(1, _PIXELS // math.prod(images.image_shape))
        for batch, prediction in predicted(network, images, at_once):
            activation = _pixelwise(prediction, batch.labels)
            rows = (
                activation.argmax(1).cpu(),
                batch.labels.cpu(),
                activation.flatten(2).amax(2).cpu(),
            )
            for mask, labels, highest in zip(*rows, strict=True):
                confusion = _confusion(mask, labels, len(images.classes))
                yield _PixelAnswers(confusion, mask, highest)

    def drawings(
        self,
        answer: Answer,
        picture: Tensor,
        classes: Sequence[str],
    ) -> dict[str, bytes]:
        """The class of each pixel, as an image with indexed colours whose values are
        those of the masks, and laid over the picture.
        """
        return drawings_of(answer.mask, picture, mask_values(classes))

    def answers(self, prediction: Prediction, classes: Sequence[str]) -> list[Answer]:
        """The class of each pixel; the classes of an image have pixels, and
        probabilities are shares of these.
        """
        answers = []
        for activation in prediction.activation:
            mask = activation.argmax(0)
            counts = torch.bincount(mask.flatten(), minlength=len(classes))
            shares = counts / mask.numel()
            highest = activation.flatten(1).amax(1)
            order = shares.argsort(descending=True)[: int((counts > 0).sum())].tolist()
            answers.append(
                Answer(
                    tuple(classes[index] for index in order),
                    dict(zip(classes, shares.tolist(), strict=True)),
                    dict(zip(classes, highest.tolist(), strict=True)),
                    mask=mask,
                )
            )
        return answers

    def exhibits(
        self,
        network: ClassifierNetwork,
        images: Examples,
        summary: Mapping[str, Any],
        metrics: Metrics,
    ) -> Iterator[Exhibit | None]:
        """The figures of each class, learning curves, and the worst images."""
        examination = self.examine(network, images)
        each = torch.tensor(examination.details["iou_of_images"]).nan_to_num(1)
        worst = images.subset(each.argsort()[:_WORST])
        names = [Path(file).name for file in worst.files or map(str, range(len(worst)))]
        values = each.sort().values.tolist()
        masks = [image.mask for image in self._answers_by_batch(network, worst)]
        yield Segments(
            title=page_title(network, summary),
            text=f"{sentence(examination.lines[0])} Below are the worst images.",
            figures=examination.details["per_class"],
            shown=tuple(
                ShownSegments(
                    f"{name}: IoU {value:.1%}",
                    batch.pictures[0].cpu(),
                    batch.labels[0].cpu(),
                    mask,
                )
                for name, value, batch, mask in zip(
                    names, values, worst.batches(1), masks, strict=False
                )
            ),
            classes=tuple(images.classes),
        )
        shares = {
            name: row["iou"] for name, row in examination.details["per_class"].items()
        }
        yield Advice.of_task(
            "iou",
            examination.figures["iou"],
            shares,
            images,
            summary,
            metrics,
            of_class=titled("iou"),
            draw="--masks masks",
        )
        yield LearningCurves.of(metrics)
        yield Summary.of("Settings", summary, [])


def _pixelwise(prediction: Prediction, labels: Tensor) -> Tensor:
    """The activations in float32, (B, E, *grid).

    Raises:
        ValueError: if the network predicts no class for each pixel.
    """
    activation = prediction.activation
    if activation.shape[2:] != labels.shape[1:]:
        raise ValueError(
            "task 'segmentation' takes networks with activations (B, E, "
            f"{', '.join(map(str, labels.shape[1:]))}), "
            f"got {tuple(activation.shape)}"
        )
    return activation.float()

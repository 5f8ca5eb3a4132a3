"""Detection: boxes around things of several classes, at most one thing of each class."""

import contextlib
import io
from typing import Any

import torch
from torch import Tensor

from torchcaps.models import ImageClassifier, Prediction
from torchcaps.models.base import in_precision_of
from torchcaps.numerics import check_finite
from torchcaps_lab.data import Batch, ImageSet, class_boxes
from torchcaps_lab.tasks.base import Criteria, Examination, Forward, Measure, register_task
from torchcaps_lab.tasks.several_labels import SeveralLabels


def box_iou(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of pairs of boxes (..., 4): (...); 0 where both are empty.

    Args:
        one: left, top, right, bottom.
        other: likewise; the shapes broadcast.
    """
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    common = (high - low).clamp_min(0).prod(-1)
    union = _area(one) + _area(other) - common
    return torch.where(union > 0, common / torch.where(union > 0, union, 1.0), 0.0)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp_min(0).prod(-1)


def box_loss(boxes: Tensor, true: Tensor) -> Tensor:
    r"""Distance of boxes from the true ones, relative to the size of these, plus 1 - IoU.

    .. math:: \frac{1}{n} \sum \Big( \frac{|b - t|_1}{4 \sqrt{\text{area } t}} + 1 - \text{IoU}(b, t) \Big)

    over the n classes that have a true box; 0 if none has.

    Args:
        boxes: b, of each class, (B, E, 4).
        true: t, likewise; empty where a class is not there.
    """
    there = _area(true) > 0
    side = _area(true).where(there, 1.0).sqrt()
    off = (boxes - true).abs().mean(-1) / side + 1 - box_iou(boxes, true)
    return (off * there).sum() / there.sum().clamp_min(1)


def average_precision(activation: Tensor, boxes: Tensor, true: Tensor) -> dict[str, float]:
    """Mean average precision as in COCO, by pycocotools: ``map``, over IoU 0.5 to 0.95, ``map_50`` and ``map_75``.

    Every class of every image is a detection, its score the activation.

    Args:
        activation: (N, E).
        boxes: of each class, (N, E, 4).
        true: likewise; empty where a class is not there.

    Raises:
        ModuleNotFoundError: if pycocotools is not installed; it names the extra.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "mean average precision needs pycocotools, which is not installed: pip install 'torchcaps-lab[detection]'",
            name="pycocotools",
        ) from error

    def rows(which: Tensor, of: Tensor) -> list[dict[str, Any]]:
        places = which.nonzero().tolist()
        sizes = torch.cat([of[..., :2], (of[..., 2:] - of[..., :2]).clamp_min(0)], -1)[which].tolist()
        areas = _area(of)[which].tolist()
        return [
            {"id": number, "image_id": image, "category_id": label, "bbox": box, "area": area, "iscrowd": 0}
            for number, ((image, label), box, area) in enumerate(zip(places, sizes, areas, strict=True), 1)
        ]

    there = _area(true) > 0
    if not there.any():
        return dict.fromkeys(("map", "map_50", "map_75"), 0.0)
    known, found = COCO(), COCO()
    known.dataset = {
        "images": [{"id": image} for image in range(len(true))],
        "categories": [{"id": label} for label in range(true.shape[1])],
        "annotations": rows(there, true),
    }
    every = torch.ones_like(there)
    scores = activation.flatten().tolist()
    said = [{**row, "score": score} for row, score in zip(rows(every, boxes), scores, strict=True)]
    found.dataset = {**known.dataset, "annotations": said}
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints progress
        known.createIndex()
        found.createIndex()
        judge = COCOeval(known, found, "bbox")
        judge.params.areaRng, judge.params.areaRngLbl = judge.params.areaRng[:1], judge.params.areaRngLbl[:1]
        judge.evaluate()
        judge.accumulate()
    precision = torch.from_numpy(judge.eval["precision"])[..., 0, -1]  # [overlaps, recalls, classes], all sizes
    each = {"map": precision, "map_50": precision[:1], "map_75": precision[5:6]}
    return {name: one[one >= 0].mean().item() for name, one in each.items()}  # -1: a class that never occurs


@register_task("detection")
class Detection(SeveralLabels):
    """Predicts all classes of each image, with a box around each; learns from images with one thing of a class at most.

    It takes images whose batches have their parts, such as those of :class:`~torchcaps_lab.data.DigitScenes`: the true
    boxes enclose the ink of the parts. The network must predict boxes (:attr:`~torchcaps.models.Prediction.boxes`).

    Args:
        threshold: classes with a larger activation count as predicted.
        weight: of :func:`box_loss`, relative to the loss of the activations.

    Raises:
        ValueError: if the threshold is not in (0, 1), or the weight is negative.

    Example:
        >>> from torchcaps_lab.tasks import Detection
        >>> [measure.name for measure in Detection(threshold=0.4).measures]
        ['accuracy', 'box_iou']
    """

    measures = (Measure(), Measure("box_iou"))

    def __init__(self, threshold: float = 0.5, weight: float = 1.0) -> None:
        super().__init__(None, threshold)
        check_finite(0, weight=weight)
        self.weight = weight

    def check(self, images: ImageSet) -> None:
        """Raises a `ValueError` unless the labels are masks, and batches have their parts."""
        super().check(images)
        if len(images) and images[0].parts is None:
            raise ValueError(
                "task 'detection' takes images that were put together from parts, whose boxes it learns; these have no "
                "parts: use task 'several_labels'"
            )

    def loss(
        self, network: ImageClassifier, forward: Forward, batch: Batch, criteria: Criteria
    ) -> tuple[Prediction, dict[str, Tensor]]:
        """Loss of the class activations, and of the boxes of the classes that are there.

        Raises:
            ValueError: if the network predicts no boxes.
        """
        prediction, parts = super().loss(network, forward, batch, criteria)
        boxes = _boxes(prediction, network)
        parts["box_loss"] = self.weight * box_loss(boxes.float(), _true_boxes(batch, network.classes))
        return prediction, parts

    def measure(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        """``accuracy``, whether exactly the true classes are predicted; ``box_iou``, the mean over these classes."""
        true = _true_boxes(batch, prediction.activation.shape[1])
        there = _area(true) > 0
        assert prediction.boxes is not None
        overlap = (box_iou(prediction.boxes.float(), true) * there).sum(1) / there.sum(1).clamp_min(1)
        overlap = torch.where(there.any(1), overlap, 1.0)  # nothing to find, nothing missed
        return {**super().measure(prediction, batch), "box_iou": overlap}

    def examine(self, network: ImageClassifier, images: ImageSet, batch_size: int = 128) -> Examination:
        """The results of :class:`SeveralLabels`, the mean IoU of the boxes, and their mean average precision."""
        from torchcaps_lab.report import ask
        from torchcaps_lab.report.findings import check_asked, evaluating

        if getattr(images.composition, "repeats", False):  # then the boxes of a class are no measure, and counts are
            return super().examine(network, images, batch_size)
        self.check(images)
        check_asked(network, images, batch_size)
        rows = []
        with evaluating(network) as device:
            for batch in images.batches(batch_size):  # once for classes and boxes: making scenes takes time, too
                prediction = network(in_precision_of(network, batch.images.to(device)))
                row = prediction.activation, _boxes(prediction, network), _true_boxes(batch, network.classes)
                rows.append((batch.labels.cpu(), *(part.float().cpu() for part in row)))
        labels, activation, told, real = (torch.cat(part) for part in zip(*rows, strict=True))
        there = _area(real) > 0
        figures = {"box_iou": box_iou(told, real)[there].mean().item() if there.any() else 0.0}
        figures |= average_precision(activation, told, real)
        if images.preprocess.crops > 1:  # boxes are those of the centre crop
            activation = ask(network, images, batch_size).activation
        found = self._examination(activation, labels, images)
        line = (
            f"boxes: mean IoU {figures['box_iou']:.3f}, mean average precision {figures['map_50']:.3f} at IoU 0.5, "
            f"{figures['map']:.3f} over 0.5 to 0.95"
        )
        first, *others = found.lines
        return Examination({**found.figures, **figures}, found.details, (first, line, *others), found.warnings)


def _boxes(prediction: Prediction, network: ImageClassifier) -> Tensor:
    if prediction.boxes is None:
        raise ValueError(f"task 'detection' takes networks that predict boxes, {type(network).__name__} does not")
    return prediction.boxes


def _true_boxes(batch: Batch, classes: int) -> Tensor:
    """The box of each class, (B, E, 4); zeros if it is absent, even if its black part was made brighter.

    Boxes are computed from the parts before brightness, contrast and erasing.
    """
    if batch.parts is None:
        raise ValueError("task 'detection' takes images that were put together from parts, these have none")
    if (batch.parts.labels.sort(1).values.diff(dim=1) == 0).any():
        raise ValueError("task 'detection' learns from images with at most one thing of a class, these repeat classes")
    parts = batch.parts if batch.placed is None else batch.parts._replace(pictures=batch.placed)
    return class_boxes(parts, classes) * batch.labels[..., None]

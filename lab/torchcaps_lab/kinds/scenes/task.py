"""Detection: boxes around any number of things of several classes."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.capsules import Places
from torchcaps.models import (
    ClassifierNetwork,
    Prediction,
    Thing,
    box_area,
    box_iou,
)
from torchcaps.numerics import NotNegative
from torchcaps.spec import check
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.evaluate.findings import ask, check_asked, predicted
from torchcaps_lab.tasks.base import (
    Criteria,
    Examination,
    Forward,
    Losses,
    Measure,
    register_task,
)
from torchcaps_lab.tasks.several_labels import SeveralLabels
from torchcaps_lab.tasks.things import (
    counts_things,
    look_for_things,
    mean_average_precision,
    true_things,
)

_LEAST = 0.01  # by how much a place that no class claims yet learns its box


def box_loss(boxes: Tensor, true: Tensor) -> Tensor:
    r"""Distance of boxes from the true ones, relative to the size of these, plus 1 -
    IoU.

    .. math:: \frac{1}{n} \sum \Big( \frac{|b - t|_1}{4 \sqrt{\text{area } t}} + 1 - \text{IoU}(b, t) \Big)

    over the n classes that have a true box; 0 if none has.

    Args:
        boxes: b, of each class, (B, E, 4).
        true: t, likewise; empty where a class is not there.
    """
    present = box_area(true) > 0
    return (_off(boxes, true) * present).sum() / present.sum().clamp_min(1)


def _off(boxes: Tensor, true: Tensor) -> Tensor:
    side = box_area(true).where(box_area(true) > 0, 1.0).sqrt()
    return (boxes - true).abs().mean(-1) / side + 1 - box_iou(boxes, true)


def owners(true: Tensor, centres: Tensor) -> Tensor:
    """The thing that each place is a part of, int64 (B, I): the one with the smallest
    box around it, -1 for none.

    Args:
        true: the boxes of things (B, K, 4).
        centres: the centres of the places, (B, I, 2).
    """
    places = centres[:, None]
    low, high = true[:, :, None, :2], true[:, :, None, 2:]
    inside = ((places > low) & (places < high)).all(-1)  # [B, K, I]
    area = torch.where(inside, box_area(true)[..., None], torch.inf)
    return torch.where(inside.any(1), area.argmin(1), -1)


def _boxes_voted_for(places: Places, labels: Tensor, true: Tensor) -> Tensor:
    """The boxes that the places of things vote for, (B, K, 4): means, by how much of
    each belongs to its class.
    """
    owner = owners(true, places.centres)
    things = torch.arange(labels.shape[1], device=owner.device)
    mine = owner[:, None] == things[:, None]  # [B, K, I]
    share = places.maps.flatten(2).take_along_dim(labels[..., None], 1).float() * mine
    return share @ _voted(places) / share.sum(2, keepdim=True).clamp_min(_LEAST**4)


def _voted(places: Places) -> Tensor:
    assert places.boxes is not None
    return places.boxes.float()


def vote_loss(places: Places, owner: Tensor, labels: Tensor, true: Tensor) -> Tensor:
    """:func:`box_loss` of the votes, by how much of each place belongs to the class of
    the thing that it is a part of.

    Args:
        places: B images, whose children vote.
        owner: the thing of each place, (B, I), -1 for none.
        labels: the labels of the things, (B, K).
        true: their boxes, (B, K, 4).
    """
    owned = owner.clamp_min(0)
    label = labels.gather(1, owned)
    box = true.take_along_dim(owned[..., None], 1)
    maps = places.maps.detach().flatten(2)
    share = maps.take_along_dim(label[:, None], 1)[:, 0].float()
    share = (share + _LEAST) * (owner >= 0)
    return (share * _off(_voted(places), box)).sum() / share.sum().clamp_min(_LEAST)


def average_precision(
    activation: Tensor, boxes: Tensor, true: Tensor
) -> dict[str, float]:
    """:func:`mean_average_precision` where every class of every image is a detection,
    its score the activation.

    Args:
        activation: (N, E).
        boxes: the boxes of each class, (N, E, 4).
        true: likewise; empty where a class is not there.
    """
    present = box_area(true) > 0
    labels = range(activation.shape[1])
    predicted_things = [
        list(map(Thing, labels, *row))
        for row in zip(activation.tolist(), boxes, strict=True)
    ]
    real = []
    for boxes_of_image, present_labels in zip(true, present, strict=True):
        labels_of_image = present_labels.nonzero().flatten().tolist()
        real.append(
            [Thing(label, 1.0, boxes_of_image[label]) for label in labels_of_image]
        )
    return mean_average_precision(predicted_things, real)


@register_task("detection")
class Detection(SeveralLabels):
    """Predicts all classes of each image, with a box around each thing.

    It takes images whose batches have their parts, such as those of
    :class:`~torchcaps_lab.data.DigitScenes` and
    :class:`~torchcaps_lab.data.AnnotatedImages`: the true boxes enclose the ink of the
    parts. The network must predict boxes (:attr:`~torchcaps.models.Prediction.boxes`).
    If its places vote for them, images may have any number of things of a class: each
    place learns the box of the thing that it is a part of, and the capsules routed from
    the places of one thing alone learn its class, those from the places of nothing that
    there is none.

    Args:
        threshold: classes with a larger activation count as predicted.
        weight: the weight of the loss of the boxes, relative to that of the
            activations.
        each: False: only the box of each class is learned, of images with one thing of
            a class at most.

    Raises:
        ValueError: if the threshold is not in (0, 1), or the weight is negative.

    Example:
        >>> from torchcaps_lab.tasks import Detection
        >>> [measure.name for measure in Detection(threshold=0.4).measures]
        ['accuracy', 'box_iou']
    """

    measures = (Measure(), Measure("box_iou"))

    def __init__(
        self,
        threshold: float = 0.5,
        weight: float = 1.0,
        each: bool = True,
    ) -> None:
        super().__init__(None, threshold)
        check(NotNegative, weight, "weight")
        self.weight = weight
        self.each = each

    def check(self, images: Examples) -> None:
        """Raises a `ValueError` unless the labels are masks, and batches have their
        parts.
        """
        super().check(images)
        if len(images) and images[0].parts is None:
            raise ValueError(
                "task 'detection' takes images that were put together from parts, "
                "whose boxes it learns; these have no "
                "parts: use task 'several_labels'"
            )

    def loss(
        self,
        network: ClassifierNetwork,
        forward: Forward,
        batch: Batch,
        criteria: Criteria,
    ) -> Losses:
        """Loss of the class activations, and of the boxes of the classes that are there
        or, with `each`, of all things.

        Raises:
            ValueError: if the network predicts no boxes.
        """
        prediction, parts = super().loss(network, forward, batch, criteria)
        boxes = _boxes(prediction, network)
        if not self.each or not _votes(prediction):
            parts["box_loss"] = self.weight * box_loss(
                boxes.float(), _true_boxes(batch, network.classes)
            )
            return prediction, parts
        assert counts_things(network)
        assert prediction.places is not None
        labels, true = true_things(batch)
        owner = owners(true, prediction.places.centres)
        parts["box_loss"] = self.weight * vote_loss(
            prediction.places, owner, labels, true
        )
        # -1: the places of no thing.
        things = torch.arange(-1, labels.shape[1], device=owner.device)
        mine = owner[:, None] == things[:, None]  # [B, 1 + K, I]
        image, thing = mine.any(2).nonzero(as_tuple=True)
        mask = F.one_hot(labels, network.classes).to(boxes.dtype)
        mask = F.pad(mask, (0, 0, 1, 0))[image, thing]
        digits_alone = network.alone(
            prediction.places,
            image,
            mine[image, thing].unflatten(1, prediction.places.maps.shape[2:]),
        )
        target = mask
        if criteria.loss.shares:
            target = mask / mask.sum(1, keepdim=True).clamp_min(1)
        parts["thing_loss"] = criteria.loss(digits_alone.activation, target)
        return prediction, parts

    def measure(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        """``accuracy``, whether exactly the true classes are predicted; ``box_iou``,
        the mean over these classes.
        """
        assert prediction.boxes is not None
        boxes = prediction.boxes.float()
        if not self.each or not _votes(prediction):
            true = _true_boxes(batch, boxes.shape[1])
        else:
            assert prediction.places is not None
            labels, true = true_things(batch)
            boxes = _boxes_voted_for(prediction.places, labels, true)
        present = box_area(true) > 0
        overlap = (box_iou(boxes, true) * present).sum(1) / present.sum(1).clamp_min(1)
        # Nothing to find, nothing missed.
        overlap = torch.where(present.any(1), overlap, 1.0)
        return {**super().measure(prediction, batch), "box_iou": overlap}

    def examine(
        self,
        network: ClassifierNetwork,
        images: Examples,
        batch_size: int = 128,
    ) -> Examination:
        """The results of :class:`SeveralLabels`, the mean IoU of the boxes, and their
        mean average precision.
        """
        if images.several:  # boxes of a class are no measure then
            return self._of_things(network, images, batch_size)
        self.check(images)
        check_asked(network, images, batch_size)
        rows = []  # once for classes and boxes: making scenes takes time, too
        for batch, prediction in predicted(network, images, batch_size):
            true = _true_boxes(batch, network.classes)
            row = (prediction.activation, _boxes(prediction, network), true)
            rows.append((batch.labels.cpu(), *(part.float().cpu() for part in row)))
        labels, activation, boxes, real = (
            torch.cat(part) for part in zip(*rows, strict=True)
        )
        present = box_area(real) > 0
        overlap = box_iou(boxes, real)[present]
        figures = {"box_iou": overlap.mean().item() if len(overlap) else 0.0}
        figures |= average_precision(activation, boxes, real)
        if images.preprocess.crops > 1:  # boxes are those of the centre crop
            activation = ask(network, images, batch_size).activation
        examination = self._examination(activation, labels, images)
        line = (
            f"boxes: mean IoU {figures['box_iou']:.3f}, mean average precision "
            f"{figures['map_50']:.3f} at IoU 0.5, "
            f"{figures['map']:.3f} over 0.5 to 0.95"
        )
        first, *following = examination.lines
        return Examination(
            {**examination.figures, **figures},
            examination.details,
            (first, line, *following),
            examination.warnings,
        )

    def _of_things(
        self,
        network: ClassifierNetwork,
        images: Examples,
        batch_size: int,
    ) -> Examination:
        self.check(images)
        if not counts_things(network):
            raise ValueError(
                "several things of a class take a SceneCapsNet, got "
                f"{type(network).__name__}"
            )
        looked = look_for_things(network, images, self.threshold, batch_size)
        figures = looked.precision()
        line = (
            f"things: mean average precision {figures['map_50']:.3f} at IoU 0.5, "
            f"{figures['map']:.3f} over 0.5 to 0.95"
        )
        examination = self._examination(looked.activation, looked.labels, images)
        first, *following = examination.lines
        lines = (first, looked.count_line(), line, *following)
        return Examination(
            {**examination.figures, **looked.count_figures(), **figures},
            examination.details,
            lines,
            examination.warnings,
        )


def _boxes(prediction: Prediction, network: ClassifierNetwork) -> Tensor:
    if prediction.boxes is None:
        raise ValueError(
            "task 'detection' takes networks that predict boxes, "
            f"{type(network).__name__} does not"
        )
    return prediction.boxes


def _votes(prediction: Prediction) -> bool:
    return prediction.places is not None and prediction.places.boxes is not None


def _true_boxes(batch: Batch, classes: int) -> Tensor:
    """The box of each class, (B, E, 4); zeros if it is absent, even if its black part
    was made brighter.

    Boxes are computed from the parts before brightness, contrast and erasing.
    """
    labels, boxes = true_things(batch)
    drawn = box_area(boxes) > 0
    unnamed = -1 - torch.arange(labels.shape[1], device=labels.device)
    named = labels.where(drawn, unnamed)
    if (named.sort(1).values.diff(dim=1) == 0).any():
        raise ValueError(
            "without votes of places (boxes=True), task 'detection' learns from "
            "images with at most one thing of a "
            "class, these repeat classes"
        )
    sums = boxes.new_zeros(len(boxes), classes, 4)
    places = labels[..., None].expand(-1, -1, 4)
    return sums.scatter_add(1, places, boxes * drawn[..., None])

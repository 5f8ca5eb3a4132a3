"""Things in images: what is really there, what a network finds, how many, and how
precisely.
"""

import contextlib
import io
import operator
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, Places
from torchcaps.models import Prediction, Thing, box_area
from torchcaps.optional_imports import needing
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.data.boxes import ink_boxes
from torchcaps_lab.evaluate.findings import check_asked, predicted
from torchcaps_lab.tasks.base import Answer, Task

Things = Sequence[Sequence[Thing]]
"""Those of each image."""

_FAINT = 0.05
"""Things of classes with a larger activation count in the average precision."""


def finds_things(network: Any) -> bool:
    """Whether a network says where things are, each for itself, or in how many places a
    class is.
    """
    return hasattr(network, "things_of") or hasattr(network, "parts_of")


class CountsThings(Protocol):
    """A network that has a capsule for each thing, several of a class included."""

    classes: int

    def things_of(self, images: Tensor, least: float = 0.5) -> list[list[Thing]]:
        """What is in each image, the most active first."""

    def things_in(
        self, prediction: Prediction, least: float = 0.5
    ) -> list[list[Thing]]:
        """The same, of images that the network has looked at."""

    def alone(self, places: Places, image: Tensor, there: Tensor) -> Capsules:
        """The class capsules of the children at some places alone."""


def counts_things(network: Any) -> TypeGuard[CountsThings]:
    """Whether a network has a capsule for each thing, several of a class included."""
    return hasattr(network, "things_of")


def with_things(
    network: Any,
    task: Task,
    classes: Sequence[str],
    answers: Sequence[Answer],
    images: Tensor,
) -> list[Answer]:
    """Return answers with everything that is there of each predicted class.

    Args:
        network: the network, one that :func:`finds_things`.
        task: what it is for.
        classes: the names of its classes.
        answers: the answers for the images.
        images: the images, prepared for the network.

    Warns:
        UserWarning: a network without a capsule for each thing draws one box around
            several things of a class.
    """
    if not counts_things(network):
        for answer, parts in zip(
            answers, network.parts_of(images).tolist(), strict=True
        ):
            _warn_of_several(answer, classes, parts)
        return list(answers)
    things = network.things_of(images, getattr(task, "threshold", 0.5))
    return [
        replace(answer, things=_by_class(answer, classes, seen))
        for answer, seen in zip(answers, things, strict=True)
    ]


def _warn_of_several(
    answer: Answer, classes: Sequence[str], parts: Sequence[int]
) -> None:
    for name in answer.classes:
        if parts[classes.index(name)] > 1:
            warnings.warn(
                f"{name} is seen in several places, and told in one box around them",
                stacklevel=5,
            )


def _by_class(
    answer: Answer, classes: Sequence[str], things: Sequence[Thing]
) -> dict[str, Sequence[Thing]]:
    """The things of each predicted class; the box of the answer where there is none."""
    by_class: dict[str, Sequence[Thing]] = {}
    for name in answer.classes:
        mine = [thing for thing in things if classes[thing.label] == name]
        by_class[name] = mine or (answer.things or {})[name]
    return by_class


def true_things(batch: Batch) -> tuple[Tensor, Tensor]:
    """Labels (B, K) and boxes (B, K, 4) of the things in images; empty where an image
    has fewer than K.

    Boxes are computed from the parts before brightness, contrast and erasing.

    Raises:
        ValueError: if the images were not put together from parts.
    """
    if batch.parts is None:
        raise ValueError(
            "task 'detection' takes images that were put together from parts, these "
            "have none"
        )
    if batch.placed is None:
        parts = batch.parts
    else:
        parts = batch.parts._replace(pictures=batch.placed)
    return parts.labels, ink_boxes(parts.pictures) * batch.labels.gather(
        1, parts.labels
    )[..., None]


class Looked(NamedTuple):
    """What a network finds in images, and what is there.

    Args:
        labels: masks, bool (N, E).
        activation: the activation of the classes, (N, E).
        candidates: things of all classes that may be there, the most active first.
        counted: those of them that the network says are there.
        true: what is there.

    Example:
        >>> from torchcaps.models import Thing
        >>> from torchcaps_lab.tasks import Looked
        >>> candidates, true = (
        ...     [[Thing(1, 0.9, torch.zeros(4))] * count] for count in (1, 2)
        ... )
        >>> Looked(
        ...     torch.ones(1, 3), torch.ones(1, 3), candidates, candidates, true
        ... ).count_figures()
        {'count_accuracy': 0.0}
    """

    labels: Tensor
    activation: Tensor
    candidates: list[list[Thing]]
    counted: list[list[Thing]]
    true: list[list[Thing]]

    @property
    def right_counts(self) -> Tensor:
        """Whether an image has as many things of every class as the network says, bool
        (N,).
        """
        true = list(map(count_of, self.true))
        counted = list(map(count_of, self.counted))
        return torch.tensor(list(map(operator.eq, true, counted)))

    def count_figures(self) -> dict[str, float]:
        """Return the share of the images whose things are counted right."""
        return {"count_accuracy": self.right_counts.double().mean().item()}

    def count_line(self) -> str:
        """Return a sentence with that share, and that of the images with several things
        of one class.
        """
        right = self.right_counts.double()
        line = f"{right.mean():.2%} right in how many there are of each class"
        counts = [count_of(true) for true in self.true]
        several = torch.tensor([count.total() > len(count) for count in counts])
        if several.any():
            line += (
                f", {right[several].mean():.2%} of the {int(several.sum()):,} images "
                "with several of one"
            )
        return line

    def precision(self) -> dict[str, float]:
        """Return the mean average precision as in COCO, see
        :func:`mean_average_precision`.
        """
        return mean_average_precision(self.candidates, self.true)


def count_of(things: Sequence[Thing]) -> Counter[int]:
    """Return the number of things of each class."""
    return Counter(thing.label for thing in things)


@torch.no_grad()
def look_for_things(
    network: Any, images: Examples, threshold: float = 0.5, batch_size: int = 128
) -> Looked:
    """What a network finds in images that know their things; classes above the
    threshold are there, and their things.

    Raises:
        ValueError: if the images do not know their things.
    """
    check_asked(network, images, batch_size)
    labels = list[Tensor]()
    activation = list[Tensor]()
    looked = Looked(images.labels, images.labels, [], [], [])
    for batch, prediction in predicted(network, images, batch_size):
        labels.append(batch.labels.cpu())
        activation.append(prediction.activation.float().cpu())
        looked.candidates.extend(network.things_in(prediction, min(_FAINT, threshold)))
        names, boxes = true_things(batch)
        for labels_of_image, boxes_of_image in zip(
            names.tolist(), boxes.cpu(), strict=True
        ):
            drawn = map(Thing, labels_of_image, repeat(1.0), boxes_of_image)
            looked.true.append([thing for thing in drawn if box_area(thing.box) > 0])
    looked = looked._replace(labels=torch.cat(labels), activation=torch.cat(activation))
    for present, things in zip(
        looked.activation > threshold, looked.candidates, strict=True
    ):
        # Of several things of a class, the first is the most active one.
        best = {thing.label: thing for thing in reversed(things)}
        counted = [
            thing
            for thing in things
            if present[thing.label]
            and (thing.activation > threshold or thing is best[thing.label])
        ]
        looked.counted.append(counted)
    return looked


def mean_average_precision(candidates: Things, true: Things) -> dict[str, float]:
    """Mean average precision as in COCO, by pycocotools: ``map``, over IoU 0.5 to 0.95,
    ``map_50`` and ``map_75``.

    Args:
        candidates: in each image; the activation of a thing is its score.
        true: likewise, what is there.

    Raises:
        ModuleNotFoundError: if pycocotools is not installed; it names the extra.
    """
    with needing("average precisions", "torchcaps-lab[detection]"):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

    def rows(things: Things) -> list[dict[str, Any]]:
        every: list[tuple[int, Thing]] = []
        for image, things_of_image in enumerate(things):
            every += [(image, thing) for thing in things_of_image]
        if every:
            boxes = torch.stack([thing.box for _, thing in every])
        else:
            boxes = torch.zeros(0, 4)
        sizes = torch.cat(
            [boxes[:, :2], (boxes[:, 2:] - boxes[:, :2]).clamp_min(0)], 1
        ).tolist()
        return [
            {
                "id": number,
                "image_id": image,
                "category_id": thing.label,
                "bbox": box,
                "score": thing.activation,
                "area": box[2] * box[3],
                "iscrowd": 0,
            }
            for number, ((image, thing), box) in enumerate(
                zip(every, sizes, strict=True), 1
            )
        ]

    if not any(true):
        return dict.fromkeys(("map", "map_50", "map_75"), 0.0)
    expected = COCO()
    boxes_found = COCO()
    labels = {thing.label for thing in chain.from_iterable((*true, *candidates))}
    both = {
        "images": [{"id": image} for image in range(len(true))],
        "categories": [{"id": label} for label in labels],
    }
    expected.dataset, boxes_found.dataset = (
        {**both, "annotations": rows(true)},
        {**both, "annotations": rows(candidates)},
    )
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints progress
        expected.createIndex()
        boxes_found.createIndex()
        judge = COCOeval(expected, boxes_found, "bbox")
        judge.params.areaRng = judge.params.areaRng[:1]
        judge.params.areaRngLbl = judge.params.areaRngLbl[:1]
        judge.evaluate()
        judge.accumulate()
    precision = torch.from_numpy(judge.eval["precision"])[
        ..., 0, -1
    ]  # [overlaps, recalls, classes], all sizes
    each = {"map": precision, "map_50": precision[:1], "map_75": precision[5:6]}
    return {
        name: scores[scores >= 0].mean().item() for name, scores in each.items()
    }  # -1: a class that never occurs

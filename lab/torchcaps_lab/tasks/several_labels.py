"""Several classes in an image at once, or none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from torchcaps.models import ClassifierNetwork, Prediction, box_area
from torchcaps.numerics import check_size
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.evaluate.calibration import Calibration, fit_platt
from torchcaps_lab.evaluate.findings import Metrics, ask
from torchcaps_lab.evaluate.hints import Commands
from torchcaps_lab.evaluate.verdict import judge
from torchcaps_lab.look import counted
from torchcaps_lab.report.exhibit import Exhibit
from torchcaps_lab.report.observe import NamedBox, Observation, Selection
from torchcaps_lab.report.page import exhibits_of
from torchcaps_lab.report.pictures.advice import Advice
from torchcaps_lab.report.pictures.headline import page_title
from torchcaps_lab.report.pictures.learning_curves import LearningCurves
from torchcaps_lab.report.pictures.present_classes import PresentClasses
from torchcaps_lab.report.pictures.summary import Summary
from torchcaps_lab.tasks.base import (
    Answer,
    Criteria,
    Examination,
    Forward,
    Losses,
    Task,
    register_task,
)
from torchcaps_lab.tasks.labels import (
    answers_of,
    check_classes,
    class_text,
    finite_warning,
)
from torchcaps_lab.tasks.things import (
    counts_things,
    finds_things,
    look_for_things,
    true_things,
)

_SHOWN = 20
"""Images in the report, each once for every class in it."""


@register_task("several_labels")
class SeveralLabels(Task):
    """Predict all classes of each image; targets are masks, bool (B, E).

    If every image is known to have ``count`` classes, the answer is the ``count`` most
    active ones; else all that are more active than a threshold. An image counts as
    correct only if exactly its classes are predicted.

    For a network whose activations add up to 1, such as one that ends in a softmax,
    each of k classes has at most 1/k: give ``count``, or a threshold below 1/k. Losses
    that compare shares (``ActivationLoss.shares``) get the mask divided by its number
    of classes.

    Args:
        count: how many classes each image has; None if it varies.
        threshold: classes with a larger activation count as predicted, if ``count`` is
            None.

    Raises:
        ValueError: if ``count`` is less than 1 or the threshold is not in (0, 1).

    Source: Sabour, Frosst & Hinton 2017, section 6 (two digits at once, no credit for
    one of them).

    Example:
        >>> from torchcaps_lab.tasks import SeveralLabels
        >>> network = tc.create_model("capsnet_digits")
        >>> prediction = network(torch.rand(1, 1, 8, 8))
        >>> (answer,) = SeveralLabels(count=2).answers(
        ...     prediction, [str(digit) for digit in range(10)]
        ... )
        >>> len(answer.classes)  # two digits in each image
        2
    """

    probability = "probability of the class: its activation, apart from the others"

    def __init__(self, count: int | None = None, threshold: float = 0.5) -> None:
        if count is not None:
            check_size(count=count)
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must be in (0, 1), got {threshold}")
        self.count = count
        self.threshold = threshold

    def check(self, images: Examples) -> None:
        """Raises a `ValueError` unless the labels are masks, with ``count`` classes
        each if that is not None.
        """
        if not len(images):
            return
        labels = images[0].labels
        if labels.ndim != 2:
            raise ValueError(
                f"task {self.name!r} takes images with masks, bool (N, E), as "
                "labels, these have one class each: "
                "use task 'classification', or --data.delimiter '|' if they are the "
                "columns of a table"
            )
        if self.count is not None and int(labels.sum()) != self.count:
            raise ValueError(
                f"count is {self.count}, but the first image has {int(labels.sum())} "
                "classes"
            )

    def predicted_classes(self, activation: Tensor) -> Tensor:
        """The predicted classes, from activations (B, E): bool (B, E)."""
        if self.count is None:
            return activation > self.threshold
        chosen = activation.topk(self.count, dim=1).indices
        return torch.zeros_like(activation, dtype=torch.bool).scatter_(1, chosen, True)

    def loss(
        self,
        network: ClassifierNetwork,
        forward: Forward,
        batch: Batch,
        criteria: Criteria,
    ) -> Losses:
        """Loss of the class activations and, with a decoder, of reconstructions.

        If the batch has the parts of its images, the capsule of each part reconstructs
        that part alone, and the errors are summed; else the capsules of all true
        classes together reconstruct the image.
        """
        shown = batch.labels if batch.parts is None else batch.parts.labels[:, 0]
        prediction = forward(batch.inputs, shown)
        check_classes(prediction, network)
        mask = batch.labels.to(prediction.activation.dtype)
        target = mask
        if criteria.loss.shares:
            target = mask / mask.sum(1, keepdim=True).clamp_min(1)
        parts = {"class_loss": criteria.loss(prediction.activation, target)}
        if prediction.reconstruction is not None:
            parts["reconstruction_loss"] = self._reconstruction(
                network, prediction, batch, criteria
            )
        return prediction, parts

    @staticmethod
    def _reconstruction(
        network: Any, prediction: Prediction, batch: Batch, criteria: Criteria
    ) -> Tensor:
        if batch.parts is None:
            return criteria.reconstruction(prediction.reconstruction, batch.pictures)
        labels, pictures = batch.parts
        loss = criteria.reconstruction(prediction.reconstruction, pictures[:, 0])
        for part in range(1, labels.shape[1]):
            alone = network.decode(prediction.capsules, labels[:, part])
            loss = loss + criteria.reconstruction(alone, pictures[:, part])
        return loss

    def measure(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        """``accuracy``: whether exactly the classes of the image are predicted."""
        predicted = self.predicted_classes(prediction.activation)
        return {"accuracy": (predicted == batch.labels).all(1)}

    def examine(
        self, network: ClassifierNetwork, images: Examples, batch_size: int = 128
    ) -> Examination:
        """Exact accuracy, F1 over all labels (``micro_f1``) and as the mean of the
        classes (``macro_f1``), the mean average precision of the classes, and for each
        class the number of images that have it, precision, recall and F1, and the
        highest F1 (``best_f1``) of any threshold (``best_threshold``) on these images.
        """
        self.check(images)
        examination = self._examination(
            ask(network, images, batch_size).activation,
            _labels(images, batch_size),
            images,
        )
        if not (images.several and counts_things(network)):
            return examination
        looked = look_for_things(network, images, self.threshold, batch_size)
        first, *following = examination.lines
        return replace(
            examination,
            figures={**examination.figures, **looked.count_figures()},
            lines=(first, looked.count_line(), *following),
        )

    def _examination(
        self, activation: Tensor, labels: Tensor, images: Examples
    ) -> Examination:
        predicted = self.predicted_classes(activation)
        accuracy = (predicted == labels).all(1).double().mean().item()
        classes = {
            name: _class_figures(predicted[:, index], labels[:, index])
            for index, name in enumerate(images.classes)
        }
        if self.count is None:
            for index, row in enumerate(classes.values()):
                row |= _best_threshold(activation[:, index], labels[:, index])
        means = _means(activation, predicted, labels)
        return Examination(
            {"accuracy": accuracy, "error_percent": 100 * (1 - accuracy), **means},
            {"per_class": classes},
            (
                f"{accuracy:.2%} of {counted(len(images), images.what)} right in all their "
                "classes",
                "F1 {micro_f1:.3f} over all labels, {macro_f1:.3f} as the mean of the "
                "classes; mean average precision {mean_average_precision:.3f}".format(
                    **means
                ),
                *(
                    f"  {name}: in {counted(int(row['images'] or 0), images.what)}, {class_text(row)}"
                    for name, row in classes.items()
                ),
            ),
            finite_warning(activation),
        )

    def answers(self, prediction: Prediction, classes: Sequence[str]) -> list[Answer]:
        """The predicted classes; the probability of a class is its activation,
        independent of the others.

        The length of a class capsule is trained to be the probability that its class is
        present. They need not sum to 1.
        """
        predicted = self.predicted_classes(prediction.activation)
        return answers_of(prediction, predicted, prediction.activation, classes)

    def calibrate(
        self, network: ClassifierNetwork, images: Examples
    ) -> Calibration | None:
        """Platt scaling, one slope and one intercept for all classes:
        :func:`~torchcaps_lab.evaluate.fit_platt`.
        """
        if not len(images):
            return None
        return fit_platt(ask(network, images).activation, _labels(images, 256))

    def exhibits(
        self,
        network: ClassifierNetwork,
        images: Examples,
        summary: Mapping[str, Any],
        metrics: Metrics,
    ) -> Iterator[Exhibit | None]:
        """The figures of each class, learning curves, and the class capsules of a few
        images.
        """
        examination = self.examine(network, images)
        verdict = judge(network, images)
        lines = [
            line for line in examination.lines if not line.startswith(" ")
        ]  # those of classes are a table here
        if self.count is None:
            command = Commands.of(summary).about(
                "evaluate", "--split", "validation", "--json"
            )
            lines.append(
                "the last columns show the threshold with the highest F1 on these "
                f"{images.what}; to choose one, look at the validation split with "
                f"`{command}`"
            )
        title = page_title(network, summary)
        rows = examination.details["per_class"]
        yield PresentClasses.of(title, lines, rows, verdict, images.what)
        recalls = {name: row["recall"] for name, row in rows.items()}
        accuracy = examination.figures["accuracy"]
        draw = "--boxes boxes" if finds_things(network) else ""
        yield Advice.of_task(
            "accuracy", accuracy, recalls, images, summary, metrics, draw=draw
        )
        yield LearningCurves.of(metrics, images.what)
        selection = _each_class(images)
        if selection is not None and selection.target is not None:
            first = [
                int((selection.target == label).nonzero()[0])
                for label in selection.target.unique()
            ]
            examples = _chosen(selection, first)
            shown, clearest = (
                Observation(network, selected, verdict=verdict)
                for selected in (selection, examples)
            )
            yield from exhibits_of(shown, clearest)
        yield Summary.of("Settings", summary, [])


def _each_class(images: Examples) -> Selection | None:
    """The first images, each once for every class in it, at most 20 in all; None if
    they have no classes, or cannot be shown.
    """
    batch = images.seen(list(range(min(_SHOWN, len(images)))))
    if batch is None:
        return None
    rows, classes = batch.labels.cpu().nonzero()[:_SHOWN].unbind(1)
    if not len(rows):
        return None
    names = tuple(images.classes)
    titles = []
    for row, index in zip(rows.tolist(), classes.tolist(), strict=True):
        present = compress(names, batch.labels[row].tolist())
        others = [name for name in present if name != names[index]]
        beside = f"\nbeside {', '.join(others)}" if others else ""
        titles.append(names[index] + beside)
    things = _true_boxes(batch, names)
    return Selection(
        batch.inputs.cpu()[rows],
        batch.pictures.cpu()[rows],
        classes,
        tuple(titles),
        classes=names,
        things=tuple(things[row] for row in rows.tolist()),
    )


def _true_boxes(batch: Batch, classes: Sequence[str]) -> list[tuple[NamedBox, ...]]:
    """The things of each image, as far as it is known where they are."""
    if batch.parts is None:
        return [()] * len(batch.labels)
    labels, boxes = true_things(batch)
    drawn = box_area(boxes) > 0
    things_of_images = []
    for image, present in enumerate(drawn):
        names = [classes[label] for label in labels[image, present].tolist()]
        places = map(tuple, boxes[image, present].tolist())
        things_of_images.append(tuple(zip(names, places, strict=True)))
    return things_of_images


def _chosen(selection: Selection, places: list[int]) -> Selection:
    """Some of the images of a selection."""
    assert selection.target is not None
    return replace(
        selection,
        images=selection.images[places],
        pictures=selection.pictures[places],
        target=selection.target[places],
        titles=tuple(selection.titles[place] for place in places),
        things=tuple(selection.things[place] for place in places),
    )


def _labels(images: Examples, batch_size: int) -> Tensor:
    """The masks of all images, bool (N, E), on the CPU."""
    return torch.cat([batch.labels.cpu() for batch in images.batches(batch_size)])


def _means(activation: Tensor, predicted: Tensor, present: Tensor) -> dict[str, float]:
    """Figures over all classes, and as the mean of those that some images have.

    Args:
        activation: (N, E).
        predicted: bool (N, E).
        present: bool (N, E).
    """
    known = present.any(0)
    right = (predicted & present).sum(0).double()
    total = predicted.sum(0) + present.sum(0)
    f1 = 2 * right / total.clamp_min(1)
    columns = known.nonzero().flatten().tolist()
    precisions = [
        _average_precision(activation[:, index], present[:, index]) for index in columns
    ]
    return {
        "micro_f1": (2 * right.sum() / total.sum().clamp_min(1)).item(),
        "macro_f1": f1[known].mean().item() if columns else 0.0,
        "mean_average_precision": sum(precisions) / max(len(columns), 1),
    }


def _average_precision(activation: Tensor, present: Tensor) -> float:
    """The mean, over the images that have a class, of the precision at a threshold of
    their activation.

    Args:
        activation: (N,).
        present: bool (N,), some of which are true.
    """
    scores = activation.sort().values
    positive = activation[present].sort().values
    # Images at or above each threshold: with the class, and all.
    right = len(positive) - torch.searchsorted(positive, positive)
    above = len(scores) - torch.searchsorted(scores, positive)
    return (right.double() / above).mean().item()


def _class_figures(predicted: Tensor, present: Tensor) -> dict[str, float | int | None]:
    """Figures of one class; None for undefined ones."""
    right = int((predicted & present).sum())
    predictions = int(predicted.sum())
    count = int(present.sum())
    return {
        "images": count,
        "precision": right / predictions if predictions else None,
        "recall": right / count if count else None,
        "f1": 2 * right / (predictions + count) if predictions + count else None,
    }


def _best_threshold(activation: Tensor, present: Tensor) -> dict[str, float | None]:
    """The threshold with the highest F1 for a class, and that F1; None if no image has
    the class, and no threshold if none of its activations is above 0.

    Args:
        activation: (N,).
        present: bool (N,).
    """
    count = int(present.sum())
    if not count:
        return {"best_f1": None, "best_threshold": None}
    if not (activation > 0).any():
        return {"best_f1": 0.0, "best_threshold": None}
    scores, order = activation.double().sort(descending=True)
    right = present[order].cumsum(0)
    f1 = 2 * right / (torch.arange(1, len(scores) + 1) + count)
    # Equal activations are all above a threshold, or none; those of 0 never are.
    last = torch.cat([scores.diff() < 0, torch.tensor([True])]) & (scores > 0)
    best = int(f1.where(last, -1.0).argmax())
    below = scores[best + 1] if best + 1 < len(scores) else scores.new_tensor(0.0)
    threshold = (scores[best] + below) / 2
    return {"best_f1": f1[best].item(), "best_threshold": threshold.item()}

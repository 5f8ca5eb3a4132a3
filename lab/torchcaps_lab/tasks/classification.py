"""One class for each image."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from torchcaps.models import ClassifierNetwork, Prediction
from torchcaps.numerics import compute_dtype
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.evaluate.calibration import Calibration, fit_temperature
from torchcaps_lab.evaluate.findings import (
    Findings,
    Metrics,
    ask,
    confused_pairs,
    examine,
)
from torchcaps_lab.look import counted
from torchcaps_lab.report.exhibit import Exhibit
from torchcaps_lab.report.page import exhibits_of_classifier
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

_LISTED = 20
"""Most classes, or pairs of confused classes, that are listed in text."""


@register_task("classification")
class Classification(Task):
    """Predict one class for each image: the most active one.

    Example:
        >>> from torchcaps_lab.tasks import Classification
        >>> task = Classification()
        >>> task.main.name
        'accuracy'
        >>> prediction = tc.create_model("capsnet_digits")(torch.rand(2, 1, 8, 8))
        >>> len(task.answers(prediction, [str(digit) for digit in range(10)]))
        2
    """

    probability = "probability of the class: its share in the activations of all"
    doubts = ("strangers",)

    def check(self, images: Examples) -> None:
        """Raises a `ValueError` unless each image has one label."""
        if len(images) and images[0].labels.ndim != 1:
            raise ValueError(
                "task 'classification' takes images of one class each, these have "
                "masks of several: "
                "use task 'several_labels'"
            )

    def loss(
        self,
        network: ClassifierNetwork,
        forward: Forward,
        batch: Batch,
        criteria: Criteria,
    ) -> Losses:
        """Loss of the class activations and, with a decoder, of the reconstruction by
        the capsule of the true class.
        """
        prediction = forward(batch.inputs, batch.labels)
        check_classes(prediction, network)
        parts = {"class_loss": criteria.loss(prediction.activation, batch.labels)}
        if prediction.reconstruction is not None:
            parts["reconstruction_loss"] = criteria.reconstruction(
                prediction.reconstruction, batch.pictures
            )
        return prediction, parts

    def measure(self, prediction: Prediction, batch: Batch) -> dict[str, Tensor]:
        """``accuracy``: whether the most active class is the true one."""
        return {"accuracy": prediction.activation.argmax(1) == batch.labels}

    def examine(
        self, network: ClassifierNetwork, images: Examples, batch_size: int = 128
    ) -> Examination:
        """Accuracy, balanced accuracy, error, confusion matrix, and precision and
        recall of each class.

        Of two classes also AUC, sensitivity and specificity, where the second class is
        the positive one.

        In the confusion matrix, rows are true and columns predicted. There are warnings
        if always predicting the most frequent class would be as accurate, if classes
        have no images, and if activations are not finite.
        """
        self.check(images)
        findings = examine(network, images, batch_size=batch_size)
        confusion = findings.confusion.tolist()
        accuracy = findings.accuracy
        balanced = findings.balanced_accuracy
        per_class = {
            name: row._asdict()
            for name, row in zip(images.classes, findings.per_class, strict=True)
        }
        return Examination(
            {
                "accuracy": accuracy,
                "error_percent": 100 * (1 - accuracy),
                "balanced_accuracy": balanced,
            },
            {
                "confusion": confusion,
                "per_class": per_class,
                **_two_classes(findings, images.classes),
            },
            (
                f"{accuracy:.2%} of {counted(len(images), images.what)} right, balanced "
                f"accuracy {balanced:.2%}",
                *(_matrix if len(images.classes) <= _LISTED else _pairs)(
                    findings, images.classes
                ),
            ),
            _warnings(findings, images),
        )

    def answers(self, prediction: Prediction, classes: Sequence[str]) -> list[Answer]:
        """The most active class; probabilities are the shares of the classes in all
        activations, a_j / sum_k a_k.

        :func:`~torchcaps.negative_log_likelihood` reads them in the same way; for a
        network that ends in a softmax, these are its probabilities.
        """
        activation = prediction.activation.to(compute_dtype(prediction.activation))
        predicted = F.one_hot(activation.argmax(1), activation.shape[1]).bool()
        shares = activation / activation.sum(1, keepdim=True).clamp_min(1e-30)
        return answers_of(prediction, predicted, shares, classes)

    def calibrate(
        self, network: ClassifierNetwork, images: Examples
    ) -> Calibration | None:
        """Temperature scaling: :func:`~torchcaps_lab.evaluate.fit_temperature`."""
        if len(images):
            return fit_temperature(ask(network, images).activation, images.labels)
        return None

    def exhibits(
        self,
        network: ClassifierNetwork,
        images: Examples,
        summary: Mapping[str, Any],
        metrics: Metrics,
    ) -> Iterator[Exhibit]:
        """Yield those of :func:`torchcaps_lab.report.exhibits_of_classifier`."""
        summary_of_run = {
            name: value for name, value in summary.items() if name != "test_per_class"
        }  # it has its own table
        return exhibits_of_classifier(
            network, images, examine(network, images), summary_of_run, metrics
        )


def _two_classes(findings: Findings, classes: Sequence[str]) -> dict[str, Any]:
    """The figures of two classes, with the name of the positive one; nothing for
    another number of classes.
    """
    if len(classes) != 2:
        return {}
    return {"positive": classes[1], **findings.of_positive(1)._asdict()}


def with_positive(
    details: Mapping[str, Any], positive: str, classes: Sequence[str]
) -> dict[str, Any]:
    """The details of :meth:`Classification.examine` with another positive class:
    sensitivity and specificity swap.

    Raises:
        ValueError: if there are no such figures, or the class is none of the two.
    """
    if "auc" not in details:
        raise ValueError(
            "positive must be None unless the task is classification of two classes, "
            f"got {positive!r}"
        )
    if positive not in classes:
        raise ValueError(
            f"positive must be one of {', '.join(map(repr, classes))}, got {positive!r}"
        )
    if positive == details["positive"]:
        return dict(details)
    swapped = {
        "sensitivity": details["specificity"],
        "specificity": details["sensitivity"],
    }
    return {**details, "positive": positive, **swapped}


def two_class_text(details: Mapping[str, Any]) -> list[str]:
    """The figures of two classes in a line; a dash for one that has no images to go by;
    nothing without any.
    """
    if "auc" not in details:
        return []
    auc = "-" if details["auc"] is None else f"{details['auc']:.4f}"
    shares = (details[name] for name in ("sensitivity", "specificity"))
    sensitivity, specificity = (
        "-" if share is None else f"{share:.2%}" for share in shares
    )
    return [
        f"AUC {auc}, sensitivity {sensitivity}, specificity {specificity} (positive "
        f"class: {details['positive']})"
    ]


def _matrix(findings: Findings, classes: Sequence[str]) -> Iterator[str]:
    """The lines of the confusion matrix: a head, and one for each class, with its
    number in the head.
    """
    names = [f"{name} [{place}]" for place, name in enumerate(classes, 1)]
    widest = max(map(len, names))
    heads = [f"[{place}]" for place in range(1, len(classes) + 1)]
    yield f"  {'true':{widest}}  {' '.join(f'{head:>5}' for head in heads)}  predicted"
    for name, row, figures in zip(
        names, findings.confusion.tolist(), findings.per_class, strict=True
    ):
        yield (
            f"  {name:{widest}}: {' '.join(f'{count:5}' for count in row)}  "
            f"({class_text(figures._asdict())})"
        )


def _pairs(findings: Findings, classes: Sequence[str]) -> Iterator[str]:
    """List, for many classes and instead of a large matrix, the pairs that are confused
    most often.
    """
    pairs = confused_pairs(findings.confusion, _LISTED)
    if pairs:
        yield (
            f"most often confused of {len(classes)} classes ('evaluate --json' "
            "has the whole matrix):"
        )
    for true, predicted, count in pairs:
        figures = findings.per_class[true]
        figures_text = class_text(figures._asdict())
        yield (
            f"  {classes[true]} classified as {classes[predicted]}: "
            f"{count} of {figures.images}  ({figures_text})"
        )


def _warnings(findings: Findings, images: Examples) -> tuple[str, ...]:
    """Warnings: numbers that are not finite, classes without images, and an accuracy
    that guessing has, too.
    """
    lines = [*finite_warning(findings.activation)]
    classes = images.classes
    if absent := [
        name
        for name, row in zip(classes, findings.per_class, strict=True)
        if not row.images
    ]:
        names = ", ".join(map(repr, absent[:5])) + (
            f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        )
        lines.append(
            f"there are no {images.what} of {names}, so the figures leave them out"
        )
    label, share = findings.majority
    # Of images of one class, an accuracy can only be its share at most.
    if findings.accuracy > share or share == 1:
        return tuple(lines)
    return (
        *lines,
        f"the accuracy, {findings.accuracy:.2%}, is not above {share:.2%}, the share "
        f"of the most frequent class, {classes[label]!r}: always answering this class "
        "is equally accurate",
    )

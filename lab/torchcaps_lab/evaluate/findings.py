"""What a network does with a set of images, in numbers."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.models.base import (
    CapsuleNetwork,
    ClassifierNetwork,
    Prediction,
    in_precision_of,
)
from torchcaps.numerics import check_size, compute_dtype
from torchcaps_lab.data.examples import Batch, Examples
from torchcaps_lab.evaluate.calibration import calibration_error
from torchcaps_lab.evaluate.layers import assignment_entropy

Part = TypeVar("Part")

_AT_ONCE = 8192
"""Images times classes in one batch at most: an image has an assignment for each child
and each class.
"""


Metrics = Sequence[dict[str, float]]
"""A row an epoch, by the names of what was measured."""


class ClassFigures(NamedTuple):
    """How well one class is recognised; None where a figure has no images to go by.

    Args:
        images: how many there are of the class.
        precision: of the images that were said to be of the class, the share that are.
        recall: of the images of the class, the share that were said to be.
        f1: the harmonic mean of both.

    Example:
        >>> from torchcaps_lab.evaluate import Findings
        >>> activation = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.7]])
        >>> findings = Findings(torch.tensor([0, 0, 1]), activation, entropy=None)
        >>> findings.per_class[0].recall
        0.5
    """

    images: int
    precision: float | None
    recall: float | None
    f1: float | None


class TwoClassFigures(NamedTuple):
    """How well the positive one of two classes is told from the other; None where a
    figure has no images to go by.

    Args:
        auc: area under the ROC curve of the share of the positive class in the
            activations of both: the probability that an image of the positive class has
            a larger one than an image of the other.
        sensitivity: the recall of the positive class.
        specificity: the recall of the other.

    Example:
        >>> from torchcaps_lab.evaluate import Findings
        >>> activation = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.7]])
        >>> Findings(torch.tensor([0, 0, 1]), activation, entropy=None).of_positive(1)
        TwoClassFigures(auc=1.0, sensitivity=1.0, specificity=0.5)
    """

    auc: float | None
    sensitivity: float | None
    specificity: float | None


@dataclass(frozen=True, eq=False)
class Findings:
    """What :func:`examine` found out about N images of E classes.

    Attributes:
        labels: the true classes, int64 (N,).
        activation: the activation of the classes, float32 (N, E); averaged over the
            crops of an image, if it has several.
        entropy: :func:`~torchcaps_lab.evaluate.assignment_entropy` averaged over the
            images; None without capsules, or with one class.

    Example:
        >>> from torchcaps_lab.evaluate import Findings
        >>> activation = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.7]])
        >>> findings = Findings(torch.tensor([0, 0, 1]), activation, entropy=None)
        >>> findings.confusion
        tensor([[1, 1],
                [0, 1]])
        >>> findings.mistakes(5)  # their places, worst first
        tensor([1])
    """

    labels: Tensor
    activation: Tensor
    entropy: float | None

    @cached_property
    def prediction(self) -> Tensor:
        """The most active class of each image, int64 (N,)."""
        return self.activation.argmax(1)

    @property
    def confusion(self) -> Tensor:
        """How often each class was taken for each other, int64 (E, E): rows true,
        columns predicted.
        """
        E = self.activation.shape[1]
        return torch.bincount(
            self.labels * E + self.prediction, minlength=E * E
        ).reshape(E, E)

    @property
    def accuracy(self) -> float:
        """The share of the images whose most active class is the true one."""
        return (self.prediction == self.labels).double().mean().item()

    @property
    def error(self) -> float:
        """The share of the images whose most active class is a wrong one."""
        return (self.prediction != self.labels).double().mean().item()

    def calibration_error(self, bins: int = 15) -> float:
        """Return how far the network is from being right as often as its activations
        say, see :func:`~torchcaps_lab.evaluate.calibration.calibration_error`.

        Args:
            bins: the number of equally wide bins of [0, 1].
        """
        return calibration_error(self.activation, self.labels, bins)

    @property
    def interval(self) -> float:
        r"""How far from :attr:`accuracy` that of more such images may lie, with 95 %
        confidence, to either side.

        :math:`1.96 \sqrt{p (1 - p) / N}`, the normal approximation, with at least half
        an image wrong.
        """
        N = len(self.labels)
        half = 0.5 / N
        variance = max(self.accuracy * self.error, half * (1 - half))
        return 1.96 * math.sqrt(variance / N)

    @cached_property
    def per_class(self) -> tuple[ClassFigures, ...]:
        """Precision, recall and F1 of each class, by scikit-learn."""
        from sklearn.metrics import precision_recall_fscore_support

        classes = list(range(self.activation.shape[1]))
        answers = self.labels.numpy(), self.prediction.numpy()
        scores = precision_recall_fscore_support(
            *answers, labels=classes, zero_division=np.nan
        )
        precision, recall, f1, counts = scores
        figures = []
        for label, count in enumerate(counts):
            shares = (precision[label], recall[label], f1[label])
            defined = [None if np.isnan(share) else float(share) for share in shares]
            figures.append(ClassFigures(int(count), *defined))
        return tuple(figures)

    def of_positive(self, positive: int = 1) -> TwoClassFigures:
        """How well one of two classes is told from the other.

        Args:
            positive: the class that is looked for, 0 or 1.

        Raises:
            ValueError: if there are not two classes, or it is neither.
        """
        from sklearn.metrics import roc_auc_score

        if self.activation.shape[1] != 2 or positive not in (0, 1):
            raise ValueError(
                f"positive must be 0 or 1 of 2 classes, got {positive} of "
                f"{self.activation.shape[1]}"
            )
        sensitivity, specificity = (
            self.per_class[place].recall for place in (positive, 1 - positive)
        )
        share = self.activation.double()[:, positive] / self.activation.double().sum(
            1
        ).clamp_min(1e-30)
        auc = None
        if (
            sensitivity is not None
            and specificity is not None
            and share.isfinite().all()
        ):
            auc = float(roc_auc_score((self.labels == positive).numpy(), share.numpy()))
        return TwoClassFigures(auc, sensitivity, specificity)

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the recalls of the classes that have images."""
        recalls = [
            figures.recall
            for figures in self.per_class
            if figures.images and figures.recall is not None
        ]
        return sum(recalls) / len(recalls)

    @property
    def majority(self) -> tuple[int, float]:
        """The most frequent class, and its share of the images."""
        counts = torch.bincount(self.labels)
        return int(counts.argmax()), (counts.max() / counts.sum().double()).item()

    @property
    def true_activation(self) -> float:
        """The activation of the true class, averaged over the images."""
        return self.activation.gather(1, self.labels[:, None]).mean().item()

    @property
    def undecided(self) -> float:
        """The share of the images for which no class is more active than 0.5."""
        return (self.activation.amax(1) <= 0.5).double().mean().item()

    @property
    def margin(self) -> Tensor:
        """Activation of the true class less that of the most active wrong one, (N,);
        with one class, the activation.
        """
        true = self.activation.gather(1, self.labels[:, None]).squeeze(1)
        wrong = self.activation.scatter(1, self.labels[:, None], -torch.inf).amax(1)
        return torch.where(wrong.isfinite(), true - wrong, true)

    def mistakes(self, count: int) -> Tensor:
        """Indices of at most ``count`` misclassified images, the most wrong first."""
        wrong = (self.prediction != self.labels).nonzero().squeeze(1)
        return wrong[self.margin[wrong].argsort(stable=True)][:count]

    def examples(self, most: int | None = None) -> Tensor:
        """Indices of the clearest image of each class that has images, in the order of
        the classes.

        Args:
            most: of this many classes at most, those of :meth:`telling`; None for all.
        """
        margin = self.margin
        chosen = self.labels.unique() if most is None else self.telling(most)
        members = [(self.labels == label).nonzero().squeeze(1) for label in chosen]
        return torch.stack([group[margin[group].argmax()] for group in members])

    def telling(self, count: int) -> Tensor:
        """The labels of at most ``count`` classes with images, sorted: half the most
        mistaken, half the surest.
        """
        present = self.labels.unique()
        if len(present) <= count:
            return present
        members = [self.labels == label for label in present]
        mistakes = torch.stack(
            [((self.prediction != self.labels) & member).sum() for member in members]
        )
        margins = torch.stack([self.margin[member].mean() for member in members])
        order = sorted(
            range(len(present)),
            key=lambda place: (-int(mistakes[place]), float(margins[place])),
        )
        worst = order[: (count + 1) // 2]
        best = order[len(order) - count // 2 :]
        return present[torch.tensor(worst + best)].sort().values

    def ranked(self) -> Tensor:
        """Indices of all images: the first of each class, then the second of each,
        ...
        """
        rank = torch.zeros_like(self.labels)
        for label in self.labels.unique():
            rank[self.labels == label] = torch.arange(int((self.labels == label).sum()))
        return (rank * self.activation.shape[1] + self.labels).argsort(stable=True)

    def samples(self, count: int) -> Tensor:
        """Indices of at most ``count`` images, the first of :meth:`ranked`, sorted by
        class.
        """
        chosen = self.ranked()[:count]
        return chosen[self.labels[chosen].argsort(stable=True)]


def confused_pairs(confusion: Tensor, count: int) -> list[tuple[int, int, int]]:
    """The pairs of classes that are confused most: the true class, what it was taken
    for, and how often.

    Args:
        confusion: (E, E), rows true, columns predicted.
        count: how many pairs at most; the most frequent come first.
    """
    wrong = (confusion - confusion.diag().diag()).flatten()
    most = wrong.argsort(descending=True, stable=True)[:count].tolist()
    return [
        (*divmod(place, len(confusion)), int(wrong[place]))
        for place in most
        if wrong[place]
    ]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Put a model in evaluation mode, without gradients, inside the ``with`` block;
    gives its device.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield next(
                (parameter.device for parameter in model.parameters()),
                torch.device("cpu"),
            )
    finally:
        for module, mode in modes.items():
            module.training = mode


# A generator that waits inside of evaluating() would leave a loop that ends by an error
# without gradients, for as long as somebody holds the error.
def in_parts(
    model: nn.Module,
    images: Tensor,
    answer: Callable[[Tensor], Part],
    at_once: int = 16,
) -> Iterator[Part]:
    """What a function of the network makes of prepared images (B, C, H, W), a few at a
    time; in evaluation mode and without gradients.

    The assignments of a convolutional layer are many times larger than its capsules:
    more would fill the memory.
    """
    for part in images.split(at_once):
        with evaluating(model) as device:
            answered = answer(in_precision_of(model, part.to(device)))
        yield answered


def predicted(
    model: ClassifierNetwork, image_set: Examples, batch_size: int = 128
) -> Iterator[tuple[Batch, Prediction]]:
    """Batches of images, and what a network makes of each, in evaluation mode and
    without gradients.
    """
    for batch in image_set.batches(batch_size):
        with evaluating(model) as device:
            prediction = model(in_precision_of(model, batch.inputs.to(device)))
        yield batch, prediction


def kept(values: Tensor) -> Tensor:
    """Copy a tensor to the CPU, in float32 at least: NumPy has no bfloat16, and sums in
    float16 overflow.
    """
    return values.to("cpu", compute_dtype(values))


class Answers(NamedTuple):
    """What a network said about N images, whatever is true of them.

    Args:
        activation: the activation of the classes, float32 (N, E); averaged over the
            crops of an image, if it has several.
        entropy: :func:`~torchcaps_lab.evaluate.assignment_entropy` averaged over the
            images; None without capsules, or with one class.

    Example:
        >>> from torchcaps_lab import evaluate
        >>> from torchcaps_lab.data import Digits
        >>> answers = evaluate.ask(tc.create_model("capsnet_digits"), Digits().test)
        >>> answers.activation.shape
        torch.Size([359, 10])
    """

    activation: Tensor
    entropy: float | None


def ask(
    model: ClassifierNetwork, image_set: Examples, batch_size: int = 256
) -> Answers:
    """Run a network over images in evaluation mode, and leave it in the mode in which
    it came.

    What the images show is not needed here: labels, masks of labels or anything else
    may be compared with the answers.

    Args:
        model: any network, on any device, in any precision.
        image_set: the images; of several crops, if its ``preprocess`` says so.
        batch_size: how many images, or crops of images, at a time.

    Raises:
        TypeError: if the model is no :class:`~torchcaps.models.ClassifierNetwork`,
            compiled or not.
        ValueError: if there are no images, or the network has another number of
            classes.
    """
    check_asked(model, image_set, batch_size)
    activations, entropies = [], []
    with evaluating(model) as device:
        most = max(1, _AT_ONCE // model.classes)
        step = max(1, min(batch_size, most) // image_set.preprocess.crops)
        for start in range(0, len(image_set), step):
            crops = image_set.crops(
                list(range(start, min(start + step, len(image_set))))
            )
            images = in_precision_of(model, crops.flatten(0, 1).to(device))
            if isinstance(model, CapsuleNetwork):
                routed = model.route(images)
                activation = routed.activation
                if model.classes > 1:
                    entropies.append(assignment_entropy(routed.assignment).cpu())
            else:
                activation = model(images).activation
            activations.append(
                activation.float().unflatten(0, crops.shape[:2]).mean(1).cpu()
            )
    entropy = torch.cat(entropies).mean().item() if entropies else None
    return Answers(torch.cat(activations), entropy)


def check_asked(model: ClassifierNetwork, image_set: Examples, batch_size: int) -> None:
    """Raises the errors of :func:`ask`."""
    # A compiled one has another type, but the same attributes.
    if not hasattr(model, "classes"):
        raise TypeError(
            f"model must be a ClassifierNetwork, got {type(model).__name__}"
        )
    if not len(image_set):
        raise ValueError("image_set holds no images")
    if len(image_set.classes) != model.classes:
        raise ValueError(
            f"image_set has {len(image_set.classes)} classes, but the model has "
            f"{model.classes}"
        )
    check_size(batch_size=batch_size)


def examine(
    model: ClassifierNetwork, image_set: Examples, batch_size: int = 256
) -> Findings:
    """Compare the answers of a network with the labels of images of one class each.

    Arguments and errors are those of :func:`ask`, and a `ValueError` if images have
    several classes.
    """
    check_asked(model, image_set, batch_size)
    if image_set[0].labels.ndim != 1:
        raise ValueError(
            "image_set must have images of one class each, these have masks of "
            "several: their figures and their report "
            "are those of the task 'several_labels', torchcaps_lab.tasks.SeveralLabels"
        )
    activation, entropy = ask(model, image_set, batch_size)
    return Findings(image_set.labels, activation, entropy)

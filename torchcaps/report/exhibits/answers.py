"""What a network gets right and wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.base import ImageSet
from torchcaps.report.exhibits.base import PNG, Exhibit, Table, register_exhibit
from torchcaps.report.findings import ClassFigures, Findings, confused_pairs

_MISTAKES = 24
_PAIRS = 20

CONFUSED = 40
"""Classes that a confusion matrix is drawn of, at most."""


class Quantity(NamedTuple):
    """A number with its name.

    Example:
        >>> from torchcaps.report.exhibits import Quantity
        >>> Quantity("accuracy", 0.99, percent=True).name
        'accuracy'
    """

    name: str
    value: float
    percent: bool = False


@register_exhibit("summary")
@dataclass(frozen=True, eq=False, kw_only=True)
class Summary(Exhibit):
    """What a run says of itself, and what was measured afterwards.

    Attributes:
        recorded: by name, in this order; anything that JSON can hold.
        measured: numbers.

    Example:
        >>> from torchcaps.report.exhibits import Quantity, Summary
        >>> Summary.of("Summary", {"epochs": 20}, [Quantity("accuracy", 0.99, percent=True)]).table().rows
        [['epochs', '20'], ['accuracy', '99.00%']]
    """

    recorded: Mapping[str, Any]
    measured: tuple[Quantity, ...]

    @classmethod
    def of(cls, title: str, recorded: Mapping[str, Any], measured: Sequence[Quantity]) -> "Summary":
        """Any task may bring measures of its own; those of classification are :func:`measures`."""
        text = "What the run says of itself, and below it what was measured for this report."
        return cls(title=title, text=text, recorded=dict(recorded), measured=tuple(measured))

    def table(self) -> Table:
        """Names and values, in words."""
        rows = [[str(name), _words(value)] for name, value in self.recorded.items()]
        rows += [[name, f"{value:.2%}" if percent else _words(value)] for name, value, percent in self.measured]
        return Table(rows)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(
            f"{name} ({_words(part)})" if isinstance(part, Mapping) else f"{name} {_words(part)}"
            for name, part in value.items()
        )
    if isinstance(value, list):
        return "; ".join(map(_words, value))
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def measures(findings: Findings) -> list[Quantity]:
    """What a classifier's answers come to."""
    found = [
        Quantity("images in this report", len(findings.labels)),
        Quantity("accuracy on them", findings.accuracy, percent=True),
        Quantity("error on them", findings.error, percent=True),
        Quantity("balanced accuracy on them: mean recall of the classes", findings.balanced_accuracy, percent=True),
        Quantity("mean activation of the true class", findings.true_activation),
        Quantity("images with no class above 0.5", findings.undecided, percent=True),
    ]
    if findings.entropy is not None:
        found.append(Quantity("entropy of the assignments (0 hard, 1 uniform)", findings.entropy))
    return found


@register_exhibit("confusion")
@dataclass(frozen=True, eq=False, kw_only=True)
class Confusion(Exhibit):
    """How often each class was taken for each other.

    Attributes:
        counts: (E, E), rows true, columns predicted.
        classes: their names.
        figures: how well each is recognised.

    Example:
        >>> from torchcaps.report import Findings
        >>> from torchcaps.report.exhibits import Confusion
        >>> activation = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.7]])
        >>> findings = Findings(torch.tensor([0, 0, 1]), activation, entropy=None)
        >>> Confusion.of(findings, ["cat", "dog"]).pairs(1)  # true, said, how often
        [(0, 1, 1)]
    """

    counts: Tensor
    classes: tuple[str, ...]
    figures: tuple[ClassFigures, ...] = ()

    @classmethod
    def of(cls, findings: Findings, classes: Sequence[str]) -> "Confusion":
        """Of images of one class each."""
        exhibit = cls(
            title="Which classes are taken for which",
            text="Each row holds the images of one class, each column what the network said. Numbers on the diagonal "
            "are right; a dark cell beside it is a pair of classes that the network cannot tell apart well. Colours "
            "are stretched so that a few mistakes already show.",
            counts=findings.confusion.cpu(),
            classes=tuple(classes),
            figures=findings.per_class,
        )
        if len(classes) <= CONFUSED:
            return exhibit
        named = [f"{classes[true]} for {classes[said]} ({count})" for true, said, count in exhibit.pairs(_PAIRS)]
        most = f" Most often taken: {', '.join(named)}." if named else ""
        note = f" Of {len(classes)} classes the picture has the {CONFUSED} that are most often confused.{most}"
        return replace(exhibit, text=exhibit.text + note)

    def shown(self) -> Tensor:
        """The classes to draw, sorted: all, or of very many those that are most often confused with others."""
        if len(self.classes) <= CONFUSED:
            return torch.arange(len(self.classes))
        wrong = self.counts - self.counts.diag().diag()
        return (wrong.sum(0) + wrong.sum(1)).argsort(descending=True, stable=True)[:CONFUSED].sort().values

    def pairs(self, count: int) -> list[tuple[int, int, int]]:
        """True class, what it was taken for, and how often, of at most ``count`` pairs, the most frequent first."""
        return confused_pairs(self.counts, count)

    def table(self) -> Table | None:
        """How well each class is recognised."""
        if not self.figures:
            return None
        rows = [
            [name, f"{figures.images:,}", *("-" if share is None else f"{share:.1%}" for share in figures[1:])]
            for name, figures in zip(self.classes, self.figures, strict=True)
        ]
        return Table(rows, ["class", "images", "precision", "recall", "F1"])


class Mistake(NamedTuple):
    """An image that was taken for another class.

    Args:
        name: of its file, or its place in the set.
        true: the name of its class.
        said: the name of the class that it was taken for.
        said_activation: of that class.
        true_activation: of the true class.

    Example:
        >>> from torchcaps.report.exhibits import Mistake
        >>> Mistake("cats/7.png", true="cat", said="dog", said_activation=0.8, true_activation=0.3).said
        'dog'
    """

    name: str
    true: str
    said: str
    said_activation: float
    true_activation: float


@register_exhibit("mistakes")
@dataclass(frozen=True, eq=False, kw_only=True)
class Mistakes(Exhibit):
    """The worst mistakes, the worst first.

    Attributes:
        mistakes: at most 24.
        pictures: of them, (N, C, H, W).
        wrong: how many mistakes there are.
        images: of how many images.
        files: whether the mistakes are named by files.

    Example:
        >>> from torchcaps import report
        >>> from torchcaps.data import Digits
        >>> network, digits = tc.create_model("capsnet_digits"), Digits().test
        >>> exhibit = report.exhibits.Mistakes.of(report.examine(network, digits), digits)
        >>> exhibit.images, exhibit.pictures.shape[1:]
        (359, torch.Size([1, 8, 8]))
    """

    mistakes: tuple[Mistake, ...]
    pictures: Tensor = field(metadata=PNG)
    wrong: int
    images: int
    files: bool

    @classmethod
    def of(cls, findings: Findings, image_set: ImageSet) -> "Mistakes":
        """Of images of one class each."""
        chosen = findings.mistakes(_MISTAKES).tolist()
        wrong = int((findings.prediction != findings.labels).sum())
        text = (
            f"The network is wrong about {wrong} of {len(image_set)} images; these are the clearest cases, the worst "
            "first. In brackets: how sure it was of what it said, and how sure of the true class. Look for images that "
            "you would get wrong too, and for wrong labels."
        )
        return cls(
            title="The worst mistakes",
            text=text if wrong else f"There are none: all {len(image_set)} images are classified correctly.",
            mistakes=tuple(_mistake(findings, image_set, index) for index in chosen),
            pictures=image_set.__getitems__(chosen).pictures.cpu(),
            wrong=wrong,
            images=len(image_set),
            files=image_set.files is not None,
        )

    def table(self) -> Table | None:
        """A row for each mistake."""
        if not self.mistakes:
            return None
        rows = [
            [str(place), one.name, one.true, one.said, f"{one.said_activation:.3f}", f"{one.true_activation:.3f}"]
            for place, one in enumerate(self.mistakes, 1)
        ]
        name = "file" if self.files else "image"
        return Table(rows, ["", name, "true class", "said", "activation", "of the true class"])


def _mistake(findings: Findings, image_set: ImageSet, index: int) -> Mistake:
    true, said = int(findings.labels[index]), int(findings.prediction[index])
    name = image_set.files[index] if image_set.files else str(index)
    activation = findings.activation[index]
    return Mistake(
        name, image_set.classes[true], image_set.classes[said], float(activation[said]), float(activation[true])
    )

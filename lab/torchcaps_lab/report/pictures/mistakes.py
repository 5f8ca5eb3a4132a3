"""The images that a network is most wrong about."""

import math
from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple

from torch import Tensor

from torchcaps_lab.data.examples import Examples
from torchcaps_lab.evaluate.findings import Findings
from torchcaps_lab.look import counted
from torchcaps_lab.report.canvas import (
    line_count,
    new_figure,
    set_title,
    shorten,
    show,
    title_width,
)
from torchcaps_lab.report.exhibit import PNG, Exhibit, Picture, Table, register_exhibit
from torchcaps_lab.report.observe import Tested

_MISTAKES = 24


class Mistake(NamedTuple):
    """An image that was taken for another class.

    Args:
        name: the name of its file, or its place in the set.
        true: the name of its class.
        predicted: the name of the class that it was taken for.
        predicted_activation: the activation of that class.
        true_activation: the activation of the true class.

    Example:
        >>> from torchcaps_lab.report.pictures.mistakes import Mistake
        >>> Mistake(
        ...     "cats/7.png",
        ...     true="cat",
        ...     predicted="dog",
        ...     predicted_activation=0.8,
        ...     true_activation=0.3,
        ... ).predicted
        'dog'
    """

    name: str
    true: str
    predicted: str
    predicted_activation: float
    true_activation: float

    def heading(self) -> str:
        """Such as "true 4 → answer 9 (0.81 / 0.12)", broken into lines that fit above a
        small picture.
        """
        activations = f"({self.predicted_activation:.2f} / {self.true_activation:.2f})"
        if len(self.true) + len(self.predicted) <= 8:
            return f"true {self.true} → answer {self.predicted}\n{activations}"
        return (
            f"true {shorten(self.true)}\n→ answer "
            f"{shorten(self.predicted, 22)}\n{activations}"
        )


@register_exhibit("mistakes", place=50, drawings="worst_mistakes.png")
class Mistakes(Exhibit):
    """The worst mistakes, the worst first.

    Attributes:
        mistakes: at most 24.
        pictures: the pictures of these, (N, C, H, W).
        wrong: how many mistakes there are.
        images: how many images.
        files: whether the mistakes are named by files.

    Example:
        >>> from torchcaps_lab import evaluate, report
        >>> from torchcaps_lab.data import Digits
        >>> network, digits = tc.create_model("capsnet_digits"), Digits().test
        >>> exhibit = report.pictures.Mistakes.of(
        ...     evaluate.examine(network, digits), digits
        ... )
        >>> exhibit.images, exhibit.pictures.shape[1:]
        (359, torch.Size([1, 8, 8]))
    """

    mistakes: tuple[Mistake, ...]
    pictures: Tensor = field(metadata=PNG)
    wrong: int
    images: int
    files: bool

    @classmethod
    def of(cls, findings: Findings, image_set: Examples) -> "Mistakes | None":
        """Make the exhibit of images of one class each; None if they cannot be
        shown.
        """
        chosen = findings.mistakes(_MISTAKES).tolist()
        batch = image_set.seen(chosen)
        if batch is None:
            return None
        wrong = int((findings.prediction != findings.labels).sum())
        high, wide = image_set.image_shape[1:]
        text = (
            f"The network is wrong about {wrong} of {counted(len(image_set), 'images')}. These "
            f"are the clearest cases, worst first, in the {wide} x {high} pixels that "
            "it sees. The numbers in brackets are its activations of the answer and "
            "of the true class. Look for images that you would get wrong too, and "
            "for wrong labels."
        )
        return cls(
            title="The worst mistakes",
            text=text
            if wrong
            else (f"All {len(image_set)} images are classified correctly."),
            mistakes=tuple(_mistake(findings, image_set, index) for index in chosen),
            pictures=batch.pictures.cpu(),
            wrong=wrong,
            images=len(image_set),
            files=image_set.files is not None,
        )

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[Mistakes | None]":
        """Make the exhibit of what a classifier was tested on."""
        yield cls.of(tested.findings, tested.images)

    def table(self) -> Table | None:
        """A row for each mistake."""
        if not self.mistakes:
            return None
        rows = [
            [
                str(place),
                mistake.name,
                mistake.true,
                mistake.predicted,
                f"{mistake.predicted_activation:.3f}",
                f"{mistake.true_activation:.3f}",
            ]
            for place, mistake in enumerate(self.mistakes, 1)
        ]
        name = "file" if self.files else "image"
        return Table(
            rows,
            ["", name, "true class", "predicted", "activation", "of the true class"],
        )

    def draw(self) -> Iterator[Picture]:
        """The images, each with what was said about it."""
        if not self.mistakes:
            return
        titles = [mistake.heading() for mistake in self.mistakes]
        cell = max(1.7, max(map(title_width, titles)) + 0.15)
        columns = min(len(titles), max(1, int(10.5 / cell)))
        rows = math.ceil(len(titles) / columns)
        high = min(1.5, cell * self.pictures.shape[-2] / self.pictures.shape[-1])
        figure = new_figure(
            cell * columns + 0.2,
            rows * (high + 0.16 * line_count(titles)),
            "constrained",
        )
        grid = figure.add_gridspec(rows, columns)
        for place, title in enumerate(titles):
            axes = figure.add_subplot(grid[divmod(place, columns)])
            show(axes, self.pictures[place])
            set_title(axes, title)
        yield Picture("worst_mistakes.png", "The images of the worst mistakes", figure)


def _mistake(findings: Findings, image_set: Examples, index: int) -> Mistake:
    true = int(findings.labels[index])
    predicted = int(findings.prediction[index])
    name = image_set.files[index] if image_set.files else str(index)
    activation = findings.activation[index]
    return Mistake(
        name,
        image_set.classes[true],
        image_set.classes[predicted],
        float(activation[predicted]),
        float(activation[true]),
    )

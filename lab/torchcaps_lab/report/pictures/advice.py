"""What to do next, from what was measured."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from torchcaps.models.base import ClassifierNetwork
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.evaluate.advice import classifier_hints
from torchcaps_lab.evaluate.findings import Findings, Metrics
from torchcaps_lab.evaluate.hints import (
    Commands,
    Hint,
    MeasureHistory,
    Remedies,
    few_tested,
    weak_classes,
)
from torchcaps_lab.report.exhibit import Exhibit, Table, register_exhibit
from torchcaps_lab.report.observe import Tested

_MOST = 8


@register_exhibit("advice", place=20)
class Advice(Exhibit):
    """What to do next, the most pressing first.

    Attributes:
        hints: at most eight.

    Example:
        >>> from torchcaps_lab.report.pictures.advice import Advice, Hint
        >>> Advice(
        ...     title="What to do", text="", hints=(Hint("few images", "augment"),)
        ... ).hints[0].fact
        'few images'
    """

    hints: tuple[Hint, ...]

    @classmethod
    def of(
        cls,
        findings: Findings,
        images: Examples,
        summary: Mapping[str, Any],
        metrics: Metrics,
        model: ClassifierNetwork | None = None,
    ) -> "Advice":
        """Make the exhibit of images of one class each.

        Args:
            findings: about these images.
            images: the images that were tested on.
            summary: what the run says of itself, with ``train_per_class``: how many
                images of each; may be empty.
            metrics: rows with ``train_accuracy``, ``val_accuracy`` and the losses; may
                be empty.
            model: the network; None where it is not known.
        """
        hints = classifier_hints(findings, images, summary, metrics, model)
        return cls.of_hints(
            hints,
            images,
            Commands.of(summary),
            "accuracy is high, the classes are balanced, and the network does not "
            "overfit",
        )

    @classmethod
    def of_task(
        cls,
        measure: str,
        tested: float,
        shares: Mapping[str, float | None],
        images: Examples,
        summary: Mapping[str, Any],
        metrics: Metrics,
        *,
        of_class: str = "recall",
        draw: str = "",
    ) -> "Advice":
        """Make the exhibit of any task with a measure of which more is better, from 0
        to 1.

        Args:
            measure: its name in the metrics.
            tested: its value for the tested images.
            shares: how well each class is found, by name; None for one that is nowhere.
            images: the images that were tested on.
            summary: what the run says of itself; may be empty.
            metrics: rows with ``train_<measure>`` and ``val_<measure>``; may be empty.
            of_class: what the shares are, for people.
            draw: the option of ``torchcaps predict`` that draws the answers, with the
                folder to write; may be empty.
        """
        history = MeasureHistory.of(measure, metrics, tested, images.what, summary)
        hints = chain(
            history.hints(Remedies()),
            weak_classes(shares, of_class, images.what),
            few_tested(images),
        )
        return cls.of_hints(
            hints,
            images,
            Commands.of(summary),
            "every class is found, and the network does not overfit",
            draw,
        )

    @classmethod
    def of_hints(
        cls,
        hints: Iterable[Hint],
        images: Examples,
        commands: Commands,
        good: str,
        draw: str = "",
    ) -> "Advice":
        """Make the exhibit of advice that was found.

        Args:
            hints: the most pressing first; those after the eighth are left out.
            images: the images that were tested on.
            commands: about the run.
            good: what there is to say where there is no advice.
            draw: likewise :meth:`of_task`.
        """
        first = tuple(hints)[:_MOST]
        use = commands.about("predict", images.nameable(), *draw.split())
        examples = images.what
        if first:
            text = (
                f"{_introduction(first, commands)} "
                "Try one change at a time, and compare results on validation "
                f"{examples}. Keep test {examples} for the end. Use the network as it is with "
                f"`{use}`."
            )
        else:
            text = f"No problems found: {good}. Use the network with `{use}`."
        return cls(title="What to do next", text=text, hints=first)

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[Advice]":
        """Make the exhibit of what a classifier was tested on."""
        yield cls.of(
            tested.findings, tested.images, tested.summary, tested.metrics, tested.model
        )

    def table(self) -> Table | None:
        """A row for each hint."""
        header = ["measured", "what to do", "type"]
        columns = 3 if any(hint.option for hint in self.hints) else 2
        rows = [list(hint[:columns]) for hint in self.hints]
        return Table(rows, header[:columns]) if rows else None


def _introduction(hints: Sequence[Hint], commands: Commands) -> str:
    """What the table of hints holds, and the command that trains again, if it is
    known.
    """
    typed = any(hint.option for hint in hints)
    columns = "a measurement, a remedy and the text to type"
    first = f"Each row shows {columns if typed else 'a measurement and a remedy'}, most important first."
    if not commands.of_training:
        return first
    if typed:
        return f"{first} Add the options to this command: `{commands.training()}`."
    return f"{first} This command trains again: `{commands.training()}`."

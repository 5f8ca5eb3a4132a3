"""The first words of a report: how good the network is, beside guessing, and where it
is worst.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.models.base import ClassifierNetwork
from torchcaps_lab.evaluate.findings import Findings
from torchcaps_lab.evaluate.verdict import Verdict
from torchcaps_lab.look import counted
from torchcaps_lab.report.exhibit import Exhibit, register_exhibit
from torchcaps_lab.report.observe import Tested


class Worst(NamedTuple):
    """The class with the lowest recall.

    Args:
        name: the name of the class.
        right: how many of its images were said to be of it.
        images: how many it has.

    Example:
        >>> from torchcaps_lab.report.pictures.headline import Worst
        >>> Worst("owl", right=0, images=12).right
        0
    """

    name: str
    right: int
    images: int


def page_title(network: ClassifierNetwork, summary: Mapping[str, Any]) -> str:
    """The title of a report: the run, its network and its data, as far as they are
    known.
    """
    if "run" in summary and "data" not in summary:  # a saved network
        return f"What {summary['run']} learned"
    if "run" not in summary:
        return f"What this {type(network).__name__} learned"
    model = summary.get("model", type(network).__name__)
    data = summary.get("source", summary["data"])
    return f"{Path(summary['run']).name}: what {model} learned from {data}"


def sentence(line: str) -> str:
    """A line of results as a sentence, with names such as IoU as they are."""
    return f"{line[0].upper()}{line[1:]}."


@register_exhibit("headline", place=5)
class Headline(Exhibit):
    """How good a classifier is.

    Attributes:
        accuracy: share of the images that are right.
        interval: to either side of it, with 95 % confidence:
            :attr:`~torchcaps_lab.evaluate.Findings.interval`.
        guessing: the share that always saying the most frequent class has.
        worst: of several classes of the same recall the one with the most images; None
            where all is right.

    Example:
        >>> from torchcaps_lab.evaluate import Findings
        >>> from torchcaps_lab.report.pictures.headline import Headline
        >>> findings = Findings(
        ...     torch.tensor([0, 0, 1]), torch.eye(2)[[0, 0, 0]], entropy=None
        ... )
        >>> Headline.of("Birds", findings, ("crow", "owl"), "images").worst
        Worst(name='owl', right=0, images=1)
    """

    accuracy: float
    interval: float
    guessing: float
    worst: Worst | None

    @classmethod
    def of(
        cls,
        title: str,
        findings: Findings,
        classes: tuple[str, ...],
        examples: str,
        verdict: Verdict | None = None,
    ) -> "Headline":
        """Make the exhibit of images of one class each.

        Args:
            title: the title of the page.
            findings: about the images.
            classes: their names.
            examples: "images" or "texts".
            verdict: what routing and decoder do; None where that is not known.
        """
        common, guessing = findings.majority
        worst = _worst(findings, classes)
        accuracy = 100 * findings.accuracy
        interval = 100 * findings.interval
        count = len(findings.labels)
        parts = (
            f"{accuracy:.1f} % ± {interval:.1f} points of {counted(count, examples)} are right.",
            f"Always answering {classes[common]!r} would get {100 * guessing:.1f} % "
            "right.",
            ""
            if worst is None
            else f"The worst class is {worst.name!r}, with {worst.right} of "
            f"{worst.images} right.",
            "" if verdict is None or verdict.even else verdict.of_routing,
            "" if verdict is None else verdict.of_decoder,
        )
        text = " ".join(part for part in parts if part)
        return cls(
            title=title,
            text=text,
            accuracy=findings.accuracy,
            interval=findings.interval,
            guessing=guessing,
            worst=worst,
        )

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[Headline]":
        """Make the exhibit of what a classifier was tested on."""
        yield cls.of(
            page_title(tested.model, tested.summary),
            tested.findings,
            tuple(tested.images.classes),
            tested.images.what,
            tested.verdict,
        )


def _worst(findings: Findings, classes: tuple[str, ...]) -> Worst | None:
    totals = findings.confusion.sum(1).tolist()
    right = findings.confusion.diag().tolist()
    classes_with_tests = [
        Worst(name, correct, total)
        for name, correct, total in zip(classes, right, totals, strict=True)
        if total
    ]
    worst = min(
        classes_with_tests,
        key=lambda figures: (figures.right / figures.images, -figures.images),
    )
    return worst if worst.right < worst.images else None

"""What a run says of itself, and what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torchcaps_lab.evaluate.findings import Findings
from torchcaps_lab.report.exhibit import Exhibit, Table, register_exhibit
from torchcaps_lab.report.observe import Tested


class Quantity(NamedTuple):
    """A number with its name.

    Example:
        >>> from torchcaps_lab.report.pictures.summary import Quantity
        >>> Quantity("accuracy", 0.99, percent=True).name
        'accuracy'
    """

    name: str
    value: float
    percent: bool = False


@register_exhibit("summary", place=1000)
class Summary(Exhibit):
    """What a run says of itself, and what was measured afterwards.

    Attributes:
        recorded: by name, in this order; anything that JSON can hold.
        measured: numbers.

    Example:
        >>> from torchcaps_lab.report.pictures.summary import Quantity, Summary
        >>> Summary.of(
        ...     "Summary", {"epochs": 20}, [Quantity("accuracy", 0.99, percent=True)]
        ... ).table().rows
        [['epochs', '20'], ['accuracy', '99.00%']]
    """

    folded: ClassVar[bool] = True
    recorded: Mapping[str, Any]
    measured: tuple[Quantity, ...]

    @classmethod
    def of(
        cls, title: str, recorded: Mapping[str, Any], measured: Sequence[Quantity]
    ) -> "Summary":
        """Any task may bring measures of its own; those of classification are
        :func:`measures`.
        """
        text = (
            "The settings and results that the run recorded, followed by the "
            "measurements of this report."
        )
        return cls(
            title=title, text=text, recorded=dict(recorded), measured=tuple(measured)
        )

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[Summary]":
        """Make the exhibit of what a classifier was tested on."""
        yield cls.of("Settings and measures", tested.summary, measures(tested.findings))

    def table(self) -> Table:
        """Names and values, in words."""
        rows = [[str(name), _words(value)] for name, value in self.recorded.items()]
        rows += [
            [name, f"{value:.2%}" if percent else _words(value)]
            for name, value, percent in self.measured
        ]
        return Table(rows)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(
            f"{name} ({_words(part)})"
            if isinstance(part, Mapping)
            else f"{name} {_words(part)}"
            for name, part in value.items()
        )
    if isinstance(value, list):
        return "; ".join(map(_words, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def measures(findings: Findings) -> list[Quantity]:
    """What a classifier's answers come to."""
    rows = [
        Quantity(
            "balanced accuracy: mean recall of the classes",
            findings.balanced_accuracy,
            percent=True,
        ),
        Quantity("mean activation of the true class", findings.true_activation),
        Quantity("answers with no class above 0.5", findings.undecided, percent=True),
    ]
    if findings.entropy is not None:
        rows.append(
            Quantity("entropy of the assignments (0 hard, 1 uniform)", findings.entropy)
        )
    return rows

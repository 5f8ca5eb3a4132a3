"""A report about a data set before any training on it: its splits, its classes, its
doubts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from torchcaps_lab.data.base import DataSet
from torchcaps_lab.look import counted


class Report(Protocol):
    """What ``torchcaps check`` says of a path."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What should be repaired before a training, for people."""

    def json(self) -> dict[str, Any]:
        """The whole report, ready for JSON."""

    def lines(self) -> list[str]:
        """The whole report for people, line by line."""

    def advised(self, options: Mapping[str, Any]) -> dict[str, str] | None:
        """The options that the command which trains needs beside the path; None if no
        option helps.

        Args:
            options: those that would be guessed.
        """


@dataclass(frozen=True)
class DataReport:
    """How many examples of each class a data set has, and what is wrong with it.

    Attributes:
        what: what the examples are called.
        examples: how many examples each split has.
        classes: how many of them show each class, by split.
        notes: what a reader of results should know.
        problems: what should be repaired. Without examples, it cannot be trained on.
        broken: whether some cannot be read, and are not counted.
    """

    what: str = "examples"
    examples: dict[str, int] = field(default_factory=dict)
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    broken: bool = False

    @classmethod
    def of(cls, data: DataSet) -> "DataReport":
        """Read a data set, and count."""
        examples = dict[str, int]()
        classes = dict[str, dict[str, int]]()
        for part in ("train", "validation", "test"):
            split = getattr(data, part)
            examples[part] = len(split)
            classes[part] = split.counts()
        problems = data.contradictions()
        notes = tuple(note for note in data.notes() if note not in problems)
        notes = (*notes, *data.copies())
        return cls(data.train.what, examples, classes, notes, problems)

    def json(self) -> dict[str, Any]:
        """The whole report, ready for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The whole report for people, line by line."""
        lines = [*class_lines(self.examples, self.classes, self.what), *self.notes]
        return lines + [f"PROBLEM: {problem}" for problem in self.problems]

    def advised(self, options: Mapping[str, Any]) -> dict[str, str] | None:
        """Whether broken ones are left out; all else is guessed from the path."""
        if not self.examples:
            return None
        return {"--data.skip_broken": "true"} if self.broken else {}


def class_lines(
    examples: Mapping[str, int], classes: Mapping[str, Mapping[str, int]], what: str
) -> Iterator[str]:
    """Tell people how many examples each split has, and how many show each class.

    Args:
        examples: how many examples each split has.
        classes: how many of them show each class, by split.
        what: what the examples are called.
    """
    for part, counts in classes.items():
        count = examples[part]
        # Pictures of which nothing is known have no classes.
        labelled = any(counts.values()) or not count
        of_classes = f" of {counted(len(counts), 'classes')}" if labelled else ""
        yield f"{part}: {counted(count, what)}{of_classes}"
        for name, number in counts.items() if labelled else ():
            yield f"  {name}: {number:,} ({number / max(count, 1):.1%})"

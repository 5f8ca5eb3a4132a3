"""Labels as a program has them: one for each example, several, or rows of 0 and 1."""

import operator
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from torchcaps_lab.data.manifest import some
from torchcaps_lab.look import in_order

Label = int | str
"""The number of a class, or its name."""


class Labels(NamedTuple):
    """The labels of all examples of a data set, read in one way.

    Args:
        rows: the labels of each example; one, unless there are ``several``.
        several: whether an example may have several labels, or none.
        columns: how many classes rows of 0 and 1 have; 0 for other labels.

    Example:
        >>> from torchcaps_lab.data.labels import Labels
        >>> Labels.of([("sea", "sky"), ("sea",), ()]).several
        True
        >>> Labels.of([(0, 1, 1), (1, 0, 0)])  # rows of 0 and 1
        Labels(rows=((1, 2), (0,)), several=True, columns=3)
        >>> Labels.of([(0, 1), (1, 0)])  # the same with one class each
        Labels(rows=((1,), (0,)), several=False, columns=2)
    """

    rows: tuple[tuple[Label, ...], ...]
    several: bool
    columns: int

    @classmethod
    def of(cls, rows: Sequence[tuple[Label, ...]]) -> "Labels":
        """Decide how labels are read, by those of all examples.

        Rows of equal length, two or more, of nothing but 0 and 1 have a column for each
        class: as names of classes, they would repeat themselves. Examples may have
        several labels if any of them has not exactly one.

        Args:
            rows: the labels of each example as they were given.
        """
        lengths = {len(row) for row in rows}
        columns = lengths.pop() if len(lengths) == 1 else 0
        if columns > 1 and {label for row in rows for label in row} <= {0, 1}:
            rows = [
                tuple(place for place, label in enumerate(row) if label) for row in rows
            ]
        else:
            columns = 0
        return cls(tuple(rows), any(len(row) != 1 for row in rows), columns)

    def classes(self, used: Iterable[Label]) -> tuple[str, ...]:
        """The labels as names: those of all columns; or else numbers by their value,
        then other names.

        Args:
            used: the labels of the examples to train on.
        """
        if self.columns:
            return tuple(map(str, range(self.columns)))
        return in_order(map(str, {*used}))

    def notes(self) -> tuple[str, ...]:
        """Tell people how rows of 0 and 1 were read."""
        if not self.columns:
            return ()
        other = "several labels need an example that has none or several"
        return (columns_note(self.columns, self.several, other),)


def columns_note(columns: int, several: bool, other: str) -> str:
    """The note on labels that are columns of 0 and 1.

    Args:
        columns: how many there are.
        several: whether an example may have several of them, or none.
        other: how to get several labels where each example has one.
    """
    single = f"exactly one, its class; {other}"
    each = "any number of them, as in the task several_labels" if several else single
    return (
        f"the labels are {columns} columns of 0 and 1, one for each class: an example "
        f"has {each}"
    )


def labels_of(given: Any, name: str) -> tuple[Label, ...]:
    """Return the labels of one example, as they were given.

    Args:
        given: a whole number or a name; or a list, a tuple, a set or an array of these.
        name: the example, for the message.

    Raises:
        ValueError: it is none of these; names the example.
    """
    if getattr(given, "ndim", 0) == 1:
        given = given.tolist()
    if isinstance(given, set | frozenset):
        given = sorted(given, key=str)
    several = given if isinstance(given, list | tuple) else [given]
    return tuple(_label(part, given, name) for part in several)


def _label(part: Any, given: Any, name: str) -> Label:
    """One label as a number or a string of Python."""
    # A blank one is a label that is missing, as None and NaN are.
    if isinstance(part, str) and part.strip():
        return str(part)
    whole = isinstance(part, float) and part.is_integer()
    try:
        return int(part) if whole else operator.index(part)
    except TypeError:
        raise ValueError(
            f"the label of {name} must be a whole number or the name of a class, or a "
            f"list of them, got {given!r:.60}"
            + (
                ": this package classifies, and does not predict measurements"
                * (isinstance(part, float) and isfinite(part))
            )
        ) from None


def each_of(labels: Any, name: str) -> list[tuple[Label, ...]]:
    """Return the labels of each example, of an array or a list of labels.

    Args:
        labels: (N,), one for each example; (N, E), a row for each; or N lists.
        name: what they are labels of, for the message.

    Raises:
        ValueError: they have another shape, or one is no label.
    """
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu()
    if hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    shape = tuple(getattr(labels, "shape", (0,)))
    if len(shape) not in (1, 2):
        raise ValueError(
            f"the labels of {name} must be (N,), one number or name each, or (N, E), "
            f"with a column of 0 and 1 for each class, got the shape {shape}"
        )
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    return [labels_of(value, f"{name} {place}") for place, value in enumerate(values)]


def check_names(classes: Sequence[str], labels: Labels, between: str) -> None:
    """Raise a `ValueError` if classes do not fit labels that are columns, or several.

    Args:
        classes: the names of the classes; none if the labels are their own names.
        labels: the labels of all images.
        between: what stands between several labels in the record of a run.
    """
    if labels.columns and classes and len(classes) != labels.columns:
        raise ValueError(
            f"classes must name the {labels.columns} columns of the labels, got "
            f"{len(classes)}: {some(classes)}"
        )
    known = {*classes, *(str(label) for row in labels.rows for label in row)}
    if labels.several and (wrong := sorted(name for name in known if between in name)):
        raise ValueError(
            f"the name of a class must not hold {between!r}, which stands between the "
            f"labels of an image that has several, got {some(wrong)}"
        )

"""The interface of a reader: how one kind of input is recognised, read, batched and
saved.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor

from torchcaps.spec import Given, fit
from torchcaps.whole import seen_from
from torchcaps_lab.data.base import DataSet
from torchcaps_lab.data.counts import DataReport, Report
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.pairs import inputs_and_labels
from torchcaps_lab.data.transforms.preprocess import Preprocess
from torchcaps_lab.kinds import SharedRegistry
from torchcaps_lab.look import (
    Guess,
    advice_on,
    counted,
    plain_steps,
    trained_of,
    watched,
)

if TYPE_CHECKING:
    from torchcaps.models import ClassifierNetwork
    from torchcaps_lab.look import Fit, Place


class Read(NamedTuple):
    """One input as a network takes it, before it is prepared.

    Attributes:
        values: the numbers: of a picture (C, H, W), of a text (L,), of a series (C, L).
        note: how they were made, for people, if that depends on the input; else empty.
    """

    values: Tensor
    note: str


@dataclass(frozen=True)
class Unread:
    """An input that was named and cannot be read: the others are answered.

    Args:
        name: what was named.
        error: why it cannot.
    """

    name: str
    error: ValueError | OSError

    def __str__(self) -> str:
        return self.name


def inputs_in(path: Path, read: Callable[[Path], Iterable[Any]]) -> Iterator[Any]:
    """The inputs in a file; or, as an :class:`Unread`, why they cannot be read.

    Args:
        path: the file.
        read: reads it.
    """
    try:
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}{seen_from(path)}")
        yield from read(path)
    except (ValueError, OSError) as error:
        yield Unread(str(path), error)


class Reader(ABC):
    """How one kind of input is recognised, read, batched and saved with a network.

    A subclass under ``@register_reader(name)`` lies with its kind, in
    ``torchcaps_lab/kinds``. ``check``, ``train``, ``predict`` and ``explain`` all ask
    :meth:`sees` what a path holds, so that they agree.
    """

    name: ClassVar[str]
    """The name that it is registered under, set by :func:`register_reader`."""

    examples: ClassVar[type[Examples]] = Examples
    """The class of its examples."""

    takes: ClassVar[str]
    """As :attr:`torchcaps.models.ClassifierNetwork.takes`."""

    items: ClassVar[str]
    """What is named on a command line."""

    axes: ClassVar[Mapping[int, str]]
    """The axes of a batch that may have any length, by their places."""

    in_program: ClassVar[str] = ""
    """The name of the data set of examples that a program has; empty if there is none."""

    written: ClassVar[bool] = False
    """Whether the page of ``torchcaps explore`` asks for text."""

    preprocess: Preprocess = Preprocess()
    """How a batch is prepared for the network."""

    @classmethod
    def sees(cls, place: "Place", given: Mapping[str, Any]) -> Guess | None:
        """Return the options of a training on what lies at a path; None if that is not
        of this kind.

        Args:
            place: the file or the folder.
            given: the options that the user gave, which the others have to suit.

        Raises:
            ValueError: it is of this kind, and cannot be trained on.
        """
        return None

    @classmethod
    def recognises(cls, data: Any, labels: Any) -> bool:
        """Whether what a program has can be of this kind alone.

        Args:
            data: the examples, or pairs of an example and a label.
            labels: the labels beside the examples; None if there are none.
        """
        return False

    @classmethod
    def of_program(cls, data: Any, labels: Any, given: Mapping[str, Any]) -> Guess:
        """Return the options of a training on what a program has.

        Args:
            data: the examples, or pairs of an example and a label.
            labels: the labels beside the examples; None if there are none.
            given: the options that the user gave, which the others have to suit.

        Raises:
            ValueError: there are no labels.
        """
        inputs, beside = inputs_and_labels(data, labels, cls.name)
        arguments = {
            "name": cls.in_program,
            "inputs": Given(inputs),
            "labels": Given(beside),
        }
        train = trained_of(len(inputs))
        options, why = cls.steps_for(train)
        summary = f"{cls.in_program}, {counted(len(inputs), cls.items)} with labels"
        guess = Guess({**options, "data": arguments}, {"data": summary, **why})
        return watched(guess, given, train // 9)

    @classmethod
    def steps_for(cls, train: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a batch size and a number of epochs.

        Args:
            train: how many training examples there are, about.

        Returns:
            The options, and a reason for each.
        """
        return plain_steps(train)

    @classmethod
    def endings(cls) -> Collection[str]:
        """The endings of files that are of this kind wherever they lie, in lower case;
        none if an ending alone does not tell.
        """
        return ()

    @classmethod
    def missing(cls, place: "Place") -> str:
        """Why a path that no reader recognises cannot be trained on."""
        advice = advice_on(place.path)
        return (
            f"{place.path} must be a folder, a table of texts or of images (.csv, "
            ".tsv or .jsonl), a file of series (.ts or .arff), or YOLO's data.yaml"
            f"{advice and f'; {advice}'}"
        )

    @classmethod
    def report(cls, place: "Place", seen: Guess | ValueError) -> Report:
        """Return what there is to say of a path before a training on it.

        Args:
            place: the file or the folder.
            seen: what :meth:`sees` returned or raised.
        """
        if isinstance(seen, ValueError):
            return DataReport(problems=(str(seen),))
        options = seen.options["data"]
        try:
            return _report_of(options)
        except ValueError as error:
            problem = str(error)
        with suppress(ValueError):
            rest = _report_of({**options, "skip_broken": True})
            return replace(rest, problems=(problem, *rest.problems), broken=True)
        return DataReport(problems=(problem,))

    @classmethod
    def smaller_side(cls, path: Path) -> int | None:
        """The pixels of the smaller side of the image in a file, from its header alone;
        None if it is no image, or not there any more.
        """
        return None

    @classmethod
    def of_network(cls, network: "ClassifierNetwork") -> "Reader | None":
        """Return the reader of a network that was saved without one; None if the
        network alone does not describe it.
        """
        return None

    @classmethod
    @abstractmethod
    def of_data(cls, data: Any, preprocess: Preprocess) -> "Reader":
        """Return the reader of networks that are trained on a data set.

        Args:
            data: the data set.
            preprocess: how its examples are prepared.
        """

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Reader":
        """Return the reader that :meth:`config` describes."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments of this reader, ready for JSON, to be saved with a network."""

    @abstractmethod
    def read(self, given: Any, resize: "Fit | None" = None) -> Read:
        """One input as numbers, unprepared, and a note on how they were made, if that
        depends on the input.

        Args:
            given: the input, such as the path of a file, a text or a tensor.
            resize: how pictures get to the size of the network; None: as it was saved.

        Raises:
            ValueError: it cannot be read.
        """

    def numbers(self, values: Tensor) -> Tensor:
        """A batch in the range that the network takes."""
        return values

    @abstractmethod
    def collate(self, rows: Sequence[Tensor]) -> Tensor:
        """Inputs that :meth:`read` made, as one batch."""

    def named(self, names: Sequence[str]) -> Iterator[Any]:
        """The inputs that are named on a command line; an :class:`Unread` in place of
        what cannot be read.
        """
        for name in names:
            try:
                yield from self.inputs_of(name)
            except (ValueError, OSError) as error:
                yield Unread(name, error)

    @abstractmethod
    def inputs_of(self, name: str) -> Iterable[Any]:
        """The inputs that one name stands for, such as those in a folder; an
        :class:`Unread` in place of one that cannot be read.

        Raises:
            ValueError: there are none.
        """

    @abstractmethod
    def notes(self) -> dict[str, Any]:
        """Tell users of an exported network what its file takes, ready for JSON."""

    @abstractmethod
    def __str__(self) -> str:
        """Tell people what the file of an exported network takes."""

    def suited(self, network: "ClassifierNetwork") -> "Reader":
        """This reader for a network that does not take all that it may read."""
        return self

    def check(self, network: "ClassifierNetwork") -> None:
        """Raise a `ValueError` if the network does not take what this reader reads."""
        if network.takes != self.takes:
            raise ValueError(
                f"what was saved reads {self.takes}, but a {type(network).__name__} "
                f"takes {network.takes}"
            )

    def check_fit(self, network: "ClassifierNetwork", resize: "Fit | None") -> None:
        """Raise a `ValueError` if inputs cannot get to the size of the network so.

        Args:
            network: the network.
            resize: the option ``resize``; None: it was not given.
        """
        if resize is not None:
            raise ValueError(
                f"resize is for images: a {type(network).__name__} takes {self.takes}"
            )

    def at_its_size(
        self, mask: Tensor, given: Any, resize: "Fit | None" = None
    ) -> tuple[Tensor, Tensor]:
        """Return the classes of pixels, and the picture that they are of, at the size
        of the picture.

        Args:
            mask: the class of each pixel that the network took, (H, W).
            given: what the network was asked about.
            resize: how it was fitted; None: as usual.
        """
        return mask, self.read(given, resize).values

    def changed(self, **settings: Any) -> "Reader":
        """Return this reader with other settings.

        Args:
            settings: fields by name; None leaves a field as it is.

        Raises:
            ValueError: this kind of input has no such setting.
        """
        wrong = [name for name, value in settings.items() if value is not None]
        if wrong:
            raise ValueError(
                f"{wrong[0]} is for images: the network takes {self.takes}"
            )
        return self

    def of_examples(self) -> "Reader":
        """Return the reader of inputs that a data set has read, which it scaled."""
        return self

    def complete(self, arguments: dict[str, Any]) -> str:
        """Fill in what the network takes where the arguments of other data leave it
        open, and return a note on it.

        Args:
            arguments: the arguments of the data set, which are changed.
        """
        return ""

    def facts(self) -> dict[str, str]:
        """Tell people facts about the inputs, by name."""
        return {}

    def alike(self, first: Tensor, second: Tensor) -> bool:
        """Whether two inputs can be in one batch."""
        return True

    def most(self, row: Tensor, size: int) -> int:
        """How many inputs like this one take the memory of a batch of ``size`` usual
        ones.
        """
        return size

    def fitted(self, examples: Examples) -> Examples:
        """Examples as the network reads them.

        Raises:
            ValueError: they are of another kind of input, or do not fit.
        """
        if examples.what != self.examples.what:
            raise ValueError(
                f"the network takes {self.takes}, these are {examples.what}"
            )
        return examples

    def unexplored(self, network: "ClassifierNetwork") -> str:
        """Why there is nothing to explore in a network; empty if there is.

        Args:
            network: the network.
        """
        return f"a network over {self.takes}: 'torchcaps explain' draws its report"

    def followed(self, network: "ClassifierNetwork", given: str) -> Any:
        """Return an exhibit of what each part of a written input spoke for.

        Raises:
            ValueError: inputs are not written.
        """
        raise ValueError(f"the network takes {self.takes}, not texts")

    def uploaded(self, file: bytes, name: str) -> Tensor:
        """One input that somebody sends to a page as a file, as numbers, unprepared.

        Args:
            file: the content of the file.
            name: what the file is called in messages.

        Raises:
            ValueError: it cannot be read, or is too large.
        """
        raise ValueError(f"{name} is a file, and the network takes {self.takes}")

    def samples(self, name: str, classifier: Any, tell: Any) -> Examples | None:
        """Return examples to try a network on; None if there are none for it.

        Args:
            name: the name of the data that it was trained on.
            classifier: the network, with this reader.
            tell: is called with the reason if examples are damaged and not used.
        """
        return None

    def trial(self, network: "ClassifierNetwork", count: int) -> Tensor:
        """A batch of made-up inputs, unprepared, to try a network on."""
        return network.examples(count)


def _report_of(options: Mapping[str, Any]) -> DataReport:
    """A report about the data set of some options."""
    data: Any = fit(DataSet, options, "data")
    return DataReport.of(data.make())


READERS = SharedRegistry("reader", Reader)
"""The readers by name."""

register_reader = READERS.register
"""Decorate a :class:`Reader` so that it is known, and asked, by a name."""


def holds_other_kinds(place: "Place", reader: type[Reader]) -> bool:
    """Whether there are files at a path that are of another kind than a reader's."""
    return bool(place.suffixes & endings_of_others(reader))


def endings_of_others(reader: type[Reader]) -> set[str]:
    """The endings of files that are of another kind than a reader's."""
    others = [other for other in READERS.values() if not issubclass(other, reader)]
    return {ending for other in others for ending in other.endings()}


def beginning(text: str, most: int) -> str:
    """A text, cut after ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"

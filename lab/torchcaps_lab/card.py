"""The card of a network: what is saved with it so that it can be used."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data import DataSet, Preprocess
from torchcaps_lab.data.plain_text import check_class_names
from torchcaps_lab.data.reader import READERS, Reader
from torchcaps_lab.evaluate.calibration import Calibration
from torchcaps_lab.tasks import Task, as_task
from torchcaps_lab.tasks.doubt import Doubt, doubts_in

_FIELDS = ("classes", "task", "reader", "calibration")


@dataclass(frozen=True)
class Card:
    """What is saved with a network so that it can be used.

    Attributes:
        classes: the names of the classes; None: they go by their numbers.
        task: what the network is for.
        reader: how its inputs are read and prepared.
        calibration: how activations become probabilities; None if nothing was fitted.
        doubts: what tells inputs that the network does not know, by name.
        extra: what others saved beside these, by name, ready for JSON.

    Example:
        >>> from torchcaps_lab.card import Card
        >>> card = Card.of(tc.create_model("capsnet_digits"))
        >>> card.task.name, card.reader.name
        ('classification', 'images')
    """

    classes: tuple[str, ...] | None
    task: Task
    reader: Reader
    calibration: Calibration | None = None
    doubts: Mapping[str, Doubt] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, network: ClassifierNetwork) -> "Card":
        """Return the card of a network; one over images needs none to be saved.

        Args:
            network: the network, with what was saved beside it as its ``extra``.

        Raises:
            ValueError: something in it is damaged or missing, or of a kind that is not
                known.
        """
        saved = network.extra
        classes = saved.get("classes")
        if classes is not None:
            check_class_names(classes, "the name of a class")
        task = as_task(saved.get("task", "classification"))
        doubts = doubts_in(task.doubts, saved)
        known = {*_FIELDS, *doubts}
        return cls(
            tuple(classes) if classes else None,
            task,
            _reader_of(network).suited(network),
            Calibration.from_config(saved.get("calibration")),
            doubts,
            {name: value for name, value in saved.items() if name not in known},
        )

    @classmethod
    def of_training(cls, data: DataSet, preprocess: Preprocess, task: Task) -> "Card":
        """Return the card of a network that is trained on a data set.

        Args:
            data: the data set.
            preprocess: how its examples are prepared.
            task: what the network is for.
        """
        kind: type[Reader] = READERS.find(data.reads)
        reader = kind.of_data(data, preprocess)
        return cls(tuple(data.classes), task, reader)

    def with_extra(self, name: str, value: Any) -> "Card":
        """Return this card with something beside it."""
        return replace(self, extra={**self.extra, name: value})

    def saved(self) -> dict[str, Any]:
        """The card, ready for JSON: :meth:`of` reads it."""
        calibration = None if self.calibration is None else self.calibration.config()
        saved = {
            **self.extra,
            **{name: doubt.config() for name, doubt in self.doubts.items()},
            "task": self.task.saved(),
            "reader": {"name": self.reader.name, **self.reader.config()},
            "calibration": calibration,
        }
        if self.classes is not None:
            saved["classes"] = list(self.classes)
        return saved


def _reader_of(network: ClassifierNetwork) -> Reader:
    """The reader that was saved with a network, or the one that its shape describes."""
    if "reader" in network.extra:
        return _reader_named(network.extra["reader"])
    # Readers of images come first: those of boxes read images, too. The table loads the
    # other kinds when it is gone through.
    for name in chain([DataSet.reads], READERS):
        kind: type[Reader] = READERS.find(name)
        reader = kind.of_network(network)
        if reader is not None:
            return reader
    raise ValueError(
        f"the network takes {network.takes}, and nothing was saved that reads them: "
        "save it with reader={'name': ..., argument: ...}"
    )


def _reader_named(config: Any) -> Reader:
    """The reader that was saved by its name and arguments."""
    if not isinstance(config, Mapping) or "name" not in config:
        raise ValueError(
            "the reader that was saved with the network is damaged: it must be a name "
            f"and arguments, got {str(config)[:80]!r}"
        )
    arguments = {name: value for name, value in config.items() if name != "name"}
    kind: Any = READERS.find(config["name"], "reader")
    try:
        reader: Reader = kind.from_config(arguments)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"the reader {config['name']!r} that was saved with the network is "
            f"damaged: {error!r}"
        ) from error
    return reader

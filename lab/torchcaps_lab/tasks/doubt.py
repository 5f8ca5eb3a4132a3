"""The interface of a doubt: whether an input is anything that a network knows at all."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from torchcaps.models import ClassifierNetwork, Prediction
from torchcaps.spec import BETWEEN_0_AND_1
from torchcaps_lab.data import Examples
from torchcaps_lab.kinds import SharedRegistry
from torchcaps_lab.report.exhibit import Exhibit
from torchcaps_lab.report.observe import Observation

FALSE_ALARMS = 0.05
"""The share of known examples that may be doubted, unless another is asked for."""


class Doubt(ABC):
    """Tells inputs that a network does not know from those that it does.

    It is fitted after a training on examples that the network was not trained on, saved
    with the network under its name, and asked about every answer. A task names the
    doubts that suit it in :attr:`~torchcaps_lab.tasks.Task.doubts`. A subclass under
    ``@register_doubt(name)`` lies in a folder of ``torchcaps_lab/kinds``, with its
    pictures.
    """

    name: ClassVar[str]
    """The name that it is saved under, set by :func:`register_doubt`."""

    says: ClassVar[str]
    """What is said of an input that is not known."""

    needs: ClassVar[str]
    """What a network must have so that it can be fitted, for people."""

    false_alarms: float
    """The share of the examples that it was fitted on that it takes for unknown."""

    @classmethod
    @abstractmethod
    def unfit(cls, network: ClassifierNetwork, examples: Examples) -> str:
        """Return why it cannot be fitted for a network; empty if it can.

        Args:
            network: the network.
            examples: those to fit it on, prepared for the network.
        """

    @classmethod
    @abstractmethod
    def fit(
        cls,
        network: ClassifierNetwork,
        examples: Examples,
        false_alarms: float = FALSE_ALARMS,
    ) -> "Doubt | None":
        """Return it, fitted for a network; None where it is :meth:`unfit`.

        Args:
            network: the network.
            examples: of its classes, that it was not trained on, prepared for it.
            false_alarms: the share of the examples to take for unknown, above 0 and
                below 1.
        """

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Doubt":
        """Return the doubt that :meth:`config` describes."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Its arguments, ready for JSON."""

    @abstractmethod
    def error(self, prediction: Prediction, pictures: Tensor) -> Tensor | None:
        """Return what it goes by, a number for each input of a batch, (B,), larger for
        stranger ones; None where the prediction lacks it.

        Args:
            prediction: of the batch.
            pictures: the inputs as pictures, (B, C, H, W) in [0, 1].
        """

    @abstractmethod
    def known(self, error: Tensor) -> Tensor:
        """Whether inputs with these errors (B,) are known, bool (B,)."""

    @abstractmethod
    def strangeness(self, error: Tensor) -> Tensor:
        """The share of the examples that it was fitted on that are less strange, (B,):
        from 0 to 1.
        """

    def of_answers(
        self, prediction: Prediction, pictures: Tensor
    ) -> Mapping[str, Sequence[Any]]:
        """Return the fields of the answers that it fills, by name.

        Args:
            prediction: of a batch.
            pictures: the inputs as pictures, (B, C, H, W) in [0, 1].
        """
        error = self.error(prediction, pictures)
        if error is None:
            return {}
        return {
            "known": self.known(error).tolist(),
            "error": error.tolist(),
            "strangeness": self.strangeness(error).tolist(),
        }

    @abstractmethod
    def shown(self, observation: Observation) -> Exhibit | None:
        """Return why the observed inputs are known or not; None for nothing to show."""

    @abstractmethod
    def apart(self, known: Tensor, strange: Tensor) -> Mapping[str, float]:
        """Return how well it tells inputs apart, by the name of the measure.

        Args:
            known: the errors of the answers for inputs of the classes, (N,).
            strange: those for inputs of no class, (M,).
        """

    @abstractmethod
    def __str__(self) -> str:
        """Tell people when an input is unknown."""


DOUBTS = SharedRegistry("doubt", Doubt)
"""The doubts by name."""

register_doubt = DOUBTS.register
"""Register a :class:`Doubt`, as a class decorator; a `ValueError` if the name is taken."""


def check_false_alarms(false_alarms: float) -> None:
    """Raises a `ValueError` unless it is a share above 0 and below 1."""
    BETWEEN_0_AND_1.check("false_alarms", false_alarms)


def doubts_in(names: Sequence[str], saved: Mapping[str, Any]) -> dict[str, Doubt]:
    """The doubts of a task, and those that are imported, among what was saved with a
    network, by name.

    Args:
        names: the names of the doubts.
        saved: what was saved.
    """
    doubts: dict[str, Doubt] = {}
    # keys() does not import the kinds.
    for name in dict.fromkeys([*names, *DOUBTS.keys()]):
        if saved.get(name) is not None:
            kind: type[Doubt] = DOUBTS.find(name)
            doubts[name] = kind.from_config(saved[name])
    return doubts

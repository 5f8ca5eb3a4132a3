"""Most recipes: rows, each a network that is trained and measured, beside the published figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torchcaps.recipes.kit.base import Outcome, Recipe, Settings
from torchcaps.recipes.kit.lab import Job, Lab, Trained
from torchcaps.recipes.kit.pictures import error_bars

TEST_ERROR = "test error"


@dataclass(kw_only=True)
class Study(Outcome):
    """One run of a comparison, with one seed: what its rows share, and the outcome so far.

    Args:
        lab: where it is run.
        settings: of the preset.
        trained: the network of each row.
    """

    lab: Lab
    settings: Any
    trained: dict[str, Trained] = field(default_factory=dict)

    def note(self, row: str, found: Mapping[str, float]) -> None:
        """Takes down figures of a row, by measure, and shows them."""
        self.figures |= {(row, measure): value for measure, value in found.items()}
        self.lab.show(f"{row}: " + ", ".join(f"{measure} {value:.2f}" for measure, value in found.items()))


class Comparison(Recipe[Settings]):
    """Rows of networks, each trained and measured alike.

    A subclass says how a row is trained (:meth:`job`). Where the test error is not all that counts, it says what is
    measured (:meth:`measure`), what all rows share (:meth:`begin`) and what is to be said of all together
    (:meth:`finish`).

    Attributes:
        rows: of networks, in order; the settings of a preset may name fewer, as ``rows``.
        twins: of a row, an earlier one whose last validation accuracy its training stops at.
        caption: under the bars of the test errors.
    """

    rows: ClassVar[Sequence[str]] = ()
    twins: ClassVar[Mapping[str, str]] = {}
    caption: ClassVar[str] = ""

    def job(self, settings: Settings, row: str, stop_at: float | None = None) -> Job:
        """Name of the run and options of ``torchcaps train`` for a row, as :meth:`Lab.train` takes them.

        Recipes that need the same network call this with the settings of their preset's name.

        Args:
            settings: of a preset.
            row: which network.
            stop_at: validation accuracy, from 0 to 1, at which its training ends.

        Raises:
            ValueError: if there is no such row.
            NotImplementedError: if the recipe trains in another way, see :meth:`train`.
        """
        raise NotImplementedError(f"{self.name} gives no options of torchcaps train")

    def begin(self, study: Study) -> Any:
        """What all rows are measured with, such as test images."""

    def measure(self, study: Study, row: str, given: Any) -> Mapping[str, float]:
        """The figures of a row, by measure, from its network, ``study.trained[row]``, and what :meth:`begin` gave."""
        return {TEST_ERROR: study.trained[row].test_error}

    def finish(self, study: Study, given: Any) -> None:
        """Adds to the study what is to be said of all rows: bars of the test errors."""
        study.pictures["errors"] = error_bars(self.lines, study.figures, self.title, self.caption)

    def present(self, settings: Settings) -> Sequence[str]:
        """The rows that a preset has."""
        return getattr(settings, "rows", ()) or self.rows

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains the network of a row, or opens it."""
        return study.lab.train(*self.job(study.settings, row, stop_at))

    def run(self, lab: Lab, settings: Settings) -> Outcome:
        """Trains and measures the network of each row."""
        study = Study(lab=lab, settings=settings)
        given = self.begin(study)
        for row in self.present(settings):
            stop_at = self._stop_at(study, row)
            trained = study.trained[row] = self.train(study, row, stop_at)
            study.facts[row] = trained.facts
            if self.twins:
                reached = trained.validation_accuracy
                enough = stop_at is None or reached >= stop_at
                study.facts[row] |= {"stop_at": stop_at, "validation_accuracy": reached, "reached": enough}
            if found := self.measure(study, row, given):
                study.note(row, found)
        self.finish(study, given)
        return study

    def _stop_at(self, study: Study, row: str) -> float | None:
        """That of the settings, if they have one, or what the twin reached, if that is less."""
        limits = [getattr(study.settings, "stop_at", None)]
        if row in self.twins:
            limits.append(study.trained[self.twins[row]].accuracy_to_match)
        return min((one for one in limits if one is not None), default=None)

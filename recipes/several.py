"""Several of a kind: how many things of a class are in a scene, and where each is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lightning import Callback

from recipes.kit.base import Line, Picture, Recipe, Study, register_recipe
from recipes.kit.lab import Trained, data_of, first_of
from recipes.kit.measures import percent
from recipes.kit.options import TrainingOptions
from recipes.scenes import on_larger_canvases
from torchcaps.models import load_pretrained
from torchcaps_lab.data import Examples, Scenery
from torchcaps_lab.report import Boxed
from torchcaps_lab.tasks import look_for_things

CAPSULES = "capsules whose places vote for boxes"

COUNTS, PARTS = "all counts exact", "all counts exact, by connected parts of maps"
LARGER = "all counts exact, canvases of twice the area"
PRECISION, STRICT = "mAP at IoU 0.5", "mAP over IoU 0.5 to 0.95"


@dataclass(frozen=True, kw_only=True)
class SeveralSettings(TrainingOptions):
    """One preset.

    Attributes:
        scenes: the number of scenes of test digits.
        start: the network whose weights the training starts with; empty for random
            ones.
    """

    scenes: int = 2000
    start: str = ""


class _Start(Callback):
    """Starts a training with the weights of a network."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Copies them."""
        pl_module.model.load_state_dict(load_pretrained(self.name).float().state_dict())


def twins_of(scenes: Examples) -> Examples:
    """The same with two or more digits in each scene, the first two of one class."""
    assert isinstance(scenes.composition, Scenery)
    return replace(scenes, composition=replace(scenes.composition, least=2, twins=1.0))


@register_recipe
class Several(Recipe[SeveralSettings]):
    """Trains on scenes of which half may have two digits of a class; tests on scenes
    that all have.
    """

    name: ClassVar = "several"
    lines: ClassVar[tuple[Line, ...]] = tuple(
        Line(
            CAPSULES,
            measure,
            unit="" if measure in (PRECISION, STRICT) else "%",
            higher_is_better=True,
        )
        for measure in (COUNTS, PARTS, LARGER, PRECISION, STRICT)
    )
    settings: ClassVar = SeveralSettings

    def train(
        self,
        study: Study,
        row: str,
        stop_at: float | None,
    ) -> Trained:
        """Trains the network of a row from the weights that the preset says."""
        start = [_Start(study.settings.start)] if study.settings.start else []
        return study.lab.train(*self.job(study.settings, row, stop_at), callbacks=start)

    def begin(self, study: Study) -> Examples:
        """The first of the test scenes."""
        test = data_of(study.settings.data).test
        return twins_of(first_of(test, study.settings.scenes))

    def measure(
        self,
        study: Study,
        row: str,
        scenes: Examples,
    ) -> Mapping[str, float]:
        """How many things are found of each class, and how precisely."""
        network: Any = study.trained[row].network
        answers = look_for_things(network, scenes)
        precision = answers.precision()
        larger = look_for_things(network, on_larger_canvases(scenes))
        overlap = network.overlap
        network.overlap = None
        parts = look_for_things(network, scenes)
        network.overlap = overlap
        return {
            COUNTS: percent(answers.right_counts),
            PARTS: percent(parts.right_counts),
            LARGER: percent(larger.right_counts),
            PRECISION: precision["map_50"],
            STRICT: precision["map"],
        }

    def finish(self, study: Study, scenes: Examples) -> None:
        """The first scenes with what is found in them."""
        few = first_of(scenes, 10)
        answers = look_for_things(study.trained[CAPSULES].network, few)

        def named(things: Sequence[Any]) -> list[tuple[str, list[float]]]:
            return [
                (scenes.classes[thing.label], thing.box.tolist()) for thing in things
            ]

        rows = zip(
            few.__getitems__(list(range(len(few)))).pictures,
            answers.counted,
            answers.true,
            strict=True,
        )
        boxed = [
            Boxed(picture, named(counted), named(true))
            for picture, counted, true in rows
        ]
        caption = (
            "The first test scenes with two digits of a class: every box that is "
            "found. Dotted: true."
        )
        study.pictures["boxes"] = Picture(Boxed.figure(boxed, scenes.classes), caption)

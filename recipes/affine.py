"""Trained on digits placed at random, tested on digits under small affine transforms
(Sabour et al. 2017).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from recipes.kit.base import (
    Line,
    Picture,
    Recipe,
    Study,
    by_line,
    facts_of,
    lines_of,
    register_recipe,
)
from recipes.kit.charts import Cell, Factor, factor_curves, image_grid
from recipes.kit.lab import at_random, data_of
from recipes.kit.options import TrainingOptions, option
from torchcaps.models import ImageClassifier
from torchcaps.spec import plain
from torchcaps_lab.data import Affine, AffineRanges, Examples, Padded, apply_affine
from torchcaps_lab.evaluate import examine

AFFNIST = AffineRanges()


class Tested(NamedTuple):
    """The test of both networks: centred digits, a random transform of each, and a few
    digits for the curves.
    """

    test: Examples
    affine: Affine
    few: Examples


def _steps(
    first: int,
    last: int,
    step: int,
    unit: float = 1.0,
) -> tuple[float, ...]:
    return tuple(round(value * unit, 6) for value in range(first, last + 1, step))


def factors(pad: int) -> dict[str, Factor]:
    """The factors on the x axes of the curves, for a training that shifted digits by up
    to ``pad`` pixels.
    """
    turned = (-AFFNIST.rotation, AFFNIST.rotation)
    sheared = (-AFFNIST.shear, AFFNIST.shear)
    return {
        "rotation": Factor(
            "rotation, degrees", _steps(-60, 60, 10), (0.0, 0.0), turned
        ),
        "shear": Factor(
            "shear, pixels per pixel", _steps(-6, 6, 1, 0.1), (0.0, 0.0), sheared
        ),
        "scale": Factor(
            "scale in x and in y", _steps(5, 15, 1, 0.1), (1.0, 1.0), AFFNIST.scale
        ),
        "shift": Factor(
            "shift in x and in y, pixels",
            _steps(0, 10, 1),
            (0.0, float(pad)),
            (0.0, AFFNIST.shift),
        ),
    }


def accuracy_under(
    network: ImageClassifier,
    images: Examples,
    affine: Affine,
    batch_size: int,
) -> float:
    """The share of transformed images, in percent, whose most active class is the true
    one.
    """
    moved = replace(images, inputs=apply_affine(images.inputs, affine))
    return 100 * examine(network, moved, batch_size=batch_size).accuracy


@dataclass(frozen=True, kw_only=True)
class AffineSettings(TrainingOptions):
    """One preset: how both networks are trained, except the shifts; ``model`` is the
    capsule network.

    Attributes:
        stop_at: validation accuracy at which the training of the capsules ends before
            its last epoch.
        pad: width of the border, and the largest shift in training, in pixels.
        curve_images: how many test images each point of a curve is measured on.
    """

    stop_at: float = 0.9923
    pad: int = 6
    curve_images: int = 1000


CAPSULES = "CapsNet"
FACTS = facts_of("affine")
ROWS = tuple(FACTS["rows"])
STOP = "validation accuracy at the end of training (placed at random)"
CLEAN, TRANSFORMED = "clean test accuracy (placed at random)", "affine test accuracy"
PUBLISHED = by_line(FACTS["published"])


def _lines(row: str) -> tuple[Line, ...]:
    """The lines of a row; only the accuracy under transforms is better if higher."""
    reached = lines_of([(row, STOP), (row, CLEAN)], PUBLISHED, higher_is_better=None)
    return (*reached, *lines_of([(row, TRANSFORMED)], PUBLISHED, higher_is_better=True))


@register_recipe
class AffineRobustness(Recipe[AffineSettings]):
    """Trains on digits placed at random, stops at one clean accuracy, and tests on
    digits under affine transforms.
    """

    name: ClassVar = "affine"
    grows: ClassVar = True
    twins: ClassVar = {row: CAPSULES for row in ROWS if row != CAPSULES}
    lines: ClassVar = tuple(chain.from_iterable(map(_lines, ROWS)))
    settings: ClassVar = AffineSettings

    def options(self, settings: AffineSettings, row: str) -> dict[str, Any]:
        """The network of the row, on larger canvases on which training shifts the
        digits.
        """
        data = option(Padded, data=plain(settings.data), pad=settings.pad)
        preprocess = {**settings.preprocess, "shift": settings.pad}
        return {
            **super().options(settings, row),
            "data": data,
            "preprocess": preprocess,
        }

    def begin(self, study: Study) -> Tested:
        """The test digits, and their transforms, which are the same for both
        networks.
        """
        settings = study.settings
        test = Padded(data_of(settings.data), settings.pad).centred_test()
        few = at_random(test, settings.curve_images)
        study.curves["images"] = len(few)
        study.curves |= {
            name: {"values": list(factor.values)}
            for name, factor in factors(settings.pad).items()
        }
        return Tested(test, AFFNIST.draw(test.inputs), few)

    def measure(
        self,
        study: Study,
        row: str,
        given: Tested,
    ) -> dict[str, float]:
        """Random transforms, and one factor at a time."""
        trained = study.trained[row]
        batch = study.settings.batch_size
        few = given.few
        for name, factor in factors(study.settings.pad).items():
            points = (
                Affine.of_factor(name, value, len(few)) for value in factor.values
            )
            study.curves[name][row] = [
                round(accuracy_under(trained.network, few, point, batch), 4)
                for point in points
            ]
        return {
            STOP: 100 * trained.validation_accuracy,
            CLEAN: trained.test_accuracy,
            TRANSFORMED: accuracy_under(
                trained.network, given.test, given.affine, batch
            ),
        }

    def finish(self, study: Study, given: Tested) -> None:
        """The digits of both tests."""
        clean = Padded(data_of(study.settings.data), study.settings.pad).test
        moved = replace(
            given.test, inputs=apply_affine(given.test.inputs, given.affine)
        )
        study.pictures["digits"] = _digits(clean, moved, self.captions["digits"])

    def pictures(self, studies: Sequence[Study]) -> Mapping[str, Picture]:
        """The digits, and the curves of each factor, for all rows so far."""
        first = studies[0]
        rows = [row for row in ROWS if row in first.facts]
        figure = factor_curves(factors(first.settings.pad), first.curves, rows)
        caption = self.captions["curves"].format(
            images=first.curves["images"],
            ends=_ends({row: first.facts[row] for row in rows}),
        )
        return {"curves": Picture(figure, caption), **first.pictures}


def _ends(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """How far the trainings went."""
    return "; ".join(
        f"{row} ended at {100 * of_row['validation_accuracy']:.2f} % of the "
        "validation images after "
        f"{of_row['epochs']} epochs"
        + ("" if of_row["reached"] else ", short of the accuracy to stop at")
        for row, of_row in facts.items()
    )


def _digits(clean: Examples, moved: Examples, caption: str) -> Picture:
    """The first test digit of each class in both tests, one row for each test."""
    first = [
        int((clean.labels == label).nonzero()[0]) for label in clean.labels.unique()
    ]
    rows = {"placed\nat random": clean, "affine test": moved}
    cells = {}
    for name, examples in rows.items():
        cells[name] = [Cell(examples.inputs[place].amax(0) / 255) for place in first]
    return Picture(image_grid(cells, 1.0), caption)

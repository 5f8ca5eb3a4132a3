"""Few labels: when should one take capsules? Networks of equal size, from 10 to 1000
images a class.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import recipes.convnet  # noqa: F401  # registers the networks
from recipes.kit.base import (
    TEST_ERROR,
    Line,
    Picture,
    Recipe,
    Study,
    facts_of,
    register_recipe,
)
from recipes.kit.lab import Trained, run_name
from recipes.kit.measures import half_interval
from recipes.kit.options import TrainingOptions, changed, option
from torchcaps_lab.report import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DATA = ("MNIST", "Fashion-MNIST", "smallNORB")
LABELS = (10, 30, 100, 300, 1000)
NETWORKS: dict[str, dict[str, Any]] = facts_of("few-labels")["compared"]
POOLED = next(iter(NETWORKS))


def row_of(data: str, count: int, network: str) -> str:
    """The row of a network that is trained on so many images of each class."""
    return f"{data}, {count} a class: {network}"


ROWS = {
    row_of(data, count, name): (data, count, name)
    for data, count, name in product(DATA, LABELS, NETWORKS)
}


@dataclass(frozen=True, kw_only=True)
class FewLabelsSettings(TrainingOptions):
    """One preset.

    Attributes:
        steps: the least number of training steps; with many images ``epochs`` decides.
        sets: each data set, its number of classes, options of trainings on it, and
            under ``sizes`` the arguments that make networks as large as the capsules.
    """

    steps: int = 500
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Compared(NamedTuple):
    """Errors of a network, in percent, and how many more those are than the pooled
    network's of the same seeds.

    Args:
        errors: the error of each seed, in percent.
        more: the difference from the pooled network, the mean over the seeds.
        margin: half of the 95 % interval of that difference, by Student's t; 0 for a
            single seed.
    """

    errors: list[float]
    more: float
    margin: float


@register_recipe
class FewLabels(Recipe[FewLabelsSettings]):
    """Capsules and convolutional networks of their size, trained alike on few images of
    each class.
    """

    name: ClassVar = "few-labels"
    rows: ClassVar = {row: NETWORKS[name] for row, (_, _, name) in ROWS.items()}
    lines: ClassVar = tuple(Line(row, TEST_ERROR) for row in ROWS)
    settings: ClassVar = FewLabelsSettings
    grows: ClassVar = True

    def options(self, settings: FewLabelsSettings, row: str) -> dict[str, Any]:
        """Those of the preset and the data set, on so many images of each class."""
        data, count, network = ROWS[row]
        changes = dict(settings.sets[data])
        sizes = changes.pop("sizes", {}).get(network, {})
        images = count * changes.pop("classes")
        steps_an_epoch = math.ceil(images / settings.batch_size)
        least_epochs = math.ceil(settings.steps / steps_an_epoch)
        changes |= {
            "model_args": sizes,
            "data": option(
                "Few",
                data=changes["data"],
                train=images,
                validation=0,
            ),
            "epochs": max(settings.epochs or 1, least_epochs),
        }
        return changed(super().options(settings, row), changes)

    def train(
        self,
        study: Study,
        row: str,
        stop_at: float | None,
    ) -> Trained:
        """Trains on images that the seed draws: all networks of a seed get the same."""
        options = self.options(study.settings, row)
        options["data"] = {**options["data"], "draw": study.lab.seed}
        return study.lab.train(run_name(self.name, row), options)

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Errors and differences from pooling by the number of labels."""
        return {"errors": Picture(_figure(studies), self.caption)}


def compare(
    studies: Sequence[Study],
    data: str,
    count: int,
    network: str,
) -> Compared | None:
    """A network beside the pooled one, over the seeds that have both; None if no seed
    has.
    """
    row = row_of(data, count, network), TEST_ERROR
    pooled_row = row_of(data, count, POOLED), TEST_ERROR
    errors, differences = [], []
    for study in studies:
        if {row, pooled_row} <= study.figures.keys():
            errors.append(study.figures[row])
            differences.append(study.figures[row] - study.figures[pooled_row])
    if not errors:
        return None
    return Compared(errors, mean(differences), half_interval(differences))


def _figure(studies: Sequence[Study]) -> "Figure":
    """A column for each data set: errors over the labels of a class, and below them the
    differences.
    """
    figure = new_figure(11.0, 6.2)
    grid = figure.subplots(
        2, len(DATA), sharex=True, gridspec_kw={"height_ratios": (1.3, 1)}
    )
    for column, data in enumerate(DATA):
        above, below = grid[:, column]
        for number, network in enumerate(NETWORKS):
            _draw(above, below, studies, data, network, number)
        above.set(title=data, xscale="log", yscale="log")
        above.set_yticks(ticks := (1, 2, 5, 10, 20, 40), [str(tick) for tick in ticks])
        above.minorticks_off()
        below.axhline(0, color="0.5", linewidth=1)
        below.set_xticks(LABELS, [str(count) for count in LABELS])
        below.set_xlabel("labelled images a class")
    grid[0, 0].set_ylabel("test error, %")
    grid[1, 0].set_ylabel("points more than pooled")
    grid[0, 0].legend(fontsize=8, frameon=False)
    return figure


def _draw(
    above: "Axes",
    below: "Axes",
    studies: Sequence[Study],
    data: str,
    network: str,
    number: int,
) -> None:
    """Draws the errors of a network on a data set, and the differences from pooling;
    the number of the network sets its colour and shifts its dots to one side.
    """
    by_count = {}
    for count in LABELS:
        compared = compare(studies, data, count, network)
        if compared is not None:
            by_count[count] = compared
    if not by_count:
        return
    colour = f"C{number}"
    means = [mean(compared.errors) for compared in by_count.values()]
    above.plot(
        list(by_count),
        means,
        "o-",
        color=colour,
        label=network,
    )
    for count, compared in by_count.items():
        errors = compared.errors
        above.plot(
            [count] * len(errors),
            errors,
            "_",
            color=colour,
            alpha=0.5,
        )
    if network != POOLED:
        below.errorbar(
            [count * 1.08 ** (number - 1) for count in by_count],
            [compared.more for compared in by_count.values()],
            [compared.margin for compared in by_count.values()],
            fmt="o",
            color=colour,
            capsize=3,
        )

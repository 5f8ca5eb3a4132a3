"""Few labels: when should one take capsules? Networks of equal size, from 10 to 1000
images a class.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    for data in DATA
    for count in LABELS
    for name in NETWORKS
}


@dataclass(frozen=True, kw_only=True)
class FewLabelsSettings(TrainingOptions):
    """One preset.

    Attributes:
        steps: of training, at least; of many images as many as ``epochs`` have.
        sets: each data set, its number of classes, options of trainings on it, and
            under ``sizes`` the arguments that make networks as large as the capsules.
    """

    steps: int = 500
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Compared(NamedTuple):
    """Errors of a network, in percent, and how many more those are than the pooled
    network's of the same seeds.

    Args:
        errors: of each seed.
        more: the mean over seeds.
        margin: half of the 95 % interval of Student's t; 0 for a single seed.
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
        own = dict(settings.sets[data])
        sizes = own.pop("sizes", {}).get(network, {})
        images = count * own.pop("classes")
        source = option(
            "torchcaps_lab.data.made.Few",
            data=own.pop("data"),
            train=images,
            validation=0,
        )
        epochs = max(
            settings.epochs or 1,
            math.ceil(settings.steps / math.ceil(images / settings.batch_size)),
        )
        return changed(
            super().options(settings, row),
            {**own, "model_args": sizes, "data": source, "epochs": epochs},
        )

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains on images that the seed draws: all networks of a seed get the same."""
        options = self.options(study.settings, row)
        return study.lab.train(
            run_name(self.name, row),
            {**options, "data": {**options["data"], "draw": study.lab.seed}},
        )

    def finish(self, study: Study, given: Any) -> None:
        """The picture is of all seeds."""

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Errors and differences from pooling by the number of labels."""
        return {"errors": Picture(_figure(studies), self.caption)}


def compare(
    studies: Sequence[Study], data: str, count: int, network: str
) -> Compared | None:
    """A network beside the pooled one, over the seeds that have both; None if no seed
    has.
    """
    row, pooled = ((row_of(data, count, one), TEST_ERROR) for one in (network, POOLED))
    pairs = [
        (one.figures[row], one.figures[pooled])
        for one in studies
        if {row, pooled} <= set(one.figures)
    ]
    if not pairs:
        return None
    more = [ours - others for ours, others in pairs]
    return Compared([ours for ours, _ in pairs], mean(more), half_interval(more))


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
            found = {
                count: one
                for count in LABELS
                if (one := compare(studies, data, count, network))
            }
            if not found:
                continue
            colour, beside = (
                f"C{number}",
                [count * 1.08 ** (number - 1) for count in found],
            )
            above.plot(
                [*found],
                [mean(one.errors) for one in found.values()],
                "o-",
                color=colour,
                label=network,
            )
            for count, one in found.items():
                above.plot(
                    [count] * len(one.errors), one.errors, "_", color=colour, alpha=0.5
                )
            if network != POOLED:
                margins = [one.margin for one in found.values()]
                below.errorbar(
                    beside,
                    [one.more for one in found.values()],
                    margins,
                    fmt="o",
                    color=colour,
                    capsize=3,
                )
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

"""Slots on data that published figures are measured on: tetrominoes and sprites, drawn
from their published descriptions (Locatello et al. 2020).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recipes.components import OTSU, Otsu
from recipes.kit.base import Line, Picture, Recipe, Study, facts_of, register_recipe
from recipes.kit.lab import Trained, data_of, first_of, untrained
from recipes.kit.options import TrainingOptions
from recipes.object_discovery import (
    GRID,
    OF_PIXELS,
    PIXELS,
    FixedGrid,
    PixelClusters,
    best_clusters,
)
from torchcaps.capsules import CapsuleLayer, Capsules
from torchcaps.models import SlotAutoencoder, register_model
from torchcaps.numerics import Size
from torchcaps.routing import Routing
from torchcaps.spec import settings
from torchcaps_lab.data import DataSet, Examples
from torchcaps_lab.report import new_figure
from torchcaps_lab.tasks import create_task

UNTRAINED = (OTSU, PIXELS, GRID)

MEASURES = {
    "fg_ari": "FG-ARI",
    "ari": "ARI with the ground",
    "mbo": "mean best overlap",
    "fg_ari_assigned": "FG-ARI, assigned pixels",
    "ari_assigned": "ARI with the ground, assigned pixels",
    "mbo_assigned": "mean best overlap, assigned pixels",
}
"""The names of the figures of the task."""

FEATURES = "slots of ImageNet features"
"""A row of slots that draw features."""

_FITTED = 200
"""Validation images that K-Means is set on."""

_BY_EPOCH = "val_fg_ari"
"""The column of the metrics of a run that is drawn: FG-ARI of validation images."""


class SlotsByMLP(CapsuleLayer):
    """Poses that an MLP makes of all features at once: each slot has its own weights,
    and nothing is shared out.

    Args:
        features: of an image: as many as there are places.
        slots: their number J.
        dim: numbers of a feature, and of a pose.
        hidden: numbers of each hidden layer.
    """

    # In a network, each layer of slots says how it routes.
    routing = None

    def __init__(self, features: int, slots: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Flatten(),
            nn.Linear(features * dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, slots * dim),
            nn.Unflatten(1, (slots, dim)),
        )

    def forward(self, features: Tensor | Capsules, *, initial: None = None) -> Capsules:
        """The slots of features (B, I, dim), all of them active.

        Args:
            features: those of an image.
            initial: the network gives earlier slots to a layer that routes, here none.
        """
        pose = self.mlp(features.pose if isinstance(features, Capsules) else features)
        return Capsules(pose, torch.ones_like(pose[..., 0]))


@register_model(
    "slot_mlp",
    "the control of Locatello et al. 2020: an MLP in place of slot attention",
)
@settings
class SlotMLP(SlotAutoencoder):
    """The network of ``slot_autoencoder``, whose slots an MLP makes of all features.

    Args:
        hidden: numbers of each hidden layer of the MLP.

    Source: Locatello et al. 2020, section 4.1, the baseline "Slot MLP".
    """

    hidden: Size = 512

    def _make_slots(self, dim: int, routing: Routing | None, slots: int) -> None:
        with torch.no_grad():
            places = self.features(torch.zeros(1, *self.image_shape)).shape[1]
        # Not a layer that routes: nothing is shared out.
        by_mlp: Any = SlotsByMLP(places, slots, dim, self.hidden)
        self.slots = by_mlp


class PublishedObjects(Recipe[TrainingOptions]):
    """Trains slots to draw images, and measures which objects they found, as published
    figures do; beside them answers that learn nothing.

    Attributes:
        tests: the tests by name, each with what its data have changed; the first is
            that of the data as they are.
    """

    settings: ClassVar = TrainingOptions
    grows: ClassVar = True
    caption: ClassVar = (
        "FG-ARI by masks on validation images, after each epoch: a line for each seed. "
        "The learning rate, and the part for single slots where the loss has one, fall "
        "to 0 at the end of each training."
    )
    tests: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}

    def __init_subclass__(cls) -> None:
        facts = facts_of(cls.name)
        cls.rows = {**facts["rows"], **dict.fromkeys(UNTRAINED)}
        common: dict[str, Any] = {"unit": "points", "higher_is_better": True}
        lines = []
        for row, test, key in product(cls.rows, cls.tests, MEASURES):
            # They draw no colours to assign pixels by.
            if row in (*UNTRAINED, FEATURES) and key.endswith("assigned"):
                continue
            figure = facts["published"].get(row, ()) if key == "fg_ari" else ()
            lines.append(Line(row, cls._measure(key, test), *figure, **common))
        cls.lines = tuple(lines)

    @classmethod
    def _measure(cls, key: str, test: str) -> str:
        """The name of a figure of the task in a test."""
        return f"{MEASURES[key]}, {test}" if test else MEASURES[key]

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains the network of a row; the threshold and the grid need no training, and
        K-Means only validation images.
        """
        if row not in UNTRAINED:
            return super().train(study, row, stop_at)
        best = partial(best_clusters, create_task("objects"))
        data = data_of(self.options(study.settings, row)["data"])
        return without_training(row, data, _FITTED, best)

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> Mapping[str, float]:
        """What the slots of test images say of their objects."""
        network = study.trained[row].network
        if isinstance(network, PixelClusters):
            study.facts[row]["K-Means"] = network.how._asdict()
        options = self.options(study.settings, row)
        data = options["data"]
        if row not in UNTRAINED:
            shares = study.trained[row].by_epoch(_BY_EPOCH)[_BY_EPOCH]
            an_epoch = len(data_of(data).train) // options["batch_size"]
            study.curves[row] = {
                "updates": [an_epoch * epoch for epoch in range(1, len(shares) + 1)],
                "points": [100 * share for share in shares],
            }
        measured = {}
        for test, changes in self.tests.items():
            images = data_of({**data, **changes}).test
            tested = with_slots(network, len(images.classes))
            figures = create_task("objects").examine(tested, images).figures
            for key in MEASURES.keys() & figures.keys():
                measured[self._measure(key, test)] = 100 * figures[key]
        return measured

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """FG-ARI of validation images over the training, a line for each seed."""
        trained = [row for row in self.rows if row not in UNTRAINED]
        figure = new_figure(6, 3.2)
        axes = figure.add_subplot()
        for row, study in product(trained, studies):
            if row in study.curves:
                curve = study.curves[row]
                colour = f"C{trained.index(row)}"
                axes.plot(curve["updates"], curve["points"], colour, label=row)
        if not axes.lines:
            return {}
        by_row = {str(line.get_label()): line for line in axes.lines}
        axes.legend(by_row.values(), by_row.keys(), fontsize=7)
        axes.set(xlabel="updates", ylabel="FG-ARI of validation images, by masks")
        axes.set_ylim(0, 100)
        return {"growth": Picture(figure, self.caption)}


def without_training(
    row: str,
    data: DataSet,
    fitted: int,
    best: Callable[[Sequence[PixelClusters], Examples], PixelClusters],
) -> Trained:
    """The network of a row of :data:`UNTRAINED`. ``best`` chooses the settings of
    K-Means on so many validation images.
    """
    shape, slots = data.image_shape, len(data.classes)
    if row != PIXELS:
        network = Otsu if row == OTSU else FixedGrid
        return untrained(network(shape, slots), row)
    candidates = [PixelClusters(shape, slots, how) for how in OF_PIXELS]
    return untrained(best(candidates, first_of(data.validation, fitted)), row)


def with_slots(network: Any, slots: int) -> Any:
    """The network, with another number of slots if it has not so many."""
    if network.classes == slots:
        return network
    if isinstance(network, PixelClusters):
        return PixelClusters(network.image_shape, slots, network.how)
    if isinstance(network, FixedGrid | Otsu):
        return type(network)(network.image_shape, slots)
    return network.with_slots(slots)


@register_recipe
class OnTetrominoes(PublishedObjects):
    """Three tetrominoes on black."""

    name: ClassVar = "tetrominoes"


@register_recipe
class OnMultiDSprites(PublishedObjects):
    """Two to five coloured sprites on a coloured ground."""

    name: ClassVar = "multi-dsprites"


@register_recipe
class OnScenes3D(PublishedObjects):
    """Things on a floor in three dimensions, in tests that differ from the training."""

    name: ClassVar = "scenes-3d"
    tests: ClassVar = {
        "as in training": {},
        "unseen shapes": {"meshes": "unseen"},
        "seven or eight things": {"least": 7, "most": 8},
        "other cameras": {"camera": "other"},
        "textured floors": {"floor": "textured"},
    }

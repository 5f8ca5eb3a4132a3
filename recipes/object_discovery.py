"""Objects without labels: slot attention, what remains of it without its networks,
other routings in its place, and K-Means (Locatello et al. 2020).
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product, starmap
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate, layer_norm, one_hot

import torchcaps as tc
from recipes.components import of_masks
from recipes.kit.base import Line, Picture, Recipe, Study, facts_of, register_recipe
from recipes.kit.charts import Cell, image_grid
from recipes.kit.lab import Trained, data_of, first_of, untrained
from recipes.kit.options import TrainingOptions
from torchcaps.models import ImageClassifier, Prediction
from torchcaps_lab.data import Batch, Examples
from torchcaps_lab.evaluate import evaluating
from torchcaps_lab.tasks import Task, create_task

FACTS = facts_of("object-discovery")
SLOTS = "slots"
IMAGENET = "slots of ImageNet features, textured grounds"
PIXELS, FEATURES = "K-Means of colours and places", "K-Means of the features of slots"
OF_IMAGENET = "K-Means of ImageNet features, textured grounds"
GRID = "a grid of equal rectangles, which looks at nothing"
SOURCES = {PIXELS: SLOTS, FEATURES: SLOTS, OF_IMAGENET: IMAGENET}
"""The row whose network and data K-Means has."""

UNTRAINED = (*SOURCES, GRID)
ROWS: dict[str, Any] = {**FACTS["rows"], **dict.fromkeys(UNTRAINED)}

FIXED: tuple[str, ...] = tuple(FACTS["fixed"])
"""Rows whose parents are not exchangeable, so that their number is fixed."""

OBJECTS = "FG-ARI"
GROUND = "ARI with the ground"
OVERLAP = "mean best overlap"
ERROR = "error of the drawing, of 255"
LONGER = "FG-ARI, two more steps"
MORE = "FG-ARI, more figures and slots"
FEW_SLOTS, MANY_SLOTS = "FG-ARI, fewer slots than figures", "FG-ARI, three more slots"

ASSIGNED = "{}, assigned pixels"
"""A measure of pixels that were assigned by mask and colour, not by the mask alone."""

INDEX = "points"
"""Of a Rand index: 0 for slots at random, 100 for those of the objects."""

_UNITS = {OVERLAP: "%", ERROR: ""}
_STEPS, _SEED = 10, 0
_SHOWN, _AT_ONCE = 6, 100
_SIDE = 32
"""Pixels along the side of a picture in the results."""


def measures_of(row: str) -> tuple[str, ...]:
    """The measures of a row."""
    if row == OF_IMAGENET:
        return OBJECTS, GROUND, OVERLAP, MORE
    if row in UNTRAINED:
        return OBJECTS, GROUND, OVERLAP, ERROR, MORE
    if row == IMAGENET:
        return OBJECTS, LONGER, MORE, FEW_SLOTS, MANY_SLOTS, GROUND, OVERLAP
    of_slots = [OBJECTS, LONGER]
    if row not in FIXED:
        of_slots += [MORE, FEW_SLOTS, MANY_SLOTS]
    of_pixels = [ASSIGNED.format(measure) for measure in of_slots]
    return (*of_slots, *of_pixels, GROUND, OVERLAP, ERROR)


def _lines(row: str) -> Iterator[Line]:
    """The lines of a row."""
    for measure in measures_of(row):
        unit = _UNITS.get(measure, INDEX)
        higher_is_better = measure != ERROR
        yield Line(row, measure, unit=unit, higher_is_better=higher_is_better)


def soft_kmeans(points: Tensor, clusters: int, sharpness: float) -> Tensor:
    """The assignments of soft K-Means, (B, I, J), from points drawn at random as
    centres.

    Args:
        points: (B, I, H).
        clusters: their number J.
        sharpness: what squared distances are multiplied by.
    """
    B, I, H = points.shape
    votes = tc.Votes(points, torch.eye(H).expand(1, clusters, H, H))
    generator = torch.Generator().manual_seed(_SEED)
    order = torch.rand(B, I, generator=generator).argsort(1)[:, :clusters]
    centres = points.gather(1, order[..., None].expand(-1, -1, H))
    for _ in range(_STEPS):
        similarity = tc.ops.Gaussian.spherical(centres, sharpness)
        centres = votes.moments(similarity).mean
    return votes.assignment(similarity)


class Clustering(NamedTuple):
    """What K-Means is told.

    Args:
        place: the weight of the place of a pixel beside its colour.
        sharpness: what squared distances are multiplied by.
    """

    place: float
    sharpness: float


OF_PIXELS = tuple(starmap(Clustering, product((0.0, 0.5, 1.0, 2.0), (10, 30, 100))))
OF_FEATURES = tuple(starmap(Clustering, product((0.0,), (0.1, 0.3, 1.0, 3.0))))
"""The candidates, tried on validation images."""


class PixelClusters(ImageClassifier):
    """Soft K-Means of pixels by colour and place, in the form of a network whose slots
    are the clusters: each is drawn in its mean colour.

    Args:
        image_shape: (C, H, W).
        clusters: their number.
        how: what K-Means is told.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        clusters: int,
        how: Clustering,
    ) -> None:
        super().__init__(image_shape, clusters)
        self.how = how

    def points(self, images: Tensor) -> Tensor:
        """What is clustered, (B, I, H)."""
        rows, columns = (torch.linspace(0, 1, size) for size in images.shape[2:])
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
        weighted = (self.how.place * places).expand(len(images), -1, -1, -1)
        return torch.cat([images, weighted], 1).flatten(2).mT

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The clusters of images, as masks."""
        shares = soft_kmeans(self.points(images), self.classes, self.how.sharpness)
        cluster = enlarged(shares, images.shape[2], images.shape[3])
        masks = one_hot(cluster, self.classes).movedim(-1, 1)
        return of_masks(images, masks.to(images))


class FeatureClusters(PixelClusters):
    """Soft K-Means of the features that slots read, whose places are coarser than
    pixels.

    Args:
        network: that trained them.
        clusters: their number.
        how: what K-Means is told; places are in the features.
    """

    def __init__(
        self,
        network: Any,
        clusters: int,
        how: Clustering,
    ) -> None:
        super().__init__(network.image_shape, clusters, how)
        self.network = network

    def points(self, images: Tensor) -> Tensor:
        """What is clustered, (B, I, H)."""
        features = self.network.features_of(images)
        return layer_norm(features, features.shape[-1:])


class MapClusters(FeatureClusters):
    """Soft K-Means of the maps of a backbone, without what slots learned."""

    def points(self, images: Tensor) -> Tensor:
        """What is clustered, (B, I, H)."""
        maps = self.network.features(images).flatten(2).mT
        return layer_norm(maps, maps.shape[-1:])


def enlarged(shares: Tensor, height: int, width: int) -> Tensor:
    """The parent of each pixel, (B, H, W), from the shares of places that may be
    coarser, (B, I, J), whose grid has the form of the image.
    """
    rows = round((shares.shape[1] * height / width) ** 0.5)
    maps = shares.mT.unflatten(2, (rows, -1))
    return interpolate(maps, size=(height, width), mode="bilinear").argmax(1)


class FixedGrid(ImageClassifier):
    """Cuts every image into the same rectangles, one for each slot: a control for
    measures that a blind answer can win.

    Args:
        image_shape: (C, H, W).
        slots: their number.
    """

    def __init__(self, image_shape: tuple[int, int, int], slots: int) -> None:
        super().__init__(image_shape, slots)
        _, height, width = image_shape
        columns = math.ceil(math.sqrt(slots))
        rows = math.ceil(slots / columns)
        down = torch.arange(height) * rows // height
        across = torch.arange(width) * columns // width
        cell = (down[:, None] * columns + across).clamp_max(slots - 1)
        self.masks = one_hot(cell, slots).movedim(-1, 0).float()

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The rectangles as masks, each drawn in its mean colour."""
        return of_masks(images, self.masks.expand(len(images), -1, -1, -1))


class Tests(NamedTuple):
    """What all rows are tested on.

    Args:
        same: as many figures as in training.
        more: more figures, with a slot for each and one for the ground.
    """

    same: Examples
    more: Examples


@dataclass(frozen=True, kw_only=True)
class DiscoverySettings(TrainingOptions):
    """One preset.

    Attributes:
        more: the least and the most figures of the test with more of them.
        fitted: the number of validation images on which K-Means is set.
    """

    more: tuple[int, int] = (6, 7)
    fitted: int = 200


@register_recipe
class ObjectDiscovery(Recipe[DiscoverySettings]):
    """Trains networks to draw images slot by slot, and tests which objects their slots
    found.
    """

    name: ClassVar = "object-discovery"
    rows: ClassVar = ROWS
    lines: ClassVar = (
        *chain.from_iterable(map(_lines, ROWS)),
        *(
            Line(row, OBJECTS, figure, source, INDEX, True, elsewhere=True)
            for row, (figure, source) in FACTS["published"].items()
        ),
    )
    borrowed: ClassVar = {
        row: ("object-discovery", source) for row, source in SOURCES.items()
    }
    settings: ClassVar = DiscoverySettings
    grows: ClassVar = True

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains the network of a row, or opens that whose features K-Means takes; the
        grid needs none.
        """
        if row != GRID:
            return super().train(study, row, stop_at)
        test = data_of(self.data(study.settings, row)).test
        return untrained(FixedGrid(test.image_shape, len(test.classes)), row)

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> Mapping[str, float]:
        """What the slots of test images say of their objects."""
        trained = study.trained[row]
        settings = study.settings
        task = create_task("objects")
        network = trained.network
        least, most = settings.more
        data = self.data(settings, row)
        more = {
            **data,
            "least": least,
            "most": most,
            "slots": most + 1,
            "count": 20,
        }
        tests = Tests(data_of(data).test, data_of(more).test)
        many: ImageClassifier
        if row == GRID:
            many = FixedGrid(network.image_shape, len(tests.more.classes))
            others = objects_found(task, many, tests.more, MORE)
        elif row in SOURCES:
            validation = first_of(trained.data.validation, settings.fitted)
            candidates = OF_PIXELS if row == PIXELS else OF_FEATURES
            slots = len(validation.classes)
            how = best_clusters(
                task,
                [clusters_of(network, row, slots, how) for how in candidates],
                validation,
            ).how
            study.facts[row]["K-Means"] = how._asdict()
            many = clusters_of(network, row, len(tests.more.classes), how)
            network = clusters_of(network, row, len(tests.same.classes), how)
            others = objects_found(task, many, tests.more, MORE)
        else:
            others = objects_found(task, longer(network), tests.same, LONGER)
            if row not in FIXED:
                others |= with_other_numbers(task, network, tests)
        study.curves[row] = {"slots": slots_shown(network, tests.same)}
        figures = {
            **objects_found(task, network, tests.same, OBJECTS),
            **others,
            **other_figures(task, network, tests.same),
        }
        return {name: figures[name] for name in measures_of(row)}

    def data(self, settings: DiscoverySettings, row: str) -> dict[str, Any]:
        """The data of a row, as ``torchcaps train`` takes it."""
        source = SOURCES.get(row, row)
        data: dict[str, Any] = self.options(settings, source)["data"]
        return data

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """The slots of the first test images, of the first seed of each row."""
        settings = studies[0].settings
        by_ground: dict[str, dict[str, list[Cell]]] = {}
        for row in self.rows:
            of_row = [study.curves[row] for study in studies if row in study.curves]
            if not of_row:
                continue
            data = self.data(settings, row)
            ground = f"images, {data.get('ground', 'plain')} ground"
            if ground not in by_ground:
                by_ground[ground] = {ground: _images(data)}
            painted = [Cell(_painted(digits)) for digits in of_row[0]["slots"]]
            by_ground[ground][row] = painted
        rows: dict[str, list[Cell]] = {}
        for of_ground in by_ground.values():
            rows |= of_ground
        return {"slots": Picture(image_grid(rows, height=1.1), self.caption)}


def other_figures(task: Task, network: Any, images: Examples) -> dict[str, float]:
    """What is measured beside FG-ARI."""
    figures = task.examine(network, images).figures
    return {
        GROUND: 100 * figures["ari"],
        OVERLAP: 100 * figures["mbo"],
        ERROR: 255 * math.sqrt(figures["error"]),
    }


def objects_found(
    task: Task,
    network: Any,
    images: Examples,
    name: str,
) -> dict[str, float]:
    """FG-ARI of masks, under a name, and of assigned pixels if there are any, in
    points; the network may have any number of slots.
    """
    names = {"fg_ari": name, "fg_ari_assigned": ASSIGNED.format(name)}
    values: dict[str, list[Tensor]] = {}
    with evaluating(network) as device:
        for batch in images.to(device).batches(_AT_ONCE):
            figures = task.measure(network(batch.inputs), batch)
            for key in names.keys() & figures.keys():
                values.setdefault(names[key], []).append(figures[key])
    return {key: 100 * torch.cat(parts).mean().item() for key, parts in values.items()}


def longer(network: Any) -> Any:
    """The same network with two more steps of its routing."""
    changed = copy.deepcopy(network)
    changed.slots.routing.steps += 2
    return changed


def with_other_numbers(task: Task, network: Any, tests: Tests) -> dict[str, float]:
    """FG-ARI with other numbers of figures and slots than in training."""
    trials = {
        MORE: (tests.more, len(tests.more.classes)),
        FEW_SLOTS: (tests.same, network.classes // 2),
        MANY_SLOTS: (tests.same, network.classes + 3),
    }
    figures: dict[str, float] = {}
    for name, (images, slots) in trials.items():
        figures |= objects_found(task, network.with_slots(slots), images, name)
    return figures


def best_clusters(
    task: Task, candidates: Iterable[PixelClusters], images: Examples
) -> PixelClusters:
    """The candidate with the best FG-ARI on some images, which are not those of the
    test.
    """

    def score(clusters: PixelClusters) -> float:
        return objects_found(task, clusters, images, OBJECTS)[OBJECTS]

    return max(candidates, key=score)


def clusters_of(
    network: Any,
    row: str,
    clusters: int,
    how: Clustering,
) -> PixelClusters:
    """K-Means of a row."""
    if row == PIXELS:
        return PixelClusters(network.image_shape, clusters, how)
    if row == OF_IMAGENET:
        return MapClusters(network, clusters, how)
    return FeatureClusters(network, clusters, how)


def slots_shown(network: Any, images: Examples) -> list[str]:
    """The slot of each pixel of the first images, as digits; of large images of every
    second pixel, or fewer.
    """
    with evaluating(network) as device:
        prediction = network(_first(images).inputs.to(device))
    shares = prediction.masks if prediction.assigned is None else prediction.assigned
    apart = max(1, shares.shape[2] // _SIDE)
    slots = shares.argmax(1)[:, ::apart, ::apart]
    return ["".join(map(str, image.flatten().tolist())) for image in slots]


def _first(images: Examples) -> Batch:
    return next(first_of(images, _SHOWN).batches(_SHOWN))


def _painted(digits: str) -> Tensor:
    """A square image in the colours of slots, (H, W, 3), from the slot of each pixel."""
    from matplotlib import colormaps

    colours = torch.tensor([colormaps["tab10"](slot)[:3] for slot in range(10)])
    slots = torch.tensor([int(digit) for digit in digits])
    return colours[slots].unflatten(0, (math.isqrt(len(digits)), -1))


def _images(data: Mapping[str, Any]) -> list[Cell]:
    """The first test images."""
    pictures = _first(data_of({**data, "count": 20}).test).pictures
    return [Cell(picture.movedim(0, -1)) for picture in pictures]

"""Which digits are in a scene, and where: learned from labels alone, and with boxes."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product, starmap
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.kit.base import Line, Picture, Recipe, Study, register_recipe
from recipes.kit.lab import data_of, first_of
from recipes.kit.measures import percent
from recipes.kit.options import TrainingOptions
from torchcaps.models import ImageClassifier, boxes_of_maps
from torchcaps_lab.data import Batch, Examples, Scenery, class_boxes
from torchcaps_lab.evaluate import evaluating
from torchcaps_lab.report import Boxed
from torchcaps_lab.tasks import average_precision, box_iou

CAPSULES, CNN = (
    "capsules, from labels alone",
    "CNN with class-activation maps, from labels alone",
)
EVIDENCE = "capsules with evidence, from labels alone"
BOXES = "capsules, with boxes in training"

EXACT, LARGER = "classes present, exact set", "exact set, canvases of twice the area"
POINT, PIXELS = "peak of the map inside the box", "IoU of the pixels"
OVERLAP, PRECISION = "IoU of the boxes", "mAP at IoU 0.5"


class Outline(NamedTuple):
    """How a map is turned into an outline: see :func:`~torchcaps.models.boxes_of_maps`.

    Args:
        cut: the share of the map's largest value below which values do not count.
        reach: the side of the square that a cell stands for, in cells.
    """

    cut: float
    reach: float = 1.0


_BOX_CUTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_BOX_REACHES = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)

BOX_OUTLINES = tuple(starmap(Outline, product(_BOX_CUTS, _BOX_REACHES)))
PIXEL_OUTLINES = tuple(starmap(Outline, product((0.0, 0.1, 0.2, 0.4), (1.0, 2.0, 3.0))))
"""The candidates, tried on validation scenes."""


def segments(
    scenes: Tensor,
    maps: Tensor,
    predicted: Tensor,
    cut: float,
    reach: float = 1.0,
) -> Tensor:
    """Which pixels belong to which class: bright ones, to the class whose map is
    largest there.

    Args:
        scenes: the scenes, (B, C, H, W) in [0, 1].
        maps: the map of each class, (B, E, H', W'), 0 or more.
        predicted: the classes that the network predicts, bool (B, E); no others get
            pixels.
        cut: the share of its map's largest value that a class must reach at a pixel to
            get it.
        reach: the side of the square, in cells, over which the largest value of a map
            counts; 1: at the place itself.

    Returns:
        bool (B, E, H, W), at most one class for each pixel.
    """
    size = scenes.shape[2:]
    tiny = torch.finfo(maps.dtype).tiny
    shares = maps / maps.amax((2, 3), keepdim=True).clamp_min(tiny)
    fine = F.interpolate(shares, size=size, mode="bilinear", align_corners=False)
    fine = fine * predicted[:, :, None, None]
    radius = round((reach - 1) * size[0] / maps.shape[2] / 2)
    if radius:
        fine = F.max_pool2d(
            fine,
            (2 * radius + 1, 1),
            1,
            (radius, 0),
        )
        fine = F.max_pool2d(
            fine,
            (1, 2 * radius + 1),
            1,
            (0, radius),
        )
    largest = F.one_hot(fine.argmax(1), maps.shape[1]).movedim(-1, 1).bool()
    return largest & (fine > cut) & (scenes.amax(1, keepdim=True) >= Scenery.ink)


def pixel_overlap(
    batch: Batch,
    maps: Tensor,
    predicted: Tensor,
    outline: Outline,
) -> Tensor:
    """IoU of :func:`segments` with the digits' own pixels, of each class that is there;
    1-D.
    """
    assert batch.parts is not None
    present = batch.labels
    ink = batch.parts.pictures.amax(2) >= Scenery.ink
    shape = *present.shape, *batch.inputs.shape[2:]
    true = torch.zeros(shape, dtype=torch.bool, device=present.device)
    true.scatter_(1, batch.parts.labels[:, :, None, None].expand_as(ink), ink)
    segmented = segments(batch.inputs, maps, predicted, *outline)
    common = (segmented & true).sum((2, 3))
    either = (segmented | true).sum((2, 3))
    return (common / either.clamp_min(1))[present]


def fit_outlines(network: Any, scenes: Examples) -> tuple[Outline, Outline]:
    """The outlines whose boxes, and whose pixels, overlap most with the true ones on
    average over some scenes.

    As Choe et al. 2020, "Evaluating Weakly Supervised Object Localization Methods
    Right", demand: on held-out scenes with boxes, in the same way for all networks, and
    not on those of the test.
    """
    of_boxes = dict.fromkeys(BOX_OUTLINES, 0.0)
    of_pixels = dict.fromkeys(PIXEL_OUTLINES, 0.0)
    with evaluating(network) as device:
        for batch in scenes.to(device).batches(100):
            assert batch.parts is not None
            maps = network.maps_of(batch.inputs).float()
            predicted = network(batch.inputs).activation > 0.5
            true = class_boxes(batch.parts, network.classes)
            for outline in BOX_OUTLINES:
                boxes = boxes_of_maps(maps, network.cell, *outline)
                overlap = box_iou(boxes, true)[batch.labels]
                of_boxes[outline] += overlap.sum().item()
            for outline in PIXEL_OUTLINES:
                overlap = pixel_overlap(batch, maps, predicted, outline)
                of_pixels[outline] += overlap.sum().item()
    best_boxes = max(BOX_OUTLINES, key=of_boxes.__getitem__)
    best_pixels = max(PIXEL_OUTLINES, key=of_pixels.__getitem__)
    return best_boxes, best_pixels


def peaks(maps: Tensor, cell: int) -> Tensor:
    """Where maps (B, E, H', W') are largest: x and y in pixels, (B, E, 2)."""
    place = maps.flatten(2).argmax(-1)
    width = maps.shape[3]
    return torch.stack([place % width, place // width], -1) * cell + cell / 2


def look(
    network: Any,
    batch: Batch,
    outline: Outline | None = None,
    threshold: float = 0.5,
) -> dict[str, Tensor]:
    """The predictions of a network for some scenes, beside the truth.

    Args:
        network: a network of scenes.
        batch: the scenes, prepared for the network.
        outline: the outline of the pixels; default: that of the network's boxes.
        threshold: the activation above which a class counts as predicted.

    Returns:
        ``activation``, ``boxes`` and ``true`` boxes of each class; ``exact``, whether
        the predicted classes are the true ones, (B,); for each class that is there,
        1-D: ``point``, whether the map's peak lies in the box, and ``pixels``, the IoU
        of the pixels.
    """
    assert batch.parts is not None
    prediction = network(batch.inputs)
    maps = network.maps_of(batch.inputs).float()
    predicted = prediction.activation > threshold
    true = class_boxes(batch.parts, network.classes)
    x, y = peaks(maps, network.cell).unbind(-1)
    left, top, right, bottom = true.unbind(-1)
    inside = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
    outline = outline or Outline(network.cut)
    return {
        "activation": prediction.activation.float(),
        "boxes": prediction.boxes.float(),
        "true": true,
        "exact": (predicted == batch.labels).all(1),
        "point": inside[batch.labels],
        "pixels": pixel_overlap(batch, maps, predicted, outline),
    }


def look_at_all(
    network: ImageClassifier,
    scenes: Examples,
    outline: Outline | None = None,
) -> dict[str, Tensor]:
    """The results of :func:`look` for all scenes."""
    parts = defaultdict[str, list[Tensor]](list)
    with evaluating(network) as device:
        for batch in scenes.to(device).batches(100):
            for name, values in look(network, batch, outline).items():
                parts[name].append(values.cpu())
    return {name: torch.cat(values) for name, values in parts.items()}


def on_larger_canvases(scenes: Examples) -> Examples:
    """The same scenes on canvases with 1.5 times the width and 4/3 of the height, twice
    the area.
    """
    scenery = scenes.composition
    if not isinstance(scenery, Scenery):
        raise ValueError(
            f"scenes must be made by a Scenery, got {type(scenery).__name__}"
        )
    height, width = scenery.canvas
    larger = replace(scenery, canvas=(height * 4 // 3, width * 3 // 2))
    return replace(scenes, composition=larger)


@dataclass(frozen=True, kw_only=True)
class SceneSettings(TrainingOptions):
    """One preset: how the networks are trained, and on how many scenes they are tested.

    Attributes:
        scenes: the number of scenes of test digits.
        fitted: the number of scenes of validation digits to which the outlines are
            fitted.
    """

    scenes: int = 10000
    fitted: int = 300


@register_recipe
class Scenes(Recipe[SceneSettings]):
    """Trains on scenes of digits with image labels alone, and with boxes; tests what is
    found, and where.
    """

    name: ClassVar = "scenes"
    lines: ClassVar[tuple[Line, ...]] = tuple(
        Line(
            row,
            measure,
            unit="" if measure in (OVERLAP, PIXELS, PRECISION) else "%",
            higher_is_better=True,
        )
        for row, measure in product(
            (CAPSULES, EVIDENCE, CNN, BOXES),
            (EXACT, LARGER, POINT, OVERLAP, PRECISION, PIXELS),
        )
    )
    settings: ClassVar = SceneSettings

    def begin(self, study: Study) -> Examples:
        """The first of the test scenes."""
        return first_of(data_of(study.settings.data).test, study.settings.scenes)

    def measure(
        self,
        study: Study,
        row: str,
        scenes: Examples,
    ) -> Mapping[str, float]:
        """Which classes are found, and where, on test scenes and on larger canvases."""
        network: Any = study.trained[row].network
        validation = data_of(study.settings.data).validation
        few = first_of(validation, study.settings.fitted)
        outline, pixel_outline = fit_outlines(network, few)
        network.cut, network.reach = outline
        study.facts[row] |= {
            "outline of the boxes": outline._asdict(),
            "outline of the pixels": pixel_outline._asdict(),
        }
        results = look_at_all(network, scenes, pixel_outline)
        boxes = results["boxes"]
        true = results["true"]
        present = (true[..., 2:] > true[..., :2]).all(-1)
        precision = average_precision(results["activation"], boxes, true)
        larger = look_at_all(network, on_larger_canvases(scenes))
        return {
            EXACT: percent(results["exact"]),
            LARGER: percent(larger["exact"]),
            POINT: percent(results["point"]),
            OVERLAP: box_iou(boxes, true)[present].mean().item(),
            PRECISION: precision["map_50"],
            PIXELS: results["pixels"].double().mean().item(),
        }

    def finish(self, study: Study, scenes: Examples) -> None:
        """The first scenes with the predicted boxes, one row for each network."""
        batch = scenes.__getitems__(list(range(min(5, len(scenes)))))
        boxed = []
        for trained in study.trained.values():
            boxed += drawn(trained.network, batch, scenes.classes)
        figure = Boxed.figure(boxed, scenes.classes, len(batch.inputs))
        caption = (
            "The first test scenes with the predictions. From the top: "
            f"{'; '.join(study.trained)}. Dotted: true."
        )
        study.pictures["boxes"] = Picture(figure, caption)


def drawn(
    network: Any,
    batch: Batch,
    classes: tuple[str, ...],
    threshold: float = 0.5,
) -> list[Boxed]:
    """Scenes with the boxes of the classes that a network predicts, and the true
    ones.
    """
    assert batch.parts is not None
    with evaluating(network) as device:
        prediction = network(batch.inputs.to(device))
    boxes = prediction.boxes.float().cpu()
    predicted = prediction.activation.cpu() > threshold
    true = class_boxes(batch.parts, len(classes))

    def named(boxes: Tensor, present: Tensor) -> list[tuple[str, list[float]]]:
        labels = present.nonzero().flatten().tolist()
        return [(classes[label], boxes[label].tolist()) for label in labels]

    return [
        Boxed(
            picture,
            named(boxes[place], predicted[place]),
            named(true[place], batch.labels[place]),
        )
        for place, picture in enumerate(batch.pictures)
    ]

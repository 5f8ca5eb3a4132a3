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
from torchcaps_lab.data import Batch, Examples, class_boxes
from torchcaps_lab.data.scenes import INK, Scenery
from torchcaps_lab.report import evaluating
from torchcaps_lab.report.boxes import Boxed, boxes_figure
from torchcaps_lab.tasks import average_precision, box_iou

CAPSULES, CNN = (
    "capsules, from labels alone",
    "CNN with class-activation maps, from labels alone",
)
BOXES = "capsules, with boxes in training"

EXACT, LARGER = "classes present, exact set", "exact set, canvases of twice the area"
POINT, PIXELS = "peak of the map inside the box", "IoU of the pixels"
OVERLAP, PRECISION = "IoU of the boxes", "mAP at IoU 0.5"


class Outline(NamedTuple):
    """How a map is turned into an outline: see :func:`~torchcaps.models.boxes_of_maps`.

    Args:
        cut: values below this share of the map's largest value do not count.
        reach: side of the square that a cell stands for, in cells.
    """

    cut: float
    reach: float = 1.0


BOX_OUTLINES = tuple(
    starmap(
        Outline,
        product(
            (0.0, 0.02, 0.05, *(tenths / 10 for tenths in range(1, 10))),
            (halves / 2 for halves in range(2, 9)),
        ),
    )
)
PIXEL_OUTLINES = tuple(starmap(Outline, product((0.0, 0.1, 0.2, 0.4), (1.0, 2.0, 3.0))))
"""The candidates, tried on validation scenes."""


def segments(
    scenes: Tensor, maps: Tensor, said: Tensor, cut: float, reach: float = 1.0
) -> Tensor:
    """Which pixels belong to which class: bright ones, to the class whose map is
    largest there.

    Args:
        scenes: (B, C, H, W) in [0, 1].
        maps: of each class, (B, E, H', W'), 0 or more.
        said: the classes that the network predicts, bool (B, E); no others get pixels.
        cut: share of its map's largest value that a class must reach at a pixel to get
            it.
        reach: side of the square, in cells, over which the largest value of a map
            counts; 1: at the place itself.

    Returns:
        bool (B, E, H, W), at most one class for each pixel.
    """
    size = scenes.shape[2:]
    shares = maps / maps.amax((2, 3), keepdim=True).clamp_min(
        torch.finfo(maps.dtype).tiny
    )
    fine = (
        F.interpolate(shares, size=size, mode="bilinear", align_corners=False)
        * said[:, :, None, None]
    )
    if radius := round((reach - 1) * size[0] / maps.shape[2] / 2):
        fine = F.max_pool2d(fine, (2 * radius + 1, 1), 1, (radius, 0))
        fine = F.max_pool2d(fine, (1, 2 * radius + 1), 1, (0, radius))
    most = F.one_hot(fine.argmax(1), maps.shape[1]).movedim(-1, 1).bool()
    return most & (fine > cut) & (scenes.amax(1, keepdim=True) >= INK)


def pixel_overlap(batch: Batch, maps: Tensor, said: Tensor, outline: Outline) -> Tensor:
    """IoU of :func:`segments` with the digits' own pixels, of each class that is there;
    1-D.
    """
    assert batch.parts is not None
    there = batch.labels
    own = torch.zeros(
        *there.shape, *batch.inputs.shape[2:], dtype=torch.bool, device=there.device
    )
    ink = batch.parts.pictures.amax(2) >= INK
    own.scatter_(1, batch.parts.labels[:, :, None, None].expand_as(ink), ink)
    found = segments(batch.inputs, maps, said, *outline)
    return ((found & own).sum((2, 3)) / (found | own).sum((2, 3)).clamp_min(1))[there]


def fit_outlines(network: Any, scenes: Examples) -> tuple[Outline, Outline]:
    """The outlines whose boxes, and whose pixels, overlap most with the true ones on
    average over some scenes.

    As Choe et al. 2020, "Evaluating Weakly Supervised Object Localization Methods
    Right", demand: on held-out scenes with boxes, in the same way for all networks, and
    not on those of the test.
    """
    boxes, pixels = (
        defaultdict[Outline, float](float),
        defaultdict[Outline, float](float),
    )
    with evaluating(network) as device:
        for batch in scenes.to(device).batches(100):
            assert batch.parts is not None
            maps, said = (
                network.maps_of(batch.inputs).float(),
                network(batch.inputs).activation > 0.5,
            )
            true, there = class_boxes(batch.parts, network.classes), batch.labels
            for one in BOX_OUTLINES:
                boxes[one] += (
                    box_iou(boxes_of_maps(maps, network.cell, *one), true)[there]
                    .sum()
                    .item()
                )
            for one in PIXEL_OUTLINES:
                pixels[one] += pixel_overlap(batch, maps, said, one).sum().item()
    return max(BOX_OUTLINES, key=boxes.__getitem__), max(
        PIXEL_OUTLINES, key=pixels.__getitem__
    )


def peaks(maps: Tensor, cell: int) -> Tensor:
    """Where maps (B, E, H', W') are largest: x and y in pixels, (B, E, 2)."""
    place = maps.flatten(2).argmax(-1)
    width = maps.shape[3]
    return torch.stack([place % width, place // width], -1) * cell + cell / 2


def look(
    network: Any, batch: Batch, outline: Outline | None = None, threshold: float = 0.5
) -> dict[str, Tensor]:
    """The predictions of a network for some scenes, beside the truth.

    Args:
        network: of scenes.
        batch: scenes, prepared for it.
        outline: of the pixels; default: that of the network's boxes.
        threshold: classes with a larger activation count as predicted.

    Returns:
        ``activation``, ``boxes`` and ``true`` boxes of each class; ``exact``, whether
        the predicted classes are the true ones, (B,); for each class that is there,
        1-D: ``point``, whether the map's peak lies in the box, and ``pixels``, the IoU
        of the pixels.
    """
    assert batch.parts is not None
    prediction, maps = network(batch.inputs), network.maps_of(batch.inputs).float()
    said = prediction.activation > threshold
    true = class_boxes(batch.parts, network.classes)
    x, y = peaks(maps, network.cell).unbind(-1)
    inside = (
        (x >= true[..., 0])
        & (x <= true[..., 2])
        & (y >= true[..., 1])
        & (y <= true[..., 3])
    )
    return {
        "activation": prediction.activation.float(),
        "boxes": prediction.boxes.float(),
        "true": true,
        "exact": (said == batch.labels).all(1),
        "point": inside[batch.labels],
        "pixels": pixel_overlap(batch, maps, said, outline or Outline(network.cut)),
    }


def look_at_all(
    network: ImageClassifier,
    scenes: Examples,
    outline: Outline | None = None,
    batch_size: int = 100,
) -> dict[str, Tensor]:
    """The results of :func:`look` for all scenes."""
    with evaluating(network) as device:
        found = [
            {
                name: values.cpu()
                for name, values in look(network, batch, outline).items()
            }
            for batch in scenes.to(device).batches(batch_size)
        ]
    return {name: torch.cat([one[name] for one in found]) for name in found[0]}


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
    return replace(
        scenes, composition=replace(scenery, canvas=(height * 4 // 3, width * 3 // 2))
    )


@dataclass(frozen=True, kw_only=True)
class SceneSettings(TrainingOptions):
    """One preset: how the networks are trained, and on how many scenes they are tested.

    Attributes:
        scenes: how many scenes of test digits.
        fitted: how many scenes of validation digits the outlines are fitted to.
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
        for row in (CAPSULES, CNN, BOXES)
        for measure in (EXACT, LARGER, POINT, OVERLAP, PRECISION, PIXELS)
    )
    settings: ClassVar = SceneSettings

    def begin(self, study: Study) -> Examples:
        """The first of the test scenes."""
        return first_of(data_of(study.settings.data).test, study.settings.scenes)

    def measure(self, study: Study, row: str, given: Examples) -> Mapping[str, float]:
        """Which classes are found, and where, on test scenes and on larger canvases."""
        network: Any = study.trained[row].network
        validation = data_of(study.settings.data).validation
        boxes, pixels = fit_outlines(
            network, first_of(validation, study.settings.fitted)
        )
        network.cut, network.reach = boxes
        study.facts[row] |= {
            "outline of the boxes": boxes._asdict(),
            "outline of the pixels": pixels._asdict(),
        }
        found = look_at_all(network, given, pixels)
        there = (found["true"][..., 2:] > found["true"][..., :2]).all(-1)
        return {
            EXACT: percent(found["exact"]),
            LARGER: percent(look_at_all(network, on_larger_canvases(given))["exact"]),
            POINT: percent(found["point"]),
            OVERLAP: box_iou(found["boxes"], found["true"])[there].mean().item(),
            PRECISION: average_precision(
                found["activation"], found["boxes"], found["true"]
            )["map_50"],
            PIXELS: found["pixels"].double().mean().item(),
        }

    def finish(self, study: Study, given: Examples) -> None:
        """The first scenes with the predicted boxes, one row for each network."""
        batch = given.__getitems__(list(range(min(5, len(given)))))
        each = [
            drawn(trained.network, batch, given.classes)
            for trained in study.trained.values()
        ]
        figure = boxes_figure(
            [one for row in each for one in row], given.classes, len(batch.inputs)
        )
        caption = (
            "The first test scenes with the predictions. From the top: "
            f"{'; '.join(study.trained)}. Dotted: true."
        )
        study.pictures["boxes"] = Picture(figure, caption)


def drawn(
    network: Any, batch: Batch, classes: tuple[str, ...], threshold: float = 0.5
) -> list[Boxed]:
    """Scenes with the boxes of the classes that a network predicts, and the true
    ones.
    """
    assert batch.parts is not None
    with evaluating(network) as device:
        prediction = network(batch.inputs.to(device))
    true = class_boxes(batch.parts, len(classes))

    def named(boxes: Tensor, there: Tensor) -> list[tuple[str, list[float]]]:
        return [
            (classes[index], boxes[index].tolist())
            for index in there.nonzero().flatten().tolist()
        ]

    rows = zip(
        batch.pictures,
        prediction.boxes.float().cpu(),
        prediction.activation.cpu(),
        true,
        batch.labels,
        strict=True,
    )
    return [
        Boxed(picture, named(boxes, activation > threshold), named(real, there))
        for picture, boxes, activation, real, there in rows
    ]

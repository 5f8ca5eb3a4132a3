"""From an exhibit to its pictures."""

from collections.abc import Iterator
from functools import singledispatch
from typing import TYPE_CHECKING, NamedTuple

from torchcaps.report.draw.answers import confusion_matrix, mistake_title, worst_mistakes
from torchcaps.report.draw.canvas import shorten, shorten_lines
from torchcaps.report.draw.curves import curves_figure, reliability_figure
from torchcaps.report.draw.decoded import perturbation_grid, reconstructions
from torchcaps.report.draw.flow import assignment_figure, flow_figure
from torchcaps.report.draw.layers import activation_figure, pose_figure, type_maps_figure
from torchcaps.report.exhibits import (
    Assignments,
    Confusion,
    Exhibit,
    LayerActivations,
    LayerPoses,
    LayerTypes,
    LearningCurves,
    Mistakes,
    Perturbations,
    Reconstructions,
    Reliability,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture(NamedTuple):
    """A figure with the name of its file, described for those who cannot see it.

    Example:
        >>> from torchcaps.report import draw
        >>> picture = draw.Picture("cat.png", "A cat", draw.new_figure(4, 3))
        >>> picture.file
        'cat.png'
    """

    file: str
    description: str
    figure: "Figure"


@singledispatch
def pictures_of(exhibit: Exhibit) -> Iterator[Picture]:
    """The pictures of an exhibit, each drawn when it is asked for; an exhibit that nobody draws has none.

    For an exhibit of your own, decorate a function with ``@pictures_of.register``.
    """
    yield from ()


@pictures_of.register
def _(exhibit: LearningCurves) -> Iterator[Picture]:
    figure = curves_figure(exhibit.panels, exhibit.health)
    yield Picture("learning_curves.png", "Loss and accuracy over the epochs", figure)


@pictures_of.register
def _(exhibit: Confusion) -> Iterator[Picture]:
    shown = exhibit.shown()
    counts, classes = exhibit.counts[shown][:, shown], [exhibit.classes[label] for label in shown.tolist()]
    figure = confusion_matrix(counts, classes, exhibit.counts.sum(1)[shown])
    yield Picture("confusion_matrix.png", "Confusion matrix", figure)


@pictures_of.register
def _(exhibit: Mistakes) -> Iterator[Picture]:
    if exhibit.mistakes:
        titles = [
            mistake_title(one.true, one.said, one.said_activation, one.true_activation) for one in exhibit.mistakes
        ]
        figure = worst_mistakes(exhibit.pictures, titles)
        yield Picture("worst_mistakes.png", "The images of the worst mistakes", figure)


@pictures_of.register
def _(exhibit: Reliability) -> Iterator[Picture]:
    yield Picture(
        "reliability.png", "How often the network is right, by how sure it is", reliability_figure(exhibit.curves)
    )


@pictures_of.register
def _(exhibit: Reconstructions) -> Iterator[Picture]:
    titles = list(map(shorten_lines, exhibit.titles))
    figure = reconstructions(exhibit.pictures, exhibit.reconstructions, titles)
    yield Picture("reconstructions.png", "Images and their reconstructions", figure)


@pictures_of.register
def _(exhibit: Perturbations) -> Iterator[Picture]:
    labels = exhibit.targets.tolist()
    numbers = labels if len(set(labels)) == len(labels) else list(range(len(labels)))
    for grids, number, name in zip(exhibit.grids, numbers, exhibit.classes, strict=True):
        figure = perturbation_grid(grids, exhibit.values, f"class {shorten(name, 30)}")
        description = f"Reconstructions of class {name} as each pose dimension moves"
        yield Picture(f"perturbation_{number:03d}.png", description, figure)


@pictures_of.register
def _(exhibit: LayerActivations) -> Iterator[Picture]:
    labels = [one.layer if one.type is None else f"{one.layer}\ntype {one.type}" for one in exhibit.layers]
    figure = activation_figure(
        exhibit.pictures,
        {label: one.activation for label, one in zip(labels, exhibit.layers, strict=True)},
        list(map(shorten_lines, exhibit.titles)),
        {label: one.extent for label, one in zip(labels, exhibit.layers, strict=True) if one.extent is not None},
        exhibit.classes,
    )
    description = "Images and the activations of their capsules, layer by layer"
    yield Picture("layer_activations.png", description, figure)


@pictures_of.register
def _(exhibit: LayerTypes) -> Iterator[Picture]:
    figure = type_maps_figure(exhibit.picture, exhibit.layers, shorten_lines(exhibit.image_title))
    yield Picture("layer_types.png", "The most active types of capsules of one image, layer by layer", figure)


@pictures_of.register
def _(exhibit: LayerPoses) -> Iterator[Picture]:
    titles = {}
    for layer, kind, pose in exhibit.layers:
        name = layer if kind is None else f"{layer}, type {kind}"
        titles[layer] = f"{name}\n{pose.shape[0]} x {pose.shape[1]} positions"
    figure = pose_figure(exhibit.picture, {one.layer: one.pose for one in exhibit.layers}, titles)
    description = "The poses of the most active type of capsule of one image, layer by layer"
    yield Picture("layer_poses.png", description, figure)


@pictures_of.register
def _(exhibit: Assignments) -> Iterator[Picture]:
    titles = list(map(shorten_lines, exhibit.titles))
    if len(exhibit.layers) == 1:
        (only,) = exhibit.layers
        figure = assignment_figure(exhibit.pictures, only.share, titles, only.extent, exhibit.even)
    else:
        maps = {one.layer: one.share for one in exhibit.layers}
        extents = {one.layer: one.extent for one in exhibit.layers if one.extent is not None}
        figure = flow_figure(exhibit.pictures, maps, titles, extents, exhibit.even)
    yield Picture("assignments.png", "Images and maps of the shares", figure)

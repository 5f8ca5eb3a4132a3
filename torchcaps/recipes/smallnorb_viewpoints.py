"""Viewpoints not seen in training: capsules and a network without them (Hinton, Sabour & Frosst 2018, table 2)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.data import Digits, ImageSet, Preprocess
from torchcaps.explain import examine, new_figure
from torchcaps.recipes import smallnorb
from torchcaps.recipes.base import Line, Outcome, Picture, Recipe, register_recipe
from torchcaps.recipes.lab import Lab, Trained, data_of, run_name
from torchcaps.recipes.options import falling, option
from torchcaps.recipes.smallnorb import SmallNORBSettings

HINTON = "Hinton, Sabour & Frosst 2018, table 2, recalled"

Viewpoints = Literal["azimuth", "elevation"]
TestViewpoints = Literal["familiar", "novel"]

VIEWPOINTS: tuple[Viewpoints, ...] = ("azimuth", "elevation")
NETWORKS: dict[str, str] = {"capsules": smallnorb.BASE, "convolutional": smallnorb.CNN}
"""The rows of :data:`torchcaps.recipes.smallnorb.ROWS` that are compared, the one that sets the accuracy first."""

FAMILIAR, NOVEL = "familiar viewpoints, test error", "novel viewpoints, test error"

PUBLISHED: dict[tuple[str, str], float] = {
    ("azimuth, capsules", FAMILIAR): 3.7,
    ("azimuth, capsules", NOVEL): 13.5,
    ("azimuth, convolutional", FAMILIAR): 3.7,
    ("azimuth, convolutional", NOVEL): 20.0,
    ("elevation, capsules", FAMILIAR): 4.3,
    ("elevation, capsules", NOVEL): 12.3,
    ("elevation, convolutional", FAMILIAR): 4.3,
    ("elevation, convolutional", NOVEL): 17.8,
}


class TurnedDigits(Digits):
    """Digits to try the experiment on in seconds: novel ones are turned by 30 degrees, or have 0.7 of their height.

    Args:
        viewpoints: what a novel test digit differs in: ``azimuth``, turned; ``elevation``, lower.
        test_viewpoints: whether the test digits are ``novel`` or ``familiar``, as they were in training.
        validation: as of :class:`~torchcaps.data.Digits`.
        seed: likewise.
        size: likewise.
    """

    def __init__(
        self,
        viewpoints: Viewpoints = "azimuth",
        test_viewpoints: TestViewpoints = "novel",
        validation: float = 0.1,
        seed: int = 0,
        size: int = 8,
    ) -> None:
        super().__init__(validation, seed, size)
        self.viewpoints = viewpoints
        self.test_viewpoints = test_viewpoints

    def load_test(self) -> ImageSet:
        """Read the fifth of the digits to test on, seen from the viewpoints to test on."""
        digits = super().load_test()
        if self.test_viewpoints == "familiar":
            return digits
        return replace(digits, images=turn(digits.images, 30) if self.viewpoints == "azimuth" else lower(digits.images))


def turn(images: Tensor, degrees: float) -> Tensor:
    """Images, uint8 (N, C, H, W), turned counterclockwise around their centre; what comes in is black."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return _warp(images, [[cosine, -sine, 0.0], [sine, cosine, 0.0]])


def lower(images: Tensor, factor: float = 0.7) -> Tensor:
    """Images, uint8 (N, C, H, W), made lower around their centre by a factor; what comes in is black."""
    return _warp(images, [[1.0, 0.0, 0.0], [0.0, 1 / factor, 0.0]])


def _warp(images: Tensor, source: list[list[float]]) -> Tensor:
    """Images whose pixels come from where ``source`` maps them to, in coordinates from -1 to 1, x right and y down."""
    grid = F.affine_grid(torch.tensor([source]), [1, *images.shape[1:]], align_corners=False)
    warped = F.grid_sample(images.float(), grid.expand(len(images), -1, -1, -1), align_corners=False)
    return warped.round().to(torch.uint8)


def data_from(settings: SmallNORBSettings, viewpoints: Viewpoints, tested: TestViewpoints) -> dict[str, Any]:
    """The option ``data``: trained on a third of the viewpoints, tested on the same or on the others."""
    arguments = settings.data.get("init_args", {})
    return {**settings.data, "init_args": {**arguments, "viewpoints": viewpoints, "test_viewpoints": tested}}


def job(
    settings: SmallNORBSettings, viewpoints: Viewpoints, network: str, stop_at: float | None = None
) -> tuple[str, dict[str, Any]]:
    """Name of the run and options of ``torchcaps train``, as :meth:`Lab.train` takes them.

    Args:
        settings: of the preset.
        viewpoints: what the network shall not have seen all of.
        network: of :data:`NETWORKS`.
        stop_at: end at this validation accuracy, from 0 to 1.
    """
    config = smallnorb.job(settings, NETWORKS[network])[1]
    config["data"] = data_from(settings, viewpoints, "familiar")
    if stop_at is not None:
        config["stop_at"] = stop_at
    return run_name("smallnorb-viewpoints", f"{viewpoints} {network}"), config


def novel_error(trained: Trained, settings: SmallNORBSettings, viewpoints: Viewpoints) -> float:
    """Error in percent on the test images from the viewpoints that were left out of training."""
    test = data_of(data_from(settings, viewpoints, "novel")).test
    return 100 * examine(trained.network, test.prepared(Preprocess.from_config(dict(settings.preprocess)))).error


@register_recipe
class SmallNORBViewpoints(Recipe[SmallNORBSettings]):
    """Two networks that know a third of the viewpoints equally well: how well do they know the others?

    The network with capsules is trained to the end of its last epoch; the other one until its validation accuracy, on
    familiar viewpoints, is the same.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", section 5.1 and table 2.
    """

    name: ClassVar[str] = "smallnorb-viewpoints"
    title: ClassVar[str] = "familiar and novel viewpoints on smallNORB"
    source: ClassVar[str] = HINTON
    lines: ClassVar[tuple[Line, ...]] = tuple(
        Line(row, measure, PUBLISHED[row, measure], HINTON) for row, measure in PUBLISHED
    )
    presets: ClassVar = {
        "paper": replace(
            smallnorb.PAPER,
            data=option("SmallNORB", validation=0.1),
            epochs=17700,  # 2 M steps: 7,290 images are 113 full batches of 64
            cnn_epochs=6000,
            cnn_share=0.1,
        ),
        "quick": replace(
            smallnorb.QUICK,
            data=option("SmallNORB", size=32, validation=0.1),
            epochs=16,
            scheduler=falling(0.87),
            cnn_epochs=200,
            cnn_share=0.05,
        ),
        "smoke": replace(
            smallnorb.SMOKE,
            data=option("torchcaps.recipes.smallnorb_viewpoints.TurnedDigits", size=24),
            cnn_epochs=4,
            cnn_share=0.5,
        ),
    }
    notes: ClassVar[tuple[str, ...]] = (
        smallnorb.LOSSY,
        "The convolutional network is stopped at the validation accuracy that the capsules end with, looked at several "
        "times an epoch; the paper stopped the capsules at the error of the convolutional network. Validation images "
        "show toys of the training half from familiar viewpoints: the familiar test errors, on other toys, may differ.",
        "Settings are those of smallnorb-em but for the epochs and, in the quick preset, the decay of the learning "
        "rate; a tenth of the training images is for validation.",
    )

    def run(self, lab: Lab, settings: SmallNORBSettings) -> Outcome:
        """Trains both networks on each third of the viewpoints and tests them on both kinds."""
        figures: dict[tuple[str, str], float] = {}
        facts: dict[str, dict[str, Any]] = {}
        for viewpoints in VIEWPOINTS:
            stop_at = None
            for network in NETWORKS:
                row = f"{viewpoints}, {network}"
                trained = lab.train(*job(settings, viewpoints, network, stop_at))
                reached = trained.validation_accuracy
                facts[row] = {**trained.facts, "validation_accuracy": reached, "stop_at": stop_at}
                stop_at = trained.accuracy_to_match
                figures[row, FAMILIAR] = trained.test_error
                figures[row, NOVEL] = novel_error(trained, settings, viewpoints)
                lab.show(f"{row}: familiar {figures[row, FAMILIAR]:.2f} %, novel {figures[row, NOVEL]:.2f} %")
        return Outcome(figures, facts, {"errors": _picture(figures)})


def _picture(figures: Mapping[tuple[str, str], float]) -> Picture:
    """Two panels, ours and published, of bars for familiar and novel viewpoints."""
    figure = new_figure(9.0, 4.0)
    rows = [f"{viewpoints}, {network}" for viewpoints in VIEWPOINTS for network in NETWORKS]
    for panel, (title, values) in enumerate((("ours", figures), ("published", PUBLISHED))):
        axes = figure.add_subplot(1, 2, panel + 1)
        for offset, measure, colour in ((-0.2, FAMILIAR, "0.7"), (0.2, NOVEL, "C0")):
            places = [place + offset for place in range(len(rows))]
            heights = [values[row, measure] for row in rows]
            bars = axes.bar(places, heights, 0.4, label=measure.partition(",")[0], color=colour)
            axes.bar_label(bars, fmt="%.1f", fontsize=8)
        axes.set_xticks(range(len(rows)), [row.replace(", ", "\n") for row in rows], fontsize=9)
        axes.margins(y=0.12)
        axes.set_ylabel("test error, %")
        axes.set_title(title)
    figure.legend(*axes.get_legend_handles_labels(), fontsize=9, ncols=2, loc="outside lower center", frameon=False)
    caption = (
        "Trained on a third of the azimuths or of the elevations, tested on other toys from the same viewpoints "
        "(familiar) and from the others (novel); the convolutional network was stopped at the validation accuracy of "
        "the one with capsules."
    )
    return Picture(figure, caption)

"""What the dimensions of a pose change in the reconstruction: the sweeps of Sabour et al. 2017, figure 4."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from recipes import affine, mnist_dynamic, multimnist
from recipes.kit.base import Line, Picture, register_recipe
from recipes.kit.comparison import Comparison, Study
from recipes.kit.lab import Trained, at_random, run_name
from recipes.kit.options import presets_of
from recipes.mnist_dynamic import MnistDynamic
from torchcaps.data import ImageSet, Pairs
from torchcaps.explain import default_sweep
from torchcaps.explain.draw.charts import sweep_figure
from torchcaps.explain.sweeps import Sweep, reconstruction_error, sweep
from torchcaps.models import CapsuleClassifier

SABOUR = "Sabour, Frosst & Hinton 2017, section 5.1 and figure 4"

PLACED, OVERLAID = "CapsNet of the recipe affine", "CapsNet of the recipe multimnist"
ROWS: dict[str, tuple[type[Comparison[Any]], str]] = {
    **{row: (MnistDynamic, row) for row, kind in mnist_dynamic.ROWS.items() if kind is not None and kind.weighting},
    PLACED: (affine.AffineRobustness, affine.CAPSULES),
    OVERLAID: (multimnist.MultiMNIST, multimnist.CAPSULES),
}
"""The networks of other recipes that have a decoder: which recipe, which row."""


def digits_for(trained: Trained) -> ImageSet:
    """Test images of single digits, prepared for a network; in the middle of its canvas if that is larger."""
    data, (_, height, width) = trained.data, trained.network.image_shape
    test = (data.data if isinstance(data, Pairs) else data).test
    if trained.classifier.image_shape == test.image_shape:
        return trained.classifier.prepared(test)
    top, left = (height - test.image_shape[1]) // 2, (width - test.image_shape[2]) // 2
    border = (left, width - test.image_shape[2] - left, top, height - test.image_shape[1] - top)
    return replace(test, images=F.pad(test.images, border))


CHANGE, IDLE, ERROR = "change at ±0.25, median", "dimensions with hardly any effect", "error of the reconstruction"


@dataclass(frozen=True)
class PerturbSettings:
    """One preset.

    Attributes:
        images: of each class, whose sweeps are measured.
        idle: a dimension of a class that changes its pictures by less, in percent of the range of greys, counts as one
            with hardly any effect.
        drawn: labels of the classes whose sweeps the picture shows.
        tested: how many test images are reconstructed, chosen at random.
        rows: which networks; all if empty.
    """

    images: int = 10
    idle: float = 0.5
    drawn: tuple[int, ...] = (2, 4, 5)
    tested: int = 2000
    rows: tuple[str, ...] = ()


@register_recipe
class Perturb(Comparison[PerturbSettings]):
    """Moves one number of a pose at a time, and measures how the reconstruction changes."""

    name: ClassVar[str] = "perturb"
    title: ClassVar[str] = "what the dimensions of a pose draw"
    source: ClassVar[str] = SABOUR
    rows: ClassVar = tuple(ROWS)
    borrowed: ClassVar = ROWS
    lines: ClassVar = tuple(
        Line(row, measure, unit=unit, higher_is_better=better)
        for row in ROWS
        for measure, unit, better in ((CHANGE, "% of grey", None), (IDLE, "%", None), (ERROR, "% of grey", False))
    )
    presets: ClassVar = presets_of("perturb", PerturbSettings)

    def measure(self, study: Study, row: str, given: Any) -> dict[str, float]:
        """Sweeps the poses of the first test images of each class; reconstructs others."""
        settings, network = study.settings, study.trained[row].network
        assert isinstance(network, CapsuleClassifier)
        test = digits_for(study.trained[row])
        swept = sweep(network, test, settings.images)
        study.curves[row] = {test.classes[label]: one.change.tolist() for label, one in swept.items()}
        drawn = {test.classes[label]: swept[label] for label in settings.drawn if label in swept}
        figure = sweep_figure(drawn, default_sweep().tolist(), row)
        caption = (
            f"{row}: test images drawn from the capsule of their class while one number of its pose moves; in the "
            "middle column the pose is unchanged. Right of each row: how much the ends differ from the middle on "
            "average, in percent of the range from black to white."
        )
        study.pictures[run_name("", row).strip("-")] = Picture(figure, caption)
        return {
            **findings(swept, settings.idle),
            ERROR: reconstruction_error(network, at_random(test, settings.tested)),
        }

    def finish(self, study: Study, given: Any) -> None:
        """Nothing more: each row has its own picture."""


def findings(swept: Mapping[int, Sweep], idle: float) -> dict[str, float]:
    """The figures of the sweeps of all classes, by measure; ``idle`` is that of the settings."""
    change = torch.stack([one.change for one in swept.values()])  # [classes, D]
    return {CHANGE: change.flatten().quantile(0.5).item(), IDLE: 100 * (change < idle).double().mean().item()}

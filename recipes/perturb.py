"""What the dimensions of a pose change in the reconstruction: the sweeps of Sabour et
al. 2017, figure 4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes import affine, multimnist
from recipes.kit.base import Line, Picture, Recipe, Study, get_recipe, register_recipe
from recipes.kit.charts import tiles
from recipes.kit.lab import Trained, at_random, run_name
from recipes.kit.measures import percent
from recipes.kit.options import TrainingOptions
from torchcaps.models import CapsuleClassifier
from torchcaps.models.base import in_precision_of
from torchcaps_lab.data import Examples, Pairs
from torchcaps_lab.report import default_sweep, evaluating, new_figure, perturb, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACED, OVERLAID = "CapsNet of the recipe affine", "CapsNet of the recipe multimnist"
_OTHERS = get_recipe("mnist-dynamic").rows.items()
ROWS = {
    **{
        row: ("mnist-dynamic", row)
        for row, one in _OTHERS
        if "routing" in one and "model_args" not in one
    },
    PLACED: ("affine", affine.CAPSULES),
    OVERLAID: ("multimnist", multimnist.CAPSULES),
}
"""The networks of other recipes that have a decoder: which recipe, which row."""


def digits_for(trained: Trained) -> Examples:
    """Test images of single digits, prepared for a network; in the middle of its canvas
    if that is larger.
    """
    data, (_, height, width) = trained.data, trained.network.image_shape
    test = (data.data if isinstance(data, Pairs) else data).test
    if trained.classifier.image_shape == test.image_shape:
        return trained.classifier.prepared(test)
    top, left = (height - test.image_shape[1]) // 2, (width - test.image_shape[2]) // 2
    border = (
        left,
        width - test.image_shape[2] - left,
        top,
        height - test.image_shape[1] - top,
    )
    return replace(test, inputs=F.pad(test.inputs, border))


CHANGE, IDLE, ERROR = (
    "change at ±0.25, median",
    "dimensions with hardly any effect",
    "error of the reconstruction",
)


def changes(grids: Tensor) -> Tensor:
    r"""How much the picture changes as one number of the pose moves to either end of
    its sweep.

    .. math::
        c_{bd} = \frac{100}{2 C H W} \sum_{chw} |x_{bd,\text{first}} - x_{bd,0}| + |x_{bd,\text{last}} - x_{bd,0}|

    with x the decoded image, from 0 (black) to 1 (white), and 0 the middle of the
    sweep, the pose as it is.

    Args:
        grids: (B, D, V, C, H, W) with V odd, as :func:`~torchcaps_lab.report.perturb`
            returns it for a sweep around 0.

    Returns:
        (B, D), in percent of the range of greys.

    Raises:
        ValueError: if ``grids`` has another number of axes, or no middle.
    """
    if grids.ndim != 6 or grids.shape[2] % 2 == 0:
        raise ValueError(
            "grids must be (B, D, V, C, H, W) with an odd V, got shape "
            f"{tuple(grids.shape)}"
        )
    middle = grids[:, :, grids.shape[2] // 2]
    ends = [(grids[:, :, end] - middle).abs().flatten(2).mean(2) for end in (0, -1)]
    return 50 * (ends[0] + ends[1])


class Sweep(NamedTuple):
    """The sweeps of one class.

    Args:
        change: of each dimension, in percent of the range of greys, averaged over the
            images of the class, (D,).
        image: the first of these images, (C, H, W).
        grid: its sweeps, (D, V, C, H, W).
    """

    change: Tensor
    image: Tensor
    grid: Tensor


def sweep(network: CapsuleClassifier, test: Examples, images: int) -> dict[int, Sweep]:
    """Sweeps the pose of the true class, over the first test images of each class.

    Args:
        network: with a decoder.
        test: images, prepared for it.
        images: how many of each class.

    Returns:
        By label.
    """
    found = {}
    with evaluating(network) as device:
        for label in test.labels.unique().tolist():
            places = (test.labels == label).nonzero().squeeze(1)[:images]
            batch = test.__getitems__(places.tolist())
            capsules = network.encode(in_precision_of(network, batch.inputs.to(device)))
            grids = (
                perturb(
                    network,
                    capsules,
                    batch.labels.to(device),
                    default_sweep().to(device),
                )
                .float()
                .cpu()
            )
            found[int(label)] = Sweep(
                changes(grids).mean(0), batch.pictures[0], grids[0]
            )
    return found


def reconstruction_error(
    network: CapsuleClassifier, test: Examples, batch_size: int = 250
) -> float:
    r"""The root mean square error of reconstructions from the true class's capsule, in
    percent of the range of greys.

    .. math::
        100 \sqrt{\frac{1}{N C H W} \sum_{nchw} (\hat x_{nchw} - x_{nchw})^2}

    Args:
        network: with a decoder.
        test: images, prepared for it.
        batch_size: how many at a time.
    """
    total, numbers = 0.0, 0
    with evaluating(network) as device:
        for batch in test.batches(batch_size):
            images, labels, pictures = (
                one.to(device) for one in (batch.inputs, batch.labels, batch.pictures)
            )
            drawn = network.decode(
                network.encode(in_precision_of(network, images)), labels
            )
            total += (drawn.double() - pictures).square().sum().item()
            numbers += pictures.numel()
    return 100 * (total / numbers) ** 0.5


@dataclass(frozen=True)
class PerturbSettings(TrainingOptions):
    """One preset.

    Attributes:
        images: of each class, whose sweeps are measured.
        idle: a dimension of a class that changes its pictures by less, in percent of
            the range of greys, counts as one with hardly any effect.
        drawn: labels of the classes whose sweeps the picture shows.
        tested: how many test images are reconstructed, chosen at random.
    """

    images: int = 10
    idle: float = 0.5
    drawn: tuple[int, ...] = (2, 4, 5)
    tested: int = 2000


@register_recipe
class Perturb(Recipe[PerturbSettings]):
    """Moves one number of a pose at a time, and measures how the reconstruction
    changes.
    """

    name: ClassVar = "perturb"
    rows: ClassVar = ROWS
    borrowed: ClassVar = ROWS
    lines: ClassVar = tuple(
        Line(row, measure, unit=unit, higher_is_better=better)
        for row in ROWS
        for measure, unit, better in (
            (CHANGE, "% of grey", None),
            (IDLE, "%", None),
            (ERROR, "% of grey", False),
        )
    )
    settings: ClassVar = PerturbSettings

    def measure(self, study: Study, row: str, given: Any) -> dict[str, float]:
        """Sweeps the poses of the first test images of each class; reconstructs
        others.
        """
        settings, network = study.settings, study.trained[row].network
        assert isinstance(network, CapsuleClassifier)
        test = digits_for(study.trained[row])
        swept = sweep(network, test, settings.images)
        study.curves[row] = {
            test.classes[label]: one.change.tolist() for label, one in swept.items()
        }
        drawn = {
            test.classes[label]: swept[label]
            for label in settings.drawn
            if label in swept
        }
        figure = sweep_figure(drawn, default_sweep().tolist(), row)
        study.pictures[run_name("", row).strip("-")] = Picture(
            figure, self.caption.format(row=row)
        )
        return {
            **findings(swept, settings.idle),
            ERROR: reconstruction_error(network, at_random(test, settings.tested)),
        }


def findings(swept: Mapping[int, Sweep], idle: float) -> dict[str, float]:
    """The figures of the sweeps of all classes, by measure; ``idle`` is that of the
    settings.
    """
    change = torch.stack([one.change for one in swept.values()])  # [classes, D]
    return {CHANGE: change.flatten().quantile(0.5).item(), IDLE: percent(change < idle)}


def sweep_figure(
    swept: Mapping[str, Sweep], values: Sequence[float], title: str
) -> "Figure":
    """The sweeps of a few classes beside each other: a row a dimension, a column a
    value.
    """
    dimensions = len(next(iter(swept.values())).change) if swept else 1
    figure = new_figure(0.6 + 3.7 * len(swept), 1.1 + 0.285 * dimensions)
    panels = figure.subplots(1, max(len(swept), 1), squeeze=False)[0]
    for axes, (name, one) in zip(panels, swept.items(), strict=False):
        D, V = one.grid.shape[:2]
        axes.imshow(
            tiles(one.grid).numpy(), extent=(0, V, D, 0), interpolation="nearest"
        )
        axes.set_xticks(
            [0.5, V / 2, V - 0.5], [f"{values[0]:+.2f}", "0", f"{values[-1]:+.2f}"]
        )
        axes.set_yticks(
            [place + 0.5 for place in range(D)], [str(place) for place in range(D)]
        )
        axes.tick_params(length=0, labelsize=7)
        axes.set_title(f"class {shorten(name)}", fontsize=9)
        axes.set_xlabel("added to the number", fontsize=8)
        axes.spines[:].set_visible(False)
        for place, change in enumerate(one.change.tolist()):
            axes.text(
                V + 0.15,
                place + 0.5,
                f"{change:.1f} %",
                fontsize=7,
                va="center",
                color="0.3",
            )
    panels[0].set_ylabel("dimension of the pose", fontsize=8)
    figure.suptitle(shorten(title, 80), fontsize=10)
    return figure

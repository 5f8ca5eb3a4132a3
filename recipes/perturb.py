"""What the dimensions of a pose change in the reconstruction: the sweeps of Sabour et
al. 2017, figure 4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
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
from torchcaps_lab.data import Examples, Pairs
from torchcaps_lab.evaluate import default_sweep, evaluating, perturb
from torchcaps_lab.report import new_figure, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACED, OVERLAID = "CapsNet of the recipe affine", "CapsNet of the recipe multimnist"
ROWS = {
    row: ("mnist-dynamic", row)
    for row, changes in get_recipe("mnist-dynamic").rows.items()
    if "routing" in changes and "model_args" not in changes
}
ROWS[PLACED] = "affine", affine.CAPSULES
ROWS[OVERLAID] = "multimnist", multimnist.CAPSULES
"""The networks of other recipes that have a decoder: which recipe, which row."""


def digits_for(trained: Trained) -> Examples:
    """Test images of single digits, prepared for a network; in the middle of its canvas
    if that is larger.
    """
    data = trained.data
    test = (data.data if isinstance(data, Pairs) else data).test
    if trained.classifier.image_shape == test.image_shape:
        return trained.classifier.prepared(test)
    _, height, width = trained.network.image_shape
    more_rows = height - test.image_shape[1]
    more_columns = width - test.image_shape[2]
    top = more_rows // 2
    left = more_columns // 2
    border = left, more_columns - left, top, more_rows - top
    return replace(test, inputs=F.pad(test.inputs, border))


CHANGE = "change at ±0.25, median"
IDLE = "dimensions with hardly any effect"
ERROR = "error of the reconstruction"
MEASURES: dict[str, tuple[str, bool | None]] = {
    CHANGE: ("% of grey", None),
    IDLE: ("%", None),
    ERROR: ("% of grey", False),
}
"""The measures, with their units and whether higher is better."""


def changes(grids: Tensor) -> Tensor:
    r"""How much the picture changes as one number of the pose moves to either end of
    its sweep.

    .. math::
        c_{bd} = \frac{100}{2 C H W} \sum_{chw} |x_{bd,\text{first}} - x_{bd,0}| + |x_{bd,\text{last}} - x_{bd,0}|

    with x the decoded image, from 0 (black) to 1 (white), and 0 the middle of the
    sweep, the pose as it is.

    Args:
        grids: the decoded images, (B, D, V, C, H, W) with V odd, as
            :func:`~torchcaps_lab.evaluate.perturb` returns them for a sweep around 0.

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
    first, middle, last = (
        grids[:, :, place].flatten(2) for place in (0, grids.shape[2] // 2, -1)
    )
    return 50 * ((first - middle).abs().mean(2) + (last - middle).abs().mean(2))


class Sweep(NamedTuple):
    """The sweeps of one class.

    Args:
        change: the change by each dimension, in percent of the range of greys, averaged
            over the images of the class, (D,).
        image: the first image of the class, (C, H, W).
        grid: the sweeps of that image, (D, V, C, H, W).
    """

    change: Tensor
    image: Tensor
    grid: Tensor


def sweep(
    network: CapsuleClassifier,
    test: Examples,
    images: int,
) -> dict[int, Sweep]:
    """Sweeps the pose of the true class, over the first test images of each class.

    Args:
        network: a network with a decoder.
        test: the test images, prepared for the network.
        images: the number of images of each class.

    Returns:
        The sweeps, by label.
    """
    sweeps = {}
    with evaluating(network) as device:
        offsets = default_sweep().to(device)
        for label in test.labels.unique().tolist():
            places = (test.labels == label).nonzero().squeeze(1)[:images]
            batch = test.__getitems__(places.tolist())
            capsules = network.encode(batch.inputs.to(device))
            labels = batch.labels.to(device)
            grids = perturb(network, capsules, labels, offsets).float().cpu()
            change = changes(grids).mean(0)
            sweeps[int(label)] = Sweep(change, batch.pictures[0], grids[0])
    return sweeps


def reconstruction_error(
    network: CapsuleClassifier, test: Examples, batch_size: int = 250
) -> float:
    r"""The root mean square error of reconstructions from the true class's capsule, in
    percent of the range of greys.

    .. math::
        100 \sqrt{\frac{1}{N C H W} \sum_{nchw} (\hat x_{nchw} - x_{nchw})^2}

    Args:
        network: a network with a decoder.
        test: the test images, prepared for the network.
        batch_size: the number of images at a time.
    """
    total, numbers = 0.0, 0
    with evaluating(network) as device:
        for batch in test.batches(batch_size):
            capsules = network.encode(batch.inputs.to(device))
            drawn = network.decode(capsules, batch.labels.to(device))
            difference = drawn.double() - batch.pictures.to(device)
            total += difference.square().sum().item()
            numbers += difference.numel()
    return 100 * (total / numbers) ** 0.5


@dataclass(frozen=True)
class PerturbSettings(TrainingOptions):
    """One preset.

    Attributes:
        images: the number of images of each class whose sweeps are measured.
        idle: a dimension of a class that changes its pictures by less, in percent of
            the range of greys, counts as one with hardly any effect.
        drawn: the labels of the classes whose sweeps the picture shows.
        tested: the number of test images that are reconstructed, chosen at random.
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
        for row, (measure, (unit, better)) in product(ROWS, MEASURES.items())
    )
    settings: ClassVar = PerturbSettings

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> dict[str, float]:
        """Sweeps the poses of the first test images of each class; reconstructs
        others.
        """
        settings = study.settings
        network = study.trained[row].network
        assert isinstance(network, CapsuleClassifier)
        test = digits_for(study.trained[row])
        sweeps = sweep(network, test, settings.images)
        study.curves[row] = {
            test.classes[label]: of_class.change.tolist()
            for label, of_class in sweeps.items()
        }
        drawn = {
            test.classes[label]: sweeps[label]
            for label in settings.drawn
            if label in sweeps
        }
        figure = sweep_figure(drawn, default_sweep().tolist(), row)
        name = run_name("", row).strip("-")
        study.pictures[name] = Picture(figure, self.caption.format(row=row))
        error = reconstruction_error(network, at_random(test, settings.tested))
        return {**findings(sweeps, settings.idle), ERROR: error}


def findings(sweeps: Mapping[int, Sweep], idle: float) -> dict[str, float]:
    """The figures of the sweeps of all classes, by measure; ``idle`` is that of the
    settings.
    """
    change = torch.stack([of_class.change for of_class in sweeps.values()])
    return {CHANGE: change.flatten().quantile(0.5).item(), IDLE: percent(change < idle)}


def sweep_figure(
    sweeps: Mapping[str, Sweep], values: Sequence[float], title: str
) -> "Figure":
    """The sweeps of a few classes beside each other: a row a dimension, a column a
    value.
    """
    dimensions = len(next(iter(sweeps.values())).change) if sweeps else 1
    figure = new_figure(0.6 + 3.7 * len(sweeps), 1.1 + 0.285 * dimensions)
    panels = figure.subplots(
        1,
        max(len(sweeps), 1),
        squeeze=False,
    )[0]
    for axes, (name, of_class) in zip(panels, sweeps.items(), strict=False):
        D, V = of_class.grid.shape[:2]
        picture = tiles(of_class.grid).numpy()
        axes.imshow(
            picture,
            extent=(0, V, D, 0),
            interpolation="nearest",
        )
        ends = f"{values[0]:+.2f}", "0", f"{values[-1]:+.2f}"
        axes.set_xticks([0.5, V / 2, V - 0.5], ends)
        rows = [place + 0.5 for place in range(D)]
        axes.set_yticks(rows, list(map(str, range(D))))
        axes.tick_params(length=0, labelsize=7)
        axes.set_title(f"class {shorten(name)}", fontsize=9)
        axes.set_xlabel("added to the number", fontsize=8)
        axes.spines[:].set_visible(False)
        for row, change in zip(rows, of_class.change.tolist(), strict=True):
            text = f"{change:.1f} %"
            axes.text(
                V + 0.15,
                row,
                text,
                fontsize=7,
                va="center",
                color="0.3",
            )
    panels[0].set_ylabel("dimension of the pose", fontsize=8)
    figure.suptitle(shorten(title, 80), fontsize=10)
    return figure

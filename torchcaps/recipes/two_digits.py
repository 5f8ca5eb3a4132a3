"""Trained on one digit at a time, tested on several side by side (Su Jianlin 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchcaps.classifier import Classifier
from torchcaps.data.made import LAYOUTS, Scenes, arrange
from torchcaps.explain.draw.charts import bars_under_images
from torchcaps.recipes.kit.base import Picture, lines_of, register_recipe
from torchcaps.recipes.kit.comparison import Comparison, Study
from torchcaps.recipes.kit.lab import Job, data_of, run_name
from torchcaps.recipes.kit.options import FAST, TrainingOptions, adam, option, pace

SU_A = "Su 2018a, kexue.fm 4819"
SU_B = "Su 2018b, kexue.fm 5112"


def set_accuracy(activation: Tensor, present: Tensor, above: float = 0.0) -> float:
    """The share of images, in percent, whose most active classes are exactly those present.

    Args:
        activation: (N, E).
        present: bool (N, E), k classes in each row.
        above: all of the k must be more active than this, too.
    """
    ranks = activation.argsort(1, descending=True).argsort(1)
    found = ranks < present.sum(1, keepdim=True)
    right = (found == present).all(1) & (activation.where(present, torch.inf).amin(1) > above)
    return 100 * right.double().mean().item()


@dataclass(frozen=True, kw_only=True)
class TwoDigitsSettings(TrainingOptions):
    """One preset: how every network is trained, and on what it is tested.

    Attributes:
        data: option of ``torchcaps train``.
        twin_epochs: of the convolutional twin; None for the same.
        channels: of the four convolutions.
        variant_channels: likewise, of the variants of K-Means routing.
        rows: which networks; all if empty.
        pairs: how many images of two digits.
        scenes: how many images of each other layout.
    """

    data: Mapping[str, Any]
    twin_epochs: int | None = None
    channels: tuple[int, ...] = (64, 64, 128, 128)
    variant_channels: tuple[int, ...] = (64, 64, 128, 128)
    rows: tuple[str, ...] = ()
    pairs: int = 10000
    scenes: int = 2000


TWIN = "convolutional twin, pooled"
DYNAMIC = "dynamic, accumulating, 3 steps"
KMEANS = "inner-product K-Means, 3 steps"


def _kmeans(**arguments: Any) -> dict[str, Any]:
    return option("InnerProductKMeansRouting", **{"steps": 3, "squash": "half", **arguments})


def _dynamic(**arguments: Any) -> dict[str, Any]:
    return option("DynamicRouting", **{"steps": 3, **arguments})


VARIANT = "variant of K-Means"
VARIANTS: dict[str, dict[str, Any]] = {
    f"{VARIANT}: none (3 steps, squash half)": _kmeans(),
    f"{VARIANT}: squashed in between, too": _dynamic(accumulate=False, squash="half"),
    **{f"{VARIANT}: squash {kind}": _kmeans(squash=kind) for kind in ("sabour", "tanh", "exponential", "rational")},
    f"{VARIANT}: 1 step": _kmeans(steps=1),
    **{f"{VARIANT}: {steps} steps": _kmeans(steps=steps) for steps in (2, 4, 5)},
}
ROUTINGS: dict[str, dict[str, Any] | None] = {
    TWIN: None,
    DYNAMIC: _dynamic(),
    "dynamic, not accumulating, 3 steps": _dynamic(accumulate=False),
    KMEANS: _kmeans(),
    **VARIANTS,
}
"""The routing of each row; None for the network without capsules."""

SINGLE = "single digit, accuracy"
ABOVE, BESIDE = "one above the other", "side by side"
PAIRS = (ABOVE, BESIDE)


def most_active(layout: str) -> str:
    """The measure of a layout: as many most active classes as there are digits are exactly the digits."""
    return f"{layout}, the most active"


def also_sure(layout: str) -> str:
    """The measure of a layout: the same, and all of them above 0.5."""
    return f"{layout}, and above 0.5"


PUBLISHED: dict[tuple[str, str], tuple[float, str]] = {
    (TWIN, most_active(ABOVE)): (40, f"about, {SU_A}"),
    (TWIN, also_sure(ABOVE)): (10, f"about, {SU_A}"),
    (DYNAMIC, most_active(ABOVE)): (91, f"about, {SU_B}"),
    (KMEANS, most_active(ABOVE)): (95, f"over, {SU_B}"),
}


OTHERS = tuple(most_active(name) for name in LAYOUTS if name not in PAIRS)
"""The measures of other layouts than pairs, of the three networks that the source compares."""


def measures(row: str) -> tuple[str, ...]:
    """What is measured of a row."""
    pairs = (kind(layout) for layout in PAIRS for kind in (most_active, also_sure))
    return (SINGLE, *pairs, *(OTHERS if row in (TWIN, DYNAMIC, KMEANS) else ()))


@register_recipe
class TwoDigits(Comparison[TwoDigitsSettings]):
    """Trains on single digits, tests on several: does a capsule's length say that a class is present?"""

    name: ClassVar[str] = "two-digits"
    title: ClassVar[str] = "trained on single digits, tested on several side by side"
    source: ClassVar[str] = f"{SU_A}; {SU_B}"
    rows: ClassVar = tuple(ROUTINGS)
    lines: ClassVar = lines_of(
        ((row, measure) for row in ROUTINGS for measure in measures(row)), PUBLISHED, higher_is_better=True
    )
    presets: ClassVar = {
        "paper": TwoDigitsSettings(data=option("MNIST"), epochs=10, twin_epochs=20, optimizer=adam(1e-3)),
        "quick": TwoDigitsSettings(
            **pace(6, 2e-3, 32, decay=0.55),
            data=option("MNIST", validation=0.02),
            variant_channels=(32, 32, 64, 64),
            **FAST,
            pairs=5000,
            scenes=1000,
        ),
        "smoke": TwoDigitsSettings(
            **pace(2, 3e-3),
            data=option("Digits", size=16),
            channels=(4, 4, 8, 8),
            rows=(TWIN, KMEANS),
            pairs=50,
            scenes=10,
        ),
    }
    notes: ClassVar[tuple[str, ...]] = (
        "A pair counts only if both digits are found. All rows of a preset are trained alike, with the margin loss "
        "whose absent classes weigh 0.25; the paper preset trains the twin for 20 epochs and the others for 10, as "
        "published.",
        "The variants of K-Means routing are to be compared with each other: in the quick preset their convolutions "
        "have half the channels.",
        "The published code joins the images of a pair along their first axis, so one stands above the other; no other "
        "layout was published. Transforms are shared by all places: every layout is an image like any other to these "
        "networks.",
    )

    def job(self, settings: TwoDigitsSettings, row: str, stop_at: float | None = None) -> Job:
        """One network with transforms shared by all places, or its twin; every row has a routing of its own."""
        routing = ROUTINGS[row]
        channels = list(settings.variant_channels if row in VARIANTS else settings.channels)
        network: dict[str, Any] = {"model_args": {"channels": channels}, "loss": option("MarginLoss", down_weight=0.25)}
        if routing is not None:
            network |= {"model": "sharedcapsnet", "routing": routing}
        else:
            network |= {"model": "sharedcapsnet_cnn", "epochs": settings.twin_epochs or settings.epochs}
        return run_name("single-digits", row), settings.options(**network)

    def begin(self, study: Study) -> Mapping[str, Scenes]:
        """Test digits in every layout, the same for all networks."""
        test, settings = data_of(study.settings.data).test, study.settings
        count = {name: settings.pairs if name in PAIRS else settings.scenes for name in LAYOUTS}
        return {name: arrange(test, layout, count[name]) for name, layout in LAYOUTS.items()}

    def measure(self, study: Study, row: str, given: Mapping[str, Scenes]) -> dict[str, float]:
        """Single digits, and the digits of every layout that is in the table."""
        found = {SINGLE: study.trained[row].test_accuracy}
        for name, (images, present) in given.items():
            if most_active(name) in measures(row):
                shape = images.shape[1], images.shape[2], images.shape[3]
                activation = Classifier(study.trained[row].network, image_shape=shape).activations(images)
                found[most_active(name)] = set_accuracy(activation, present)
                if name in PAIRS:
                    found[also_sure(name)] = set_accuracy(activation, present, above=0.5)
        return found

    def finish(self, study: Study, given: Mapping[str, Scenes]) -> None:
        """Bars of the set accuracy over the layouts, with an example of each above them."""
        rows = [row for row in study.trained if set(OTHERS) <= set(measures(row))]
        bars = {row: [study.figures[row, most_active(name)] for name in LAYOUTS] for row in rows}
        examples = {name: scenes.images[0].amax(0) for name, scenes in given.items()}
        caption = (
            "Trained on single digits, tested on several: the share of images whose most active classes are exactly "
            "the digits in it, for five layouts of test digits."
        )
        figure = bars_under_images(examples, bars, "all digits found, % of images")
        study.pictures["layouts"] = Picture(figure, caption)

"""EM routing on smallNORB: steps, poses, losses, coordinates (Hinton, Sabour & Frosst 2018, table 1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from recipes.kit.base import lines_of, register_recipe
from recipes.kit.comparison import TEST_ERROR, Comparison, Study
from recipes.kit.options import ENTROPY, MARGIN, TrainingOptions, adam, option, presets_of

HINTON = "Hinton, Sabour & Frosst 2018, table 1"

BASE = "matrix pose, 3 steps, spread loss, coordinates"
CNN = "convolutional network"
VECTOR = (1, 16)
"""A vector pose with as many elements as the matrix; its transforms are 16 x 16 in place of 4 x 4."""

PUBLISHED: dict[str, tuple[dict[str, Any] | None, float]] = {
    BASE: ({}, 1.8),
    "1 step": ({"steps": 1}, 9.7),
    "2 steps": ({"steps": 2}, 2.2),
    "5 steps": ({"steps": 5}, 3.9),
    "vector pose": ({"pose": VECTOR}, 2.9),
    "no coordinates": ({"coordinates": False}, 2.6),
    "vector pose, no coordinates": ({"pose": VECTOR, "coordinates": False}, 3.2),
    "margin loss": ({"loss": MARGIN}, 3.2),
    "cross-entropy": ({"loss": ENTROPY}, 5.8),
    CNN: (None, 5.2),
}
"""The base row, what other rows change in it, see :func:`capsule_options`, and the one without capsules; the errors."""

ROWS: dict[str, dict[str, Any] | None] = {row: changes for row, (changes, _) in PUBLISHED.items()}
ERROR, THIRTEEN = TEST_ERROR, f"{TEST_ERROR}, 13 crops"
FIGURES = {(BASE, ERROR): 1.8, (BASE, THIRTEEN): 1.4, **{(row, ERROR): error for row, (_, error) in PUBLISHED.items()}}


@dataclass(frozen=True, kw_only=True)
class SmallNORBSettings(TrainingOptions):
    """One preset: how networks with capsules are trained, what is different for the one without, and the networks.

    Attributes:
        cnn_epochs: of the network without capsules.
        cnn_optimizer: likewise.
        cnn_scheduler: likewise; None keeps its learning rate, and no average of its weights.
        cnn_share: of the training images in an epoch of that one; less makes its epochs, where it may end, closer.
        model_args: of the networks with capsules, but for pose and coordinates.
        cnn_args: of the network without.
        routing: arguments of EMRouting, but for the steps.
        spread: arguments of the spread loss.
        thirteen_crops: whether the base row is also tested on the mean activation of 13 crops of each image.
    """

    cnn_epochs: int
    cnn_optimizer: Mapping[str, Any] = field(default_factory=lambda: adam(1e-3))
    cnn_scheduler: Mapping[str, Any] | None = None
    cnn_share: float = 1.0
    cnn_args: Mapping[str, Any] = field(default_factory=dict)
    routing: Mapping[str, Any] = field(default_factory=dict)
    spread: Mapping[str, Any] = field(default_factory=dict)
    thirteen_crops: bool = False


def _cnn_options(settings: SmallNORBSettings) -> dict[str, Any]:
    trainer = {name: value for name, value in settings.trainer.items() if name != "average" or settings.cnn_scheduler}
    if settings.cnn_share < 1:
        trainer["extra"] = {"limit_train_batches": settings.cnn_share}
    training = replace(settings, scheduler=settings.cnn_scheduler, scheduler_interval="epoch", trainer=trainer)
    pace = {"epochs": settings.cnn_epochs, "optimizer": settings.cnn_optimizer, "routing": None}
    return training.options(model="matrixcapsnet_cnn", model_args=settings.cnn_args, loss=ENTROPY, **pace)


def capsule_options(
    settings: SmallNORBSettings,
    steps: int = 3,
    pose: tuple[int, int] = (4, 4),
    loss: Mapping[str, Any] | None = None,
    coordinates: bool = True,
) -> dict[str, Any]:
    """Options of a network with capsules.

    Args:
        settings: of the preset.
        steps: of EM routing, in every layer.
        pose: rows and columns; a vector is a matrix of one row.
        loss: on the class activations; None for the spread loss.
        coordinates: whether children add their places to their votes for the class capsules.
    """
    return settings.options(
        model="matrixcapsnet",
        model_args={**settings.model_args, "pose": pose, "coordinates": coordinates},
        routing=option("EMRouting", **{**settings.routing, "steps": steps}),
        loss=loss or option("SpreadLoss", **settings.spread),
    )


@register_recipe
class SmallNORBEM(Comparison[SmallNORBSettings]):
    """What each part of the matrix capsule network is worth: one or two of them changed in each row."""

    name: ClassVar[str] = "smallnorb-em"
    title: ClassVar[str] = "EM routing on smallNORB: steps, poses, losses, coordinates"
    source: ClassVar[str] = HINTON
    experiment: ClassVar[str] = "smallnorb"
    rows: ClassVar = tuple(ROWS)
    lines: ClassVar = lines_of(FIGURES, FIGURES, HINTON)
    presets: ClassVar = presets_of("smallnorb-em", SmallNORBSettings)
    heading: ClassVar[str] = "Matrix capsules on smallNORB"
    caption: ClassVar[str] = (
        "The error of the base network (first row), of variants that change what the row names, and of the network "
        "without capsules, on the toys of the test half."
    )

    def options(self, settings: SmallNORBSettings, row: str) -> dict[str, Any]:
        """The base network, with what the row changes in it, or the one without capsules."""
        changes = ROWS[row]
        return _cnn_options(settings) if changes is None else capsule_options(settings, **changes)

    def measure(self, study: Study, row: str, given: Any) -> dict[str, float]:
        """The test error; of the base row also with 13 crops."""
        trained, thirteen = study.trained[row], row == BASE and study.settings.thirteen_crops
        crops = {THIRTEEN: trained.error_on(trained.data.test, crops=13)} if thirteen else {}
        return {ERROR: trained.test_error, **crops}

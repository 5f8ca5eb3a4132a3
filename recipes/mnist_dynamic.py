"""CapsNet on MNIST with 1 and 3 steps, with and without reconstruction (Sabour et al. 2017, table 1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from recipes.kit.base import Line, register_recipe
from recipes.kit.comparison import TEST_ERROR, Comparison
from recipes.kit.options import ENTROPY, TrainingOptions, option, presets_of
from torchcaps.losses import Weighting

SABOUR = "Sabour et al. 2017, table 1"


@dataclass(frozen=True, kw_only=True)
class MnistDynamicSettings(TrainingOptions):
    """One preset: how all rows are trained, the network of the rows with capsules, and the baseline.

    Attributes:
        cnn: the baseline.
        cnn_args: of the baseline.
    """

    preprocess: Mapping[str, Any] = field(default_factory=lambda: {"shift": 2})
    model: str = "capsnet"
    cnn: str = "capsnet_cnn"
    cnn_args: Mapping[str, Any] = field(default_factory=dict)


class Row(NamedTuple):
    """A row with capsules: steps of dynamic routing, and weighting of the margin loss, None without reconstruction."""

    steps: int
    weighting: Weighting | None


CAPSNET, CNN = "3 steps, reconstruction weighted as in the paper", "CNN baseline"
"""The CapsNet of the paper, and the network without capsules."""

_ONE_FIGURE = f"{SABOUR}: the same figure, the paper gives only one"

PUBLISHED: dict[str, tuple[Row | None, float, str]] = {
    "1 step, no reconstruction": (Row(1, None), 0.34, f"{SABOUR}: ± 0.032"),
    "3 steps, no reconstruction": (Row(3, None), 0.35, f"{SABOUR}: ± 0.036"),
    "1 step, reconstruction weighted as in the paper": (Row(1, "paper"), 0.29, f"{SABOUR}: ± 0.011"),
    CAPSNET: (Row(3, "paper"), 0.25, f"{SABOUR}: ± 0.005"),
    "1 step, reconstruction weighted as in the code": (Row(1, "released"), 0.29, _ONE_FIGURE),
    "3 steps, reconstruction weighted as in the code": (Row(3, "released"), 0.25, _ONE_FIGURE),
    CNN: (None, 0.39, f"{SABOUR}; 35.4 M parameters, recalled"),
}
"""The rows that are trained, with the error in the paper and what must be known about it."""

ROWS: dict[str, Row | None] = {row: kind for row, (kind, _, _) in PUBLISHED.items()}
"""How the rows differ; None for the network without capsules."""

ELSEWHERE: dict[str, tuple[float, str]] = {
    "public port, Keras": (0.34, "XifengGuo/CapsNet-Keras: ± 0.016, three seeds, 50 epochs"),
    "public port, TensorFlow": (0.36, "naturomics/CapsNet-Tensorflow"),
}
"""Published figures of networks that are not trained here."""


@register_recipe
class MnistDynamic(Comparison[MnistDynamicSettings]):
    """Dynamic routing on MNIST: the effect of the number of steps and of the reconstruction."""

    name: ClassVar[str] = "mnist-dynamic"
    title: ClassVar[str] = "CapsNet on MNIST: routing steps and reconstruction"
    source: ClassVar[str] = "Sabour, Frosst & Hinton 2017, table 1; settings from the code released with it"
    lines: ClassVar[tuple[Line, ...]] = (
        *(Line(row, TEST_ERROR, error, source) for row, (_, error, source) in PUBLISHED.items()),
        *(Line(row, TEST_ERROR, *figure, elsewhere=True) for row, figure in ELSEWHERE.items()),
    )
    rows: ClassVar = tuple(ROWS)
    presets: ClassVar = presets_of("mnist-dynamic", MnistDynamicSettings)

    def options(self, settings: MnistDynamicSettings, row: str) -> dict[str, Any]:
        """Steps and loss of the row, or the baseline."""
        kind = ROWS[row]
        if kind is None:
            return settings.options(model=settings.cnn, model_args=settings.cnn_args, loss=ENTROPY)
        decoder = {} if kind.weighting else {"decoder_hidden": None}
        return settings.options(
            model_args={**settings.model_args, **decoder},
            routing=option("DynamicRouting", steps=kind.steps),
            loss=option("MarginLoss", weighting=kind.weighting or "paper"),
        )

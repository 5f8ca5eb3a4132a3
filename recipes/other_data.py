"""The same networks on MNIST (EM routing), Fashion-MNIST and CIFAR-10."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from recipes.kit.base import Line, register_recipe
from recipes.kit.comparison import TEST_ERROR, Comparison
from recipes.kit.options import TrainingOptions, presets_of

MATRIX, CAPSNET, CNN = "MatrixCapsNet, EM routing", "CapsNet, dynamic routing, 3 steps", "CNN baseline of the EM paper"

HINTON = "Hinton, Sabour & Frosst 2018"


@dataclass(frozen=True)
class OtherDataSettings:
    """One preset: the images, and the networks that are trained, by row."""

    data: Mapping[str, Any]
    networks: Mapping[str, TrainingOptions]


class OtherData(Comparison[OtherDataSettings]):
    """Base of the recipes that train each network once and test its last epoch.

    Attributes:
        published: the error of each row with its source; rows trained here come first.
    """

    published: ClassVar[Mapping[str, tuple[float | None, str]]]

    def __init_subclass__(cls) -> None:
        what = "test error of the networks trained here, and published figures"
        cls.caption = f"{cls.title}: {what}, some of them for networks not trained here."
        cls.lines = tuple(
            Line(row, TEST_ERROR, *figure, elsewhere=row not in (MATRIX, CAPSNET, CNN))
            for row, figure in cls.published.items()
        )

    def present(self, settings: OtherDataSettings) -> tuple[str, ...]:
        """The networks of a preset."""
        return tuple(settings.networks)

    def options(self, settings: OtherDataSettings, row: str) -> dict[str, Any]:
        """The network of the row, from the settings."""
        return settings.networks[row].options(data=settings.data)


def _presets(name: str) -> dict[Any, OtherDataSettings]:
    """The networks of each preset, by row."""

    def settings(data: Mapping[str, Any], networks: Mapping[str, Any]) -> OtherDataSettings:
        return OtherDataSettings(data, {row: TrainingOptions(**options) for row, options in networks.items()})

    return presets_of(name, settings)


DEEPCAPS = "DeepCaps"


@register_recipe
class MnistEM(OtherData):
    """Matrix capsules with EM routing on MNIST."""

    name: ClassVar[str] = "mnist-em"
    title: ClassVar[str] = "MatrixCapsNet with EM routing on MNIST"
    source: ClassVar[str] = f"{HINTON}, section 5"
    published: ClassVar = {
        MATRIX: (0.44, f"{HINTON}, recalled"),
        DEEPCAPS: (0.28, "Rajasegaran et al. 2019"),
        "Efficient-CapsNet": (0.26, "Mazzia et al. 2021, mean of single networks"),
        "CapsNet with Max-Min normalisation": (0.20, "Zhao et al. 2019, single network"),
        "ResCaps": (0.72, "TNNLS 2025, as given in its summary"),
    }
    presets: ClassVar = _presets("mnist-em")


@register_recipe
class Fashion(OtherData):
    """Capsule networks and a convolutional network on Fashion-MNIST.

    Source: the public port ``naturomics/CapsNet-Tensorflow`` (CapsNet); no figure was published for MatrixCapsNet.
    """

    name: ClassVar[str] = "fashion"
    title: ClassVar[str] = "Capsule networks on Fashion-MNIST"
    source: ClassVar[str] = "naturomics/CapsNet-Tensorflow (CapsNet)"
    published: ClassVar = {
        MATRIX: (None, ""),
        CAPSNET: (9.4, "public port naturomics/CapsNet-Tensorflow"),
        CNN: (None, ""),
        DEEPCAPS: (5.27, "Rajasegaran et al. 2019"),
        "DCNet++": (5.35, "as quoted in an issue thread of a public port"),
        "variational Bayes routing": (5.2, "Ribeiro et al. 2020, recalled"),
    }
    presets: ClassVar = _presets("fashion")


@register_recipe
class Cifar10(OtherData):
    """Capsule networks and a convolutional network on CIFAR-10."""

    name: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "Capsule networks on CIFAR-10"
    source: ClassVar[str] = f"{HINTON}; Sabour, Frosst & Hinton 2017, section 7"
    published: ClassVar = {
        MATRIX: (11.9, f"{HINTON}, A = 256"),
        CAPSNET: (10.6, "Sabour et al. 2017, section 7: an ensemble of seven, recalled; ours is one network"),
        CNN: (None, ""),
        DEEPCAPS: (7.26, "Rajasegaran et al. 2019: an ensemble; a single network about 9"),
        "inverted dot-product attention, 2 iterations": (5.15, "Tsai et al. 2020, mean"),
        "inverted dot-product attention, 1 iteration": (5.27, "Tsai et al. 2020, mean"),
        "self-routing": (7.9, "Hahn et al. 2019, about, recalled"),
        "small CNN with capsules": (16.2, "Su 2018, an example of Keras"),
    }
    presets: ClassVar = _presets("cifar10")

"""Viewpoints not seen in training: capsules and a network without them (Hinton, Sabour & Frosst 2018, table 2)."""

from dataclasses import replace
from typing import Any, ClassVar

from recipes import smallnorb
from recipes.kit.base import Picture, lines_of, register_recipe
from recipes.kit.charts import bar_panels
from recipes.kit.comparison import Comparison, Study
from recipes.kit.lab import data_of
from recipes.kit.options import option
from recipes.smallnorb import SmallNORBEM, SmallNORBSettings
from torchcaps_lab.data import TurnedDigits
from torchcaps_lab.data.made import TestViewpoints, Viewpoints

HINTON = "Hinton, Sabour & Frosst 2018, table 2, recalled"

VIEWPOINTS: tuple[Viewpoints, ...] = ("azimuth", "elevation")
NETWORKS: dict[str, str] = {"capsules": smallnorb.BASE, "convolutional": smallnorb.CNN}
"""The rows of :data:`recipes.smallnorb.ROWS` that are compared; the first sets the accuracy to match."""

ROWS = {f"{viewpoints}, {network}": (viewpoints, network) for viewpoints in VIEWPOINTS for network in NETWORKS}

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


def data_from(settings: SmallNORBSettings, viewpoints: Viewpoints, tested: TestViewpoints) -> dict[str, Any]:
    """The option ``data``: trained on a third of the viewpoints, tested on the same or on the others."""
    third = {"viewpoints": viewpoints, "test_viewpoints": tested}
    return {**settings.data, **third}


@register_recipe
class SmallNORBViewpoints(Comparison[SmallNORBSettings]):
    """Two networks trained to the same accuracy on a third of the viewpoints: how well do they do on the others?

    The capsule network is trained for all of its epochs; the other one until its validation accuracy, on familiar
    viewpoints, is the same.
    """

    name: ClassVar[str] = "smallnorb-viewpoints"
    title: ClassVar[str] = "familiar and novel viewpoints on smallNORB"
    source: ClassVar[str] = HINTON
    rows: ClassVar = tuple(ROWS)
    twins: ClassVar = {f"{viewpoints}, convolutional": f"{viewpoints}, capsules" for viewpoints in VIEWPOINTS}
    lines: ClassVar = lines_of(PUBLISHED, PUBLISHED, HINTON)
    presets: ClassVar = {
        "paper": replace(
            SmallNORBEM.presets["paper"],
            data=option("SmallNORB", validation=0.1),
            epochs=17700,  # 2 M steps: 7,290 images are 113 full batches of 64
            cnn_epochs=6000,
            cnn_share=0.1,
        ),
        "quick": replace(
            SmallNORBEM.presets["quick"],
            data=option("SmallNORB", size=32, validation=0.1),
            epochs=16,
            cnn_epochs=200,
            cnn_scheduler=None,
            cnn_share=0.05,
        ),
        "smoke": replace(SmallNORBEM.presets["smoke"], data=option(TurnedDigits, size=24), cnn_epochs=4, cnn_share=0.5),
    }

    def present(self, settings: SmallNORBSettings) -> tuple[str, ...]:
        """All rows: ``settings.rows`` names rows of ``smallnorb-em``."""
        return self.rows

    def options(self, settings: SmallNORBSettings, row: str) -> dict[str, Any]:
        """As in ``smallnorb-em``, on a third of the viewpoints."""
        viewpoints, network = ROWS[row]
        options = SmallNORBEM().options(settings, NETWORKS[network])
        return {**options, "data": data_from(settings, viewpoints, "familiar")}

    def measure(self, study: Study, row: str, given: Any) -> dict[str, float]:
        """The errors on familiar viewpoints, and on those left out of training."""
        trained = study.trained[row]
        novel = data_of(data_from(study.settings, ROWS[row][0], "novel")).test
        return {FAMILIAR: trained.test_error, NOVEL: trained.error_on(novel)}

    def finish(self, study: Study, given: Any) -> None:
        """Two panels, ours and published, of bars for familiar and novel viewpoints."""
        kinds = {measure.partition(",")[0]: measure for measure in (FAMILIAR, NOVEL)}
        panels = {
            title: {kind: [values[row, measure] for row in ROWS] for kind, measure in kinds.items()}
            for title, values in (("ours", study.figures), ("published", PUBLISHED))
        }
        caption = (
            "Trained on a third of the azimuths or of the elevations, tested on other toys from the same viewpoints "
            "(familiar) and from the others (novel); the convolutional network was stopped at the validation accuracy "
            "of the one with capsules."
        )
        figure = bar_panels(panels, [row.replace(", ", "\n") for row in ROWS], "test error, %")
        study.pictures["errors"] = Picture(figure, caption)

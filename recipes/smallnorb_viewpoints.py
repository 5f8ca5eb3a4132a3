"""Viewpoints not seen in training: capsules and a network without them (Hinton, Sabour & Frosst 2018, table 2)."""

from typing import Any, ClassVar

from recipes.kit.base import Picture, Recipe, Study, lines_of, register_recipe
from recipes.kit.charts import bar_panels
from recipes.kit.lab import data_of
from recipes.kit.options import TrainingOptions

HINTON = "Hinton, Sabour & Frosst 2018, table 2, recalled"

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


@register_recipe
class SmallNORBViewpoints(Recipe[TrainingOptions]):
    """Two networks trained to the same accuracy on a third of the viewpoints: how well do they do on the others?

    The capsule network is trained for all of its epochs; the other one until its validation accuracy, on familiar
    viewpoints, is the same.
    """

    name: ClassVar = "smallnorb-viewpoints"
    twins: ClassVar = {
        f"{viewpoints}, convolutional": f"{viewpoints}, capsules" for viewpoints in ("azimuth", "elevation")
    }
    lines: ClassVar = lines_of(PUBLISHED, PUBLISHED, HINTON)

    def measure(self, study: Study, row: str, given: Any) -> dict[str, float]:
        """The errors on familiar viewpoints, and on those left out of training."""
        trained = study.trained[row]
        novel = data_of({**self.options(study.settings, row)["data"], "test_viewpoints": "novel"}).test
        return {FAMILIAR: trained.test_error, NOVEL: trained.error_on(novel)}

    def finish(self, study: Study, given: Any) -> None:
        """Two panels, ours and published, of bars for familiar and novel viewpoints."""
        kinds = {measure.partition(",")[0]: measure for measure in (FAMILIAR, NOVEL)}
        panels = {
            title: {kind: [values[row, measure] for row in self.rows] for kind, measure in kinds.items()}
            for title, values in (("ours", study.figures), ("published", PUBLISHED))
        }
        caption = (
            "Trained on a third of the azimuths or of the elevations, tested on other toys from the same viewpoints "
            "(familiar) and from the others (novel); the convolutional network was stopped at the validation accuracy "
            "of the one with capsules."
        )
        figure = bar_panels(panels, [row.replace(", ", "\n") for row in self.rows], "test error, %")
        study.pictures["errors"] = Picture(figure, caption)

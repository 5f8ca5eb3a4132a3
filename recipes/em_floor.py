"""A floor under the standardised costs of EM routing: how large, for 1, 2 and 3 steps,
on toys that are held out.
"""

from typing import Any, ClassVar

from recipes.kit.base import TEST_ERROR, Line, Recipe, Study, register_recipe
from recipes.kit.options import TrainingOptions

HELD_OUT = "error on held-out toys"


@register_recipe
class EMFloor(Recipe[TrainingOptions]):
    """The floor is chosen on toys of the training half that no network saw; the test
    half is reported beside.
    """

    name: ClassVar = "em-floor"
    grows: ClassVar = True
    rows: ClassVar = {
        f"{steps} {'step' if steps == 1 else 'steps'}, floor {floor:g}": {
            "routing": {"steps": steps, "cost_floor": floor}
        }
        for steps in (1, 2, 3)
        for floor in (0.0, 0.1, 0.3, 1.0)
    }
    lines: ClassVar = tuple(
        Line(row, measure) for row in rows for measure in (HELD_OUT, TEST_ERROR)
    )

    def measure(self, study: Study, row: str, given: Any) -> dict[str, float]:
        """The errors on both."""
        trained = study.trained[row]
        return {
            HELD_OUT: 100 * (1 - trained.validation_accuracy),
            TEST_ERROR: trained.test_error,
        }

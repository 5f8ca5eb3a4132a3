"""A floor under the standardised costs of EM routing: how large, for 1, 2 and 3 steps,
on toys that are held out.
"""

from itertools import product
from typing import Any, ClassVar

from recipes.kit.base import TEST_ERROR, Recipe, Study, lines_of, register_recipe
from recipes.kit.options import TrainingOptions

HELD_OUT = "error on held-out toys"
STEPS = {1: "1 step", 2: "2 steps", 3: "3 steps"}
FLOORS = (0.0, 0.1, 0.3, 1.0)

ROWS = {
    f"{STEPS[steps]}, floor {floor:g}": {
        "routing": {"steps": steps, "cost_floor": floor}
    }
    for steps, floor in product(STEPS, FLOORS)
}


@register_recipe
class EMFloor(Recipe[TrainingOptions]):
    """The floor is chosen on toys of the training half that no network saw; the test
    half is reported beside.
    """

    name: ClassVar = "em-floor"
    grows: ClassVar = True
    rows: ClassVar = ROWS
    lines: ClassVar = lines_of(product(ROWS, (HELD_OUT, TEST_ERROR)), {})

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> dict[str, float]:
        """The errors on both."""
        trained = study.trained[row]
        return {
            HELD_OUT: 100 * (1 - trained.validation_accuracy),
            TEST_ERROR: trained.test_error,
        }

"""EM routing on smallNORB: steps, poses, losses, coordinates (Hinton, Sabour & Frosst
2018, table 1).
"""

from typing import Any, ClassVar

from recipes.kit.base import TEST_ERROR, Line, Recipe, Study, facts_of, register_recipe
from recipes.kit.options import TrainingOptions

HINTON = "Hinton, Sabour & Frosst 2018, table 1"

BASE = "matrix pose, 3 steps, spread loss, coordinates"
THIRTEEN = f"{TEST_ERROR}, 13 crops"


@register_recipe
class SmallNORBEM(Recipe[TrainingOptions]):
    """What each part of the matrix capsule network is worth: one or two of them changed
    in each row.
    """

    name: ClassVar = "smallnorb-em"
    grows: ClassVar = True
    lines: ClassVar = (
        *facts_of("smallnorb-em")["lines"],
        Line(BASE, THIRTEEN, 1.4, HINTON),
    )

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> dict[str, float]:
        """The test error; of the base row also with 13 crops."""
        trained = study.trained[row]
        errors = {TEST_ERROR: trained.test_error}
        if row == BASE:
            errors[THIRTEEN] = trained.error_on(trained.data.test, crops=13)
        return errors

"""EM routing on smallNORB: steps, poses, losses, coordinates (Hinton, Sabour & Frosst 2018, table 1)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from recipes.kit.base import TEST_ERROR, Recipe, Study, lines_of, register_recipe
from recipes.kit.options import TrainingOptions

HINTON = "Hinton, Sabour & Frosst 2018, table 1"

BASE = "matrix pose, 3 steps, spread loss, coordinates"
THIRTEEN = f"{TEST_ERROR}, 13 crops"
PUBLISHED = {
    (BASE, TEST_ERROR): 1.8,
    (BASE, THIRTEEN): 1.4,
    ("1 step", TEST_ERROR): 9.7,
    ("2 steps", TEST_ERROR): 2.2,
    ("5 steps", TEST_ERROR): 3.9,
    ("vector pose", TEST_ERROR): 2.9,
    ("no coordinates", TEST_ERROR): 2.6,
    ("vector pose, no coordinates", TEST_ERROR): 3.2,
    ("margin loss", TEST_ERROR): 3.2,
    ("cross-entropy", TEST_ERROR): 5.8,
    ("convolutional network", TEST_ERROR): 5.2,
}


@dataclass(frozen=True, kw_only=True)
class SmallNORBSettings(TrainingOptions):
    """One preset.

    Attributes:
        thirteen_crops: whether the base row is also tested on the mean activation of 13 crops of each image.
    """

    thirteen_crops: bool = False


@register_recipe
class SmallNORBEM(Recipe[SmallNORBSettings]):
    """What each part of the matrix capsule network is worth: one or two of them changed in each row."""

    name: ClassVar = "smallnorb-em"
    lines: ClassVar = lines_of(PUBLISHED, PUBLISHED, HINTON)
    settings: ClassVar = SmallNORBSettings

    def measure(self, study: Study, row: str, given: Any) -> dict[str, float]:
        """The test error; of the base row also with 13 crops."""
        trained, thirteen = study.trained[row], row == BASE and study.settings.thirteen_crops
        crops = {THIRTEEN: trained.error_on(trained.data.test, crops=13)} if thirteen else {}
        return {TEST_ERROR: trained.test_error, **crops}

"""The floor under EM's costs."""

from pathlib import Path

from recipes import Lab, em_floor
from recipes.kit.base import Study


def study_with(errors: dict[float, float]) -> Study:
    """A study of one seed with an error for some floors, of one step."""
    study = Study(Lab(preset="smoke", seed=0, runs=Path("runs")), None)
    for floor, error in errors.items():
        study.figures[f"1 step, floor {floor:g}", em_floor.HELD_OUT] = error
    return study


def test_a_floor_that_a_seed_lacks_is_left_out() -> None:
    studies = [
        study_with({0.0: 5.0, 0.1: 4.0, 1.0: 6.0}),
        study_with({0.0: 7.0, 1.0: 8.0}),
    ]
    errors = em_floor.errors_over_floors(studies, "1 step", em_floor.HELD_OUT)
    assert errors == {0.0: [5.0, 7.0], 1.0: [6.0, 8.0]}

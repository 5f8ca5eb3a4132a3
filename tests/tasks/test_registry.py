"""The registry of tasks."""

from collections.abc import Iterator

import pytest

from torchcaps.spec import argument_value, fit, make, plain
from torchcaps.testing.options import Row, check_together, options_of
from torchcaps_lab.tasks import Classification, create_task, list_tasks, register_task
from torchcaps_lab.tasks.base import TASKS, Task


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)
    Classification.name = "classification"


@pytest.mark.parametrize("name", list_tasks())
def test_options_of_a_task_with_each_other(name: str) -> None:
    """Each is made, is written down, and is made from that again."""
    cls = TASKS[name]

    def check(row: Row) -> None:
        written = plain(cls(**row), "task")
        again = make(fit(Task, written, "task"))
        assert plain(again, "task") == written
        assert {option: argument_value(again, option) for option in row} == row

    options = options_of(cls)
    check_together(options, lambda row: cls(**row), check)


def made() -> type[Classification]:
    """The same class, defined anew each time: a module that is reloaded, a cell that is
    run again.
    """

    class Mine(Classification):
        pass

    return Mine


def test_a_class_that_is_defined_again_takes_its_own_place() -> None:
    register_task("mine")(made())
    again = register_task("mine")(made())
    assert type(create_task("mine")) is again


def test_another_class_does_not() -> None:
    class Other(Classification):
        pass

    with pytest.raises(
        ValueError, match="a task named 'classification' exists already: Classification"
    ):
        register_task("classification")(Other)


def test_an_unknown_task_says_what_there_is_and_what_may_be_missing() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"(?s)must be the name of .*got 'mine'.*--import "
            r"my_module"
        ),
    ):
        create_task("mine")
    assert "mine" not in list_tasks()

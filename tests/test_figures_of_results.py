"""Pages have the figures of the results in the files beside them."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from docs import figures


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.name)
def test_pages_are_what_their_templates_make(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == figures.pages()[page], (
        "python -m docs.figures writes it anew"
    )


def test_figures_are_those_of_the_result() -> None:
    row = ("affine", "CapsNet", "affine test accuracy")
    (line,) = [
        line
        for line in figures.result("affine")["rows"]
        if (line["row"], line["measure"]) == row[1:]
    ]
    template = figures.environment().from_string(
        '{{ mean("affine", "CapsNet", "affine test accuracy") | to(2) }}'
    )
    assert abs(float(template.render()) - sum(line["ours"]) / len(line["ours"])) < 0.01


@pytest.mark.parametrize(
    "expression",
    [
        'mean("affine", "CapsNet", "no such measure")',
        'mean("affine", "no such row", "affine test accuracy")',
        "no_such_function",
    ],
)
def test_a_figure_of_no_result_is_an_error(expression: str) -> None:
    template = figures.environment().from_string(f"{{{{ {expression} | to(1) }}}}")
    with pytest.raises((LookupError, UndefinedError, TypeError)):
        template.render()


def test_numbers_are_written_as_in_pages() -> None:
    assert figures.to(1234567, 0) == "1,234,567"
    assert figures.to(0.25, 1, "+") == "+0.2"
    assert figures.spread([1.0, 2.0, 6.0], 1) == "3.0 (1.0 to 6.0)"
    assert figures.each([1.0, 2.5], 1) == "1.0, 2.5"

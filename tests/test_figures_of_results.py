"""Pages have the figures of the results in the files beside them."""

import json

import pytest
from jinja2 import UndefinedError
from scipy.stats import ttest_rel

from docs import figures


def test_pages_are_what_their_templates_make() -> None:
    for page, text in figures.pages().items():
        assert page.read_text(encoding="utf-8") == text, (
            f"python -m docs.figures writes {page.name} anew"
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


def test_recipes_without_a_number_of_seeds_have_one() -> None:
    page = figures.pages()[figures.ROOT / "docs/recipes.md"]
    _, _, rest = page.partition("| seeds of the quick preset |")
    table, _, _ = rest.partition("| all others | 0 |")
    for file in (figures.RESULTS / "recipes").glob("*-quick.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        if f"`{result['recipe']}`" not in table:
            assert result["seeds"] == [0], f"name {result['recipe']} in the table"


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
    assert figures.spread([2.0], 1) == "2.0"


@pytest.mark.parametrize(
    ("ours", "control", "word"),
    [
        ([3.0, 4.0, 5.0], [1.0, 2.5, 2.5], "better"),
        ([1.0, 2.5, 2.5], [3.0, 4.0, 5.0], "worse"),
        # The means differ by 1, and one seed says the opposite.
        ([3.0, 4.0, 5.0], [1.0, 2.0, 6.0], "about as good"),
        ([3.0, 4.0], [3.0, 4.0], "about as good"),
    ],
)
def test_a_word_follows_from_the_interval_of_paired_seeds(
    ours: list[float], control: list[float], word: str
) -> None:
    difference = figures.compared(ours, control)
    interval = ttest_rel(ours, control).confidence_interval()
    if difference.half:
        assert difference.mean - difference.half == pytest.approx(interval.low)
        assert difference.mean + difference.half == pytest.approx(interval.high)
    assert difference.word == word


@pytest.mark.parametrize("control", [[1.0], [1.0, 2.0]])
def test_one_seed_has_no_interval_and_seeds_are_paired(control: list[float]) -> None:
    with pytest.raises(ValueError, match=r"two seeds|zip"):
        figures.compared([2.0], control)
    with pytest.raises(ValueError, match="zip"):
        figures.compared([2.0, 3.0, 4.0], control)


def test_each_pair_of_marks_has_its_own_text() -> None:
    page = f"a {figures.BEGIN} old {figures.END} b {figures.BEGIN} {figures.END} c"
    filled = figures.filled_in_turn(page, f"first\n{figures.END}\nsecond\n")
    assert [part for part in filled.split() if part.isalpha()] == [
        *("a", "from", "the", "results", "first", "until", "here"),
        *("b", "from", "the", "results", "second", "until", "here", "c"),
    ]
    with pytest.raises(ValueError, match="zip"):
        figures.filled_in_turn(page, "first")

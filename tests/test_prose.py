"""The pages are plain English: few semicolons and colons, and none of the phrases that
make a reader go back.
"""

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("recipes/*.md"),
        *ROOT.glob("lab/*.md"),
    )
    if "results/recipes" not in path.as_posix()  # notes of recipes, and tables
)
SEMICOLONS, COLONS = 6, 20
"""At most so many in 100 sentences of a page."""
ODD_PHRASES = 2
"""At most so many in 1,000 words of a page."""
FIGURES = 2
"""At most so many in 100 words of the README."""
UNUSUAL = [
    *("is said", "are said", "and said", "says? of", "said so", "says? so", "is told"),
    *(
        "are told",
        "told apart",
        "whom",
        "belongs? into",
        "stands? (in|there|beside|on)",
    ),
    *("lies? (in|there|beside)", "others'", "of one's own", "of its own", "by hand"),
    *(
        "as long as",
        "hardly",
        "are taken for",
        "taken for",
        "has none",
        "that is there",
    ),
    *("that are there", "what (it|they|a|the|is|are)", "not there", "so it is"),
    *("in its place", "but for", "save for", "goes on", "go on", "at hand"),
    *("as many as", "as good as", "one another", "more than one can"),
]
"""Phrases, as patterns, that an English technical writer does not use in a manual."""
LEFT_OUT = (r"```.*?```", r"<!--.*?-->|<[^>]+>", r"^\s*\|.*?$", r"^#.*?$")
"""Code, comments, tables and headings."""


def sentences(page: str) -> list[str]:
    """The sentences of a page, with a word for each piece of code."""
    text = page
    for pattern in LEFT_OUT:
        text = re.sub(pattern, " ", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*] ", text)
    return [part for part in parts if len(part.split()) > 2]


def words(page: str) -> int:
    return sum(len(sentence.split()) for sentence in sentences(page))


def in_100_sentences(mark: str, page: str) -> float:
    parts = sentences(page)
    return 100 * " ".join(parts).count(mark) / max(1, len(parts))


def odd_phrases(page: str) -> list[str]:
    text = " ".join(" ".join(sentences(page)).split())
    pattern = rf"\b({'|'.join(UNUSUAL)})\b"
    return [
        text[max(0, place.start() - 40) : place.end() + 20]
        for place in re.finditer(pattern, text, flags=re.IGNORECASE)
    ]


def faults(page: str) -> list[str]:
    """Return each bar that a page misses, with its figure."""
    semicolons, colons = (in_100_sentences(mark, page) for mark in ";:")
    odd = odd_phrases(page)
    results = []
    if semicolons > SEMICOLONS:
        results.append(f"{semicolons:.0f} semicolons in 100 sentences")
    if colons > COLONS:
        results.append(f"{colons:.0f} colons in 100 sentences")
    if 1000 * len(odd) > ODD_PHRASES * words(page):
        results.append(f"{len(odd)} odd phrases: {odd}")
    return results


def accidental_lists(page: str) -> list[str]:
    """The lines of paragraphs that Markdown shows as the start of a numbered list."""
    lines = re.sub(r"```.*?```", "", page, flags=re.DOTALL).splitlines()
    return [
        line
        for before, line in pairwise(lines)
        if re.match(r"1[.)] ", line)
        and before
        and not before.startswith((" ", "#", "|", "-"))
    ]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


NOT_YET: set[str] = set()
"""Pages that are still to be rewritten."""


@pytest.mark.parametrize(
    "page",
    [name for name in PAGES if words(read(name)) >= 80 and name not in NOT_YET],
)
def test_page_reads_easily(page: str) -> None:
    assert not faults(read(page))
    assert not accidental_lists(read(page))


def test_readme_leaves_figures_to_tables() -> None:
    page = read("README.md")
    figures = re.findall(r"\d[\d.,]*", " ".join(sentences(page)))
    assert 100 * len(figures) <= FIGURES * words(page)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("The run ends here; the next one begins.", "100 semicolons"),
        ("Take this: a run. It has three parts: a, b, c.", "100 colons"),
        ("The picture stands beside its text here.", "1 odd phrases"),
    ],
)
def test_a_heavy_page_is_found(page: str, fault: str) -> None:
    (actual,) = faults(page)
    assert actual.startswith(fault)


def test_a_number_at_the_start_of_a_line_is_found() -> None:
    assert accidental_lists("Lengths agree by about\n1. But they shrink.") == [
        "1. But they shrink."
    ]
    assert not accidental_lists("Two steps:\n\n1. Assign.\n2. Move.")


def test_code_and_tables_do_not_count() -> None:
    page = (
        "A run has parts.\n```\na; b; c: d\n```\n| x; y | what is |\nUse `a; b` for it."
    )
    assert not faults(page)

"""Random tables of every kind: each is read rightly, or refused with the name of a
column or of the table, and never read as something else without a word.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import torchcaps as tc
from tests.runs import status
from torchcaps.spec import fit
from torchcaps_lab.data import DataSet
from torchcaps_lab.options.guess import guess

COUNT = 36
"""Examples in a table: rows, or series."""

MOMENTS = 6
WORDS = ("alpha", "beta", "gamma", "delta", "bank", "doctor", "match", "heart")
LABELS = (
    ("sea", "sky", "sand"),
    ("0", "1"),
    ("café", "thé"),
    ("New York", "Rome", "Old York"),
    ("+", "-"),
    ("1", "2", "3"),
    ("True", "False"),
)
SIGNS = (",", ";", "\t", "|")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "cp1252")
ODD = ("qwz", "Größe 2", "x.y", "a b", "Klasse", "Nr", "__k")
GAPS = ("", "NA", "NaN")


@dataclass
class Made:
    """A table, and what it says.

    Args:
        kind: the data set that reads it.
        header: the names of its columns.
        rows: its cells.
        facts: of each example, what it holds, its labels and its group.
    """

    kind: str
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    facts: dict[str, tuple[Any, frozenset[str], str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.kind}: {self.header}, {self.rows[:2]}, ..."


def sentence(row: int) -> str:
    words = [WORDS[(row * step + step) % 8] for step in (1, 3, 5, 7)]
    return f'{", ".join(words[:2])}; {" ".join(words[2:])} "{row}" tale'


def level(row: int, moment: int) -> str:
    return f"{(row * 7 + moment * moment * 3) % 23 / 4 + row / 100:.3f}"


@st.composite
def labels_of(
    draw: st.DrawFn, count: int
) -> tuple[dict[str, list[str]], list[frozenset[str]], str]:
    """The columns of labels, what they say of each example, and their form."""
    names = draw(st.sampled_from(LABELS))
    form = draw(st.sampled_from(("one", "one", "flags", "sign", "list")))
    usual = draw(st.sampled_from(("label", "Class", "tags", "topic", "Befund")))
    if form == "one":
        gap = draw(st.sampled_from((None, *GAPS)))
        cells = [names[row % len(names)] for row in range(count)]
        label_sets = [frozenset((cell,)) for cell in cells]
        if gap is not None:
            cells[5], label_sets[5] = gap, frozenset()
        return {usual: cells}, label_sets, form
    names = ("sea", "sky", "sand", "café")[: draw(st.integers(2, 4))]
    sets = [
        [name for place, name in enumerate(names) if row * 5 % 7 >> place & 1]
        for row in range(count)
    ]
    label_sets = [frozenset(labels) for labels in sets]
    if form == "flags":
        pairs = (
            ("1", "0"),
            ("True", "False"),
            ("yes", "no"),
            ("x", ""),
            ("1.0", "0.0"),
        )
        yes, no = draw(st.sampled_from(pairs))
        columns = {
            name: [yes if name in labels else no for labels in sets] for name in names
        }
        return columns, label_sets, form
    if form == "list":
        return {usual: [str(labels) for labels in sets]}, label_sets, form
    sign = draw(st.sampled_from(("|", ";", ",", " ", ", ")))
    return {usual: [sign.join(labels) for labels in sets]}, label_sets, form


@st.composite
def tables(draw: st.DrawFn) -> tuple[Made, Callable[[Path], Path]]:
    """A table, and what writes it into a folder of pictures."""
    kind = draw(st.sampled_from(("Text", "ImageTable", "Series", "wide")))
    label_columns, label_sets, form = draw(labels_of(COUNT))
    columns: dict[str, list[str]] = dict(label_columns)
    groups = [""] * COUNT
    if draw(st.booleans()):
        groups = [f"p{row % 9}" for row in range(COUNT)]
        columns[draw(st.sampled_from(("patient", "Speaker_ID", "author id")))] = groups
    if draw(st.booleans()):
        parts = ("train", "train", "val", "test")
        name = draw(st.sampled_from(("split", "Part of", "set")))
        columns[name] = [parts[row // 2 % 4] for row in range(COUNT)]
    for extra in draw(st.lists(st.sampled_from([*EXTRAS]), max_size=2, unique=True)):
        columns.setdefault(extra, [EXTRAS[extra](row) for row in range(COUNT)])
    odd = [name for name in draw(st.permutations(ODD)) if name not in columns]
    made = Made("Series" if kind == "wide" else kind)
    contents: list[Any] = []
    if kind == "Text":
        contents = [sentence(row) for row in range(COUNT)]
        name = draw(st.sampled_from(("text", "Review", odd[0])))
        columns[name] = contents
    elif kind == "ImageTable":
        forms = ("{}.png", "pics/{}.PNG", "C:\\me\\{}.png", "{}", "./{}.png")
        named = draw(st.sampled_from(forms))
        contents = [f"{10 + row}.png" for row in range(COUNT)]
        name = draw(st.sampled_from(("file", "image_id", odd[0])))
        columns[name] = [named.format(10 + row) for row in range(COUNT)]
    else:
        contents = [
            tuple(float(level(row, moment)) for moment in range(MOMENTS + 4))
            for row in range(COUNT)
        ]
    order = draw(st.permutations([*columns]))
    rows = [[columns[name][row] for name in order] for row in range(COUNT)]
    if kind == "Series":
        key = draw(st.sampled_from(("series", "trial", "Recording ID")))
        when = draw(st.sampled_from((None, "time", "t", odd[1])))
        more = [key, *([when] if when else []), odd[0]]
        rows = [
            [*row, f"s{k}", *([str(moment)] if when else []), level(k, moment)]
            for k, row in enumerate(rows)
            for moment in range(MOMENTS + 4)
        ]
        if when in ("time", "t") and draw(st.booleans()):
            rows = rows[::-1]
        order = [*order, *more]
    elif kind == "wide":
        stem = draw(st.sampled_from(("t", "time_", "q")))
        order = [*order, *(f"{stem}{moment}" for moment in range(MOMENTS + 4))]
        rows = [
            [*row, *(level(k, moment) for moment in range(MOMENTS + 4))]
            for k, row in enumerate(rows)
        ]
    made.header, made.rows = list(order), rows
    for row, (content, labels, group) in enumerate(
        zip(contents, label_sets, groups, strict=True)
    ):
        if labels or form != "one":
            made.facts[str(row)] = content, labels, group
    return made, draw(writers(made))


EXTRAS: Mapping[str, Callable[[int], str]] = {
    "Unnamed: 0": str,
    "": str,
    "weight": lambda row: f"{50 + row * 1.37:.2f}",
    "price": lambda row: f"{row * 3},{row % 10}",
    "shot on": lambda row: f"2024-{row % 12 + 1:02d}-{row % 28 + 1:02d}",
    "source": lambda row: "Oslo",
    "city": lambda row: ("Bonn", "Kiel")[row % 2],
    "nothing": lambda row: "",
}
"""Columns that say nothing of the labels."""


@st.composite
def writers(draw: st.DrawFn, made: Made) -> Callable[[Path], Path]:
    suffix = draw(st.sampled_from((".csv", ".csv", ".tsv", ".jsonl")))
    encoding = draw(st.sampled_from(ENCODINGS))
    if suffix == ".jsonl":
        rows = [dict(zip(made.header, row, strict=True)) for row in made.rows]
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    else:
        sign = "\t" if suffix == ".tsv" else draw(st.sampled_from(SIGNS))
        quoting = draw(st.sampled_from((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)))
        ending = draw(st.sampled_from(("\n", "\r\n")))
        buffer = io.StringIO(newline="")
        above = draw(st.sampled_from(("", "", "# made by hand\n")))
        buffer.write(above.replace("\n", ending))
        writer = csv.writer(
            buffer, delimiter=sign, quoting=quoting, lineterminator=ending
        )
        writer.writerows([made.header, *made.rows])
        text = buffer.getvalue()

    def write(folder: Path) -> Path:
        for old in folder.glob("table.*"):
            old.unlink()
        path = folder / f"table{suffix}"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The kind of the data at a path, and its facts, by the number of the example."""
    options = guess(path).options["data"]
    data: Any = fit(DataSet, options, "data").make()
    facts = {}
    for item in data.listed.items:
        if options["name"] == "Text":
            content: Any = item.text
            number = int(item.name.rpartition(" ")[2]) - 1
        elif options["name"] == "ImageTable":
            content = item.path.name
            number = int(item.path.stem) - 10
        else:
            assert len(item.values) == 1
            content = tuple(round(value, 3) for value in item.values[0].tolist())
            number = int(item.name.rpartition(" ")[2]) - 1 if options.get("wide") else 0
            if not options.get("wide"):
                number = int(item.name.rpartition(":s")[2])
        facts[str(number)] = (
            content,
            frozenset(data.listed.labels_of(item.category)),
            item.group,
        )
    return options["name"], facts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    for number in range(COUNT):
        Image.new("L", (8, 8), 5 * number).save(place / f"{10 + number}.png")
    return place


def rounded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they are compared: numbers of float32, and groups of known ones."""
    return {
        number: (
            tuple(round(float(cell), 3) for cell in content)
            if isinstance(content, tuple)
            else content,
            labels,
        )
        for number, (content, labels, _) in facts.items()
    }


def check_reading(made: Made, path: Path) -> None:
    """A table is read rightly, or an error names it or a column."""
    try:
        kind, facts = read(path)
    except ValueError as error:
        message = str(error)
        assert [name for name in (path.name, *made.header) if name and name in message]
        return
    assert kind == made.kind
    assert rounded(facts) == rounded(made.facts)
    groups = {number: group for number, (*_, group) in made.facts.items()}
    named = {number: group for number, (*_, group) in facts.items()}
    assert named in (groups, dict.fromkeys(groups, ""))


def sampled(examples: int) -> Any:
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=examples, deadline=None, suppress_health_check=quiet)


@given(table=tables())
@sampled(30)
def test_a_random_table_is_read_rightly_or_refused(
    folder: Path, table: tuple[Made, Callable[[Path], Path]]
) -> None:
    made, write = table
    check_reading(made, write(folder))


@pytest.mark.thorough
@given(table=tables())
@sampled(1500)
def test_many_random_tables_are_read_rightly_or_refused(
    folder: Path, table: tuple[Made, Callable[[Path], Path]]
) -> None:
    made, write = table
    check_reading(made, write(folder))


def data_or_error(path: Path) -> Any:
    """The data set of what lies at a path, or what is wrong with it."""
    try:
        return fit(DataSet, guess(path).options["data"], "data").make()
    except ValueError as error:
        return str(error)


@pytest.mark.thorough
@given(table=tables())
@sampled(3)
def test_check_train_and_python_agree(
    folder: Path,
    table: tuple[Made, Callable[[Path], Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the reading, in the refusal, and in the classes of a trained network."""
    path = table[1](folder)
    monkeypatch.chdir(folder)
    steps = {"epochs": 1, "trainer": {"extra": {"limit_train_batches": 1}}}
    data = data_or_error(path)
    if isinstance(data, str):
        for command in ("check", "train"):
            assert status(command, str(path)) == 1
            assert data in "".join(capsys.readouterr())
        with pytest.raises(ValueError, match=re.escape(data)):
            tc.train(path, report=False, show=None, **steps)
        return
    assert status("check", str(path)) in (0, 1)
    checked = capsys.readouterr().out
    assert all(f"  {name}: " in checked for name in data.classes)
    words = ("--epochs", "1", "--trainer.extra", "{limit_train_batches: 1}")
    assert status("train", str(path), *words, "--report", "false") == 0
    printed = re.findall("^guessed: run (.*)", capsys.readouterr().out, re.MULTILINE)
    typed = tc.Classifier.open(printed[0])
    called = tc.train(path, report=False, show=None, **steps)
    assert typed.classes == called.classes == data.classes
    assert typed.task.name == called.task.name

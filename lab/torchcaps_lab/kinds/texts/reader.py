"""Reads texts: how they are recognised, and how they become rows of words."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data.columns import TEXTS, Columns
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.data.reader import (
    Read,
    Reader,
    beginning,
    holds_other_kinds,
    register_reader,
)
from torchcaps_lab.data.view import Preprocess
from torchcaps_lab.kinds.texts.class_words import ClassWords
from torchcaps_lab.kinds.texts.coloured import ROUTED
from torchcaps_lab.kinds.texts.files import named_texts, texts_of
from torchcaps_lab.kinds.texts.samples import questions
from torchcaps_lab.kinds.texts.text_set import TextSet
from torchcaps_lab.kinds.texts.words import (
    PADDING,
    RESERVED,
    UNKNOWN,
    Reading,
    Words,
    together,
)
from torchcaps_lab.look import (
    TABLES,
    Guess,
    Place,
    batch_size_for,
    cells_of,
    counted,
    lines_in,
    trained_of,
    values_of,
    watched,
)

_FILES = (".txt", ".label", ".pos", *TABLES)
"""The suffixes of files of texts."""


_USUAL = (("text", "text"), ("label", "label"))
"""Options of a table that need not be said."""


@register_reader("texts")
@dataclass(frozen=True)
class TextReader(Reader):
    """Texts, as the numbers of their words.

    Args:
        words: the vocabulary of the network.
        columns: the columns of texts and of labels in tables; None: tables are read
            line by line.
    """

    words: Words
    columns: tuple[str, str] | None = None

    examples = TextSet
    takes = "words"
    items = "texts"
    written = True
    axes = MappingProxyType({0: "batch", 1: "length"})

    @classmethod
    def sees(cls, place: Place, given: Mapping[str, Any]) -> Guess | None:
        """A table of texts with labels, or a folder of texts without images."""
        if not place.suffixes & {*_FILES} or holds_other_kinds(place, cls):
            return None
        tables = _tables_of(place)
        data: dict[str, Any] = {"name": "Text", "root": str(place.path)}
        why = {"data": f"Text, the texts in {place.path}"}
        cells = cells_of(tables[0]) if tables else None
        options: dict[str, Any] = {"data": data}
        seen: tuple[str, ...] = ()
        if cells is not None and len(cells.columns) > 1:
            columns = Columns.of(cells)
            seen = tuple(columns.lines())
            form = form_of(columns, tables[0], values_of(given.get("data")))
            for name, value in form.items():
                if (name, value) not in _USUAL:
                    data[name] = value
                    why[f"data.{name}"] = _reason(name, value)
            if unused := columns.unused(_names_in(form)):
                why["columns"] = f"not used: {unused}"
        train = _trained(place, tables)
        if train:
            options["batch_size"] = batch_size_for(train)
            steps = counted(max(train // options["batch_size"], 1), "steps")
            why["batch_size"] = f"{options['batch_size']}, for about {steps} an epoch"
        return watched(Guess(options, why, seen=seen), given, train // 9)

    @classmethod
    def of_data(cls, data: Any, preprocess: Preprocess) -> "TextReader":
        """The vocabulary of the training texts."""
        text = getattr(data, "text", None)
        label = getattr(data, "label", None)
        if text is None or label is None:
            return cls(data.words)
        label = label if isinstance(label, str) else label[0]
        return cls(data.words, (text, label))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "TextReader":
        """The reader that :meth:`config` describes."""
        words = Words.from_config(config["words"])
        columns = config.get("columns")
        if words is None:
            raise ValueError("the reader of texts has no words")
        if columns is None:
            return cls(words)
        text, label = map(str, columns)
        return cls(words, (text, label))

    def config(self) -> dict[str, Any]:
        """The vocabulary, and the columns of tables."""
        columns = None if self.columns is None else list(self.columns)
        return {"words": self.words.config(), "columns": columns}

    def check(self, network: ClassifierNetwork) -> None:
        """Raise a `ValueError` if the vocabulary is larger than that of the network."""
        super().check(network)
        vocabulary_size = getattr(network, "vocabulary", None)
        if vocabulary_size is not None and len(self.words) > vocabulary_size:
            raise ValueError(
                f"the network knows {vocabulary_size} words, and the vocabulary saved with it "
                f"has {len(self.words)}"
            )

    def read(self, given: Any, resize: Any = None) -> Read:
        """The numbers of the words of a text, int64 (L,)."""
        return Read(self.reading(given).numbers, "")

    def unexplored(self, network: ClassifierNetwork) -> str:
        """Why there is nothing to explore: no routing leads from words to classes."""
        if isinstance(network, ROUTED):
            return ""
        return "whose words cannot be followed to the classes"

    def followed(self, network: ClassifierNetwork, given: str) -> ClassWords:
        """What each word of a text spoke for."""
        shown = ClassWords.of(network, self.words, given)
        assert shown is not None
        return shown

    def samples(
        self,
        name: str,
        classifier: Any,
        tell: Any,
    ) -> Examples | None:
        """TREC's test questions, or made-up ones."""
        return questions(name, self, classifier.classes, tell)

    def reading(self, text: Any) -> Reading:
        """A text with the places of its words.

        Raises:
            ValueError: if it is no string, or has no words.
            UserWarning: as a warning, if none of its words is known.
        """
        if not isinstance(text, str):
            raise ValueError(f"a text must be a string, got {type(text).__name__}")
        (reading,) = self.words.read([text])
        if not reading.length:
            raise ValueError(f"there are no words in {text!r}")
        if reading.unknown == len(reading.numbers):
            warnings.warn(
                f"no word of {beginning(text, 60)!r} was in the training texts: its "
                "answer is a guess",
                stacklevel=2,
            )
        return reading

    def collate(self, rows: Sequence[Tensor]) -> Tensor:
        """Texts of any lengths, (B, longest)."""
        return together(rows)

    def fitted(self, examples: Examples) -> Examples:
        """The texts in the words of the network."""
        return TextSet.require(super().fitted(examples)).in_words(self.words)

    def named(self, names: Sequence[str]) -> Iterable[Any]:
        """Texts, lines of files, the texts of tables, or whole files in folders."""
        for name in names:
            if self.columns is not None and self._is_table(Path(name)):
                yield from texts_of(Path(name), self.columns[0])
            else:
                yield from named_texts([name])

    def _is_table(self, path: Path) -> bool:
        """Whether a path is a table with the column of texts."""
        if path.suffix.lower() not in TABLES or not path.is_file():
            return False
        cells = cells_of(path, 1)
        return (
            self.columns is not None
            and cells is not None
            and self.columns[0] in cells.columns
        )

    def notes(self) -> dict[str, Any]:
        """The vocabulary, and the numbers that stand for no word of it."""
        return {
            "padding": PADDING,
            "unknown": UNKNOWN,
            "first": RESERVED,
            "words": self.words.config(),
        }

    def __str__(self) -> str:
        return (
            "words (batch, length), int64: the numbers of its vocabulary, which "
            "lies in it"
        )


def _tables_of(place: Place) -> list[Path]:
    """The tables at a path, those for training first."""
    tables = [path for path in place.top if path.suffix.lower() in TABLES]
    return sorted(tables, key=lambda path: part_called(path.stem) != "train")


def _trained(place: Place, tables: Sequence[Path]) -> int:
    """About how many texts are trained on; 0 if that is not known."""
    if place.is_file:
        return trained_of(lines_in(place.path))
    if tables and part_called(tables[0].stem) == "train":
        return lines_in(tables[0]) * 9 // 10
    return trained_of(len(place.with_suffix(".txt")))


def form_of(columns: Columns, table: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say which columns of a table hold what.

    Args:
        columns: those of the table.
        table: its path, for messages.
        given: the options of the data set that the user gave.

    Raises:
        ValueError: no column holds texts, or none or several may hold the labels; names
            the columns.
    """
    form: dict[str, Any] = {"text": given.get("text") or _text_column(columns, table)}
    splits = columns.of_role("split")
    form |= {"split": splits[0].name} if splits else {}
    form |= {name: given[name] for name in ("split", "group") if name in given}
    if "label" in given:
        label = given["label"]
        form["label"] = label
        column = columns.by_name.get(label) if isinstance(label, str) else None
        between = "" if column is None else column.between
    else:
        labels = columns.labels(_names_in(form), str(table))
        names = [column.name for column in labels]
        form["label"] = names[0] if len(names) == 1 else names
        between = labels[0].between
    between = given.get("delimiter", between)
    return form | ({"delimiter": between} if between else {})


def _text_column(columns: Columns, table: Path) -> str:
    """The column of texts.

    Raises:
        ValueError: there is none.
    """
    named = columns.called(TEXTS)
    if named:
        return named[0].name
    texts = columns.of_role("text")
    if not texts:
        rest = columns.of_role("identifier")
        texts = [] if columns.of_role("number") else rest
    if not texts:
        held = ", ".join(f"{column.name} ({column.role})" for column in columns.columns)
        what = "numbers and no texts" if columns.of_role("number") else "no texts"
        series = ""
        if columns.of_role("identifier", "date", "group"):
            series = (
                "; or, if rows are moments of series, train with --data Series "
                f"--data.root {table} --data.series COLUMN --data.label COLUMN"
            )
        raise ValueError(
            f"{table} holds {what}: {held}. Name the column of texts with --data.text; "
            f"or give features to torchcaps.sklearn.CapsNetClassifier{series}"
        )
    return max(texts, key=lambda column: column.length).name


def _names_in(form: Mapping[str, Any]) -> list[str]:
    """The names of the columns in options."""
    names: list[str] = []
    for option, value in form.items():
        if option != "delimiter" and value is not None:
            names += [value] if isinstance(value, str) else value
    return names


def _reason(option: str, value: Any) -> str:
    """What an option of a table says, for people."""
    if option == "delimiter":
        return f"{value!r}, between the labels of one text"
    if isinstance(value, str):
        return f"{value}, the column of the {option}s"
    return f"{', '.join(value)}, a column of 0 and 1 for each class"

"""Reads texts: how they are recognised, and how they become rows of words."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from torchcaps.models import ClassifierNetwork
from torchcaps.whole import is_there
from torchcaps_lab.data.columns import (
    TEXTS,
    Columns,
    UnclearColumns,
    quoted,
    which_of,
)
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.pairs import is_pair, is_two_arrays
from torchcaps_lab.data.reader import (
    Read,
    Reader,
    beginning,
    endings_of_others,
    holds_other_kinds,
    inputs_in,
    register_reader,
)
from torchcaps_lab.data.table_form import (
    TableForm,
    is_of_others,
    labelled_tables,
    reasons,
    tables_of,
)
from torchcaps_lab.data.tables import Table
from torchcaps_lab.data.transforms.preprocess import Preprocess
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
    counted,
    data_asked,
    lines_in,
    trained_of,
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
    in_program = "TextList"
    written = True
    axes = MappingProxyType({0: "batch", 1: "length"})

    @classmethod
    def sees(cls, place: Place, given: Mapping[str, Any]) -> Guess | None:
        """A table of texts with labels, or a folder of texts without images."""
        asked = data_asked(given)
        if not place.suffixes & {*_FILES} or is_of_others(asked, "text"):
            return None
        if holds_other_kinds(place, cls):
            return None
        tables = tables_of(place)
        if "all" in tables and {*place.with_suffix(".txt")} - {*place.top}:
            tables = {}  # it lies beside folders of texts
        data: dict[str, Any] = {"name": "Text", "root": str(place.path)}
        why = {"data": f"Text, the texts in {place.path}"}
        options: dict[str, Any] = {"data": data}
        seen: tuple[str, ...] = ()
        if tables:
            table, *_ = tables.values()
            columns = Columns.of(Table(table).cells())
            seen = tuple(columns.lines())
            text = asked.get("text") or _text_column(columns, table)
            chosen = TableForm.of(columns, text, table, asked)
            labelled = labelled_tables(tables, chosen.labels)
            if len(labelled) == 1:
                data["root"] = str(table)
                why["data"] = f"Text, the texts in {table}"
            unlabelled = [tables[part].name for part in tables if part not in labelled]
            if unlabelled:
                why["data"] += f"; without labels: {', '.join(unlabelled)}"
            tables = labelled
            form = {"text": text, **chosen.options()}
            data |= {
                name: form[name] for name in form if (name, form[name]) not in _USUAL
            }
            why |= reasons(form, columns)
        train = _trained(place, [*tables.values()])
        if train:
            steps, why_steps = cls.steps_for(train)
            options |= steps
            why |= why_steps
        return watched(Guess(options, why, seen=seen), given, train // 9)

    @classmethod
    def steps_for(cls, train: int) -> tuple[dict[str, Any], dict[str, str]]:
        """The batch size alone: few texts are learned by heart in more epochs."""
        batch = batch_size_for(train)
        steps = counted(max(train // batch, 1), "steps")
        return {"batch_size": batch}, {
            "batch_size": f"{batch}, for about {steps} an epoch"
        }

    @classmethod
    def recognises(cls, data: Any, labels: Any) -> bool:
        """Texts that name no files: in a list with labels beside them, or in pairs."""
        if not isinstance(data, list | tuple) or (
            labels is None and is_two_arrays(data)
        ):
            return False
        if labels is None:
            data = [pair[0] for pair in data if is_pair(pair)]
        # One that is missing is refused by its number.
        texts = [text for text in data if isinstance(text, str)]
        endings = endings_of_others(cls)
        return bool(texts) and not any(
            Path(text).suffix.lower() in endings or is_there(Path(text).is_file)
            for text in texts
        )

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

    def samples(self, name: str, classifier: Any, tell: Any) -> Examples | None:
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

    def inputs_of(self, name: str) -> Iterable[Any]:
        """A text, the lines of a file, the texts of a table, or whole files in a
        folder.
        """
        path = Path(name)
        if path.suffix.lower() in TABLES and is_there(path.is_file):
            return inputs_in(path, self._in_table)
        return named_texts([name])

    def _in_table(self, path: Path) -> Iterable[Any]:
        """The texts of a table, or its lines if it lacks the column of texts."""
        if self.columns is not None and self.columns[0] in Table(path).columns:
            return texts_of(path, self.columns[0])
        return named_texts([str(path)])

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
            "words (batch, length), int64: their numbers in the vocabulary that its "
            "metadata hold"
        )


def _trained(place: Place, tables: Sequence[Path]) -> int:
    """About how many texts are trained on; 0 if that is not known."""
    if len(tables) == 1:
        return trained_of(lines_in(tables[0]))
    if tables:
        return lines_in(tables[0]) * 9 // 10
    return trained_of(len(place.with_suffix(".txt")))


def _text_column(columns: Columns, table: Path) -> str:
    """The column of texts.

    Raises:
        ValueError: there is none, or two have texts that are about as long.
    """
    named = [column for column in columns.called(TEXTS) if column.role == "text"]
    texts = columns.of_role("text")
    if named:
        return named[0].name
    if not texts:
        raise _no_texts(columns, table)
    first, *others = sorted(texts, key=lambda column: -column.length)
    if others and 2 * others[0].length > first.length:
        raise which_of([first, others[0]], str(table), "may hold the texts", "text")
    return first.name


def _no_texts(columns: Columns, table: Path) -> UnclearColumns:
    """The error for a table that nothing reads."""
    held = columns.unused(()) or "it is empty"
    if rows := columns.of_role("numbers"):
        return UnclearColumns(
            f"{table} holds no texts and names no images that are there: {held}. "
            f"Column {rows[0].name!r} has a row of numbers in each cell: if these are "
            "pixels or series, read them in Python into an array, and train with "
            "torchcaps.train(inputs, labels)"
        )
    if not columns.of_role("number"):
        return UnclearColumns(
            f"{table} holds no texts and names no images that are there: {held}. Name "
            "the column of texts with --data.text, or that of images with --data.file"
        )
    return UnclearColumns(
        f"{table} holds numbers and no texts: {held}. Name the column of texts with "
        "--data.text. If each row is an example of its own, give its features to "
        "torchcaps.sklearn.CapsNetClassifier. If each row is a series: torchcaps train "
        f"{quoted(str(table))} --data.wide true --data.label COLUMN. If each row is a "
        f"moment of a series: torchcaps train {quoted(str(table))} --data.series COLUMN "
        "--data.label COLUMN, and --data.time COLUMN if a column holds the time"
    )

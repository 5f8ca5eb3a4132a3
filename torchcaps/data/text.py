"""Texts: cut into words, the words numbered, and the places where collections keep them."""

import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from io import BytesIO, StringIO
from itertools import chain, islice, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torchcaps.data.base import Batch, ImageSet, find_data_dir, register_dataset
from torchcaps.data.files import Listing, _is, list_folder
from torchcaps.data.listed import Item, Listed, ListedImages, part_called
from torchcaps.data.manifest import PARTS, Manifest, count_of, some
from torchcaps.data.picture import BrokenImage
from torchcaps.data.view import Preprocess
from torchcaps.numerics import check_sizes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING, UNKNOWN, RESERVED = 0, 1, 2
"""What stands behind the end of a text, the number of words that are not in the vocabulary, the first of all others."""


class Reading(NamedTuple):
    """A text as a network reads it.

    Args:
        numbers: of its words, the first ``longest`` of them, int64 (L,).
        spans: where in the text each of these stands: its first character, and the one behind its last.
        length: how many words the text has.

    Example:
        >>> from torchcaps.data import Words
        >>> (reading,) = Words(("a", "pose")).read(["A pose moves"])
        >>> reading.numbers.tolist(), reading.length, reading.unknown
        ([2, 3, 1], 3, 1)
        >>> reading.spans
        ((0, 1), (2, 6), (7, 12))
    """

    numbers: Tensor
    spans: tuple[tuple[int, int], ...]
    length: int

    @property
    def unknown(self) -> int:
        """How many of the words that are read are not in the vocabulary."""
        return int((self.numbers == UNKNOWN).sum())


@dataclass(frozen=True)
class Words:
    """A vocabulary, and how texts are cut into words: all that it takes to read texts as a network learned to.

    A text is brought into one form of Unicode (NFKC) and, with ``lower``, into lower case. It is cut at blanks; each
    punctuation mark and each Chinese character is a word of its own. The library tokenizers does all of this.

    Args:
        vocabulary: the words, the first of which has the number 2. 0 pads short texts, 1 is any other word.
        lower: whether capital letters count as small ones.
        longest: how many words of a text are read.

    Raises:
        ValueError: a word is there twice, or ``longest`` is less than 1.

    Example:
        >>> from torchcaps.data import Words
        >>> words = Words.of(["A capsule has a pose.", "A pose moves."], least=2)
        >>> words.vocabulary
        ('a', '.', 'pose')
        >>> words.read(["A pose, a guess"])[0].numbers
        tensor([2, 4, 1, 2, 1])
    """

    vocabulary: tuple[str, ...] = ()
    lower: bool = True
    longest: int = 512

    def __post_init__(self) -> None:
        check_sizes(longest=self.longest)
        if len(set(self.vocabulary)) < len(self.vocabulary):
            twice = [word for word, count in Counter(self.vocabulary).items() if count > 1]
            raise ValueError(f"vocabulary must hold each word once, got {some(twice)} more often")

    @classmethod
    def of(cls, texts: Sequence[str], most: int | None = None, least: int = 1, **how: Any) -> "Words":
        """The vocabulary of some texts, the most frequent words first.

        Args:
            texts: all that are trained on.
            most: how many words at most.
            least: how often a word must be there.
            how: ``lower`` and ``longest``.
        """
        cut, counts = cls(**how), Counter[str]()
        for text in texts:
            counts.update(cut.split(text))
        ranked = sorted((word for word in counts if counts[word] >= least), key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[:most]), **how)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def split(self, text: str) -> list[str]:
        """The words of a text, all of them, in the form that the vocabulary has."""
        normalizer, cutter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        assert normalizer is not None
        assert cutter is not None
        return [word for word, _ in cutter.pre_tokenize_str(normalizer.normalize_str(text))]

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """Texts as a network reads them."""
        readings = []
        for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False):
            numbers = torch.tensor(found.ids[: self.longest], dtype=torch.int64)
            readings.append(Reading(numbers, tuple(found.offsets[: self.longest]), len(found.ids)))
        return readings

    def config(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {"vocabulary": list(self.vocabulary), "lower": self.lower, "longest": self.longest}

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> "Words | None":
        """What :meth:`config` gave; None of None.

        Raises:
            ValueError: it is damaged.
        """
        if config is None:
            return None
        try:
            return cls(tuple(map(str, config["vocabulary"])), bool(config["lower"]), config["longest"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"the words that were saved with the network are damaged: {error!r}") from error

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        numbers = {"[padding]": PADDING, "[unknown]": UNKNOWN}  # no text has these: a bracket is a word of its own
        numbers |= {word: number for number, word in enumerate(self.vocabulary, RESERVED)}
        found = Tokenizer(models.WordLevel(numbers, unk_token="[unknown]"))
        cleaned: Any = normalizers.BertNormalizer(strip_accents=False, lowercase=self.lower)
        found.normalizer = normalizers.Sequence([normalizers.NFKC(), cleaned])
        found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return found


@dataclass(frozen=True, eq=False)
class TextSet(ImageSet):
    """Labelled texts: an :class:`ImageSet` whose images are rows of words.

    Batches are as long as the longest text in them: their ``images`` are int64 (B, L), the numbers of the words, and 0
    behind the end of a text; so are their ``pictures``.

    Attributes:
        images: int64 (N, longest of all), likewise.
        texts: as they were written.
        words: what the numbers mean.

    Raises:
        ValueError: a tensor has another type or shape, a label is out of range, or ``preprocess`` or ``composition``
            is given, which are for images.

    Example:
        >>> from torchcaps.data import TextSet, Words
        >>> words = Words(("who", "wrote", "it"))
        >>> texts = TextSet.of(["Who wrote it?", "Who?"], torch.tensor([0, 1]), ("long", "short"), words)
        >>> texts.images
        tensor([[2, 3, 4, 1],
                [2, 1, 0, 0]])
    """

    what = "texts"

    texts: tuple[str, ...] = ()
    words: Words = Words()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.int64 or self.images.ndim != 2:
            raise ValueError(f"images must be int64 (N, L), got {self.images.dtype} {tuple(self.images.shape)}")
        for name, one in (("texts", self.texts), ("files", self.files)):
            if one is not None and len(one) != len(self.images):
                raise ValueError(f"{name} must be {len(self.images)}, one for each row of words, got {len(one)}")
        if self.preprocess != Preprocess() or self.composition is not None:
            raise ValueError("preprocess and composition are for images: texts take none")
        self._check_labels()

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        labels: Tensor,
        classes: tuple[str, ...],
        words: Words,
        files: tuple[str, ...] | None = None,
    ) -> "TextSet":
        """Texts with labels, int64 (N,) or masks, bool (N, E), in the numbers of some words."""
        rows = [reading.numbers for reading in words.read(texts)]
        return cls(together(rows), labels, classes, files, texts=tuple(texts), words=words)

    @property
    def raw_image_shape(self) -> tuple[int, int, int]:
        """One channel, one row, and how many words of a text are read."""
        return 1, 1, self.words.longest

    def in_words(self, words: Words) -> "TextSet":
        """The same texts in the numbers of another vocabulary."""
        if words == self.words:
            return self
        return TextSet.of(self.texts, self.labels, self.classes, words, self.files)

    def subset(self, indices: Tensor) -> "TextSet":
        """The texts at ``indices``, int64 (M,), in that order."""
        texts = tuple(self.texts[index] for index in indices.tolist())
        files = None if self.files is None else tuple(self.files[index] for index in indices.tolist())
        return replace(self, images=self.images[indices], labels=self.labels[indices], files=files, texts=texts)

    def _fetch(self, indices: list[int]) -> Batch:
        rows = torch.as_tensor(indices, dtype=torch.int64).to(self.images.device, non_blocking=True)
        words = self.images[rows]
        length = max(1, int((words != PADDING).sum(1).max())) if len(indices) else 1
        words = words[:, :length]
        return Batch(words, self.labels[rows], rows, words)


def together(rows: Sequence[Tensor]) -> Tensor:
    """Rows of words, int64 (L,) each, as one tensor (B, longest), padded behind their ends; (B, 1) at least."""
    if not rows:
        return torch.zeros(0, 1, dtype=torch.int64)
    padded = pad_sequence(list(rows), batch_first=True, padding_value=PADDING)
    return padded if padded.shape[1] else padded.new_zeros(len(rows), 1)


def joined(texts: TextSet, count: int, parts: int = 2, seed: int = 0) -> TextSet:
    """Texts of different classes, one behind the other: what was never seen in training, with masks as labels.

    The first part of each is any of the texts, each further one any of those of the classes that are not in it yet.

    Args:
        texts: of one class each.
        count: how many to make.
        parts: texts in each.
        seed: of the choice.

    Raises:
        ValueError: there are fewer classes than ``parts``, or the texts have masks already.
    """
    check_sizes(count=count, parts=parts)
    if texts.labels.ndim != 1 or len(texts.labels.unique()) < parts:
        raise ValueError(f"texts must be of one class each, and of {parts} classes at least")
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, len(texts.classes), dtype=torch.bool)
    lines = []
    for mask in masks:
        chosen = []
        for _ in range(parts):
            free = (~mask[texts.labels]).nonzero().squeeze(1)
            place = int(free[torch.randint(len(free), (1,), generator=generator)])
            mask[texts.labels[place]] = True
            chosen.append(texts.texts[place])
        lines.append(" ".join(chosen))
    return TextSet.of(lines, masks, texts.classes, texts.words)


class TextItem(NamedTuple):
    """One text that is listed.

    Args:
        name: which one it is: its file, or its file and line.
        category: the name of its class.
        text: what it says.
    """

    name: str
    category: str
    text: str

    @property
    def title(self) -> str:
        """What people call it."""
        return self.name

    def source(self) -> BytesIO:
        """What it says."""
        return BytesIO(self.text.encode())


@register_dataset("text")
class Text(ListedImages):
    r"""Texts with a class each, in any of the forms that they come in.

    - a folder with a sub-folder of .txt files for each class, or folders ``train`` and ``test`` that hold these, as for
      :class:`~torchcaps.data.ImageFolder`; a file is a text;
    - a table, a .csv or .tsv file with a column of texts and one of labels; or a folder with the tables ``train`` and
      ``test``, and maybe ``val``;
    - the folders of four collections in their original form: TREC (``train_5500.label``, ``TREC_10.label``), MR
      (``rt-polarity.pos``, ``.neg``), SUBJ (``subj.subjective``, ``.objective``), SST (``stsa.binary.train``, ``.dev``,
      ``.test``, or ``stsa.fine.train``, ...; where both are in the folder, ``root`` is the file ``stsa.binary.train``).

    Files are read as UTF-8, or else as Latin-1. A text without a word is left out, and so is a row without a label.
    The words of the training texts are the vocabulary, which is saved with a network. Which texts are put aside
    depends on what they say, and a run keeps a record of it, as with :class:`~torchcaps.data.ImageFolder`.

    Args:
        root: the folder, or the table; what is not there is looked for in the folder of the data sets (the environment
            variable TORCHCAPS_DATA, else torchcaps in the user's cache folder).
        text: the column of the texts.
        label: the column of the labels.
        longest: how many words of a text are read; of longer ones the beginning, and it is said how many there are.
        most: how many words the vocabulary has at most, the most frequent ones.
        least: how often a word must be there to be in the vocabulary.
        lower: whether capital letters count as small ones.
        test: share of the texts that are the test set, the same in every class; not used where there is one.
        validation: share of the training texts put aside for validation, the same in every class; 0 puts none
            aside. Not used where there are such texts beside those to test on.
        seed: chooses which texts those are; nothing else does.

    Raises:
        FileNotFoundError: there is no `root`.
        ValueError: an argument is out of range, there is nothing of the forms above, or there are fewer than two
            classes.

    Example:
        >>> from pathlib import Path
        >>> from torchcaps.data import Text
        >>> rows = [f"it was {word} {place},{word}" for word in ("dull", "fun") for place in range(10)]
        >>> Path("reviews.csv").write_text("\n".join(["review,stars", *rows])) > 0
        True
        >>> data = Text("reviews.csv", text="review", label="stars")
        >>> data.classes
        ('dull', 'fun')
    """

    gives = "words"
    model = "text_pooled"

    def __init__(
        self,
        root: str,
        text: str = "text",
        label: str = "label",
        longest: int = 512,
        most: int = 50_000,
        least: int = 1,
        lower: bool = True,
        test: float = 0.2,
        validation: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(test=test, validation=validation, seed=seed)
        check_sizes(longest=longest, most=most, least=least)
        self.root = _found(Path(root).expanduser())
        self.text, self.label = text, label
        self.longest, self.most, self.least, self.lower = longest, most, least, lower
        _ = self.listed  # what is wrong with the files is told at once

    @property
    def words(self) -> Words:
        """The vocabulary, of the training texts."""
        train = self.train
        assert isinstance(train, TextSet)
        return train.words

    def arguments(self, preprocess: Preprocess) -> dict[str, Any]:
        """How many words a network must know; a `ValueError` if ``preprocess`` asks for something."""
        self.train.prepared(preprocess)
        return {"vocabulary": len(self.words)}

    def kept(self) -> dict[str, Any]:
        """The vocabulary, and how texts are cut into words."""
        return {"words": self.words.config(), "raw_image_shape": list(self.image_shape)}

    def list_images(self) -> Listed:
        """The texts, without those that have no words."""
        listed = self.list_texts()
        cut = Words(lower=self.lower)
        for items in listed.parts.values():
            # A letter is a word or a part of one; other texts are looked at more closely.
            bare = [item for item in items if not any(map(str.isalnum, item.text))]
            empty = {item.name for item in bare if not cut.split(item.text)}
            listed.left_out |= dict.fromkeys(sorted(empty), "it has no words")
            items[:] = [item for item in items if item.name not in empty]
        listed.classes = tuple(sorted({item.category for item in listed.items}))
        if len(listed.classes) < 2:
            raise ValueError(f"{self.root} must hold texts of two or more classes, got {listed.classes}")
        return listed

    def list_texts(self) -> Listed:
        """All texts, in any order of the classes."""
        return _listed(self.root, partial(_table, columns=(self.text, self.label)))

    def load_train(self) -> ImageSet:
        """The training texts, those for validation included unless these are of their own."""
        train, validation = (self._read.sets[part] for part in ("train", "validation"))
        if "validation" in self.listed.parts or not len(validation):
            return train
        assert isinstance(train, TextSet)
        assert isinstance(validation, TextSet)
        texts, labels = train.texts + validation.texts, torch.cat([train.labels, validation.labels])
        return TextSet.of(texts, labels, train.classes, train.words, (*(train.files or ()), *(validation.files or ())))

    def fingerprint(self) -> str:
        """A digest of the texts to train and to validate on, in their order, and of how they are read."""
        how = (self.manifest().digest(), self.longest, self.most, self.least, self.lower)
        return hashlib.sha256(repr(how).encode()).hexdigest()

    def notes(self) -> tuple[str, ...]:
        """What a reader of results should know: what was left out and why, which texts are cut, which are copies."""
        sets = [one for one in self._read.sets.values() if isinstance(one, TextSet)]
        # A row that is full may be a text of just that length.
        full = [text for one in sets for text in one.texts if len(text) > self.longest]
        cut = [reading.length for reading in self.words.read(full) if reading.length > self.longest]
        line = (
            f"{count_of(cut, 'text')} of {sum(map(len, sets)):,} longer than {self.longest} words, of which the first "
        )
        line += f"{self.longest} are read; the longest has {max(cut, default=0):,}"
        return (*super().notes(), *([line] if cut else []))

    def _decode(self, manifest: Manifest) -> tuple[dict[str, ImageSet], dict[str, BrokenImage]]:
        """The texts of each part; the vocabulary is that of the training texts."""
        texts = {part: [self._texts[entry.name].text for entry in manifest.parts[part]] for part in PARTS}
        if not any(texts.values()):
            raise ValueError("there is none of the texts that the run was trained and tested on")
        words = Words.of(texts["train"], self.most, self.least, lower=self.lower, longest=self.longest)
        label_of = {name: label for label, name in enumerate(manifest.classes)}
        sets: dict[str, ImageSet] = {}
        for part in PARTS:
            entries = manifest.parts[part]
            labels = torch.tensor([label_of[entry.category] for entry in entries], dtype=torch.int64)
            files = tuple(entry.name for entry in entries)
            sets[part] = TextSet.of(texts[part], labels, manifest.classes, words, files)
        return sets, {}

    def _digest(self, item: Item) -> str:
        return hashlib.sha256(self._texts[item.name].text.encode()).hexdigest()

    @cached_property
    def _texts(self) -> dict[str, TextItem]:
        return {item.name: item for part in self.listed.parts.values() for item in part}


class MadeQuestions(Text):
    """Questions of four classes that are made here, of a few patterns and words: to try things, and for tests.

    Args:
        count: how many of each class.
        validation: as of :class:`Text`.
        seed: likewise.

    Example:
        >>> from torchcaps.data import MadeQuestions
        >>> data = MadeQuestions(20)
        >>> data.classes
        ('number', 'person', 'place', 'reason')
        >>> data.test.texts[0]
        'how far away is a river ?'
    """

    def __init__(self, count: int = 60, validation: float = 0.1, seed: int = 0) -> None:
        check_sizes(count=count)
        self.count = count
        super().__init__("", validation=validation, seed=seed)

    def list_texts(self) -> Listed:
        """So many questions of each class, all different: from the 37th on, two in one."""
        items = []
        for category, patterns in _PATTERNS.items():
            asked = [f"{pattern.format(thing)} ?" for thing in _THINGS for pattern in patterns]
            texts = chain(asked, (f"{first} {second}" for first, second in permutations(asked, 2)))
            items += [
                TextItem(f"{category}:{place}", category, text) for place, text in enumerate(islice(texts, self.count))
            ]
        return Listed(parts={"all": items})


_THINGS = ("river", "king", "book", "city", "engine", "song", "castle", "dog", "planet")
_PATTERNS = {
    "number": ("how many years is the {} old", "how much does a {} cost", "how tall is the {}", "how far away is a {}"),
    "person": ("who found the {}", "who was afraid of a {}", "who wrote about the {}", "which man lost a {}"),
    "place": ("where is the {}", "in what country is a {}", "where was the {} seen", "what street has a {}"),
    "reason": ("why is the {} famous", "why would a {} be painted", "what caused the {} to fall", "why keep a {}"),
}


def _found(root: Path) -> Path:
    """The root where it is, or in the folder of the data sets."""
    at_home = find_data_dir(None) / root
    if not root.exists() and not at_home.exists():
        raise FileNotFoundError(f"root {root} does not exist, and neither does {at_home}")
    return root if root.exists() else at_home


Table = Callable[[Path, dict[str, str]], list[TextItem]]
"""Reads the rows of a table, and notes why some are left out."""

_STARS = ("very negative", "negative", "neutral", "positive", "very positive")
_SST = {"stsa.binary.": ("negative", "positive"), "stsa.fine.": _STARS}
_TABLES = {".csv": ",", ".tsv": "\t"}
_LINES = {
    ("rt-polarity.pos", "rt-polarity.neg"): ("positive", "negative"),
    ("subj.subjective", "subj.objective"): ("subjective", "objective"),
}
"""Collections of two files, a text in each line."""


def _listed(root: Path, table: Table) -> Listed:
    """What is in a folder or a file, by the form that it has."""
    left_out: dict[str, str] = {}
    if root.suffix.lower() in _TABLES and root.is_file():
        return Listed(parts={"all": table(root, left_out)}, left_out=left_out)
    kinds = [kind for kind in _SST if root.name.startswith(kind) or (root / f"{kind}train").is_file()]
    if len(kinds) > 1:
        raise ValueError(f"{root} holds {' and '.join(f'{kind}train' for kind in kinds)}: give one of them as root")
    if kinds:
        return _sst(root if root.is_dir() else root.parent, kinds[0])
    if not root.is_dir():
        raise ValueError(f"root {root} must be a folder, or a table of texts: a .csv or .tsv file")
    if (root / "train_5500.label").is_file():
        return Listed(parts={"train": _trec(root / "train_5500.label"), "test": _trec(root / "TREC_10.label")})
    for files, classes in _LINES.items():
        if (root / files[0]).is_file():
            rows = [_lines(root / file, category) for file, category in zip(files, classes, strict=True)]
            return Listed(parts={"all": list(chain(*rows))})
    tables = _tables(root)
    if {"train", "test"} <= tables.keys():
        return Listed(parts={part: table(path, left_out) for part, path in tables.items()}, left_out=left_out)
    return _folder(root)


def _tables(root: Path) -> dict[str, Path]:
    """The tables of the parts in a folder."""
    tables: dict[str, Path] = {}
    for path in sorted(root.iterdir()):
        part = part_called(path.stem) if path.suffix.lower() in _TABLES else None
        if part in tables:
            raise ValueError(f"{root} holds two tables for {part}, {tables[part].name} and {path.name}: keep one")
        if part is not None:
            tables[part] = path
    return tables


def _folder(root: Path) -> Listed:
    found = list_folder(root, _TextFiles)
    parts = {
        part: [TextItem(file.name, file.category, decoded(file.path)) for file in files]
        for part, files in found.parts.items()
    }
    return Listed(parts=parts, left_out=found.left_out, notes=found.notes)


class _TextFiles(Listing):
    """The files with the suffix .txt in a folder of classes."""

    what = "texts"

    @cached_property
    def _suffixes(self) -> set[str]:
        return {".txt"}

    def _not_opened(self, suffix: str) -> str:
        return "only .txt files are texts"


def decoded(path: Path) -> str:
    """What is in a file: UTF-8, or else Latin-1, in which any file means something.

    Raises:
        ValueError: if it holds zero bytes, as pictures do and no text in either.
    """
    content = path.read_bytes()
    if b"\0" in content:
        raise ValueError(f"{path} is no text in UTF-8 or Latin-1: it holds zero bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n")


def lines_of(path: Path) -> list[str]:
    """The lines of a file, without the empty one behind the last. Only a line feed ends a line."""
    return decoded(path).removesuffix("\n").split("\n")


def _numbered(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file with their names."""
    return ((f"{path.name}:{number}", line) for number, line in enumerate(lines_of(path), 1))


def _trec(path: Path) -> list[TextItem]:
    """Lines such as ``HUM:desc Who was Galileo ?``, of which the class is HUM."""
    rows = ((name, *line.partition(" ")) for name, line in _numbered(path))
    return [TextItem(name, label.partition(":")[0], text) for name, label, _, text in rows]


def _lines(path: Path, category: str) -> list[TextItem]:
    return [TextItem(name, category, line) for name, line in _numbered(path)]


def _sst(folder: Path, kind: str) -> Listed:
    """Lines such as ``1 a stirring , funny film``."""
    numbers = {str(number): name for number, name in enumerate(_SST[kind])}
    parts: dict[str, list[TextItem]] = {}
    left_out: dict[str, str] = {}
    for part, suffix in (("train", "train"), ("validation", "dev"), ("test", "test")):
        parts[part] = []
        for name, line in _numbered(folder / f"{kind}{suffix}"):
            label, _, text = line.partition(" ")
            if not line.strip():
                left_out[name] = "it has no label"
                continue
            if label not in numbers:
                raise ValueError(f"{folder / name} must begin with a label, {', '.join(numbers)}, got {line[:40]!r}")
            parts[part].append(TextItem(name, numbers[label], text))
    return Listed(parts=parts, left_out=left_out)


def _table(path: Path, left_out: dict[str, str], columns: tuple[str, str]) -> list[TextItem]:
    limit = csv.field_size_limit(2**31 - 1)  # a text may be longer than csv expects
    try:
        reader = csv.DictReader(StringIO(decoded(path), newline=""), delimiter=_TABLES[path.suffix.lower()])
        rows, found = list(reader), reader.fieldnames or []
    except csv.Error as error:
        raise ValueError(f"{path} is no table: {error}") from error
    finally:
        csv.field_size_limit(limit)
    for argument, column in zip(("text", "label"), columns, strict=True):
        if column not in found:
            raise ValueError(f"{argument} must be a column of {path}, got {column!r}; there are {found}")
    items = []
    for number, row in enumerate(rows, 1):
        text, label = (row[column] for column in columns)
        name = f"{path.name}, row {number}"
        if label and label.strip():
            items.append(TextItem(name, label.strip(), text or ""))
        else:
            left_out[name] = "it has no label"
    return items


class NamedText(str):
    """A text that knows where it was found.

    Attributes:
        place: the file and the line, with a colon and a blank behind them; empty for a text of its own.
    """

    place = ""


def named_texts(named: Sequence[str]) -> Iterator[NamedText]:
    """Texts that are named on a command line: lines of files, .txt files in folders as a whole, or texts themselves.

    Raises:
        ValueError: a folder holds no texts.
        FileNotFoundError: there is no file of a name that can only be one.
    """
    for name in named:
        path = Path(name)
        found: list[tuple[str, str]] = []
        if name and _is(path.is_dir):
            found = [(str(file), decoded(file)) for file in sorted(path.rglob("*.txt"))]
            if not found:
                raise ValueError(f"there are no .txt files in {name}")
        elif _is(path.is_file):
            found = [(f"{path}:{number}", line) for number, line in enumerate(lines_of(path), 1)]
        elif path.suffix.lower() in (".txt", *_TABLES) and len(name.split()) == 1:
            raise FileNotFoundError(f"there is no file {name}")
        else:
            found = [("", name)]
        for place, line in found:
            text = NamedText(line)
            text.place = f"{place}: " if place else ""
            yield text

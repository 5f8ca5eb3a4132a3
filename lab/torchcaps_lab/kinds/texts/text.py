"""Texts with one class each, from the user's files or a published collection."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.numerics import Size
from torchcaps.spec import argument, settings
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.files import ClassFolders, found_root
from torchcaps_lab.data.listed import Decoded, Listed, ListedData
from torchcaps_lab.data.manifest import PARTS, Manifest, one_digest
from torchcaps_lab.data.table_form import TableForm
from torchcaps_lab.data.transforms.preprocess import Preprocess
from torchcaps_lab.kinds.texts.files import list_texts
from torchcaps_lab.kinds.texts.text_set import TextSet
from torchcaps_lab.kinds.texts.word_vectors import read_vectors
from torchcaps_lab.kinds.texts.words import RESERVED, Words, plain_words
from torchcaps_lab.look import counted


@register_dataset("text")
@settings
class Text(ListedData):
    r"""Texts with one class each, or several, in any of these forms:

    - a folder with a sub-folder of .txt files for each class, or folders ``train`` and
      ``test`` that hold these, as for :class:`~torchcaps_lab.data.ImageFolder`; a file
      is a text;
    - a table with a column of texts and one of labels, a .csv or .tsv file, or a .jsonl
      file with a JSON object in each line; or a folder with the tables ``train`` and
      ``test``, and maybe ``val``;
    - the folders of four collections in their original form: TREC
      (``train_5500.label``, ``TREC_10.label``), MR (``rt-polarity.pos``, ``.neg``),
      SUBJ (``subj.subjective``, ``.objective``), SST (``stsa.binary.train``, ``.dev``,
      ``.test``, or ``stsa.fine.train``, ...; where both are in the folder, ``root`` is
      the file ``stsa.binary.train``).

    Files are read as UTF-8, or else as Windows-1252. A text without a word is left out, and
    so is a row without a label. The words of the training texts are the vocabulary,
    which is saved with a network. Which texts are put aside depends on what they say,
    and a run keeps a record of it, as with :class:`~torchcaps_lab.data.ImageFolder`.

    Args:
        root: the folder, or the table; if it does not exist, it is looked for in the
            folder of the data sets (the environment variable TORCHCAPS_DATA, else
            torchcaps in the user's cache folder).
        text: the column of the texts.
        label: the column of the labels; or several, of yes and no (1 and 0, true and
            false), with a class each.
        delimiter: what stands between several labels in one cell, ``[]`` around lists;
            None: each text has one label.
        split: a column that says which split a row belongs to; None for none.
        group: the column of groups, such as authors; a group stays in one split; None
            for none.
        class_folders: which folders are the classes where folders hold folders, the
            ``outer`` or the ``inner`` ones; default: the outer ones, unless they hold
            the same folders.
        longest: number of words that are read of each text, from its beginning; a note
            gives the number of longer texts.
        most: the largest number of words in the vocabulary, the most frequent ones.
        least: the number of times that a word must occur to be in the vocabulary.
        lower: whether texts are converted to lower case.
        vectors: a text file of pretrained word vectors (GloVe, fastText, word2vec); its
            words start with these vectors, scaled to the deviation of random ones, and
            are trained further; ``word_dim`` of the network must be their dimension.

    Raises:
        FileNotFoundError: there is no `root`, or no file `vectors`.
        ValueError: an argument is out of range, there is nothing of the forms above, or
            there are fewer than two classes.

    Example:
        >>> from pathlib import Path
        >>> from torchcaps_lab.data import Text
        >>> rows = [
        ...     f"it was {word} {place},{word}"
        ...     for word in ("dull", "fun")
        ...     for place in range(10)
        ... ]
        >>> Path("reviews.csv").write_text("\n".join(["review,stars", *rows])) > 0
        True
        >>> data = Text("reviews.csv", text="review", label="stars")
        >>> data.classes
        ('dull', 'fun')
    """

    gives = "words"
    reads = "texts"
    model = "text_pooled"

    things = sources = "texts"

    root: str | Path
    text: str = "text"
    label: str | Sequence[str] = "label"
    group: str | None = None
    delimiter: str | None = argument(default=None, kw_only=True)
    split: str | None = argument(default=None, kw_only=True)
    class_folders: ClassFolders | None = argument(default=None, kw_only=True)
    longest: Size = 512
    most: Size = 50_000
    least: Size = 1
    lower: bool = True
    vectors: str | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.root = found_root(self.root)
        _ = self.listed  # problems of the files are reported at once

    @property
    def words(self) -> Words:
        """The vocabulary, of the training texts."""
        return TextSet.require(self.train).words

    def arguments(self, preprocess: Preprocess) -> dict[str, Any]:
        """The size of the vocabulary; a `ValueError` unless ``preprocess`` is empty."""
        self.train.prepared(preprocess)
        return {"vocabulary": len(self.words)}

    def named_rows(
        self, extra: Mapping[str, Any]
    ) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
        """The classes, and the words, behind the numbers that stand for none."""
        known = extra.get("reader", {}).get("words", {}).get("vocabulary", ())
        none = [f"[{number}]" for number in range(RESERVED)]  # a word has no brackets
        vocabulary = [*none, *self.words.vocabulary], [*none, *known]
        return super().named_rows(extra) | {"vocabulary": vocabulary}

    def begin(self, network: nn.Module) -> None:
        """Gives its words the vectors of the file, if there is one.

        Raises:
            ValueError: the dimension of the network's word vectors is another, or the
                file is broken.
        """
        if self.vectors is None:
            return
        weight = network.get_parameter("embedding.weight")
        numbers, vectors = read_vectors(self.vectors, self.words)
        if vectors.shape[1] != weight.shape[1]:
            raise ValueError(
                f"{self.vectors} has vectors of {vectors.shape[1]} numbers, those of "
                "the network have "
                f"{weight.shape[1]}: --model_args.word_dim {vectors.shape[1]}"
            )
        with torch.no_grad():
            weight[numbers] = vectors * (weight.std() / vectors.std())

    @property
    def form(self) -> TableForm:
        """What the columns of tables are read as."""
        return TableForm.stated(self.text, vars(self))

    def list_items(self) -> Listed:
        """The texts, without those that contain no words."""
        listed = self.list_texts()
        cut = Words(lower=self.lower)
        for items in listed.parts.values():
            # A letter is a word or part of one; texts without letters need a closer
            # look.
            bare = [item for item in items if not any(map(str.isalnum, item.text))]
            empty = {item.name for item in bare if not cut.split(item.text)}
            listed.left_out |= dict.fromkeys(sorted(empty), "it has no words")
            items[:] = [item for item in items if item.name not in empty]
        self.form.divide_labels(listed)
        return listed

    def list_texts(self) -> Listed:
        """All texts, in any order of the classes."""
        root = Path(self.root)
        return list_texts(root, self.form, self.named, self.class_folders)

    def _how_read(self) -> tuple[Any, ...]:
        return self.longest, self.most, self.least, self.lower

    def notes(self) -> tuple[str, ...]:
        """Notes for readers of results: what was left out and why, which texts are cut,
        which are copies.
        """
        sets = list(map(TextSet.require, self._splits.sets.values()))
        # A full row may also be a text of exactly that length.
        rows = chain.from_iterable(texts.texts for texts in sets)
        full = [text for text in rows if len(text) > self.longest]
        cut = [
            reading.length
            for reading in self.words.read(full)
            if reading.length > self.longest
        ]
        if not cut:
            return super().notes()
        return (
            *super().notes(),
            f"{counted(len(cut), 'texts')} of {sum(map(len, sets)):,} longer than "
            f"{self.longest} words, of which the first "
            f"{self.longest} are read; the longest has {max(cut):,}",
        )

    def _same_content(
        self, manifest: Manifest, sets: Mapping[str, Examples]
    ) -> Mapping[str, str]:
        """The digest that stands for those of texts that differ in blanks, case or
        marks at the ends of words alone.
        """
        return one_digest(
            {
                entry.digest: plain_words(self._items[entry.name].text)
                for entry in chain.from_iterable(manifest.parts.values())
            }
        )

    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        """The texts of each split; the vocabulary is that of the training texts."""
        texts: dict[str, list[str]] = {}
        for part in PARTS:
            entries = manifest.parts[part]
            texts[part] = [self._items[entry.name].text for entry in entries]
        # Texts that are only tested on are read with a network's words.
        vocabulary = texts["train"] or texts["test"]
        words = Words.of(
            vocabulary, self.most, self.least, lower=self.lower, longest=self.longest
        )
        if not len(words):
            raise ValueError(
                f"no word occurs {self.least} times in the training texts: least must "
                "be smaller"
            )
        sets: dict[str, Examples] = {}
        for part in PARTS:
            entries = manifest.parts[part]
            files = tuple(entry.name for entry in entries)
            sets[part] = TextSet.of(
                texts[part],
                self.targets(entries, manifest.classes),
                manifest.classes,
                words,
                files,
            )
        return sets, {}

"""Items that are listed before they are read: files in a folder, rows of a table."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchcaps.numerics import ProperShare
from torchcaps.spec import argument, settings
from torchcaps_lab.data.base import (
    TEST_SEED,
    DataSet,
    group_of,
    stable_split,
)
from torchcaps_lab.data.classes import UnknownClasses, places_of
from torchcaps_lab.data.columns import measured, measurements, parts_of
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.labels import Labels, each_of
from torchcaps_lab.data.manifest import (
    MOST_REASONS,
    PARTS,
    Changes,
    Entry,
    Manifest,
    groups_lines,
    lacking_lines,
    left_out_lines,
    names_doubts,
    readable,
    some,
)
from torchcaps_lab.data.streams import digest_of
from torchcaps_lab.look import counted, in_order, singular


class BrokenItem(ValueError):
    """The error for an item that cannot be read.

    Args:
        name: the name of the item.
        why: what is wrong with it.
    """

    things: ClassVar[str] = "items"
    """What such items are called in messages."""

    def __init__(self, name: str | Path, why: str) -> None:
        super().__init__(f"cannot read the {singular(self.things)} {name}: {why}")
        self.name = str(name)
        self.why = why

    @classmethod
    def of(cls, path: Path, error: OSError | ValueError) -> "BrokenItem":
        """The problem of a file, from an error that may begin with its path."""
        why = str(error).removeprefix(f"{path}: ")
        return cls(path, why.replace(f"{path} ", "it ", 1))


@dataclass(frozen=True)
class Item(ABC):
    """One thing that is listed.

    Args:
        name: identifies it among all listed ones.
        category: the name of its class; empty where it is not known.
        group: whom or what it is of; empty where that is not known.
    """

    name: str
    category: str
    group: str = field(default="", kw_only=True)

    @property
    def title(self) -> str:
        """What people call it."""
        return self.name

    @abstractmethod
    def source(self) -> Any:
        """Its file, its content, or the thing itself."""


@dataclass
class Listed:
    """The items of a data set, none of them opened yet.

    Attributes:
        classes: the name of each label.
        parts: the items of each split of the source; ``all`` if it has no splits.
        left_out: other things that were found, by name, and why they were left out.
        notes: what a reader of results should know.
        separator: what stands between the labels of an item in its category; empty if
            each item has one label.
        refused: why it cannot be trained on, for people.
        broken: the problems of items that were read and cannot be, by name.
    """

    classes: tuple[str, ...] = ()
    parts: dict[str, list[Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    separator: str = ""
    refused: list[str] = field(default_factory=list)
    broken: dict[str, BrokenItem] = field(default_factory=dict)

    def group(self, before: str) -> None:
        """Group the items by their names, see
        :func:`~torchcaps_lab.data.base.group_of`.
        """
        if before:
            for part, items in self.parts.items():
                self.parts[part] = [
                    replace(item, group=group_of(item.name, before)) for item in items
                ]

    def find_test(self, what: str) -> None:
        """Test on the items for validation if there are none to test on, with a note;
        without these, make the items to train on ``all``, of which a share is put aside.

        Args:
            what: what the items are called, such as "images".

        Raises:
            ValueError: there are no items to train on.
        """
        parts = self.parts
        if "all" in parts or not parts:
            return
        if "train" not in parts:
            raise ValueError(
                f"there are no training {what} with labels, only {' and '.join(parts)}"
            )
        if "test" in parts:
            return
        if "validation" not in parts:
            parts["all"] = parts.pop("train")
            return
        parts["test"] = parts.pop("validation")
        self.notes += (
            f"there are no separate test {what}: the validation {what} are used as the "
            f"test, and a share of the training {what} for validation",
        )

    def labels_of(self, category: str) -> tuple[str, ...]:
        """The labels that the category of an item stands for."""
        if not self.separator:
            return (category,)
        return tuple(parts_of(category, self.separator))

    def labels_in(self, items: Iterable[Item | Entry]) -> set[str]:
        """The labels of items."""
        categories = {item.category for item in items}
        return {*chain.from_iterable(map(self.labels_of, categories))}

    def class_errors(self, root: object, things: str) -> Iterator[ValueError]:
        """The errors for fewer than two classes, and for items of other ones.

        Args:
            root: the file or the folder of the items; empty for none.
            things: what the items are called.
        """
        if len(self.classes) < 2:
            holds = f"{root} must hold {things} of" if root else "there must be"
            yield ValueError(f"{holds} two or more classes, got {self.classes}")
        for part, items in self.parts.items():
            called = things if part == "all" else f"the {part} {things}"
            names = sorted(self.labels_in(items))
            try:
                places_of(
                    names, self.classes, f"{called} of {root}" if root else called
                )
            except UnknownClasses as error:
                yield error

    @property
    def trained(self) -> list[Any]:
        """The items to train on, maybe with those that will be put aside."""
        return self.parts.get("train", self.parts.get("all", []))

    def trained_labels(self) -> tuple[str, ...]:
        """The labels of the items to train on, in their order."""
        return in_order(self.labels_in(self.trained))

    @property
    def items(self) -> list[Item]:
        """The items of all parts."""
        return list(chain.from_iterable(self.parts.values()))


@dataclass(frozen=True)
class _Splits:
    """The examples of all splits, and their manifest.

    Args:
        sets: the examples of each split.
        manifest: which items they are.
        same_content: finds files of the same content, see
            :meth:`RecordedData._same_content`.
    """

    sets: dict[str, Examples]
    manifest: Manifest
    same_content: Callable[[Manifest, Mapping[str, Examples]], Mapping[str, str]]

    @cached_property
    def same(self) -> Mapping[str, str]:
        """The digest that stands for those of files of the same content; finding it may
        take a look at every pixel.
        """
        return self.same_content(self.manifest, self.sets)


Parts = dict[str, list[Entry]]
"""The items of each split."""

Decoded = tuple[dict[str, Examples], Mapping[str, BrokenItem]]
"""The items of each split, and the problems of those that cannot be read, by name."""


@settings
class RecordedData(DataSet):
    """Items that are listed one by one before they are read. Which of them are in which
    split is recorded, so that a later run follows the same split when items come and
    go; subclasses list, divide and read them.

    Args:
        skip_broken: leave out items that cannot be read, with a note, instead of
            raising an error.
    """

    sources: ClassVar[str] = "files"
    """What items are in, likewise."""

    advice = "leave them out to see the rest"
    """How to see the broken items that an error does not list."""

    skip_broken: bool = argument(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._followed: Manifest | None = None
        self._changes = Changes()

    @abstractmethod
    def list_items(self) -> Listed:
        """The list of items, without opening any."""

    @cached_property
    def listed(self) -> Listed:
        """The list of items, made once."""
        listed = self.list_items()
        if listed.refused:
            raise ValueError("; ".join(listed.refused))
        if listed.broken and not self.skip_broken:
            raise all_broken(list(listed.broken.values()), self.advice)
        listed.left_out |= {name: why.why for name, why in listed.broken.items()}
        self._complete(listed)
        return listed

    def _complete(self, listed: Listed) -> None:
        """Check the list, and add what it lacks."""

    @abstractmethod
    def _divide(self, entries: Parts, same: Mapping[str, str]) -> Parts:
        """Choose the items of each split.

        Args:
            entries: those of each split of the source; ``all`` if it has no splits.
            same: the digest that stands for those of files of the same content.
        """

    @abstractmethod
    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        """The items of each split, and the problems of those that cannot be read, by
        name.

        Args:
            manifest: which items.
            decoded: all of them by name, if they were decoded before.
        """

    def _check_trained(
        self, train: Sequence[Entry], left_out: Mapping[str, str]
    ) -> None:
        """Raise a `ValueError` if there is nothing to train on."""
        if not train:
            raise ValueError(f"none of the {self.things} to train on can be read")

    def labels_of(self, category: str) -> tuple[str, ...]:
        """The classes that the category of an item names."""
        return ()

    def load_train(self) -> Examples:
        """Read what to train on, without what is for validation."""
        return self._splits.sets["train"]

    def load_validation(self) -> Examples | None:
        """Read what is for validation, if the source has a part for it."""
        if "validation" in self.listed.parts:
            return self._splits.sets["validation"]
        return None

    def load_test(self) -> Examples:
        """Read what to test on."""
        return self._splits.sets["test"]

    def manifest(self) -> Manifest:
        """Which files the items come from, split by split."""
        return self._splits.manifest

    def follow(self, manifest: Manifest) -> Changes:
        """Takes over the splits of a manifest; files that are not in it are left
        out.
        """
        self._followed = manifest
        for name in ("_splits", "_train_and_validation", "test"):
            vars(self).pop(name, None)
        _, changes = manifest.follow([*self._entries.values()], self.labels_of)
        self._changes = replace(changes, things=self.things)
        return self._changes

    def test_on_all(self) -> None:
        """Makes every file a test image; none is decoded for it."""
        entries = tuple(self._entries.values())
        self.follow(
            Manifest(
                self.listed.classes,
                {"train": (), "validation": (), "test": entries},
                self.listed.left_out,
            )
        )

    def notes(self) -> tuple[str, ...]:
        """What was left out and why, where test items are from, what changed, which
        classes a split lacks, copies in several splits.
        """
        sets = self._splits.sets
        shown = {part: examples.shown() for part, examples in sets.items()}
        return (
            *self.listed.notes,
            *self._changes.lines(),
            *left_out_lines(self.manifest().left_out, self.sources),
            *lacking_lines(sets["train"].classes, shown, self.things),
            *self.contradictions(),
        )

    def contradictions(self) -> tuple[str, ...]:
        """Copies in several parts or classes, and groups in several parts."""
        groups = {name: item.group for name, item in self._items.items()}
        return (*super().contradictions(), *groups_lines(groups, self.manifest()))

    def record(self) -> Manifest:
        """The manifest, with one digest for files of the same pixels."""
        return self.manifest().merged(self._splits.same)

    def omissions(self) -> tuple[str, ...]:
        """What was left out of the source, and why."""
        return (
            *self.listed.notes,
            *left_out_lines(self.manifest().left_out, self.sources),
        )

    @cached_property
    def _train_and_validation(self) -> tuple[Examples, Examples]:
        return self._splits.sets["train"], self._splits.sets["validation"]

    @cached_property
    def _splits(self) -> _Splits:
        """All items. Leaving out broken ones changes the splits, so everything is read
        again then.

        Files of the same content are known once they are decoded: what was decoded is
        then divided anew.
        """
        left_out = dict(self.listed.left_out)
        decoded = dict[str, Tensor]()
        same: Mapping[str, str] = {}
        while True:
            manifest = self._parts(left_out, same)
            if not any(manifest.parts.values()):
                raise ValueError(
                    f"none of the {self.things} that the run was trained and tested on "
                    "exists any more"
                )
            sets, problems = self._decode(manifest, decoded)
            if problems and not self.skip_broken:
                raise all_broken(list(problems.values()), self.advice)
            if problems:
                left_out |= {name: problem.why for name, problem in problems.items()}
                continue
            splits = _Splits(sets, manifest, self._same_content)
            if self._followed is not None:
                return splits
            same = splits.same
            if self._parts(left_out, same) == manifest:
                return splits
            for part, examples in sets.items():
                names = [entry.name for entry in manifest.parts[part]]
                decoded |= zip(names, examples.inputs, strict=True)

    def _parts(self, left_out: dict[str, str], same: Mapping[str, str]) -> Manifest:
        """Which files belong to which split, without those in ``left_out``; files of
        ``same`` content in one.
        """
        if self._followed is not None:
            present = [
                entry for entry in self._entries.values() if entry.name not in left_out
            ]
            followed, _ = self._followed.follow(present, self.labels_of)
            return replace(followed, left_out={**self._followed.left_out, **left_out})
        entries = {
            part: [
                self._entries[item.name] for item in items if item.name not in left_out
            ]
            for part, items in self.listed.parts.items()
        }
        parts = self._divide(entries, same)
        self._check_trained(parts["train"], left_out)
        return Manifest(
            self.listed.classes, {part: tuple(parts[part]) for part in PARTS}, left_out
        )

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        """The record of each item, by its name."""
        return {
            name: Entry(name, self._category(item), self._digest(item))
            for name, item in self._items.items()
        }

    def _category(self, item: Any) -> str:
        """What an item is taken for: copies of different ones contradict each other."""
        return str(item.category)

    def _digest(self, item: Any) -> str:
        """Digest the content of an item."""
        return digest_of(item.source())

    def _same_content(
        self, manifest: Manifest, sets: Mapping[str, Examples]
    ) -> Mapping[str, str]:
        """The digest that stands for those of different files of the same content, by
        these; none unless a kind of input knows such files.

        Args:
            manifest: which items were read.
            sets: the examples of each split.
        """
        return {}

    @cached_property
    def _items(self) -> dict[str, Any]:
        return {item.name: item for item in self.listed.items}


def put_aside(
    entries: Sequence[Entry],
    labels: Tensor,
    share: float,
    seed: int,
    same: Mapping[str, str],
    groups: Sequence[str] = (),
) -> tuple[list[Entry], list[Entry]]:
    """Divide items by :func:`~torchcaps_lab.data.base.stable_split` into the rest and
    what is put aside; ``same`` is the digest that stands for those of the same content.
    """
    digests = [same.get(entry.digest, entry.digest) for entry in entries]
    known = groups if any(groups) else None
    rest, aside = stable_split(labels, digests, share, seed, known)
    return [entries[row] for row in rest], [entries[row] for row in aside]


@settings
class ListedData(RecordedData):
    """Items that are listed one by one before they are read, each with a class;
    subclasses list and read them.

    Args:
        test: share of the items that become the test set, the same in every class and
            for every ``seed``; ignored if the source has a test set; the choice depends
            on their contents, so it barely changes when the source changes.
        classes: the names of the classes in the order of their labels, some of which
            may have no items; default: those of the training items.
        test_groups: the groups to test on, of items whose group is known; default: a
            share of them, ``test``, the same for every ``seed``.
        validation_groups: likewise; default: a share of the others, ``validation``.
        group_before: what the group of an item ends at in its name, such as ``_`` in
            ``anna_01.png``, or ``/`` for the name of the folder that it is in; whole
            groups are put aside; default: those that the source knows.

    Raises:
        ValueError: there are fewer than two classes, or items of another one, or no
            such groups.
    """

    test_share: ProperShare = argument(default=0.2, alias="test", kw_only=True)
    class_names: Sequence[Any] | None = argument(
        default=None, alias="classes", kw_only=True
    )
    test_groups: tuple[str, ...] = argument(default=(), kw_only=True)
    validation_groups: tuple[str, ...] = argument(default=(), kw_only=True)
    group_before: str = argument(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.named = tuple(map(str, self.class_names or ()))
        if len({*self.named}) < len(self.named):
            raise ValueError(f"classes must have different names, got {self.named}")

    def _complete(self, listed: Listed) -> None:
        """Find what to test on, the groups, and the classes, which are matched by
        name.
        """
        listed.find_test(self.things)
        listed.group(self.group_before)
        self._check_groups(listed)
        listed.classes = self.named or listed.classes or listed.trained_labels()
        self._check_classes(listed)

    def _check_classes(self, listed: Listed) -> None:
        """Raise a `ValueError` if there are fewer than two classes, or items of other
        ones, or they are measurements.
        """
        root = getattr(self, "root", "")
        categories = [item.category for item in listed.trained if item.category]
        if (
            not self.named
            and not listed.separator
            and (why := measurements(categories))
        ):
            raise measured(str(root) or "the data", why)
        for error in listed.class_errors(root, self.things):
            raise error

    @property
    def separator(self) -> str:
        """As of :class:`Listed`."""
        return self.listed.separator

    def labels_of(self, category: str) -> tuple[str, ...]:
        """One class, or several where an item may have several."""
        return self.listed.labels_of(category)

    def default_task(self) -> str | Mapping[str, Any]:
        """Several labels where an item may have several."""
        several = self.separator and self.task == DataSet.task
        return "several_labels" if several else super().default_task()

    def targets(self, entries: Sequence[Entry], classes: Sequence[str]) -> Tensor:
        """The labels of items, int64 (N,), or masks, bool (N, E), where an item may
        have several.

        Args:
            entries: the items.
            classes: the names of the labels.
        """
        label_of = {name: label for label, name in enumerate(classes)}
        labels_of = {
            category: [label_of[name] for name in self.labels_of(category)]
            for category in {entry.category for entry in entries}
        }
        rows = [labels_of[entry.category] for entry in entries]
        if not self.separator:
            return torch.tensor([label for (label,) in rows], dtype=torch.int64)
        masks = torch.zeros(len(entries), len(classes), dtype=torch.bool)
        for mask, labels in zip(masks, rows, strict=True):
            mask[labels] = True
        return masks

    def _check_groups(self, listed: Listed) -> None:
        """Raise a `ValueError` if groups to put aside are not there, or are in both."""
        groups = {item.group for item in listed.items}
        if unknown := {*self.test_groups, *self.validation_groups} - groups:
            raise ValueError(
                f"test_groups and validation_groups must be among {sorted(groups)}, "
                f"got {sorted(unknown)}"
            )
        for part, named in (
            ("test", self.test_groups),
            ("validation", self.validation_groups),
        ):
            if named and part in listed.parts:
                raise ValueError(
                    f"{part}_groups must be empty, since the source has a {part} part "
                    f"of its own, got {named}"
                )
        if both := {*self.test_groups} & {*self.validation_groups}:
            raise ValueError(
                "a group must be in test_groups or in validation_groups, got "
                f"{sorted(both)} in both"
            )

    def fingerprint(self) -> str:
        """A digest of the training and validation items, in their order, and of how
        they are read.
        """
        how = (self.manifest().digest(), *self._how_read())
        return hashlib.sha256(repr(how).encode()).hexdigest()

    @abstractmethod
    def _how_read(self) -> tuple[Any, ...]:
        """The arguments that decide how an item is read."""

    def notes(self) -> tuple[str, ...]:
        """What all data note, and items without labels, and names that are alike."""
        return (
            *super().notes(),
            *self._without_labels(),
            *names_doubts(self.manifest().classes),
        )

    def _without_labels(self) -> list[str]:
        """Tell people of items that have none of several labels."""
        bare = [item.name for item in self.listed.items if not item.category]
        if not bare or not self.separator:
            return []
        return [
            f"{counted(len(bare), self.things)} without a label, which show none of the "
            f"classes: {some(bare)}"
        ]

    def _divide(self, entries: Parts, same: Mapping[str, str]) -> Parts:
        """The items of each split: named groups, or a share of every label, where the
        source has no such split.
        """
        if "all" in entries:
            entries["train"], entries["test"] = self._divided(
                entries.pop("all"), self.test_groups, self.test_share, TEST_SEED, same
            )
            if self.test_share and not entries["test"]:
                raise ValueError(
                    f"each class has one {singular(self.things)} alone, so that there is nothing to "
                    f"test on: give more of each class, or train without a test with "
                    "--data.test 0"
                )
        if "validation" not in entries:
            entries["train"], entries["validation"] = self._divided(
                entries["train"],
                self.validation_groups,
                self.validation_share,
                self.seed,
                same,
            )
        return entries

    def _divided(
        self,
        entries: Sequence[Entry],
        named: Sequence[str],
        share: float,
        seed: int,
        same: Mapping[str, str],
    ) -> tuple[list[Entry], list[Entry]]:
        """The rest and the part put aside: the named groups, or else a share of every
        label, chosen by content in whole groups.
        """
        groups = [self._items[entry.name].group for entry in entries]
        if not named:
            labels = self.targets(entries, self.listed.classes)
            return put_aside(entries, labels, share, seed, same, groups)
        of_groups = list(zip(entries, groups, strict=True))
        return (
            [entry for entry, group in of_groups if group not in named],
            [entry for entry, group in of_groups if group in named],
        )

    def _check_trained(
        self, train: Sequence[Entry], left_out: Mapping[str, str]
    ) -> None:
        """Raise a `ValueError` if there is nothing to train on of a class; a label beside
        others may be too rare to be in each split.
        """
        items = [] if self.separator else self.listed.items
        for category in {item.category for item in items} - {
            entry.category for entry in train
        }:
            reasons = [
                f"{name} ({why})"
                for name, why in left_out.items()
                if category in Path(name).parts
            ]
            because = f": {some(reasons)}" if reasons else ""
            raise ValueError(
                f"class {category!r} holds no training {singular(self.things)} that can be "
                f"read{because}"
            )
        super()._check_trained(train, left_out)


def list_labelled(
    inputs: Sequence[Any] | None,
    labels: Any,
    kind: str,
    item_of: Callable[[str, str, Any], Item],
) -> Listed:
    """The examples that a program has.

    Args:
        inputs: the examples; None is refused.
        labels: a whole number or a name for each, or a row of 0 with one 1.
        kind: the data set, for messages.
        item_of: makes an item of a name, a label and an example.

    Raises:
        ValueError: there are no examples, or not one label for each.
    """
    if inputs is None or labels is None:
        raise ValueError(
            f"{kind} has the examples and the labels of a program, which no file and no "
            "option can hold: call it in Python, as in torchcaps.train(inputs, labels, "
            "run=..., resume=True)"
        )
    read = Labels.of(each_of(labels, "example"))
    if len(inputs) != len(read.rows):
        raise ValueError(
            f"there must be a label for each example, got {len(inputs):,} examples and "
            f"{len(read.rows):,} labels"
        )
    if read.several:
        place = next(place for place, row in enumerate(read.rows) if len(row) != 1)
        raise ValueError(
            f"each example must have one label, example {place} has {read.rows[place]}; "
            "examples of several labels are read from a table"
        )
    used = [label for (label,) in read.rows]
    items = [
        item_of(str(place), str(label), example)
        for place, (label, example) in enumerate(zip(used, inputs, strict=True))
    ]
    return Listed(parts={"all": items}, classes=read.classes(used), notes=read.notes())


def all_broken(problems: Sequence[BrokenItem], advice: str) -> ValueError:
    """One error for all items that cannot be read, those of one reason on one line."""
    of_reasons: dict[str, list[BrokenItem]] = {}
    for problem in problems:
        of_reasons.setdefault(problem.why, []).append(problem)
    lines = [_broken_for(why, alike) for why, alike in of_reasons.items()]
    if more := len(lines[MOST_REASONS:]):
        lines[MOST_REASONS:] = [f"and {more:,} other reasons: {advice}"]
    lines.append(
        f"{counted(len(problems), problems[0].things)} cannot be read: repair or remove them, or "
        "leave them out with skip_broken (--data.skip_broken true)"
    )
    return ValueError("\n".join(lines))


def _broken_for(why: str, problems: Sequence[BrokenItem]) -> str:
    """The line about the items that cannot be read for one reason."""
    if len(problems) == 1:
        return readable(str(problems[0]))
    names = some([problem.name for problem in problems])
    count = counted(len(problems), problems[0].things)
    return readable(f"cannot read {count}, {names}: {why}")

"""The record of the images of a data set: names and digests of their contents, split by
split.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torchcaps.whole import LARGEST_TABLE, read_json, write_whole
from torchcaps_lab.data.plain_text import check_class_names
from torchcaps_lab.look import counted, is_number, singular

PARTS = ("train", "validation", "test")

_SHOWN = 20
"""Names in a line for people; the manifest has all of them."""

MOST_REASONS = 100
"""Reasons for people why items are left out or cannot be read."""


@dataclass(frozen=True)
class Changes:
    """The differences between the images of a manifest and those that are there now.

    Attributes:
        added: names that are new; they belong to no split.
        removed: names that are gone.
        changed: names whose content has changed.
        renamed: old and new names of the same content in the same class.
        things: the word for them.
        classes: classes that are new; all their images are among those that are added.

    Example:
        >>> from torchcaps_lab.data import Changes
        >>> Changes(added=("cats/9.png",)).lines()
        ('1 image added since the training, left out of all parts: cats/9.png',)
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    things: str = "images"
    classes: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """The same for people, a line for each kind of change."""
        lists = (
            (self.added, "added since the training, left out of all parts"),
            (self.removed, "gone since the training"),
            (self.changed, "changed since the training"),
            (
                [f"{old} -> {new}" for old, new in self.renamed],
                "renamed since the training",
            ),
        )
        return tuple(
            f"{counted(len(names), self.things)} {change}: {some(names)}"
            for names, change in lists
            if names
        )


class Entry(NamedTuple):
    """One image of a manifest.

    Args:
        name: which image it is; in a folder, its path from the root, with slashes.
        category: the name of its class.
        digest: the digest of its content, SHA-256 in hexadecimal.

    Example:
        >>> from torchcaps_lab.data import Entry
        >>> Entry("cats/1.png", "cats", digest="0" * 64).name
        'cats/1.png'
    """

    name: str
    category: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The images of each split, in their order.

    Attributes:
        classes: the name of each label.
        parts: the images of ``train``, ``validation`` and ``test``.
        left_out: other things that were found, by name, and why they were left out.

    Example:
        >>> from torchcaps_lab.data import Entry, Manifest
        >>> first, second = (
        ...     Entry("cats/1.png", "cats", "0" * 64),
        ...     Entry("cats/2.png", "cats", "1" * 64),
        ... )
        >>> manifest = Manifest(
        ...     ("cats",), {"train": [first], "validation": [], "test": [second]}
        ... )
        >>> manifest.follow([first])[1].removed  # what is gone
        ('cats/2.png',)
    """

    classes: tuple[str, ...]
    parts: Mapping[str, Sequence[Entry]]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_class_names(self.classes, "the name of a class")

    def digest(self) -> str:
        """SHA-256 of the classes and contents of the training and validation images, in
        their order, in hexadecimal.
        """
        train = [entry[1:] for entry in self.parts["train"]]
        validation = [entry[1:] for entry in self.parts["validation"]]
        parts = [train, validation]
        return hashlib.sha256(json.dumps([self.classes, parts]).encode()).hexdigest()

    def write(self, path: Path) -> None:
        """Writes it as JSON, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(path, json.dumps({"format": 1, **asdict(self)}))

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Reads what :meth:`write` wrote.

        Raises:
            ValueError: the file is damaged.
        """
        try:
            content = read_json(path, LARGEST_TABLE)
            parts = {}
            for part in PARTS:
                rows = content["parts"][part]
                parts[part] = tuple(Entry(*map(str, row)) for row in rows)
            return cls(
                tuple(map(str, content["classes"])), parts, dict(content["left_out"])
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: {error!r}") from error

    def follow(
        self,
        present: Sequence[Entry],
        labels_of: Callable[[str], Collection[str]] = lambda category: (category,),
    ) -> tuple["Manifest", Changes]:
        """The same splits of the images that there are now, and what changed.

        An image is found by its content, also under another name; and by its name, if
        its content was in no split, so that nothing that was trained on comes to be
        tested on.

        Args:
            present: the images that there are now.
            labels_of: the classes that a category names. Images of a new one are left
                out.
        """
        before = {
            entry.name: entry for entry in chain.from_iterable(self.parts.values())
        }
        contents = {entry.digest for entry in before.values()}
        classes = {*self.classes}
        known = [row for row in present if classes.issuperset(labels_of(row.category))]
        now = {entry.name: entry for entry in known}
        moved: dict[str, list[Entry]] = {}
        for entry in known:
            old = before.get(entry.name)
            if entry.name not in self.left_out and (
                old is None or old.digest != entry.digest
            ):
                moved.setdefault(entry.digest, []).append(entry)
        parts: dict[str, list[Entry]] = {part: [] for part in PARTS}
        removed = []
        changed = []
        renamed = []
        for part, entries in self.parts.items():
            for entry in entries:
                entry_now = now.get(entry.name)
                if entry_now is None or entry_now.digest != entry.digest:
                    if alike := moved.get(entry.digest):
                        entry_now = alike.pop(0)
                    elif entry_now is not None and entry_now.digest in contents:
                        entry_now = None
                if entry_now is None:
                    removed.append(entry.name)
                    continue
                parts[part].append(entry_now)
                if entry_now.name != entry.name:
                    renamed.append((entry.name, entry_now.name))
                elif entry_now.digest != entry.digest:
                    changed.append(entry.name)
        taken = {entry.name for entry in chain.from_iterable(parts.values())}
        taken |= self.left_out.keys()
        added = [entry for entry in present if entry.name not in taken]
        labels = chain.from_iterable(labels_of(entry.category) for entry in added)
        changes = Changes(
            tuple(entry.name for entry in added),
            tuple(removed),
            tuple(changed),
            tuple(renamed),
            classes=tuple(sorted({*labels} - classes)),
        )
        return Manifest(self.classes, parts, self.left_out), changes

    def merged(self, same: Mapping[str, str]) -> "Manifest":
        """The same with one digest for files of the same pixels, see
        :func:`torchcaps_lab.kinds.images.alike.same_content`.
        """

        if not same:
            return self

        def shared(entry: Entry) -> Entry:
            return entry._replace(digest=same.get(entry.digest, entry.digest))

        parts = {part: tuple(map(shared, rows)) for part, rows in self.parts.items()}
        return replace(self, parts=parts)

    def repeated(self) -> dict[str, int]:
        """How many images each split holds that has none of its own: all of them are in
        the splits before it, too.
        """
        seen = set[str]()
        counts = {}
        for part in PARTS:
            digests = {entry.digest for entry in self.parts.get(part, ())}
            if digests and digests <= seen:
                counts[part] = len(self.parts[part])
            seen |= digests
        return counts

    def by_content(self) -> list[list[tuple[str, Entry]]]:
        """Group the images of the same content, each with its split."""
        groups: dict[str, list[tuple[str, Entry]]] = {}
        for part, entries in self.parts.items():
            for entry in entries:
                groups.setdefault(entry.digest, []).append((part, entry))
        return [*groups.values()]


def one_digest(shown: Mapping[str, str]) -> dict[str, str]:
    """One digest for all files that show the same: the smallest of their own.

    Files that show what no other file does keep their digest, and with it their place
    in the split.

    Args:
        shown: what the file of each digest shows.

    Returns:
        That digest by the digest of a file, of those files for which it is another one.

    Example:
        >>> from torchcaps_lab.data.manifest import one_digest
        >>> one_digest({"b": "a cat", "a": "a cat", "c": "a dog"})
        {'b': 'a'}
    """
    first: dict[str, str] = {}
    for digest, content in shown.items():
        first[content] = min(digest, first.get(content, digest))
    return {
        digest: first[content]
        for digest, content in shown.items()
        if first[content] != digest
    }


_REPEATS = {
    "validation": "the training split, so validation cannot show overfitting",
    "test": "the training or validation split, so the test measures nothing new",
}
"""What a split without items of its own repeats, and what follows."""


def repeated_lines(manifest: Manifest, things: str = "images") -> list[str]:
    """Tell people which splits have no images, or other items, of their own."""
    lines = []
    for part, count in manifest.repeated().items():
        items = counted(count, f"{part} {things}")
        are = "is" if count == 1 else "are"
        lines.append(f"all of {items} {are} also in {_REPEATS[part]}")
    return lines


def copies_lines(manifest: Manifest, things: str = "images") -> list[str]:
    """Tell people which images, or other items, are in several splits, which in several
    classes, and which splits have none of their own.
    """
    groups = manifest.by_content()
    in_parts = [rows for rows in groups if len({part for part, _ in rows}) > 1]
    in_classes = [rows for rows in groups if len({row.category for _, row in rows}) > 1]
    lines = []
    for places, alike in (("parts of the data", in_parts), ("classes", in_classes)):
        names = [
            " = ".join(f"{entry.name} ({part})" for part, entry in rows)
            for rows in alike
        ]
        if names:
            lines.append(
                f"{counted(len(names), things)} of the same content in several "
                f"{places}: {some(names, '; ')}"
            )
    return lines + repeated_lines(manifest, things)


def several_lines(manifest: Manifest, things: str = "images") -> list[str]:
    """Tell people which images, or other items, are there more than once."""
    several = [
        " = ".join(entry.name for _, entry in rows)
        for rows in manifest.by_content()
        if len(rows) > 1
    ]
    if not several:
        return []
    return [f"{counted(len(several), things)} with copies: {some(several, '; ')}"]


def groups_lines(group_of: Mapping[str, str], manifest: Manifest) -> list[str]:
    """Tell people which groups are in several splits.

    Args:
        group_of: the group of each item, by its name; empty where it is not known.
        manifest: the splits.
    """
    parts_of: dict[str, set[str]] = {}
    for part, entries in manifest.parts.items():
        for entry in entries:
            if group := group_of.get(entry.name):
                parts_of.setdefault(group, set()).add(part)
    several = sorted(group for group, parts in parts_of.items() if len(parts) > 1)
    if not several:
        return []
    groups = counted(len(several), "groups")
    return [f"{groups} in several parts of the data: {some(several)}"]


_LACKS = {
    "train": "training {}, which cannot be learnt",
    "validation": "validation {}, which no choice of an epoch can heed",
    "test": "test {}, of which nothing is measured",
}
"""What a class lacks in each part, and what follows."""


def lacking_lines(
    classes: Sequence[str],
    parts: Mapping[str, Collection[str]],
    things: str = "images",
) -> list[str]:
    """Tell people which classes each part lacks.

    Args:
        classes: the names of all classes.
        parts: the classes that each part has; a part without any is not there.
        things: what has a class.
    """
    lines = []
    for part, lack in _LACKS.items():
        present = parts.get(part) or classes
        lacking = [name for name in classes if name not in present]
        if lacking:
            lack = lack.format(singular(things))
            lines.append(f"classes without a {lack}: {some(lacking)}")
    return lines


def left_out_lines(left_out: Mapping[str, str], things: str = "files") -> list[str]:
    """Tell people the names of what was left out, one line for each reason, up to
    :data:`MOST_REASONS` of them.
    """
    reasons: dict[str, list[str]] = {}
    for name, why in left_out.items():
        reasons.setdefault(why, []).append(name)
    lines = [
        f"left out {counted(len(names), things)}: {why}: {some(names)}"
        for why, names in islice(reasons.items(), MOST_REASONS)
    ]
    more = len(reasons) - len(lines)
    return lines + [f"left out more, for {more:,} other reasons"] * (more > 0)


_GROUPS = re.compile(
    r"(fold|part|batch|session|actor|speaker|subject|patient|person|user)[ _-]?\d+",
    re.I,
)
"""Names of folders that hold a share of all classes, or what is of one person."""


def names_doubts(classes: Sequence[str]) -> Iterator[str]:
    """Tell people of classes whose names may stand for one, or for none."""
    for what, key_of in (
        ("case, blanks or composition alone", _plain),
        ("form alone", _number),
    ):
        alike: dict[str, list[str]] = {}
        for name in classes:
            alike.setdefault(key_of(name), []).append(name)
        for names in alike.values():
            if len(names) > 1:
                yield (
                    f"classes whose names differ in {what}: "
                    f"{', '.join(map(repr, names))}: are they one?"
                )
    bare = [name for name in classes if not any(map(str.isalnum, name))]
    if len(bare) == 1:
        yield f"a class without a letter or digit: {bare[0]!r}: is its label missing?"
    if classes and all(map(_GROUPS.fullmatch, classes)):
        yield (
            f"the classes are called as folds, people or recordings are: "
            f"{some(classes)}: are they what is to be told apart?"
        )


def _plain(name: str) -> str:
    return "".join(unicodedata.normalize("NFC", name).split()).casefold()


def _number(name: str) -> str:
    """A number in one form, such as 1.0 for 1; another name as it is."""
    return str(float(name)) if is_number(name) else name


def some(names: Sequence[str], between: str = ", ") -> str:
    """The first names, and how many more there are."""
    shown = between.join(map(readable, names[:_SHOWN]))
    return shown + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")


def readable(name: str) -> str:
    """A name as printable text: undecodable bytes and control characters are
    escaped.
    """
    text = name.encode(errors="backslashreplace").decode()
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in text
    )

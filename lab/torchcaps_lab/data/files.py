"""Finds the files of a folder, their classes, and their splits if it has folders for
these.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from torchcaps.whole import expanded, is_there, resolved, seen_from
from torchcaps_lab.data.base import find_data_dir
from torchcaps_lab.data.classes import UnknownClasses, called_like, places_of
from torchcaps_lab.data.listed import BrokenItem, Item, Listed
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.parts import PART_NAMES, part_called
from torchcaps_lab.look import TABLES, advice_on, counted, in_order, is_junk, is_written

ClassFolders = Literal["outer", "inner"]
"""The folders that are classes, where folders hold folders."""

_LOOSE = "it lies in no class folder"
"""Why a file beside the class folders is left out."""

_FOLDERS = ", and the folders are the classes"
"""What else holds for a table beside them."""


@dataclass(frozen=True)
class ListedFile(Item):
    """One file of a class.

    Args:
        name: path relative to the root, with slashes.
        category: the name of its class.
        path: where it is.
    """

    path: Path

    @property
    def title(self) -> str:
        """What people call it."""
        return str(self.path)

    def source(self) -> Path:
        """The file that its content is read from."""
        return self.path


def items_in(
    files: Listed, item_of: Callable[[ListedFile], Item], broken: type[BrokenItem]
) -> Listed:
    """List the items that files hold, one each.

    Args:
        files: the files, listed.
        item_of: reads one of them.
        broken: the error for one that cannot be read.
    """
    listed = Listed(left_out=files.left_out, notes=files.notes)
    for part, of_part in files.parts.items():
        listed.parts[part] = []
        for file in of_part:
            try:
                listed.parts[part].append(item_of(file))
            except (OSError, ValueError) as error:
                listed.broken[file.name] = broken.of(file.path, error)
    return listed


@dataclass
class Listing(Listed):
    """The files found in a folder; none of them was opened. A kind of input says what
    they are called, and how their names end.

    Attributes:
        root: the folder; names are relative to it.
        empty: the class folders without files, for which it is refused.
        skip_empty: whether empty class folders are left out, with a note, instead of
            refused.
        class_folders: the folders that are classes; None: the outer ones, unless both
            would do.
    """

    root: Path = Path()
    empty: list[Path] = field(default_factory=list)
    hidden: set[Path] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    skip_empty: bool = False
    class_folders: ClassFolders | None = None
    what: ClassVar[str]
    """What the files are called in messages."""
    suffixes: ClassVar[Sequence[str]] = ()
    """The endings of the files that are read, in lower case."""
    unlabelled: ClassVar[str] = ""
    """What else can be done with files that lie in no class folder."""
    holds_groups: ClassVar[bool] = False
    """Whether the same folders in class folders are those of speakers, say."""
    empty_advice: ClassVar[str] = ""
    """What to do about a class folder that holds none."""

    @cached_property
    def endings(self) -> Collection[str]:
        """The endings of the files that are read, in lower case."""
        return self.suffixes

    def add(self, part: str, folder: Path) -> None:
        """Lists the class folders in ``folder`` as a split.

        The first split says which classes there are, unless they are known. It is
        refused if there are fewer than two, or one of them holds no files. Later
        splits may lack classes, and are refused for others, or if they are empty.
        """
        learned = not self.classes
        inside = self._by_class(folder)
        if self.skip_empty or not learned:
            inside = self._without_empty(inside)
        names = tuple(inside)
        if not learned:
            try:
                places_of(names, self.classes, str(folder))
            except UnknownClasses as error:
                self.refused.append(str(error))
                self.unknown += error.names
        elif len(names) < 2:
            self.refused.append(
                f"{folder} must hold a folder for each of two or more classes, got "
                f"{', '.join(names) or 'none'}{self._loose(folder)}{_hint_inside(_folders(folder))}"
            )
        elif self.class_folders is None:
            self._look_inside(folder, inside)
        categories = called_like(names, self.classes)
        self.classes += in_order(
            name for name in categories if name not in self.classes
        )
        files = self.parts.setdefault(part, [])
        for category, (name, paths) in zip(categories, inside.items(), strict=True):
            if learned and not paths:
                self.empty.append(folder / name)
                self.refused.append(
                    f"class folder {folder / name} holds no "
                    f"{self.what}{self._reasons(folder / name)}"
                )
            files += [ListedFile(self._name(file), category, file) for file in paths]
        if not learned and not files:
            # Of a network, the classes are known.
            otherwise = "to get answers without labels, use torchcaps predict"
            if part != "all":
                otherwise = (
                    "or give the folder to train on alone, and a share of it is put "
                    "aside to test on"
                )
            self.refused.append(
                f"{folder} holds no {self.what} in folders of "
                f"classes{self._reasons(folder)}{self._loose(folder)}; {otherwise}"
            )
        self._leave_out_loose(folder)

    def _by_class(self, folder: Path) -> dict[str, list[Path]]:
        """The files of each class, by the name of its folders."""
        class_folders = _folders(folder)
        if self.class_folders == "inner":
            for outer in class_folders:
                self._leave_out_loose(outer)
            inner = chain.from_iterable(map(_folders, class_folders))
            class_folders = sorted(inner, key=lambda path: (path.name, path))
        seen: set[Path] = {resolved(folder)}
        by_class: dict[str, list[Path]] = {}
        for path in class_folders:
            by_class.setdefault(path.name, []).extend(sorted(self.below(path, seen)))
        return by_class

    def _look_inside(self, root: Path, by_class: Mapping[str, list[Path]]) -> None:
        """Refuses class folders that hold the same folders, which may be the classes,
        and notes other folders in them: those of recordings or patients.
        """
        paths = [path.relative_to(root) for path in chain(*by_class.values())]
        folders = sorted({path.parts[:2] for path in paths if len(path.parts) > 2})
        holders = Counter(inner for _, inner in folders)
        repeated = [name for name, count in holders.items() if count > 1]
        nested = all(len(path.parts) > 2 for path in paths)
        repeats = len(holders) > 1 and 2 * len(repeated) > len(holders)
        if nested and repeats and not self.holds_groups:
            self.refused.append(
                f"the folders {some([*by_class])} of {root} hold the same folders, "
                f"{some(repeated)}: say which of them are the classes, with "
                "class_folders 'outer' or 'inner' (--data.class_folders inner)"
            )
        elif len(folders) > 1 and not repeated:
            named = some(["/".join(names) for names in folders])
            outer = some([*dict.fromkeys(outer for outer, _ in folders)])
            self.notes += (
                f"folders inside class folders are not classes: {named} count as "
                f"{outer}. If each is a person or a recording, --data.group_before / "
                f"keeps its {self.what} together. If they are the classes: "
                "--data.class_folders inner",
            )

    def _loose(self, folder: Path) -> str:
        """How many files lie in no class folder, and what to do with them and with the
        first that is not read.
        """
        files = [path for path in self._entries(folder) if is_there(path.is_file)]
        others = [path for path in files if path.suffix.lower() not in self.endings]
        count = len(files) - len(others)
        loose = ""
        if count:
            loose = (
                f", and {counted(count, self.what)} outside of class folders: put those "
                f"of each class into a folder of its name{self.unlabelled}"
            )
        # A .json or .txt file beside other data describes them.
        others.sort(key=lambda path: path.suffix.lower() in (".json", ".txt"))
        unread = (
            f"; {path.name}: {advice_on(path)}" for path in others if advice_on(path)
        )
        return loose + next(unread, "")

    def _without_empty(self, inside: dict[str, list[Path]]) -> dict[str, list[Path]]:
        """The class folders that hold files; a note names the others."""
        empty = [name for name, paths in inside.items() if not paths]
        if empty:
            self.notes += (
                f"class folders without {self.what} are left out: {some(empty)}",
            )
        return {name: paths for name, paths in inside.items() if paths}

    def below(self, folder: Path, seen: set[Path]) -> Iterator[Path]:
        """The files in a folder, however deep; links are followed, each folder is read
        once.

        Args:
            folder: the folder.
            seen: the folders that were read before; gets those that are read now.
        """
        real = resolved(folder)
        if real in seen:
            self._leave_out(folder, f"it links to {real}, which is read already")
            return
        if folder.is_symlink() and resolved(self.root).is_relative_to(real):
            self._leave_out(folder, f"it links to {real}, which holds {self.root}")
            return
        if is_written(folder):
            self._leave_out(folder, "torchcaps wrote it")
            return
        seen.add(real)
        for path in self._entries(folder):
            if is_there(path.is_file):
                if path.suffix.lower() in self.endings:
                    yield path
                else:
                    self._leave_out(path, self.not_read(path))
            elif is_there(path.is_dir):
                yield from self.below(path, seen)
            elif path.is_symlink():
                self._leave_out(path, "it links to nothing")
            else:
                self._leave_out(path, "it is not a readable file")

    def not_read(self, path: Path) -> str:
        """Why a file with such an ending is not read."""
        advice = advice_on(path)
        only = f"only {', '.join(self.suffixes)} files are {self.what}"
        return f"{only}; {advice}" if advice else only

    def _entries(self, folder: Path) -> list[Path]:
        try:
            paths = sorted(folder.iterdir())
            # Systems put files that begin with ._ beside those of others.
            self.hidden |= {
                path
                for path in paths
                if path.name.startswith(".")
                and not path.name.startswith("._")
                and path.suffix.lower() in self.endings
            }
            return [path for path in paths if not is_junk(path)]
        except OSError as error:
            self._leave_out(folder, f"it cannot be read: {error.strerror}")
            return []

    def _leave_out_loose(self, folder: Path) -> None:
        for path in self._entries(folder):
            if is_there(path.is_file):
                table = path.suffix.lower() in TABLES
                self._leave_out(path, _LOOSE + (_FOLDERS if table else ""))

    def _leave_out(self, path: Path, why: str) -> None:
        self.left_out[self._name(path)] = why

    def _reasons(self, folder: Path) -> str:
        inside = [
            why
            for name, why in self.left_out.items()
            if (self.root / name).is_relative_to(folder)
        ]
        return f": {inside[0]}" if inside else ""

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


FilesListed = TypeVar("FilesListed", bound=Listing)


def found_root(root: str | Path) -> str | Path:
    """A folder or file, or else what has its name in the folder of the data sets. An
    empty name stays: a data set of your own may hold its examples itself.

    Raises:
        FileNotFoundError: if there is neither.
    """
    if root == "":
        return root
    root = expanded(root)
    at_home = find_data_dir(None) / root
    if not root.exists() and not at_home.exists():
        raise FileNotFoundError(
            f"root {root} does not exist, and neither does {at_home}{seen_from(root)}"
        )
    return root if root.exists() else at_home


def list_folder(listing: FilesListed) -> FilesListed:
    """Lists the files of a kind in a folder of classes, or in folders of splits that
    hold these.

    Args:
        listing: the folder and how it is read, with nothing listed yet. Of classes
            that it knows, the folder may hold some.

    Raises:
        ValueError: it cannot be trained on; says all that is in the way. And what
            :func:`looked_through` raises.
    """
    looked_through(listing)
    if listing.refused:
        advice = listing.empty_advice if listing.empty else ""
        message = "; ".join(listing.refused) + advice
        if listing.unknown:
            raise UnknownClasses(message, listing.unknown)
        raise ValueError(message)
    return listing


def looked_through(listing: FilesListed) -> FilesListed:
    """The same, also of a folder that cannot be trained on.

    Raises:
        FileNotFoundError: there is no root.
        NotADirectoryError: the root is not a folder.
        ValueError: it is unclear which folders are splits and which are classes.
    """
    root = listing.root
    if not root.exists():
        raise FileNotFoundError(f"root {root} does not exist{seen_from(root)}")
    if not root.is_dir():
        raise NotADirectoryError(f"root {root} is not a folder")
    parts = _part_folders(root, type(listing))
    if parts is None:
        listing.add("all", root)
    else:
        for part in PART_NAMES:
            if part in parts:
                listing.add(part, parts[part])
        listing.find_test(listing.what)
        listing._leave_out_loose(root)
    if listing.hidden:
        count = counted(len(listing.hidden), f"hidden {listing.what}")
        names = some(sorted(map(listing._name, listing.hidden)))
        listing.notes += (f"{count} left out: {names}",)
    return listing


def _hint_inside(folders: Sequence[Path]) -> str:
    """What to give instead where the only folder has folders of its own, as in archives
    that are packed with a folder around everything.
    """
    if len(folders) != 1 or not _folders(folders[0]):
        return ""
    return f": if your data lie in {folders[0]}, give that folder"


def _folders(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if is_there(path.is_dir) and not is_junk(path) and not is_written(path)
    )


_WORD_END = re.compile(r"[ _-]")


def _part_folders(root: Path, kind: type[Listing]) -> dict[str, Path] | None:
    """The folders of the splits; None if all folders are classes.

    Folders with the names of splits are splits if one is of train and one of another
    split, if one of them holds several folders, or if there are no others.
    """
    named: dict[str, Path] = {}
    folders = _folders(root)
    unnamed = []
    by_name = {path: part_called(path.name) for path in folders}
    last = {path: part_called(_WORD_END.split(path.name)[-1]) for path in folders}
    if len({*last.values()} - {None}) > 1 and "train" in last.values():
        # Such as seg_train beside seg_test.
        by_name = last
    for path, part in by_name.items():
        if part is None:
            unnamed.append(path)
        elif part in named:
            raise ValueError(
                f"{root} holds {named[part].name!r} and {path.name!r}: only one can "
                f"be the {part} {kind.what}"
            )
        else:
            named[part] = path
    # A class may be called train, beside bus, or test, beside control.
    one_name = len(named) < 2 or "train" not in named
    if not named or (
        unnamed and one_name and all(len(_folders(path)) < 2 for path in named.values())
    ):
        return None
    holding = [path for path in unnamed if any(kind(root=path).below(path, set()))]
    _refuse_doubtful(root, named, holding, kind.what)
    return named


def _refuse_doubtful(
    root: Path, named: dict[str, Path], unnamed: Sequence[Path], what: str
) -> None:
    parts = " and ".join(repr(path.name) for path in named.values())
    if unnamed:
        train = _folders(named["train"]) if "train" in named else ()
        raise ValueError(
            f"{root} holds {parts}, as if these were parts of the data, but also "
            f"{some([path.name for path in unnamed])}, as if its folders were "
            "classes: move the classes into the parts, or rename a class that has "
            "the name of a part "
            f"({', '.join(chain.from_iterable(PART_NAMES.values()))})"
            f"{_hint_inside(train)}"
        )
    if "train" not in named:
        raise ValueError(
            f"{root} holds {parts} but no train: call the folder of the training "
            f"{what} 'train'"
        )
    if len(named) == 1:
        raise ValueError(
            f"{root} holds {parts} but neither val nor test: give the root "
            f"{named['train']}, of which a share is put "
            "aside to test on"
        )
